//! Which modules of its own crate a Rust file names: a small reader of tokens and paths.
//!
//! Called by `layering.rs`. It is not a parser: comments and literals are dropped, then paths that
//! begin with `crate`, `super` or `self` are followed, grouped imports included. What only tests
//! compile (`#[cfg(test)]`) is left out: a test may look up.

/// A word or a mark, and the line (from 1) that it stands on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// A path inside the crate, from its root: `["ledger", "Ledger"]`.
#[derive(Debug, PartialEq)]
pub(crate) struct Reference {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// The module that a file under `src/` is: `api/grpc.rs` and `api/mod.rs` begin with `api`.
pub(crate) fn module_of(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = file
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    let last = parts.last().map(String::as_str);
    if last == Some("mod") || (parts.len() == 1 && matches!(last, Some("lib" | "main"))) {
        parts.pop();
    }
    parts
}

/// The tokens of a file: words, `::`, and single marks. No comments, no literals.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let (kind, end) = next_piece(&chars, at);
        let piece: String = chars[at..end].iter().collect();
        if kind == Piece::Code {
            let text = piece.strip_prefix("r#").unwrap_or(&piece).to_owned();
            found.push(Token { text, line });
        }
        line += piece.matches('\n').count();
        at = end;
    }
    found
}

#[derive(PartialEq)]
enum Piece {
    Code,
    Skipped,
}

fn next_piece(chars: &[char], at: usize) -> (Piece, usize) {
    let peek = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    match (peek(0), peek(1)) {
        ('/', '/') => (Piece::Skipped, skip_until(chars, at, |c| c == '\n')),
        ('/', '*') => (Piece::Skipped, block_comment(chars, at)),
        ('"', _) => (Piece::Skipped, quoted(chars, at + 1, '"')),
        ('\'', _) => (Piece::Skipped, char_or_lifetime(chars, at)),
        ('r', '"' | '#') if raw_string(chars, at).is_some() => {
            (Piece::Skipped, raw_string(chars, at).unwrap_or(at + 1))
        }
        (':', ':') => (Piece::Code, at + 2),
        ('r', '#') => (Piece::Code, skip_until(chars, at + 2, |c| !in_word(c))),
        (c, _) if in_word(c) => (Piece::Code, skip_until(chars, at, |c| !in_word(c))),
        (c, _) if c.is_whitespace() => (Piece::Skipped, at + 1),
        _ => (Piece::Code, at + 1),
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn skip_until(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    (from..chars.len())
        .find(|at| stop(chars[*at]))
        .unwrap_or(chars.len())
}

/// Block comments nest.
fn block_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0_usize);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The end of a literal whose opening quote lies before `from`.
fn quoted(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// `'a'` and `'\n'` are literals, `'a` is a lifetime.
fn char_or_lifetime(chars: &[char], at: usize) -> usize {
    let literal = chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'');
    if literal {
        quoted(chars, at + 1, '\'')
    } else {
        at + 1
    }
}

/// `r"…"` and `r#"…"#`; none for a raw identifier. A prefix `b` or `c` was read as a word before.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let quote = skip_until(chars, at + 1, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at - 1;
    let closes = |end: &usize| {
        chars[*end] == '"' && chars[end + 1..].iter().take_while(|c| **c == '#').count() >= hashes
    };
    let end = (quote + 1..chars.len())
        .find(closes)
        .unwrap_or(chars.len() - 1);
    Some(end + 1 + hashes)
}

/// Splits off what only tests compile. Returns what is left, and the names of modules in other
/// files that only tests compile (`#[cfg(test)] mod tests;`).
pub(crate) fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let end = attribute(tokens, at);
        if end == at || !is_cfg_test(&tokens[at..end]) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let (from, to) = item_after(tokens, end);
        let words: Vec<&str> = tokens[from..to]
            .iter()
            .map(|token| token.text.as_str())
            .collect();
        if let [.., "mod", name, ";"] = words.as_slice() {
            modules.push((*name).to_owned());
        }
        at = to;
    }
    (kept, modules)
}

/// The end of the attribute that begins at `at`; `at` itself if none does.
fn attribute(tokens: &[Token], at: usize) -> usize {
    let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|t| t.text == text);
    if is(0, "#") && is(1, "[") {
        matching(tokens, at + 1)
    } else {
        at
    }
}

fn is_cfg_test(attribute: &[Token]) -> bool {
    let has = |text: &str| attribute.iter().any(|token| token.text == text);
    has("cfg") && has("test") && !has("not")
}

/// The item behind an attribute: past further attributes, up to its `;` or its closing brace.
fn item_after(tokens: &[Token], mut from: usize) -> (usize, usize) {
    while attribute(tokens, from) != from {
        from = attribute(tokens, from);
    }
    let mut at = from;
    let mut is_import = false;
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "use" => is_import = true,
            ";" => return (from, at + 1),
            "{" if !is_import => return (from, matching(tokens, at)),
            "{" | "(" | "[" => at = matching(tokens, at) - 1,
            _ => {}
        }
        at += 1;
    }
    (from, at)
}

