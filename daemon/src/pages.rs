//! What a package has beside the program: completions for shells and man pages, made from the command line itself and
//! from the commented configuration file.
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Every key, with its reason and its default.
const CONFIGURATION: &str = include_str!("../../config/evenkeeld.toml");
/// Commands of an admin.
const SECTION: &str = "8";

/// Prints the completions for a shell.
pub(crate) fn completions(mut command: Command, shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "evenkeeld", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes evenkeeld(8), a page for each of its commands, and evenkeeld.toml(5).
pub(crate) fn man(command: Command, dir: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write man pages to {}", dir.display());
    fs::create_dir_all(dir).with_context(failed)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let tools = command.get_subcommands().filter(|tool| !tool.is_hide_set());
    for page in tools.chain([&command]) {
        let page = Man::new(page.clone()).section(SECTION);
        page.generate_to(dir).with_context(failed)?;
    }
    fs::write(dir.join("evenkeeld.toml.5"), configuration()).with_context(failed)
}

/// The configuration file as a page: it explains itself.
fn configuration() -> String {
    let mut page = Roff::new();
    let version = concat!("evenkeeld ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["evenkeeld.toml", "5", "", version]);
    page.control("SH", ["NAME"]);
    page.text([roman("evenkeeld.toml - configuration of evenkeeld(8)")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([
        roman("Read from "),
        bold("/etc/evenkeel/evenkeeld.toml"),
        roman(" if it exists, or from where "),
        bold("--config"),
        roman(" says. What follows is that file as it is installed: every key with its default."),
    ]);
    page.control("SH", ["KEYS"]);
    page.control("nf", []);
    page.text([roman(CONFIGURATION)]);
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("evenkeeld"),
        roman("(8), "),
        bold("evenkeel"),
        roman("(1)"),
    ]);
    page.to_roff()
}
