//! The known word that is nearest to a misspelt one.

/// Longer words are nobody's slip, and comparing them takes memory: known words have some twenty letters.
const WORD_MAX: usize = 64;

/// The nearest of `known`, if it is near enough to be meant: at most a third of the letters differ.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_MAX {
        return None;
    }
    let limit = word.chars().count().div_ceil(3).max(1);
    known
        .into_iter()
        .map(|k| (distance(word, k), k))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, k)| k)
}

/// Edits (one letter put in, taken out, changed, or swapped with its neighbour) between two words.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped {
                    best.min(rows[i - 2][j - 2] + 1)
                } else {
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_understood_and_guesses_are_not_made() {
        let known = ["policy", "priority", "stages", "unit", "name"];
        let long = "x".repeat(1 << 20);
        let long = long.as_str();
        for (word, expect) in [
            ("polcy", Some("policy")),
            ("prioritiy", Some("priority")),
            ("stage", Some("stages")),
            ("unti", Some("unit")),
            ("colour", None),
            ("x", None),
            (long, None),
        ] {
            assert_eq!(nearest(word, known), expect, "{word}");
        }
    }
}