/// Just past the bracket that closes the one at `open`.
fn matching(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Every path of this file that begins with `crate`, `super` or `self`, from the crate's root.
pub(crate) fn references(tokens: &[Token], module: &[String]) -> Vec<Reference> {
    let mut found = Vec::new();
    // Modules written inside this file: their names, and the depth at which each began.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut at) = (0_usize, 0);
    while at < tokens.len() {
        let is =
            |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|t| t.text == text);
        match tokens[at].text.as_str() {
            "mod" if is(2, "{") => inner.push((tokens[at + 1].text.clone(), depth)),
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inner.retain(|(_, began)| *began < depth);
            }
            "crate" | "super" | "self"
                if is(1, "::") && (at == 0 || tokens[at - 1].text != "::") =>
            {
                let names = inner.iter().map(|(name, _)| name.clone());
                let here: Vec<String> = module.iter().cloned().chain(names).collect();
                at = follow(tokens, at, &here, &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Follows one path, and all branches of a group. Returns where it ends.
fn follow(tokens: &[Token], from: usize, base: &[String], found: &mut Vec<Reference>) -> usize {
    let mut path = base.to_vec();
    let mut at = from;
    loop {
        let Some(token) = tokens.get(at) else {
            return at;
        };
        let line = token.line;
        match token.text.as_str() {
            "crate" => path.clear(),
            "super" => drop(path.pop()),
            "self" => {}
            "{" => {
                let end = matching(tokens, at);
                at += 1;
                while at < end - 1 {
                    at = follow(tokens, at, &path, found).max(at + 1);
                    // Past `as name` and the comma.
                    while at < end - 1 && tokens[at - 1].text != "," {
                        at += 1;
                    }
                }
                return end;
            }
            word if word.starts_with(in_word) => path.push(word.to_owned()),
            _ => {
                found.push(Reference { path, line });
                return at + 1;
            }
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            found.push(Reference { path, line });
            return at;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &str, text: &str, expect: &[&str]) {
        let (kept, _) = without_tests(&tokens(text));
        let found: Vec<String> = references(&kept, &module_of(file))
            .into_iter()
            .map(|reference| format!("{} {}", reference.line, reference.path.join("::")))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn plain_paths() {
        check(
            "api/grpc.rs",
            "use crate::ledger::Ledger;",
            &["1 ledger::Ledger"],
        );
        check(
            "a.rs",
            "fn f(x: crate::b::C) {}\ntype D = crate::e::F<u8>;",
            &["1 b::C", "2 e::F"],
        );
        check("a.rs", "pub(crate) fn f() {}\npub(super) struct S;", &[]);
        check("a.rs", "use ::std::crate_name; use other::crate_::x;", &[]);
    }

    #[test]
    fn groups_and_globs() {
        check(
            "a.rs",
            "use crate::{b, c::{D, e::*}, f as g};",
            &["1 b", "1 c::D", "1 c::e", "1 f"],
        );
        check("a.rs", "use {crate::b::C,\nsuper::d};", &["1 b::C", "2 d"]);
        check("a.rs", "use crate::b::{self, C};", &["1 b", "1 b::C"]);
        check(
            "a.rs",
            "let x = crate::b::f::<crate::c::D>();",
            &["1 b::f", "1 c::D"],
        );
    }

    #[test]
    fn relative_paths() {
        check(
            "balance/window.rs",
            "use super::detect;",
            &["1 balance::detect"],
        );
        check(
            "balance/mod.rs",
            "use super::state; use self::window::W;",
            &["1 state", "1 balance::window::W"],
        );
        check(
            "balance/window.rs",
            "use super::super::state::State;",
            &["1 state::State"],
        );
        check(
            "a.rs",
            "mod b { use super::super::c; }\nuse super::d;",
            &["1 c", "2 d"],
        );
    }

    #[test]
    fn words_that_are_not_code() {
        check(
            "a.rs",
            "// crate::b\n/* crate::b /* crate::c */ crate::d */",
            &[],
        );
        check(
            "a.rs",
            "let s = \"crate::b \\\" crate::c\"; let r = r#\"crate::\"d\"#;",
            &[],
        );
        check(
            "a.rs",
            "let c = '\"'; use crate::b; let e = '\\''; fn f<'a>() {} use crate::c;",
            &["1 b", "1 c"],
        );
    }

    #[test]
    fn what_only_tests_compile() {
        check(
            "a.rs",
            "#[cfg(test)]\nmod tests {\n use crate::b;\n}\nuse crate::c;",
            &["5 c"],
        );
        check(
            "a.rs",
            "#[cfg(test)] use crate::{b, d};\nuse crate::c;",
            &["2 c"],
        );
        check("a.rs", "#[cfg(not(test))] use crate::b;", &["1 b"]);
        check(
            "a.rs",
            "#[test] fn f() {} #[cfg(test)] #[allow(x)] fn g([u8; 2]) { crate::b(); } use crate::c;",
            &["1 c"],
        );
        let (_, modules) = without_tests(&tokens("#[cfg(test)]\nmod tests;\nmod other;"));
        assert_eq!(modules, ["tests"]);
    }

    #[test]
    fn files_and_their_modules() {
        let name = |file: &str| module_of(file).join("::");
        assert_eq!(name("api/grpc.rs"), "api::grpc");
        assert_eq!(name("api/mod.rs"), "api");
        assert_eq!(
            (name("step.rs"), name("lib.rs"), name("main.rs")),
            ("step".into(), String::new(), String::new())
        );
    }
}
