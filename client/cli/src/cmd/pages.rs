//! `evenkeel completions SHELL` and, for who makes a package, `evenkeel man DIR`: both from the command line itself.
use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Which shell.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell; for bash: evenkeel completions bash > ~/.local/share/bash-completion/completions/evenkeel
    shell: Shell,
}

/// Where the pages go.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder.
    dir: PathBuf,
}

pub(crate) fn completions(args: CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "evenkeel", &mut script);
    out::text(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// A page for the program, and one for each command.
pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir));
    written.doing(format_args!("write man pages to {}", args.dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_but_those_that_are_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("man");
        man(&ManArgs { dir: into.clone() }).unwrap();
        let command = Cli::command();
        let mut pages = 0;
        for sub in command.get_subcommands() {
            let page = into.join(format!("evenkeel-{}.1", sub.get_name()));
            assert_eq!(page.exists(), !sub.is_hide_set(), "{}", sub.get_name());
            pages += usize::from(page.exists());
        }
        assert!(pages > 10 && into.join("evenkeel.1").exists());
    }
}
