//! `evenkeeld backup` and `evenkeeld restore`, for a person at a terminal. What they do is in `ledger::backup`; no daemon
//! is started and none is asked.
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use evenkeeld::ledger::{self, Copied};

/// What an admin does with the ledger; docs/backup.md says when, and how.
#[derive(Subcommand)]
pub(crate) enum Tool {
    /// Copy the ledger, audit trail included, to a new file; a daemon may use it meanwhile.
    Backup {
        /// The new file.
        file: PathBuf,
    },
    /// Put a copy in the ledger's place; the daemon has to be stopped. What was there is kept beside it.
    Restore {
        /// The copy.
        file: PathBuf,
        /// Also if live leases are unknown to the copy: their shares are granted again, wherever their workers are.
        #[arg(long)]
        forget_leases: bool,
    },
}

pub(crate) fn run(tool: &Tool, settings: ledger::Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match tool {
        Tool::Backup { file } => {
            let copied = runtime.block_on(ledger::back_up(&settings, file))?;
            println!("copied {} to {}", settings.path.display(), told(&copied));
        }
        Tool::Restore {
            file,
            forget_leases,
        } => {
            let restored = runtime.block_on(ledger::restore(settings, file, *forget_leases))?;
            println!("restored {} as {}", file.display(), told(&restored.ledger));
            if let Some(aside) = restored.aside {
                println!("the ledger of before is {}", aside.display());
            }
            println!("start the daemon now: it gives every live lease one TTL to be renewed");
        }
    }
    Ok(())
}

fn told(copied: &Copied) -> String {
    let counted = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let leases = match &copied.leases {
        Some(leases) => counted(leases.len() as u64, "live lease"),
        None => "an older schema, which the next start brings up to date".to_owned(),
    };
    format!(
        "{} ({:.1} MiB, schema {}: {leases}, {})",
        copied.path.display(),
        copied.bytes as f64 / f64::from(1 << 20),
        copied.schema,
        counted(copied.events, "event")
    )
}
