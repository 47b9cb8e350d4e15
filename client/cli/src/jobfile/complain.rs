//! A mistake in a job file, with its line and column and the nearest known word.

use super::place;
use crate::fail::Failure;
use crate::files;
use crate::mistake;

/// What the parser says is wrong, where, and what was probably meant.
pub(super) fn about(error: &toml::de::Error, text: &str, name: &str) -> Failure {
    // A missing key has no place of its own: the span is the whole table's.
    let missing = error.message().starts_with("missing field");
    let span = error.span().filter(|span| !missing || span.start > 0);
    let place = span.map_or_else(|| name.to_owned(), |at| files::place(name, text, &at));
    let what = mistake::in_words(error.message());
    Failure::usage(format!("{place}: {what}"))
}

/// A complaint about a key, by its path in the file: with its place, or with the path where the key is not there.
pub(super) fn at(path: &str, text: &str, name: &str) -> String {
    match (place::of(text, path), path) {
        (Some(at), _) => files::place(name, text, &at),
        (None, "") => name.to_owned(),
        (None, path) => format!("{name}: {path}"),
    }
}
