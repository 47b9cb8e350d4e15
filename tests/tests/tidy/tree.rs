//! The tree under test: which files belong to the repository, and their text.
//!
//! Shared by the tidy and the layering tests. It judges nothing; it only finds and reads.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One text file of the repository.
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

/// Something that breaks a rule: where, and what.
pub(crate) struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl Violation {
    /// `line` counts from 1; 0 means the file as a whole.
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Fails with the whole list, so that one run shows everything there is to mend.
pub(crate) fn assert_none(violations: &[Violation]) {
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        list.is_empty(),
        "{} found:\n{}",
        list.len(),
        list.join("\n")
    );
}

/// The repository's root: the parent of this package's folder.
pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// Every text file that git tracks or would track; without git, every file outside build folders.
///
/// Panics when there are none: a check over nothing would pass for ever.
pub(crate) fn files() -> Vec<Source> {
    let root = root();
    let mut sources = Vec::new();
    for path in listed_by_git(&root).unwrap_or_else(|| walk(&root)) {
        // A file that was just deleted, a link to a folder and a binary file are none of our business.
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else {
            continue;
        };
        if !text.contains('\0') {
            sources.push(Source { path, text });
        }
    }
    assert!(
        sources.len() > 10,
        "only {} files found under {}",
        sources.len(),
        root.display()
    );
    sources
}

fn listed_by_git(root: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let names = String::from_utf8(output.stdout).ok()?;
    let set: BTreeSet<String> = names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    (!set.is_empty()).then_some(set)
}

fn walk(root: &Path) -> BTreeSet<String> {
    const SKIPPED: &[&str] = &[".git", "target", "node_modules"];
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let path = entry.path();
            if kind.is_dir() && !SKIPPED.contains(&entry.file_name().to_string_lossy().as_ref()) {
                folders.push(path);
            } else if kind.is_file()
                && let Ok(relative) = path.strip_prefix(root)
            {
                found.insert(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found
}

/// Expects as many violations as there are parts, each containing its part.
#[track_caller]
pub(crate) fn check(found: &[Violation], expect: &[&str]) {
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), expect.len(), "{texts:#?}");
    for (text, part) in texts.iter().zip(expect) {
        assert!(text.contains(part), "`{part}` is not in `{text}`");
    }
}
