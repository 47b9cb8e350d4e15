//! Line 6: the Debian package in a clean tree. The scripts build, install and use it; here their findings become rows.
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::Run;
use crate::row::Row;

/// The unit's exposure has to be below.
const EXPOSURE_BELOW: f64 = 4.0;

/// What `scripts/deb-check.sh` found: each line's words before the last colon, and after it.
struct Findings {
    found: BTreeMap<String, Vec<String>>,
    skipped: Option<String>,
}

pub(crate) async fn measure(_run: &Run) -> anyhow::Result<Vec<Row>> {
    let said =
        tokio::task::spawn_blocking(|| script("deb.sh").and_then(|_| script("deb-check.sh")));
    Ok(rows(&Findings::read(&said.await??)))
}

/// Runs a script of ours and returns what it says.
fn script(name: &str) -> anyhow::Result<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let out = Command::new(root.join("scripts").join(name))
        .current_dir(root)
        .output()
        .with_context(|| format!("cannot run scripts/{name}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let last = said
        .lines()
        .chain(std::str::from_utf8(&out.stderr)?.lines())
        .next_back();
    ensure!(
        out.status.success(),
        "scripts/{name}: {}: {}",
        out.status,
        last.unwrap_or("it says nothing")
    );
    Ok(said)
}

impl Findings {
    fn read(said: &str) -> Self {
        let mut findings = Self {
            found: BTreeMap::new(),
            skipped: None,
        };
        for line in said
            .lines()
            .filter_map(|line| line.strip_prefix("deb-check: "))
        {
            if let Some(why) = line.strip_prefix("skipped, since ") {
                findings.skipped = Some(why.to_owned());
            } else if let Some((what, value)) = line.split_once(": ") {
                let values = findings.found.entry(what.to_owned()).or_default();
                values.push(value.to_owned());
            }
        }
        findings
    }

    /// A finding; what was skipped, or is not there, was not shown.
    fn get(&self, what: &str) -> anyhow::Result<String> {
        if let Some(why) = &self.skipped {
            anyhow::bail!("not measured, since {why}");
        }
        let values = self.found.get(what);
        let values = values.with_context(|| format!("deb-check does not say: {what}"))?;
        Ok(values.join("; "))
    }
}

fn rows(findings: &Findings) -> Vec<Row> {
    let there = |what: &str| findings.get(what).map(|value| (value, true));
    let exposure = findings.get("exposure").and_then(|value| {
        let figure: f64 = value
            .parse()
            .with_context(|| format!("no figure: {value}"))?;
        Ok((value, figure < EXPOSURE_BELOW))
    });
    let booted = findings.get("booted").map(|said| {
        let holds = !said.contains("skipped");
        (said, holds)
    });
    vec![
        Row::judged(
            "the package in a clean Debian 12",
            "installs",
            there("installed"),
        ),
        Row::judged(
            "systemd-analyze verify there",
            "clean",
            findings.get("verify").map(|said| {
                let clean = said == "clean";
                (said, clean)
            }),
        ),
        Row::judged(
            "systemd-analyze security there",
            "exposure under 4",
            exposure,
        ),
        Row::judged(
            "`evenkeel run` with the installed daemon",
            "works",
            there("run with cores"),
        ),
        Row::judged(
            "the same with an emulated GPU",
            "works, and says that it is emulated",
            findings.get("run with an emulated GPU").map(|said| {
                let honest = said.contains("EMULATED");
                (said, honest)
            }),
        ),
        Row::judged(
            "`evenkeel doctor` there",
            "nothing is bad",
            there("doctor with cores"),
        ),
        Row::judged(
            "the unit under a booted systemd: sandbox, restart, watchdog, another user's worker",
            "works",
            booted,
        ),
        Row::beside(
            "man pages that read, completions that load",
            two(findings, "pages", "completions"),
        ),
        Row::judged("purged", "nothing is left", there("purge")),
    ]
}

fn two(findings: &Findings, one: &str, other: &str) -> anyhow::Result<String> {
    Ok(format!("{}; {}", findings.get(one)?, findings.get(other)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "deb-check: installed: evenkeel 0.1.0-1, 1 KiB\ndeb-check: verify: clean\n\
        deb-check: exposure: 2.4\ndeb-check: run with cores: ok\ndeb-check: run with an emulated GPU: EMULATED GPU\n\
        deb-check: doctor with cores: 8 ok\ndeb-check: booted: status: serving\ndeb-check: booted: all of it holds\n\
        deb-check: pages: 20\ndeb-check: completions: 9\ndeb-check: purge: nothing is left\nnoise\n";

    fn holding(said: &str) -> usize {
        let rows = rows(&Findings::read(said));
        rows.iter().filter(|row| row.holds == Some(true)).count()
    }

    #[test]
    fn what_was_not_shown_does_not_hold() {
        assert_eq!(holding(SAID), 8);
        assert_eq!(holding(&SAID.replace("2.4", "4.0")), 7);
        assert_eq!(
            holding(&SAID.replace("verify: clean", "verify: a warning")),
            7
        );
        assert_eq!(holding(&SAID.replace("EMULATED", "H100")), 7);
        assert_eq!(
            holding(&SAID.replace("all of it holds", "skipped, since")),
            7
        );
        assert_eq!(holding(&SAID.replace("purge", "purged")), 7);
        assert_eq!(holding("deb-check: skipped, since it needs root\n"), 0);
    }
}
