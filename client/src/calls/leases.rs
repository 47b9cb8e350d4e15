//! Leases: acquire, attach, renew, release, and what admins do.
use evenkeel_proto::v1 as pb;
use pb::lease_service_client::LeaseServiceClient as Leases;

use super::required;
use crate::blocking::Worker;
use crate::client::{Client, Repeat};
use crate::clock::BootTime;
use crate::convert::{acquire_request, lease_ref};
use crate::error::Result;
use crate::guard::{GuardOptions, LeaseGuard};
use crate::model::{Attached, Lease, LeaseRef, LeaseRequest, Renewal};

/// How many leases one page of a listing holds; the daemon's own limit.
const PAGE: u32 = 1000;

/// A lease of an answer to a call that was sent at `sent_at`: the answer counts its time left from later on.
fn lease_of(wire: Option<pb::Lease>, call: &'static str, sent_at: BootTime) -> Result<Lease> {
    let mut lease: Lease = required(wire, call, "lease")?.into();
    lease.deadline = sent_at.after(lease.remaining());
    Ok(lease)
}

impl Client {
    /// Asks for a lease, waiting in the queue as long as the request says. The same request, sent
    /// again (also after a crash of either side), gives the same lease.
    ///
    /// # Errors
    /// [`Error::Rejected`] says which resource is short, by how much, and who holds it.
    pub async fn acquire(&self, request: &LeaseRequest) -> Result<Lease> {
        let answer = self
            .attempt(
                Repeat::Always,
                request.wait,
                acquire_request(request),
                |channel, request| async move { Leases::new(channel).acquire_lease(request).await },
            )
            .await?;
        lease_of(answer.body.lease, "AcquireLease", answer.sent_at)
    }

    /// Names this process's tree as the holder. Only on a Unix socket: the kernel says who calls.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the lease has another holder by now.
    pub async fn attach(&self, lease: LeaseRef) -> Result<Attached> {
        self.attach_pid(lease, 0).await
    }

    /// Names the tree of `pid`, a descendant of this process, as the holder; 0 is this process.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub async fn attach_pid(&self, lease: LeaseRef, pid: u32) -> Result<Attached> {
        let body = pb::AttachLeaseRequest {
            lease_id: lease.lease_id,
            fence: lease.fence,
            pid,
        };
        // Said again by the same holder under the same fence, it gives the same answer.
        let answer = self
            .call(body, |channel, request| async move {
                Leases::new(channel).attach_lease(request).await
            })
            .await?;
        Ok(Attached {
            lease: lease_of(answer.body.lease, "AttachLease", answer.sent_at)?,
            environment: answer.body.environment.into_iter().collect(),
        })
    }

    /// Acquires, attaches this process and keeps the lease: all that a worker does at its start.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) and [`attach`](Self::attach); a lease that cannot be attached is given back.
    pub async fn hold(&self, request: &LeaseRequest, options: GuardOptions) -> Result<Worker> {
        let lease = self.acquire(request).await?;
        let attached = match self.attach(lease.handle()).await {
            Ok(attached) => attached,
            Err(error) => {
                // Pending leases end at their TTL by themselves; this only makes it sooner.
                self.release(lease.handle()).await.ok();
                return Err(error);
            }
        };
        let guard = LeaseGuard::start(self.config(), &attached.lease, options)?;
        Ok(Worker { attached, guard })
    }

    /// Moves deadlines; at most 1,024 leases. Each has its own result. [`crate::LeaseGuard`] does this by itself.
    ///
    /// # Errors
    /// Only if the daemon was not reached; a lost lease is a result.
    pub async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let body = pb::RenewLeasesRequest {
            leases: leases.iter().copied().map(lease_ref).collect(),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Leases::new(channel).renew_leases(request).await
            })
            .await?;
        Ok(answer.body.results.into_iter().map(Into::into).collect())
    }

    /// Gives a lease back. Kills nobody; SMs and bytes stay counted until its tree is off the GPU.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it is no longer the caller's.
    pub async fn release(&self, lease: LeaseRef) -> Result<Lease> {
        let body = pb::ReleaseLeaseRequest {
            lease_id: lease.lease_id,
            fence: lease.fence,
        };
        let answer = self
            .call(body, |channel, request| async move {
                Leases::new(channel).release_lease(request).await
            })
            .await?;
        lease_of(answer.body.lease, "ReleaseLease", answer.sent_at)
    }

    /// One lease.
    ///
    /// # Errors
    /// [`Error::NotFound`] for another tenant's, too.
    pub async fn lease(&self, lease_id: u64) -> Result<Lease> {
        let answer = self
            .call(
                pb::GetLeaseRequest { lease_id },
                |channel, request| async move { Leases::new(channel).get_lease(request).await },
            )
            .await?;
        lease_of(answer.body.lease, "GetLease", answer.sent_at)
    }

    /// The caller's leases (an admin's: everyone's), of one job or all, ascending by id.
    ///
    /// # Errors
    /// Those of any call.
    pub async fn leases(&self, job: Option<&str>) -> Result<Vec<Lease>> {
        let mut all = Vec::new();
        let mut after_id = 0;
        loop {
            let body = pb::ListLeasesRequest {
                job: job.unwrap_or_default().to_owned(),
                page_size: PAGE,
                after_id,
            };
            let answer = self
                .call(body, |channel, request| async move {
                    Leases::new(channel).list_leases(request).await
                })
                .await?;
            for wire in answer.body.leases {
                all.push(lease_of(Some(wire), "ListLeases", answer.sent_at)?);
            }
            // A page that does not lead on would be asked for for ever.
            if answer.body.next_after_id <= after_id {
                return Ok(all);
            }
            after_id = answer.body.next_after_id;
        }
    }

    /// Takes a lease back: its tree is quarantined and, if it stays, ended.
    ///
    /// # Errors
    /// [`Error::NotFound`] for another tenant's, unless the caller is an admin.
    pub async fn revoke(&self, lease_id: u64) -> Result<Lease> {
        let answer = self
            .call(
                pb::RevokeLeaseRequest { lease_id },
                |channel, request| async move { Leases::new(channel).revoke_lease(request).await },
            )
            .await?;
        lease_of(answer.body.lease, "RevokeLease", answer.sent_at)
    }

    /// An admin's word that a quarantined holder is gone. Recorded with its reason.
    ///
    /// # Errors
    /// Those of any call; [`Error::Rejected`] for others than admins.
    pub async fn clear(&self, lease_id: u64, reason: &str) -> Result<Lease> {
        let body = pb::ClearLeaseRequest {
            lease_id,
            reason: reason.to_owned(),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Leases::new(channel).clear_lease(request).await
            })
            .await?;
        lease_of(answer.body.lease, "ClearLease", answer.sent_at)
    }
}
