//! A measured line, and the table of all of them.
use std::fmt::Write as _;

use crate::line::Line;

/// One thing that was asked for and measured.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What.
    pub(crate) what: String,
    /// The bar.
    pub(crate) asked: String,
    /// The figure.
    pub(crate) measured: String,
    /// Whether it holds; none: reported beside, nothing was asked.
    pub(crate) holds: Option<bool>,
}

impl Row {
    /// A line with a bar.
    pub(crate) fn new(what: &str, asked: &str, measured: impl Into<String>, holds: bool) -> Self {
        Self {
            what: what.into(),
            asked: asked.into(),
            measured: measured.into(),
            holds: Some(holds),
        }
    }
    /// A line with a bar whose figure may be missing: what cannot be measured does not hold.
    pub(crate) fn judged(what: &str, asked: &str, found: anyhow::Result<(String, bool)>) -> Self {
        match found {
            Ok((measured, holds)) => Self::new(what, asked, measured, holds),
            Err(e) => Self::new(what, asked, format!("{e:#}"), false),
        }
    }
    /// A figure that is shown beside the others. It has to be there all the same.
    pub(crate) fn beside(what: &str, found: anyhow::Result<String>) -> Self {
        let asked = "(reported)";
        match found {
            Ok(measured) => Self {
                what: what.into(),
                asked: asked.into(),
                measured,
                holds: None,
            },
            Err(e) => Self::new(what, asked, format!("{e:#}"), false),
        }
    }
}

/// All lines, with the machine that they were measured on.
pub(crate) struct Table {
    machine: String,
    short: bool,
    notes: Vec<String>,
    parts: Vec<(Line, Vec<Row>)>,
}

impl Table {
    pub(crate) const fn new(machine: String, short: bool) -> Self {
        Self {
            machine,
            short,
            notes: Vec::new(),
            parts: Vec::new(),
        }
    }
    /// A word that a reader has to know: what was left out.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
    /// Adds a part; one that could not be measured, or found nothing, does not hold.
    pub(crate) fn part(&mut self, part: Line, rows: anyhow::Result<Vec<Row>>) {
        let broken = |why: String| vec![Row::new("the measurement itself", "runs", why, false)];
        let rows = match rows {
            Ok(rows) if rows.is_empty() => broken("it gave no row".into()),
            Ok(rows) => rows,
            Err(e) => broken(format!("{e:#}")),
        };
        self.parts.push((part, rows));
    }
    pub(crate) fn holds(&self) -> bool {
        self.parts
            .iter()
            .flat_map(|(_, rows)| rows)
            .all(|r| r.holds != Some(false))
    }
    /// The newest part, as plain lines.
    pub(crate) fn last_part(&self) -> String {
        let mut out = String::new();
        if let Some((part, rows)) = self.parts.last() {
            for r in rows {
                let _ = writeln!(
                    out,
                    "{part}  {:5} {} | asked {} | measured {}",
                    self.mark(r.holds),
                    r.what,
                    r.asked,
                    r.measured
                );
            }
        }
        out
    }
    /// The whole table.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("{}\n\n", self.machine);
        if self.short {
            out += "**A short run, to see that the harness works: fewer seconds, kills, seeds and leases. These figures \
                    accept nothing; (yes) means that a row works.**\n\n";
        }
        out += "| line | what | asked | measured | holds |\n|---|---|---|---|---|\n";
        for (part, rows) in &self.parts {
            for r in rows {
                let clean = |s: &str| s.replace('|', "/").replace('\n', " ");
                let (what, asked, measured) = (clean(&r.what), clean(&r.asked), clean(&r.measured));
                let _ = writeln!(
                    out,
                    "| {part} | {what} | {asked} | {measured} | {} |",
                    self.mark(r.holds)
                );
            }
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}\n");
        }
        out
    }

    const fn mark(&self, holds: Option<bool>) -> &'static str {
        match (holds, self.short) {
            (Some(true), false) => "yes",
            (Some(true), true) => "(yes)",
            (Some(false), _) => "NO",
            (None, _) => "–",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Theme;

    const LINE: Line = Line {
        theme: Theme::Main,
        number: 1,
    };

    fn table(rows: anyhow::Result<Vec<Row>>) -> Table {
        let mut table = Table::new("a machine".into(), false);
        table.part(LINE, rows);
        table
    }

    #[test]
    fn what_is_not_measured_does_not_hold() {
        let row = |holds| Row::new("a", "b", "c", holds);
        assert!(table(Ok(vec![row(true)])).holds());
        assert!(!table(Ok(vec![row(true), row(false)])).holds());
        assert!(!table(Ok(vec![])).holds(), "no row at all");
        assert!(!table(Err(anyhow::anyhow!("it did not start"))).holds());
        let missing = || anyhow::anyhow!("no figure");
        assert!(!table(Ok(vec![Row::judged("a", "b", Err(missing()))])).holds());
        assert!(!table(Ok(vec![Row::beside("a", Err(missing()))])).holds());
        assert!(table(Ok(vec![Row::beside("a", Ok("1".into()))])).holds());
    }

    #[test]
    fn a_short_run_never_looks_like_a_long_one() {
        let mut short = Table::new("a machine".into(), true);
        short.part(LINE, Ok(vec![Row::new("a", "b", "c", true)]));
        short.note("something was left out");
        let text = short.markdown();
        assert!(
            text.contains("(yes)") && !text.contains("| yes |"),
            "{text}"
        );
        assert!(text.contains("something was left out"), "{text}");
    }
}
