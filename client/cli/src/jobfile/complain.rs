//! A mistake in a job file, with its line and the nearest known word.

use crate::fail::Failure;
use crate::nearest::nearest;

/// What is wrong, where, and what was probably meant.
pub(super) fn about(error: &toml::de::Error, text: &str, name: &str) -> Failure {
    let what = mistake(error);
    // A missing key has no place of its own: the span is the whole table's.
    let missing = error.message().starts_with("missing field");
    let place = error
        .span()
        .filter(|span| !missing || span.start > 0)
        .map_or(String::new(), |span| format!(":{}", line(text, span.start)));
    Failure::usage(format!("{name}{place}: {what}"))
}

/// What is wrong, and what was probably meant.
pub(crate) fn mistake(error: &toml::de::Error) -> String {
    let message = error.message();
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.as_slice() {
        [word, known @ ..] if message.starts_with("unknown field") => {
            format!("unknown key `{word}`; {}", suggestion(word, known))
        }
        [word, known @ ..] if message.starts_with("unknown variant") => {
            format!("`{word}` is not known here; {}", suggestion(word, known))
        }
        [word] if message.starts_with("missing field") => format!("the key `{word}` is missing"),
        _ => message.lines().collect::<Vec<_>>().join("; "),
    }
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

/// The line of a key of the job or of one of its stages, or of the table that it belongs to. None: it cannot be found,
/// as in tables that are written inline.
pub(super) fn place(text: &str, stage: Option<usize>, key: &str) -> Option<usize> {
    // `cores` says both the least and the most.
    let short = key.trim_start_matches("min_").trim_start_matches("max_");
    let (mut stages, mut table, mut head) = (0, String::new(), None);
    for (number, written) in (1..).zip(text.lines()) {
        let written = written.trim();
        if let Some(name) = written.strip_prefix("[[stages]]").map(|_| "stages") {
            stages += 1;
            name.clone_into(&mut table);
        } else if let Some(name) = written.strip_prefix('[') {
            name.split(']')
                .next()
                .unwrap_or(name)
                .clone_into(&mut table);
        }
        let inside = match stage {
            Some(stage) => table == "stages" && stages == stage + 1,
            None => stages == 0 || written == "[[stages]]",
        };
        if !inside {
            continue;
        }
        if stage.is_none() && written == format!("[[{key}]]") {
            return Some(number);
        }
        let named = written.split_once('=').map(|(name, _)| name.trim());
        if named.is_some_and(|name| name == key || name == short) || written == format!("[{key}]") {
            return Some(number);
        }
        if stage.is_some() {
            head.get_or_insert(number);
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_their_own_table() {
        let text = "name = 'j'\n[rebalance]\ngap = 2\n[[stages]]\nname = 'a'\n[stages.bench]\ncores = [1]\n\
                    [[stages]]\nname = 'b'\ncores = 9\nworkers=0\n";
        for (stage, key, expect) in [
            (None, "name", Some(1)),
            (None, "gap", Some(3)),
            (None, "rebalance", Some(2)),
            (None, "unit", None),
            (None, "stages", Some(4)),
            (Some(0), "max_cores", Some(4)),
            (Some(1), "max_cores", Some(10)),
            (Some(1), "workers", Some(11)),
            (Some(1), "batches", Some(8)),
            (Some(2), "name", None),
        ] {
            assert_eq!(place(text, stage, key), expect, "{stage:?} {key}");
        }
    }
}
