//! Line 8: bad profiles, job files and scenarios get a clear error with the place, and nothing of them is stored.
//!
//! Each input goes through the real programs to a real daemon with an emulated GPU, which has something to lose: a
//! profile and a job. What it has, and the number of the newest event of its audit trail, are compared after each input.
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::daemon::{Daemon, Device, program};
use crate::row::Row;
use crate::trail;

mod jobs;
mod profiles;
mod scenarios;
mod wire;

const ASKED: &str = "a clear error with the place; nothing stored";
/// Seconds after which a command hangs: ten times what the slowest takes in a debug build.
const HANGS_AFTER: &str = "60";
/// `timeout` ended it.
const HUNG: i32 = 124;
/// A file or the command line is wrong.
const USAGE: i32 = 2;
/// Refused on the way.
const FAILED: i32 = 1;
/// Characters of an answer that are shown.
const SHOWN: usize = 220;

pub(super) async fn measure() -> anyhow::Result<Vec<Row>> {
    let ground = Ground::start().await?;
    let mut rows = profiles::measure(&ground).await;
    rows.extend(jobs::measure(&ground).await);
    rows.extend(scenarios::measure(&ground).await);
    rows.extend(wire::measure(&ground).await);
    rows.push(Row::judged(
        "what all of these changed (profiles to the last digit, jobs, the newest event)",
        "nothing",
        ground.is_as_before().await.map(|()| {
            let n = ground.before.newest;
            (format!("nothing; the newest event is still {n}"), true)
        }),
    ));
    Ok(rows)
}

/// What a daemon has.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    profiles: String,
    jobs: String,
    /// Number of the newest event: whatever is stored is an event, too.
    newest: u64,
}

/// A daemon with something to lose, and a folder for files.
struct Ground {
    before: Kept,
    rest: SocketAddr,
    daemon: Daemon,
    _device: Device,
    dir: tempfile::TempDir,
}

/// What a command did.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Ground {
    async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        let gpus = dir.path().join("gpus");
        let config = format!(
            "[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {gpus:?}\nmodel = \"h100\"\n"
        );
        // A port that was free a moment ago.
        let rest = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let listen = PathBuf::from(rest.to_string());
        let env = [("EVENKEEL__LISTEN__REST", listen.as_path())];
        let house = dir.path().join("daemon");
        let device = Device::in_folder(&gpus);
        let daemon = Daemon::in_folder_with(&house, &config, &env).await?;
        let mut ground = Self {
            before: Kept {
                profiles: String::new(),
                jobs: String::new(),
                newest: 0,
            },
            rest,
            daemon,
            _device: device,
            dir,
        };
        let profile = ground.file("kept.csv", profiles::GOOD.as_bytes())?;
        ground.done(&["calibrate", "import", &profile])?;
        let job = ground.file("kept.toml", jobs::KEPT.as_bytes())?;
        ground.done(&["submit", &job])?;
        ground.before = ground.kept().await?;
        ensure!(ground.before.newest > 0, "nothing was stored");
        Ok(ground)
    }

    /// Writes a file; its path.
    fn file(&self, name: &str, bytes: &[u8]) -> anyhow::Result<String> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {name}"))?;
        text_of(&path)
    }

    fn run(&self, arguments: &[&str]) -> anyhow::Result<Said> {
        let output = Command::new("timeout")
            .arg(HANGS_AFTER)
            .arg(program("evenkeel")?)
            .args(arguments)
            .env("EVENKEEL_SOCKET", self.daemon.socket())
            .output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Said {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        })
    }

    /// What it printed, having succeeded.
    fn done(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.run(arguments)?;
        ensure!(said.code == 0, "{arguments:?}: {}", said.err.trim());
        Ok(said.out)
    }

    /// A command that has to be refused: with this exit code, and all of these words on one or two lines.
    async fn refused(
        &self,
        arguments: &[&str],
        code: i32,
        words: &[&str],
    ) -> anyhow::Result<String> {
        let said = self.run(arguments)?;
        let told: Vec<&str> = said
            .err
            .lines()
            .filter(|l| !l.contains("says nothing of a GPU"))
            .collect();
        let told = told.join(" ");
        ensure!(said.code != HUNG, "no end within {HANGS_AFTER} s");
        ensure!(said.code != 0, "it was done: {} {told}", said.out.trim());
        ensure!(
            said.code == code,
            "exit code {} and not {code}: {told}",
            said.code
        );
        ensure!(!told.contains("panicked"), "{told}");
        for word in words {
            ensure!(told.contains(word), "`{word}` is missing: {}", shown(&told));
        }
        self.is_as_before().await?;
        Ok(told.trim_start_matches("evenkeel: ").to_owned())
    }

    async fn kept(&self) -> anyhow::Result<Kept> {
        let jobs: serde_json::Value = serde_json::from_str(&self.done(&["jobs", "-o", "json"])?)?;
        let jobs = jobs["jobs"].as_array().cloned().unwrap_or_default();
        let jobs = jobs
            .iter()
            .map(|job| format!("{} {}", job["spec"], job["phase"]));
        Ok(Kept {
            profiles: self.done(&["calibrate", "export"])?,
            jobs: jobs.collect::<Vec<_>>().join("\n"),
            newest: trail::newest(&self.daemon.socket()).await?,
        })
    }

    async fn is_as_before(&self) -> anyhow::Result<()> {
        let after = self.kept().await?;
        ensure!(
            after.profiles == self.before.profiles,
            "profiles have changed"
        );
        ensure!(
            after.jobs == self.before.jobs,
            "jobs have changed: {}",
            after.jobs
        );
        let (newest, before) = (after.newest, self.before.newest);
        ensure!(
            newest == before,
            "events {} to {newest} were stored",
            before + 1
        );
        Ok(())
    }
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    path.to_str().map(str::to_owned).context("an odd path")
}

/// An answer, short and without the folder that the files lie in.
fn shown(said: &str) -> String {
    let plain: Vec<&str> = said
        .split(' ')
        .map(|word| {
            word.rsplit_once('/')
                .filter(|_| word.contains("evenkeel-accept-"))
                .map_or(word, |w| w.1)
        })
        .collect();
    plain.join(" ").chars().take(SHOWN).collect()
}

/// A group of inputs, and what came of each.
#[derive(Default)]
struct Group {
    refused: Vec<String>,
    wrong: Vec<String>,
}

impl Group {
    async fn case(&mut self, what: &str, found: impl Future<Output = anyhow::Result<String>>) {
        match found.await {
            Ok(said) => self.refused.push(said),
            Err(e) => self.wrong.push(format!("{what}: {e:#}")),
        }
    }

    /// What was measured: how many, and one of them.
    fn row(self, what: &str) -> Row {
        self.row_asked(what, ASKED)
    }

    fn row_asked(self, what: &str, asked: &str) -> Row {
        let all = self.refused.len() + self.wrong.len();
        let first = self.wrong.first().or(self.refused.first());
        let first = first.map(|said| shown(said)).unwrap_or_default();
        let measured = match self.wrong.is_empty() {
            true => format!("{all} of {all}; such as: {first}"),
            false => format!("{} of {all}; not: {first}", self.refused.len()),
        };
        if std::env::var_os(ALL_SHOWN).is_some() {
            for said in self.wrong.iter().chain(&self.refused) {
                eprintln!("  {what}: {}", said.replace('\n', " "));
            }
        }
        Row::new(what, asked, measured, self.wrong.is_empty() && all > 0)
    }
}

/// With this variable set, every answer is shown on the standard error.
const ALL_SHOWN: &str = "EVENKEEL_ACCEPT_ALL";
