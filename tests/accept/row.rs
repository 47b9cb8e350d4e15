//! A measured line, and the table of all of them.
use std::fmt::Write as _;

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
    /// A figure that is shown beside the others.
    pub(crate) fn beside(what: &str, measured: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            asked: "(reported)".into(),
            measured: measured.into(),
            holds: None,
        }
    }
}

/// All lines, with the machine that they were measured on.
pub(crate) struct Table {
    machine: String,
    short: bool,
    parts: Vec<(u8, Vec<Row>)>,
}

impl Table {
    pub(crate) const fn new(machine: String, short: bool) -> Self {
        Self {
            machine,
            short,
            parts: Vec::new(),
        }
    }
    /// Adds a part; one that could not be measured does not hold.
    pub(crate) fn part(&mut self, part: u8, rows: anyhow::Result<Vec<Row>>) {
        let rows = rows.unwrap_or_else(|e| {
            vec![Row::new(
                "the measurement itself",
                "runs",
                format!("{e:#}"),
                false,
            )]
        });
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
                    mark(r.holds),
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
            out += "**A short run: a tenth of everything. These figures accept nothing.**\n\n";
        }
        out += "| line | what | asked | measured | holds |\n|---|---|---|---|---|\n";
        for (part, rows) in &self.parts {
            for r in rows {
                let clean = |s: &str| s.replace('|', "/").replace('\n', " ");
                let (what, asked, measured) = (clean(&r.what), clean(&r.asked), clean(&r.measured));
                let _ = writeln!(
                    out,
                    "| {part} | {what} | {asked} | {measured} | {} |",
                    mark(r.holds)
                );
            }
        }
        out
    }
}

const fn mark(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "–",
    }
}
