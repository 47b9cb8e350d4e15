//! `evenkeeld backup` and `evenkeeld restore`, for a person at a terminal. What they do is in `ledger::backup`; no daemon
//! is started and none is asked. Also what a package is made of: completions and man pages (`pages`).
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use clap_complete::Shell;
use evenkeeld::config::Config;
use evenkeeld::ledger::{self, Copied, Restored};

use crate::pages;

/// What an admin does without a running daemon; docs/backup.md says more of the ledger's copies.
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
        /// Also if live leases are unknown to the copy, or nobody can tell: their shares are granted again, wherever their
        /// workers are.
        #[arg(long)]
        forget_leases: bool,
    },
    /// Print the completions of this command for a shell
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Write the man pages, that of the configuration too, into a folder
    #[command(hide = true)]
    Man {
        /// The folder.
        dir: PathBuf,
    },
}

impl Tool {
    /// What needs no configuration, whatever is wrong with it; false: it does.
    pub(crate) fn run_without(&self, command: clap::Command) -> anyhow::Result<bool> {
        match self {
            Self::Completions { shell } => pages::completions(command, *shell)?,
            Self::Man { dir } => pages::man(command, dir)?,
            Self::Backup { .. } | Self::Restore { .. } => return Ok(false),
        }
        Ok(true)
    }
}

pub(crate) fn run(tool: &Tool, config: &Config) -> anyhow::Result<()> {
    let settings = crate::ledger_config(config);
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
            tell(&restored);
        }
        Tool::Completions { .. } | Tool::Man { .. } => {} // run without a configuration
    }
    Ok(())
}

/// What a person has to know beyond that.
fn tell(restored: &Restored) {
    match &restored.aside {
        Some(aside) if aside.exists() => println!("the ledger of before is {}", aside.display()),
        Some(aside) => println!(
            "there was no ledger, only its log, which is {}-wal now",
            aside.display()
        ),
        None => {}
    }
    if let Some(why) = &restored.unread {
        println!(
            "warning: the ledger of before cannot be read ({why}): leases that it alone had are forgotten, and numbers of \
             leases, jobs and events that it gave may come again"
        );
    }
    println!("start the daemon now: it gives every live lease one TTL to be renewed");
    if restored.ledger.draining {
        println!(
            "the node drained when the copy was made, and does still: it grants nothing until `evenkeel drain --undo`"
        );
    }
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
