//! `evenkeel leases`: lists them, takes one back, or clears one whose holder is gone.
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Table;
use evenkeel_client::{Lease, Vector};
use serde::Serialize;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::table::{right, table};
use crate::units::{show_bytes, show_duration};

/// Show leases, take them back, or clear them
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  evenkeel leases
  evenkeel leases --job reach -o json | jq '.leases[].held'
  evenkeel leases revoke 7
  evenkeel leases clear 7 --reason 'the host of its holder was rebooted'"
)]
pub(crate) struct LeasesArgs {
    /// Only those of this job
    #[arg(long)]
    job: Option<String>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show one lease in full
    Show {
        /// The lease's number
        id: u64,
    },
    /// Take a lease back: its processes are ended if they stay
    Revoke {
        /// The lease's number
        id: u64,
    },
    /// Record that the holder of a quarantined lease is gone, and free its share (admins)
    Clear {
        /// The lease's number
        id: u64,
        /// Why you are sure; it is recorded
        #[arg(long)]
        reason: String,
    },
}

#[derive(Serialize)]
struct LeaseList {
    leases: Vec<Lease>,
}

pub(crate) async fn run(globals: &Globals, args: LeasesArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    let lease = match args.action {
        None => {
            let leases = client
                .leases(args.job.as_deref())
                .await
                .doing("list leases")?;
            if globals.json() {
                out::json(&LeaseList { leases });
            } else if leases.is_empty() {
                out::note("there are no leases");
            } else {
                out::text(list(&leases));
            }
            return Ok(());
        }
        Some(Action::Show { id }) => client
            .lease(id)
            .await
            .doing(format_args!("show lease {id}")),
        Some(Action::Revoke { id }) => client
            .revoke(id)
            .await
            .doing(format_args!("revoke lease {id}")),
        Some(Action::Clear { id, reason }) => client
            .clear(id, &reason)
            .await
            .doing(format_args!("clear lease {id}")),
    }?;
    if globals.json() {
        out::json(&lease);
    } else {
        out::text(list(std::slice::from_ref(&lease)));
    }
    Ok(())
}

/// Leases in a line each.
pub(crate) fn list(leases: &[Lease]) -> Table {
    let mut table = table([
        "LEASE",
        "TENANT",
        "FOR",
        "PHASE",
        "CORES",
        "GPU SHARES",
        "KIND",
        "PID",
        "LEFT",
    ]);
    for lease in leases {
        table.add_row(vec![
            right(lease.id),
            lease.tenant.as_str().into(),
            purpose(lease).into(),
            phase(lease).into(),
            show_cores(&lease.held, &lease.target).into(),
            show_gpus(&lease.held, &lease.target).into(),
            lease.share_kind.as_str().into(),
            right(if lease.pid == 0 {
                "-".to_owned()
            } else {
                lease.pid.to_string()
            }),
            right(show_duration(Duration::from_millis(lease.remaining_ms))),
        ]);
    }
    table
}

/// The job, stage and worker it is for.
pub(crate) fn purpose(lease: &Lease) -> String {
    lease.member.as_ref().map_or("-".to_owned(), |m| {
        format!("{}/{}/{}", m.job, m.stage, m.worker)
    })
}

/// Where it is in its life, and what is special about it.
pub(crate) fn phase(lease: &Lease) -> String {
    let mut text = lease.phase.as_str().to_owned();
    if let Some(end) = lease.end {
        text = format!("{text} ({})", end.as_str());
    }
    if lease.suspect {
        text.push_str(" (suspect)");
    }
    if !lease.enforced {
        text.push_str(" (unenforced)");
    }
    text
}

/// What is held, and where it is going.
fn arrow(held: String, target: String) -> String {
    if held == target {
        held
    } else {
        format!("{held} → {target}")
    }
}

fn show_cores(held: &Vector, target: &Vector) -> String {
    let show = |v: &Vector| {
        if v.cores.is_empty() {
            "-".to_owned()
        } else {
            v.cores.to_string()
        }
    };
    arrow(show(held), show(target))
}

fn show_gpus(held: &Vector, target: &Vector) -> String {
    arrow(show_shares(held), show_shares(target))
}

/// The GPU shares of a vector: `gpu 0: 40 SMs, 10 GiB`.
pub(crate) fn show_shares(vector: &Vector) -> String {
    let shares = vector.gpus.iter().map(|g| {
        let sms = if g.cap_sms > g.guarantee_sms {
            format!("{}–{}", g.guarantee_sms, g.cap_sms)
        } else {
            g.guarantee_sms.to_string()
        };
        format!("gpu {}: {sms} SMs, {}", g.gpu, show_bytes(g.memory_bytes))
    });
    let text = shares.collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}
