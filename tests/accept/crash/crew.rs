//! The processes of a crash run, and what they say: each writes a log, and its exit status is a word, too.
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::daemon::program;

/// How long the workers may take to give everything back when they are told to finish.
const FINISH_WITHIN: Duration = Duration::from_secs(60);

/// The processes of a run; they end when the flag file appears, or are ended.
pub(super) struct Crew {
    dir: PathBuf,
    members: Vec<Member>,
    complaints: Vec<String>,
}

struct Member {
    name: String,
    child: Child,
    gone: bool,
}

/// What all said.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Lines of `word number`, summed by word.
    pub(super) sums: BTreeMap<String, u64>,
    /// What somebody did not like, by kind.
    pub(super) complaints: Vec<String>,
    /// Requests that were answered with a lease, and which.
    pub(super) acknowledged: Vec<(String, u64)>,
    /// Requests that were refused for want of room.
    pub(super) refused: BTreeSet<String>,
}

impl Crew {
    /// Nobody yet; their logs go into this folder.
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            members: Vec::new(),
            complaints: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, socket: &Path, role: &str, index: usize) -> anyhow::Result<()> {
        let name = format!("{role}-{index}");
        let words = File::create(self.last_words(&name))?;
        let child = Command::new(program("accept")?)
            .args([
                "worker",
                &format!("--{role}"),
                "--index",
                &index.to_string(),
                "--socket",
            ])
            .arg(socket)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words)
            .spawn()?;
        self.members.push(Member {
            name,
            child,
            gone: false,
        });
        Ok(())
    }

    fn last_words(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.err"))
    }

    /// Nobody ends before it is told to: whoever has is complained about, once.
    pub(super) fn all_work(&mut self) -> anyhow::Result<()> {
        let mut ended = Vec::new();
        for member in self.members.iter_mut().filter(|m| !m.gone) {
            if let Some(status) = member.child.try_wait()? {
                member.gone = true;
                ended.push((member.name.clone(), format!("ended early ({status})")));
            }
        }
        for (name, how) in ended {
            self.complain(&name, &how);
        }
        Ok(())
    }

    fn complain(&mut self, name: &str, how: &str) {
        let said = fs::read_to_string(self.last_words(name)).unwrap_or_default();
        let last = said.lines().last().unwrap_or("it said nothing");
        self.complaints
            .push(format!("failed: {name} {how}: {last}"));
    }

    /// Tells all to finish and waits. Whoever fails at that is complained about.
    pub(super) async fn finish(&mut self) -> anyhow::Result<()> {
        self.all_work()?;
        fs::write(self.dir.join("stop"), "")?;
        let start = Instant::now();
        let mut failed = Vec::new();
        for member in self.members.iter_mut().filter(|m| !m.gone) {
            let status = loop {
                if let Some(status) = member.child.try_wait()? {
                    break status;
                }
                ensure!(
                    start.elapsed() < FINISH_WITHIN,
                    "the worker {} does not finish",
                    member.name
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            if !status.success() {
                failed.push((member.name.clone(), format!("ended with {status}")));
            }
        }
        for (name, how) in failed {
            self.complain(&name, &how);
        }
        Ok(())
    }

    /// What all wrote.
    pub(super) fn tally(&self) -> anyhow::Result<Tally> {
        let mut tally = Tally {
            complaints: self.complaints.clone(),
            ..Tally::default()
        };
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "log") {
                let said = fs::read_to_string(&path)?;
                said.lines().for_each(|line| tally.hear(line));
            }
        }
        Ok(tally)
    }
}

impl Tally {
    pub(super) fn sum(&self, word: &str) -> u64 {
        self.sums.get(word).copied().unwrap_or(0)
    }

    fn hear(&mut self, line: &str) {
        let Some((word, rest)) = line.split_once(' ') else {
            return;
        };
        match word {
            "complaint" => self.complaints.push(rest.to_owned()),
            "refused" => drop(self.refused.insert(rest.to_owned())),
            "ack" => match rest.split_once(' ').map(|(r, l)| (r, l.parse())) {
                Some((request, Ok(lease))) => self.acknowledged.push((request.to_owned(), lease)),
                _ => self
                    .complaints
                    .push(format!("failed: nobody can read `{line}`")),
            },
            _ => *self.sums.entry(word.to_owned()).or_insert(0) += rest.parse::<u64>().unwrap_or(0),
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_say_is_summed_up() {
        let mut tally = Tally::default();
        for line in [
            "renewals 3",
            "renewals 4",
            "ack 0190 7",
            "refused 0191",
            "complaint lost: lease 7",
            "ack 0192",
        ] {
            tally.hear(line);
        }
        assert_eq!(tally.sum("renewals"), 7);
        assert_eq!(tally.acknowledged, [("0190".to_owned(), 7)]);
        assert!(tally.refused.contains("0191"));
        assert_eq!(tally.complaints.len(), 2, "{:?}", tally.complaints);
    }
}
