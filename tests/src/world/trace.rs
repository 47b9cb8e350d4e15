//! What happened in a world: a hash of all of it, the last lines for a person, and counts by name.
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};

/// Lines kept for the report of a violation.
const KEPT: usize = 80;

/// The trace of a world.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    keep: bool,
    print: bool,
}

struct Fnv<'a>(&'a mut u64);
impl Write for Fnv<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            *self.0 = (*self.0 ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

impl Trace {
    /// `keep` costs a string per line; `print` writes each line to standard output.
    pub const fn new(keep: bool, print: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: VecDeque::new(),
            keep,
            print,
        }
    }
    /// Notes a line.
    pub fn line(&mut self, now: u64, line: fmt::Arguments<'_>) {
        let _ = writeln!(Fnv(&mut self.hash), "{now} {line}");
        if self.keep {
            if self.lines.len() == KEPT {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{now:>9} {line}"));
        }
        if self.print {
            use std::io::Write as _;
            let _ = writeln!(std::io::stdout().lock(), "{now:>9} {line}");
        }
    }
    /// Equal for equal histories.
    pub const fn hash(&self) -> u64 {
        self.hash
    }
    /// The last lines.
    pub fn tail(&self) -> String {
        self.lines.iter().map(|l| format!("{l}\n")).collect()
    }
}

/// How often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(&'static str, String), u64>);

impl Counts {
    /// One more of `name`, of a `kind` such as `event`.
    pub fn add(&mut self, kind: &'static str, name: &str) {
        if let Some(n) = self.0.get_mut(&(kind, name.to_owned())) {
            *n += 1;
        } else {
            self.0.insert((kind, name.to_owned()), 1);
        }
    }
    /// How many of it.
    pub fn get(&self, kind: &'static str, name: &str) -> u64 {
        self.0.get(&(kind, name.to_owned())).copied().unwrap_or(0)
    }
    /// Adds another world's counts.
    pub fn merge(&mut self, other: &Self) {
        for (key, n) in &other.0 {
            *self.0.entry(key.clone()).or_default() += n;
        }
    }
    /// All, in order: kind, name, number.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, u64)> {
        self.0
            .iter()
            .map(|((kind, name), n)| (*kind, name.as_str(), *n))
    }
}
