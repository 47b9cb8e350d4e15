//! A fresh clone of HEAD, in a folder of its own and with a target folder of its own: the two commands of the README,
//! as a newcomer types them. Takes as long as a build from nothing.
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::row::Row;

/// The demo after the build.
const DEMO_WITHIN: Duration = Duration::from_secs(120);
/// A build and all tests on two slow cores, ten times over: whoever is not done then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(2 * 3_600);
/// Lines of a command that failed that are shown.
const LAST_WORDS: usize = 8;
/// What make, cargo and this program leave to their children, and a newcomer does not have.
const INHERITED: [&str; 10] = [
    "ARGS",
    "PART",
    "LOCKED",
    "MAKEFLAGS",
    "MAKEOVERRIDES",
    "MAKELEVEL",
    "MFLAGS",
    "CARGO",
    "CARGO_TERM_COLOR",
    "LD_LIBRARY_PATH",
];

pub(crate) async fn measure() -> Vec<Row> {
    let fresh = match Checkout::new() {
        Ok(fresh) => fresh,
        Err(e) => return vec![Row::judged("a fresh clone", "can be made", Err(e))],
    };
    let demo = format!("fresh clone of {}: `make demo`", fresh.commit);
    let test = format!("fresh clone of {}: `make test`", fresh.commit);
    vec![
        Row::judged(&demo, "works; under 120 s after the build", fresh.demo()),
        Row::judged(&test, "works", fresh.test()),
    ]
}

struct Checkout {
    dir: tempfile::TempDir,
    commit: String,
}

/// What a command did.
struct Ran {
    /// To the end, in all.
    took: Duration,
    /// From the first line on standard output that the demo itself says.
    told: Option<Duration>,
    said: Vec<String>,
}

impl Checkout {
    fn new() -> anyhow::Result<Self> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let commit = git(&["-C", root, "rev-parse", "HEAD"])?;
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-clone-")
            .tempdir()?;
        let to = dir.path().join("evenkeel");
        let to = to
            .to_str()
            .context("the folder for temporary files has an odd name")?;
        git(&["clone", "--quiet", "--no-checkout", root, to])?;
        git(&["-C", to, "checkout", "--quiet", "--detach", &commit])?;
        let commit = commit.chars().take(10).collect();
        Ok(Self { dir, commit })
    }

    fn demo(&self) -> anyhow::Result<(String, bool)> {
        let ran = self.make("demo")?;
        let demo = ran.told.context("the demo said nothing")?;
        let honest = ran.said.iter().any(|line| line.contains("EMULATED"));
        let shown = format!(
            "build {:.0} s, then the demo {:.0} s{}",
            (ran.took - demo).as_secs_f64(),
            demo.as_secs_f64(),
            if honest {
                ""
            } else {
                "; it does not say that the GPU was emulated"
            }
        );
        Ok((shown, demo <= DEMO_WITHIN && honest))
    }

    fn test(&self) -> anyhow::Result<(String, bool)> {
        let ran = self.make("test")?;
        // nextest's summary, or the last one of cargo's own runner.
        let summary = ran
            .said
            .iter()
            .rev()
            .find(|l| l.contains("Summary [") || l.contains("test result:"))
            .context("make test ended well and has no summary")?;
        let shown = format!("{:.0} s; {}", ran.took.as_secs_f64(), summary.trim());
        Ok((shown, true))
    }

    /// Runs `make WHAT` and fails if it does.
    fn make(&self, what: &str) -> anyhow::Result<Ran> {
        let dir = self.dir.path().join("evenkeel");
        let mut command = Command::new("make");
        command.arg(what).current_dir(&dir);
        as_a_newcomer(&mut command, &dir);
        run(&mut command).with_context(|| format!("make {what}"))
    }
}

/// Takes away what only this program's children have.
fn as_a_newcomer(command: &mut Command, dir: &Path) {
    let ours = |key: &str| {
        INHERITED.contains(&key)
            || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "EVENKEEL_"]
                .iter()
                .any(|prefix| key.starts_with(prefix))
    };
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(ours) {
            command.env_remove(key);
        }
    }
    command.env("CARGO_TARGET_DIR", dir.join("target"));
}

fn git(args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new("git")
        .args(args)
        .output()
        .context("cannot run git")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "git {}: {}",
        args.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Runs a command to its end and keeps what it says.
fn run(command: &mut Command) -> anyhow::Result<Ran> {
    let start = Instant::now();
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().context("no pipe")?;
    let err = child.stderr.take().context("no pipe")?;
    let heard = std::thread::spawn(move || heard(out, start));
    let errors = std::thread::spawn(move || lines(err));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > HANGS_AFTER {
            // The whole group: what make started ends with it.
            let _ = killpg(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGKILL);
            let _ = child.wait();
            bail!("it hangs: no end within {} s", HANGS_AFTER.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let took = start.elapsed();
    let (mut said, told_at) = heard.join().unwrap_or_default();
    let errors = errors.join().unwrap_or_default();
    if !status.success() {
        let all: Vec<_> = said.into_iter().chain(errors).collect();
        let tail = &all[all.len().saturating_sub(LAST_WORDS)..];
        bail!(
            "{status} after {:.0} s: {}",
            took.as_secs_f64(),
            tail.join(" / ")
        );
    }
    said.extend(errors);
    Ok(Ran {
        took,
        told: told_at.map(|at| took.saturating_sub(at)),
        said,
    })
}

fn lines(from: impl std::io::Read) -> Vec<String> {
    BufReader::new(from).lines().map_while(Result::ok).collect()
}

/// All lines, and when the demo began to tell its story: its lines begin with a time in brackets.
fn heard(from: impl std::io::Read, start: Instant) -> (Vec<String>, Option<Duration>) {
    let (mut said, mut told) = (Vec::new(), None);
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if line.starts_with('[') {
            told.get_or_insert_with(|| start.elapsed());
        }
        said.push(line);
    }
    (said, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_timed_from_where_the_demo_begins() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo building; sleep 0.3; echo '[  0.0 s] starting'; echo EMULATED",
        ]);
        let ran = run(&mut command).unwrap();
        let told = ran.told.unwrap();
        assert!(told < ran.took, "{told:?} of {:?}", ran.took);
        assert!(ran.took - told >= Duration::from_millis(300));
        assert_eq!(ran.said.len(), 3);
    }

    #[test]
    fn a_command_that_fails_is_an_error_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing >&2; exit 3"]);
        let error = format!("{:#}", run(&mut command).err().unwrap());
        assert!(
            error.contains("3") && error.contains("no such thing"),
            "{error}"
        );
    }
}
