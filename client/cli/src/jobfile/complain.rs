//! A mistake in a job file, with its line and the nearest known word.

use crate::fail::Failure;
use crate::nearest::nearest;

/// What is wrong, where, and what was probably meant.
pub(super) fn about(error: &toml::de::Error, text: &str, name: &str) -> Failure {
    let message = error.message();
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let what = match words.as_slice() {
        [word, known @ ..] if message.starts_with("unknown field") => {
            format!("unknown key `{word}`; {}", suggestion(word, known))
        }
        [word, known @ ..] if message.starts_with("unknown variant") => {
            format!("`{word}` is not known here; {}", suggestion(word, known))
        }
        [word] if message.starts_with("missing field") => format!("the key `{word}` is missing"),
        _ => message.lines().collect::<Vec<_>>().join("; "),
    };
    // A missing key has no place of its own: the span is the whole table's.
    let missing = message.starts_with("missing field");
    let place = error
        .span()
        .filter(|span| !missing || span.start > 0)
        .map_or(String::new(), |span| format!(":{}", line(text, span.start)));
    Failure::usage(format!("{name}{place}: {what}"))
}

fn suggestion(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied()).map_or_else(
        || format!("known are {}", known.join(", ")),
        |near| format!("did you mean `{near}`?"),
    )
}

fn line(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    before.matches('\n').count() + 1
}
