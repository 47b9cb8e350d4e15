//! Every call that does something to a lease, by somebody whose lease it is not: looking at it is not all that has to be
//! refused.
use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use tonic::transport::Channel;

use super::{House, NO_LEASE, without_id};

/// What can be done to a lease, besides looking at it.
#[derive(Clone, Copy, Debug)]
enum Call {
    Renew,
    Release,
    Attach,
    Revoke,
    Clear,
}

impl Call {
    const ALL: [Self; 5] = [
        Self::Renew,
        Self::Release,
        Self::Attach,
        Self::Revoke,
        Self::Clear,
    ];
    /// Audit lines of a call for a lease that exists and of one for none. A renewal for none is no sign of anything, and
    /// over TCP nobody is let attach at all: another tenant tries that on the Unix socket in main.7.
    const fn lines(self) -> usize {
        match self {
            Self::Renew => 1,
            Self::Attach => 0,
            Self::Release | Self::Revoke | Self::Clear => 2,
        }
    }
}

impl House {
    /// Each call with alice's lease, under its fence, and with one that is not there: refused alike, and written down.
    pub(super) async fn every_call(&self, who: &str) -> anyhow::Result<String> {
        let mut client = LeaseServiceClient::new(self.client(who)?.channel());
        let before = self.lines(who_in_the_audit(who))?;
        let mut told = Vec::new();
        for call in Call::ALL {
            let there = self.call(call, &mut client, self.lease).await?;
            let not_there = self.call(call, &mut client, NO_LEASE).await?;
            ensure!(
                there == not_there,
                "{call:?}: of a lease that exists it is told {there:?}, of one that does not {not_there:?}"
            );
            told.push(format!("{call:?}: {there}"));
        }
        let own = self.cli("alice", &["leases", "show", &self.lease.to_string()])?;
        ensure!(own.0, "alice's lease is over: {}", own.1);
        let lines: usize = Call::ALL.into_iter().map(Call::lines).sum();
        self.lines_come(who_in_the_audit(who), before + lines)
            .with_context(|| format!("told: {}", told.join("; ")))?;
        Ok(format!("{}; {lines} audit lines", told.join("; ")))
    }

    /// What is told, without which lease it is about.
    async fn call(
        &self,
        call: Call,
        client: &mut LeaseServiceClient<Channel>,
        lease_id: u64,
    ) -> anyhow::Result<String> {
        let fence = self.fence;
        let refused = match call {
            Call::Renew => {
                let leases = vec![pb::LeaseRef { lease_id, fence }];
                let request = pb::RenewLeasesRequest { leases };
                let answer = client.renew_leases(request).await?.into_inner();
                let result = answer.results.first().context("no result")?;
                ensure!(
                    result.status() == pb::RenewStatus::Lost,
                    "it was told {result:?}"
                );
                return Ok(result.status().as_str_name().to_owned());
            }
            Call::Release => {
                let request = pb::ReleaseLeaseRequest { lease_id, fence };
                client.release_lease(request).await.err()
            }
            Call::Attach => {
                let request = pb::AttachLeaseRequest {
                    lease_id,
                    fence,
                    pid: 0,
                };
                client.attach_lease(request).await.err()
            }
            Call::Revoke => {
                let request = pb::RevokeLeaseRequest { lease_id };
                client.revoke_lease(request).await.err()
            }
            Call::Clear => {
                let reason = "gone".into();
                let request = pb::ClearLeaseRequest { lease_id, reason };
                client.clear_lease(request).await.err()
            }
        };
        let refused = refused.with_context(|| format!("{call:?} was let in"))?;
        let said = format!("{:?}: {}", refused.code(), refused.message());
        Ok(without_id(&said, lease_id))
    }
}

/// Whose lines of the audit are counted.
fn who_in_the_audit(who: &str) -> &'static str {
    match who {
        "bob" => "\"bob\"",
        _ => "\"alice\"",
    }
}
