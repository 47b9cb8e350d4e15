//! Completions and man pages of `evenkeeld`: what a package installs is made by the program itself.

#![allow(
    clippy::unwrap_used,
    reason = "tests, and helpers that only tests call"
)]

use std::path::Path;
use std::process::Command;

/// Runs the program where no configuration could be read.
fn evenkeeld(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeeld"))
        .args(["--config", "/nowhere/at/all.toml"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completions_know_the_commands_and_the_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = evenkeeld(&["completions", shell]);
        for word in ["backup", "restore", "check-config", "forget-leases"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn there_is_a_page_for_each_command_and_for_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man");
    evenkeeld(&["man", folder.to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    for name in ["evenkeeld.8", "evenkeeld-backup.8", "evenkeeld-restore.8"] {
        assert!(page(name).contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(!folder.join("evenkeeld-man.8").exists(), "a hidden command");
    // The configuration is there as it is, line by line, but for what roff needs masked.
    let configuration = page("evenkeeld.toml.5")
        .replace("\\-", "-")
        .replace("\\.", ".");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/evenkeeld.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let keys: Vec<&str> = text.lines().filter(|line| line.contains(" = ")).collect();
    assert!(keys.len() > 40, "{}", keys.len());
    for key in keys {
        assert!(configuration.contains(key.trim_start_matches('#')), "{key}");
    }
}
