//! What a line is called: its theme and its number there, such as `doors.4`.
use std::fmt;
use std::str::FromStr;

/// What lines were asked for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Theme {
    /// The whole loop: leases, plans, moves.
    Main,
    /// Doors, limits, peers, packages.
    Doors,
    /// Calibration, interference, several jobs, what-if.
    Allocator,
}

impl Theme {
    const ALL: [(Self, &'static str, u8); 3] = [
        (Self::Main, "main", 7),
        (Self::Doors, "doors", 7),
        (Self::Allocator, "allocator", 8),
    ];

    fn lines(self) -> impl Iterator<Item = Line> {
        let last = Self::ALL
            .iter()
            .find(|(t, ..)| *t == self)
            .map_or(0, |t| t.2);
        (1..=last).map(move |number| Line {
            theme: self,
            number,
        })
    }
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    /// Of which theme.
    pub(crate) theme: Theme,
    /// Which of them, from 1.
    pub(crate) number: u8,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Theme::ALL
            .iter()
            .find(|(t, ..)| *t == self.theme)
            .map_or("", |t| t.1);
        write!(f, "{name}.{}", self.number)
    }
}

impl FromStr for Theme {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let found = Self::ALL.iter().find(|(_, name, _)| *name == text);
        found.map(|t| t.0).ok_or(())
    }
}

/// The lines that a text names, in its order.
pub(crate) fn parse(text: &str) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for part in text.split(',').map(str::trim) {
        let found: Vec<Line> = match part.split_once('.') {
            None if part == "all" => Theme::ALL.iter().flat_map(|t| t.0.lines()).collect(),
            None => part
                .parse()
                .map(Theme::lines)
                .into_iter()
                .flatten()
                .collect(),
            Some((theme, number)) => {
                let all = theme.parse().map(Theme::lines).into_iter().flatten();
                all.filter(|l| l.number.to_string() == number).collect()
            }
        };
        if found.is_empty() {
            anyhow::bail!(
                "--part {part}: there is no such line; name a theme (main, doors, allocator), a line (main.1 to \
                 main.7, doors.1 to doors.7, allocator.1 to allocator.8), or `all`"
            );
        }
        lines.extend(found);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read() {
        let check = |text: &str, expect: Option<&str>| {
            let names = |lines: Vec<Line>| {
                let names: Vec<_> = lines.iter().map(Line::to_string).collect();
                names.join(" ")
            };
            assert_eq!(parse(text).ok().map(names).as_deref(), expect, "{text}");
        };
        check("doors.4", Some("doors.4"));
        check("main.3, doors.1", Some("main.3 doors.1"));
        check(
            "main",
            Some("main.1 main.2 main.3 main.4 main.5 main.6 main.7"),
        );
        for bad in ["", "3", "doors.0", "doors.8", "doors.04", "dors", "main."] {
            check(bad, None);
        }
    }
}
