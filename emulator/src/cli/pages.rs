//! `evenkeel-gpu completions SHELL` and, for who makes a package, `evenkeel-gpu man DIR`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct Completions {
    /// Which shell.
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManPages {
    /// The folder.
    dir: PathBuf,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "evenkeel-gpu", &mut script);
        Ok(io::stdout().write_all(&script)?)
    }
}

impl ManPages {
    pub(crate) fn run(self, command: Command) -> anyhow::Result<()> {
        let written = std::fs::create_dir_all(&self.dir)
            .and_then(|()| clap_mangen::generate_to(command, &self.dir));
        written.with_context(|| format!("cannot write man pages to {}", self.dir.display()))
    }
}
