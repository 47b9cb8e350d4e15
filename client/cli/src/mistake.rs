//! What a parser says of a mistake, in words for people: the nearest known key instead of a list, kinds of values by their
//! everyday names. Where the mistake is, is the business of whoever has the text. Called for job files, scenarios and
//! profiles.

use crate::nearest::nearest;

/// Most of a wrong text that is told back: enough to find it again.
const SHOWN_MAX: usize = 64;

/// The message of a parser of TOML or JSON, without its place.
pub(crate) fn in_words(message: &str) -> String {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.as_slice() {
        [word, known @ ..] if message.starts_with("unknown field") => {
            format!("unknown key `{}`; {}", cut(word), suggestion(word, known))
        }
        [word, known @ ..] if message.starts_with("unknown variant") => {
            let suggestion = suggestion(word, known);
            format!("`{}` is not known here; {suggestion}", cut(word))
        }
        [word] if message.starts_with("missing field") => format!("the key `{word}` is missing"),
        [word] if message.starts_with("duplicate field") => {
            format!("the key `{word}` is there twice; leave one of them out")
        }
        _ => value(message).unwrap_or_else(|| message.lines().collect::<Vec<_>>().join("; ")),
    }
}

fn suggestion(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied()).map_or_else(
        || format!("known are {}", known.join(", ")),
        |near| format!("did you mean `{near}`?"),
    )
}

/// A value of the wrong kind: what it is, and what belongs there.
fn value(message: &str) -> Option<String> {
    let rest = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))?;
    let (got, wanted) = rest.rsplit_once(", expected ")?;
    Some(format!("{} is not {}", given(got), wants(wanted)))
}

/// What was written.
fn given(got: &str) -> String {
    let quoted = got.split('`').nth(1);
    match (got.split(' ').next().unwrap_or(got), quoted) {
        ("string", _) => {
            let text = got.trim_start_matches("string ").trim_matches('"');
            format!("the text `{}`", cut(text))
        }
        ("integer" | "floating" | "boolean", Some(number)) => format!("`{}`", cut(number)),
        ("sequence", _) => "a list".to_owned(),
        ("map", _) => "a table".to_owned(),
        ("null" | "unit", _) => "nothing (null)".to_owned(),
        _ => cut(got),
    }
}

/// What belongs there.
fn wants(wanted: &str) -> String {
    match wanted.trim() {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more, without a unit",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number without a unit",
        "a boolean" => "true or false",
        "a string" => "a text in quotes",
        "a sequence" => "a list in [brackets]",
        "a map" => "a table",
        "path string" => "a path in quotes",
        other if other.starts_with("struct ") || other.starts_with("internally") => "a table",
        other => other,
    }
    .to_owned()
}

/// A text, short enough to be told back.
pub(crate) fn cut(text: &str) -> String {
    crate::text::cut(text, SHOWN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_are_told_in_words() {
        for (said, expect) in [
            (
                "unknown field `polcy`, expected one of `policy`, `unit`",
                "unknown key `polcy`; did you mean `policy`?",
            ),
            (
                "unknown field `after`, expected `name` or `unit`",
                "unknown key `after`; known are name, unit",
            ),
            ("missing field `unit`", "the key `unit` is missing"),
            (
                "duplicate field `cores`",
                "the key `cores` is there twice; leave one of them out",
            ),
            (
                "invalid type: string \"1000/s\", expected f64",
                "the text `1000/s` is not a number without a unit",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "`-1` is not a whole number, 0 or more, without a unit",
            ),
            (
                "invalid type: floating point `1.5`, expected u32",
                "`1.5` is not a whole number, 0 or more, without a unit",
            ),
            (
                "invalid type: sequence, expected struct StageFile",
                "a list is not a table",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "`true` is not a text in quotes",
            ),
            ("something\nelse", "something; else"),
        ] {
            assert_eq!(in_words(said), expect);
        }
        let long = format!("unknown variant `{}`, expected `a`", "x".repeat(1 << 20));
        assert!(in_words(&long).len() < 200);
    }
}
