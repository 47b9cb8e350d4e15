//! The only place that prints.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line prints; only here"
)]
use std::io::{self, IsTerminal as _, Write as _};
use std::process;

use clap::ValueEnum;
use crossterm::terminal;
use serde::Serialize;

use crate::fail::Failure;
use crate::text;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: stable shapes, units in the names.
    Json,
}

/// A failure, to the standard error.
pub(crate) fn complain(failure: &Failure) {
    note(failure);
}

/// Anything that is not a result, to the standard error.
pub(crate) fn note(message: impl std::fmt::Display) {
    // Nobody to tell if even this fails.
    writeln!(io::stderr().lock(), "evenkeel: {message}").ok();
}

/// A result for people.
pub(crate) fn text(text: impl std::fmt::Display) {
    finish(writeln!(io::stdout().lock(), "{text}"));
}

/// A result for people, in lines that break between words where the terminal ends; what follows the first is indented.
pub(crate) fn wrapped(text: &str) {
    for line in text::hanging(text, width()) {
        self::text(line);
    }
}

/// Characters of a line: the terminal's, or no limit where a program reads lines.
pub(crate) fn width() -> usize {
    match terminal::size() {
        Ok((columns, _)) if is_terminal() => usize::from(columns),
        _ => usize::MAX,
    }
}

/// A result for programs, over several lines.
pub(crate) fn json(value: &impl Serialize) {
    print_json(serde_json::to_string_pretty(value));
}

/// One line of a stream of results for programs.
pub(crate) fn json_line(value: &impl Serialize) {
    print_json(serde_json::to_string(value));
}

fn print_json(line: serde_json::Result<String>) {
    match line {
        Ok(line) => text(line),
        // Our own shapes have string keys only; a number that JSON lacks becomes null.
        Err(error) => note(format_args!("cannot write the result as JSON: {error}")),
    }
}

fn finish(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        // Whoever read us has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(0),
        Err(error) => {
            note(format_args!("cannot write to the standard output: {error}"));
            process::exit(1);
        }
    }
}

/// Whether people are watching the standard output.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}
