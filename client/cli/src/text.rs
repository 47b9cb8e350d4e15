//! Lines for people: cut to a width, filled up to it, or wrapped at it. Characters count as one cell each.

/// At most `width` characters; what was cut off shows as `…`.
pub(crate) fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept = line.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…').take(width)).collect()
}

/// Exactly `width` characters, filled up on the right.
pub(crate) fn cell(text: &str, width: usize) -> String {
    format!("{:<width$}", cut(text, width))
}

/// A text over several lines of at most `width` characters, all of them indented. A longer word has a line of its own.
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{:indent$}{word}", "")),
        }
    }
    lines
}

/// A text over lines of at most `width` characters; all but the first are indented. Spaces at its start stay.
pub(crate) fn hanging(text: &str, width: usize) -> Vec<String> {
    const INDENT: usize = 7;
    let start = text.len() - text.trim_start().len();
    let mut lines = wrapped(text, INDENT, width);
    if let Some(first) = lines.first_mut() {
        // The first line has no indent of its own: there is room for more words than it was given, and that is fine.
        *first = format!("{}{}", &text[..start], first.trim_start());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_filled_and_wrapped_by_characters() {
        for (text, width, expect) in [
            ("größe", 5, "größe"),
            ("größer", 5, "größ…"),
            ("ab", 1, "…"),
            ("ab", 0, ""),
        ] {
            assert_eq!(cut(text, width), expect);
        }
        assert_eq!(cell("ab", 4), "ab  ");
        assert_eq!(cell("abcdef", 4), "abc…");
        assert_eq!(wrapped("one two three", 2, 9), ["  one two", "  three"]);
        assert_eq!(
            wrapped("incomprehensibly a", 0, 4),
            ["incomprehensibly", "a"]
        );
        assert!(wrapped(" ", 2, 9).is_empty());
        assert_eq!(
            hanging("gpu 0  one two three", 16),
            ["gpu 0 one", "       two three"]
        );
        assert_eq!(hanging("one two", usize::MAX), ["one two"]);
    }
}
