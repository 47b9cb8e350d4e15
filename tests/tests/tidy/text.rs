//! What tidy asks of a text, line by line: openings, length, blanks, leftovers, paths.
//!
//! Called by `tidy.rs` with every file of the tree. Each checker maps a text to its violations.

use std::path::Path;

use crate::tree::Violation;

// ---- What is asked: change it here. ----

/// Files that must open by saying what they are, and with which mark.
const OPENINGS: &[(&str, &[&str])] = &[
    ("rs", &["//!"]),
    ("proto", &["//"]),
    ("sql", &["--"]),
    ("py", &["#", "\"\"\""]),
    ("sh", &["#"]),
];
/// An opening shorter than this says nothing.
const OPENING_WORDS: usize = 3;
/// A longer file holds more than one idea.
const LINES_MAX: usize = 600;
/// From here on a file is listed, without failing.
pub(crate) const LINES_WARN: usize = 400;
/// Kinds of file whose length is limited.
pub(crate) const LIMITED: &[&str] = &["rs", "proto", "sql", "py"];
/// Kinds of file that are written by hand line by line. Golden outputs are not among them.
const BY_HAND: &[&str] = &[
    "rs", "proto", "sql", "py", "sh", "toml", "md", "yaml", "yml", "svg",
];
/// Marks of unfinished work. (Split, so that this file does not find itself.)
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
/// Left behind by debugging, or a test that is switched off.
const LEFT_BEHIND: &[&str] = &[concat!("dbg", "!("), concat!("#[", "ignore")];
/// Folders of one machine only.
const MACHINE_PATHS: &[&str] = &[
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "home/"),
];

/// What a path ends in, without the dot; empty if it has none.
pub(crate) fn extension(path: &str) -> &str {
    Path::new(path)
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or("")
}

/// The first line, after a `#!` that names an interpreter, is a comment of a few words.
pub(crate) fn opening(path: &str, text: &str) -> Vec<Violation> {
    let Some((_, marks)) = OPENINGS.iter().find(|(kind, _)| *kind == extension(path)) else {
        return Vec::new();
    };
    // Python wants an empty __init__.py now and then.
    if text.is_empty() && path.ends_with("/__init__.py") {
        return Vec::new();
    }
    let has_interpreter = text.starts_with("#!/");
    let line = text.lines().nth(usize::from(has_interpreter)).unwrap_or("");
    let said = marks
        .iter()
        .find_map(|mark| line.strip_prefix(mark))
        .map_or(0, words);
    if said >= OPENING_WORDS {
        return Vec::new();
    }
    let what = format!(
        "opens without saying what it is (`{} …`, {OPENING_WORDS} words)",
        marks[0]
    );
    vec![Violation::new(path, 1, what)]
}

fn words(text: &str) -> usize {
    text.split_whitespace()
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .count()
}

pub(crate) fn length(path: &str, text: &str) -> Vec<Violation> {
    let lines = text.lines().count();
    if !LIMITED.contains(&extension(path)) || lines <= LINES_MAX {
        return Vec::new();
    }
    vec![Violation::new(
        path,
        0,
        format!("{lines} lines; at most {LINES_MAX}: split it by idea"),
    )]
}

/// No tab but where make wants one, no space at a line's end, one newline at the file's end.
pub(crate) fn whitespace(path: &str, text: &str) -> Vec<Violation> {
    let makefile = path == "Makefile";
    if !makefile && !BY_HAND.contains(&extension(path)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.contains('\t') && !makefile {
            found.push(Violation::new(path, number, "a tab"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            found.push(Violation::new(path, number, "space at the end of the line"));
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        found.push(Violation::new(path, 0, "must end with exactly one newline"));
    }
    found
}

pub(crate) fn left_behind(path: &str, text: &str) -> Vec<Violation> {
    if path != "Makefile" && !BY_HAND.contains(&extension(path)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let unfinished = UNFINISHED.iter().filter(|mark| has_word(line, mark));
        let left = LEFT_BEHIND.iter().filter(|mark| line.contains(**mark));
        for mark in unfinished.chain(left) {
            found.push(Violation::new(
                path,
                number,
                format!("`{mark}`: finish it, or file it"),
            ));
        }
    }
    found
}

fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next())
    })
}

/// `/x/` counts only where a path begins: not inside `docs/x/` and not inside a URL.
pub(crate) fn machine_paths(path: &str, text: &str) -> Vec<Violation> {
    let goes_on = |c: char| c.is_alphanumeric() || "._-~*}>/".contains(c);
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for folder in MACHINE_PATHS {
            let mut places = line.match_indices(folder);
            if places.any(|(at, _)| !line[..at].chars().next_back().is_some_and(goes_on)) {
                let what = format!("`{folder}…` is a folder of one machine");
                found.push(Violation::new(path, number, what));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::check;

    #[test]
    fn an_opening_must_say_something() {
        check(&opening("a.rs", "//! What it is.\n"), &[]);
        check(
            &opening("a.rs", "use std::fmt;\n"),
            &["a.rs:1: opens without"],
        );
        check(&opening("a.rs", "//! Placeholder.\n"), &["a.rs:1"]);
        check(&opening("a.rs", "// What it is.\n"), &["a.rs:1"]);
        check(&opening("a.sql", "CREATE TABLE t (x);\n"), &["`-- …`"]);
        check(
            &opening("a.py", "#!/usr/bin/env python3\n# Draws the curves.\n"),
            &[],
        );
        check(&opening("a.sh", "#!/bin/sh\nset -eu\n"), &["a.sh:1"]);
        check(&opening("a.csv", "1,2\n"), &[]);
    }

    #[test]
    fn length_is_limited_for_code_only() {
        let long = "x\n".repeat(LINES_MAX + 1);
        check(&length("a.rs", &long), &["601 lines"]);
        check(&length("a.rs", &long[2..]), &[]);
        check(&length("a.md", &long), &[]);
    }

    #[test]
    fn blanks_are_found_where_nobody_sees_them() {
        check(&whitespace("a.rs", "fn a() {}\n"), &[]);
        check(
            &whitespace("a.rs", "\tfn a() {} \n"),
            &["a.rs:1: a tab", "a.rs:1: space"],
        );
        check(&whitespace("a.md", "x\r\n"), &["a.md:1"]);
        check(&whitespace("a.md", "x"), &["newline"]);
        check(&whitespace("a.md", "x\n\n"), &["newline"]);
        check(&whitespace("Makefile", "all:\n\ttrue\n"), &[]);
        check(&whitespace("Makefile", "all: \n"), &["Makefile:1"]);
    }

    #[test]
    fn unfinished_work_is_found() {
        for mark in UNFINISHED {
            check(
                &left_behind("a.rs", &format!("// {mark}: later\n")),
                &["a.rs:1"],
            );
            check(&left_behind("a.rs", &format!("// A{mark}\n")), &[]);
        }
        for mark in LEFT_BEHIND {
            check(&left_behind("a.rs", &format!("x\n{mark}")), &["a.rs:2"]);
        }
    }

    #[test]
    fn machine_paths_are_found_where_they_begin() {
        for folder in MACHINE_PATHS {
            check(
                &machine_paths("a.md", &format!("see {folder}x")),
                &["a.md:1"],
            );
            check(
                &machine_paths("a.toml", &format!("path = \"{folder}x\"")),
                &["a.toml:1"],
            );
            check(
                &machine_paths("a.md", &format!("docs{folder}x https://e.org{folder}")),
                &[],
            );
        }
    }
}
