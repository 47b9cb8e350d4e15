//! What tidy asks of links in Markdown: that a relative one leads to a file that is there.
//!
//! Called by `tidy.rs`. It never asks the network, and knows no anchors.

use crate::text::extension;
use crate::tree::Violation;

/// Relative links of a Markdown file, outside code. `exists` is asked with paths from the root.
pub(crate) fn links(path: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    if extension(path) != "md" {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let resolved = resolve(path, file);
            if !resolved.as_deref().is_some_and(exists) {
                found.push(Violation::new(
                    path,
                    number,
                    format!("`{target}` leads nowhere"),
                ));
            }
        }
    }
    found
}

/// What `[text](target)`, `[name]: target` and `src="target"` point to, outside `code`.
fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let first_word = |text: &str| text.split_whitespace().next().unwrap_or("").to_owned();
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (at, _) in prose.match_indices(opening) {
            let rest = &prose[at + opening.len()..];
            found.push(first_word(rest.split(closing).next().unwrap_or("")));
        }
    }
    if let Some(definition) = prose.strip_prefix('[')
        && let Some((_, target)) = definition.split_once("]: ")
    {
        found.push(first_word(target));
    }
    found
}

/// `file` as seen from the folder of `from`; none if it leaves the repository.
fn resolve(from: &str, file: &str) -> Option<String> {
    if file.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::check;

    #[test]
    fn dead_links_are_found() {
        let exists = |path: &str| path == "docs/a.md" || path == "README.md";
        check(
            &links("docs/b.md", "[a](a.md) [r](../README.md#top)", &exists),
            &[],
        );
        check(
            &links("docs/b.md", "[a](b.md) [r](../../README.md)", &exists),
            &["b.md", "../../"],
        );
        check(
            &links("README.md", "[a](/docs/a.md)", &exists),
            &["leads nowhere"],
        );
        check(
            &links("README.md", "[x]: docs/c.md\n<img src=\"d.svg\">", &exists),
            &["c.md", "d.svg"],
        );
        check(
            &links("README.md", "[a](#top) [b](https://e.org/x)", &exists),
            &[],
        );
        check(
            &links("README.md", "`[a](x)`\n```\n[a](x)\n```\n[a](y)", &exists),
            &["README.md:5"],
        );
    }
}
