//! Line 4: the simulated world, and the faults that are planted in it. The tests of `make test` say what they counted in
//! lines that begin with `world:`; here they are summed up and judged.
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use evenkeel_tests::world::coverage;
use evenkeel_tests::world::planted::Planted;
use evenkeel_tests::world::shell::Fate;

use crate::Run;
use crate::plans::{cargo, tail};
use crate::row::Row;

const HAPPENINGS: u64 = 1_000_000;
const SEEDS: u64 = 200;
const SECONDS: f64 = 240.0;
/// Of the happenings, in percent.
const TIMERS_MOST: f64 = 30.0;
/// Planted faults, and the happenings within which each has to be caught, over all seeds that are tried.
const FAULTS: usize = 10;
const CAUGHT_WITHIN: u64 = 10_000;
/// Crash points apart from those around a commit.
const CRASHES: [(&str, &str); 2] = [
    ("crash", "between steps"),
    ("crash", "with a restart of the machine"),
];

/// A short run walks as far as a long one: it takes a minute.
pub(crate) async fn measure(_: &Run) -> anyhow::Result<Vec<Row>> {
    // The whole workspace, as `make test` has it: for one package alone the features differ, and half of all is built
    // again.
    let test = ["test", "--workspace", "--test", "world"];
    let (built, said) = cargo(&[&test[..], &["--no-run"]].concat(), &[])?;
    ensure!(built, "the world's tests do not build: {}", tail(&said));
    let start = Instant::now();
    let (ok, said) = cargo(&[&test[..], &["--", "--nocapture"]].concat(), &[])?;
    let seconds = start.elapsed().as_secs_f64();
    let heard = Heard::read(&said);
    let mut rows = vec![Row::judged(
        "the world's tests, as CI builds and runs them",
        "pass, under 240 s",
        if ok {
            Ok((format!("pass in {seconds:.0} s"), seconds < SECONDS))
        } else {
            Err(anyhow::anyhow!("FAIL: {}", tail(&said)))
        },
    )];
    rows.extend(heard.walked(ok));
    rows.extend(heard.reached());
    rows.extend(heard.caught());
    Ok(rows)
}

/// What the tests said.
#[derive(Default)]
struct Heard {
    /// Of each walk: words and their values.
    walks: Vec<BTreeMap<String, String>>,
    /// Kind and name, and how often.
    counts: BTreeMap<(String, String), u64>,
    /// By the fault's name.
    planted: BTreeMap<String, BTreeMap<String, String>>,
    /// Seeds whose trace was the same twice, with its hash.
    traces: Vec<String>,
}

/// `a 1 b two` as pairs.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .map(|[key, value]| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn get<T: FromStr>(of: &BTreeMap<String, String>, key: &str) -> anyhow::Result<T> {
    of.get(key)
        .and_then(|v| v.parse().ok())
        .with_context(|| format!("the test did not say {key}"))
}

impl Heard {
    fn read(said: &str) -> Self {
        let mut heard = Self::default();
        // The runner may have written the test's name before it.
        let lines = said.lines().filter_map(|l| l.split_once("world: "));
        for (_, line) in lines {
            match line.split_once(' ') {
                Some(("walk", rest)) => heard.walks.push(pairs(rest)),
                Some(("trace", rest)) => heard.traces.push(rest.to_owned()),
                Some(("planted", rest)) => {
                    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                    heard.planted.insert(name.to_owned(), pairs(rest));
                }
                Some(("count", rest)) => heard.count(rest),
                _ => {}
            }
        }
        heard
    }

    /// `event lease_granted 12`, `commit in doubt, lost 3`.
    fn count(&mut self, rest: &str) {
        let Some((kind, rest)) = rest.split_once(' ') else {
            return;
        };
        if let Some((name, n)) = rest.rsplit_once(' ') {
            let key = (kind.to_owned(), name.trim().to_owned());
            *self.counts.entry(key).or_default() += n.parse::<u64>().unwrap_or(0);
        }
    }

    fn sum(&self, key: &str) -> anyhow::Result<u64> {
        ensure!(!self.walks.is_empty(), "no walk was told");
        self.walks.iter().map(|w| get::<u64>(w, key)).sum()
    }

    /// `passed`: a violation, an unreached thing or another trace ends a test.
    fn walked(&self, passed: bool) -> Vec<Row> {
        let happenings = || {
            let (n, seeds) = (self.sum("happenings")?, self.sum("seeds")?);
            let found = if passed {
                "no violation"
            } else {
                "the tests FAILED"
            };
            let shown = format!("{n} over {seeds} seeds, {found}");
            Ok((shown, n >= HAPPENINGS && seeds >= SEEDS && passed))
        };
        let timers = || {
            let share = 100.0 * self.sum("timers")? as f64 / self.sum("happenings")? as f64;
            Ok((format!("{share:.1} %"), share <= TIMERS_MOST))
        };
        let slowest = || -> anyhow::Result<(String, bool)> {
            let mut slowest = 0.0_f64;
            ensure!(!self.walks.is_empty(), "no walk was told");
            for walk in &self.walks {
                slowest = slowest.max(get(walk, "seconds")?);
            }
            Ok((format!("{slowest:.0} s"), slowest < SECONDS))
        };
        vec![
            Row::judged(
                "happenings in the simulated world",
                "≥ 1,000,000 over hundreds of seeds, no violation",
                happenings(),
            ),
            Row::judged("of them timer advances", "≤ 30 %", timers()),
            Row::judged(
                "time of the longer of the two walks, which run beside each other",
                "under 240 s",
                slowest(),
            ),
            Row::new(
                "trace hash of a seed, walked twice",
                "the same",
                self.traces.join("; "),
                !self.traces.is_empty() && self.traces.iter().all(|t| t.ends_with("same")),
            ),
        ]
    }

    fn reached(&self) -> Vec<Row> {
        let of = |what: &str, names: Vec<(&str, &str)>| {
            let count = |(kind, name): &(&str, &str)| {
                let key = ((*kind).to_owned(), (*name).to_owned());
                self.counts.get(&key).copied().unwrap_or(0)
            };
            let never: Vec<_> = names.iter().filter(|n| count(n) == 0).collect();
            let rarest = names.iter().min_by_key(|n| count(n));
            let rarest = rarest.map(|n| format!("{} ({})", n.1, count(n)));
            let shown = format!(
                "{} of {}; the rarest: {}{}",
                names.len() - never.len(),
                names.len(),
                rarest.unwrap_or_default(),
                if never.is_empty() {
                    String::new()
                } else {
                    format!("; never: {never:?}")
                }
            );
            Row::new(
                what,
                "each at least once",
                shown,
                never.is_empty() && !names.is_empty(),
            )
        };
        let all = |kind, names: &[&'static str]| -> Vec<(&str, &str)> {
            names.iter().map(|name| (kind, *name)).collect()
        };
        let crashes = [all("commit", &Fate::ALL.map(Fate::name)), CRASHES.to_vec()];
        vec![
            of("kinds of event reached", all("event", &coverage::EVENTS)),
            of(
                "kinds of rejection reached",
                all("answer", &coverage::REFUSALS),
            ),
            of("crash points reached", crashes.concat()),
        ]
    }

    fn caught(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Planted::ALL
            .iter()
            .map(|(planted, invariant)| {
                let name = format!("{planted:?}");
                let found = || {
                    let of = self
                        .planted
                        .get(&name)
                        .context("it was never noticed")?;
                    let (seed, after) = (get::<u64>(of, "seed")?, get::<u64>(of, "happenings")?);
                    let (all, by) = (get::<u64>(of, "total")?, get::<String>(of, "invariant")?);
                    let shown =
                        format!("seed {seed}, after {after} happenings ({all} with the seeds before it), by {by}");
                    Ok((shown, all <= CAUGHT_WITHIN && by == *invariant))
                };
                Row::judged(
                    &format!("planted fault {name}"),
                    &format!("caught within 10,000 happenings by {invariant}"),
                    found(),
                )
            })
            .collect();
        rows.push(Row::new(
            "planted faults",
            "ten",
            Planted::ALL.len().to_string(),
            Planted::ALL.len() >= FAULTS,
        ));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
test world_holds ... world: walk seeds 100 happenings 600000 timers 12000 seconds 31.5
world: walk seeds 100 happenings 500000 timers 9000 seconds 28.0
world: count event lease_granted 4
world: count event lease_granted 5
world: count commit in doubt, lost 7
world: planted GrowBeforeShrink seed 2 happenings 300 total 9000 invariant reality_is_counted
world: trace seed 3 hash 0xabc happenings 812: same
";

    #[test]
    fn what_the_tests_say_is_summed_up() {
        let heard = Heard::read(SAID);
        assert_eq!(heard.sum("happenings").unwrap(), 1_100_000);
        assert_eq!(heard.counts[&("event".into(), "lease_granted".into())], 9);
        assert_eq!(heard.counts[&("commit".into(), "in doubt, lost".into())], 7);
        assert!(heard.walked(true).iter().all(|r| r.holds == Some(true)));
        assert_eq!(heard.walked(false)[0].holds, Some(false), "a test failed");
        let caught = |heard: &Heard, name: &str| {
            let rows = heard.caught();
            let row = rows.iter().find(|r| r.what.ends_with(name)).unwrap();
            row.holds
        };
        assert_eq!(caught(&heard, "GrowBeforeShrink"), Some(true));
        assert_eq!(caught(&heard, "QueueJumped"), Some(false), "never told");
        let late = Heard::read(&SAID.replace("total 9000", "total 12000"));
        assert_eq!(caught(&late, "GrowBeforeShrink"), Some(false));
        assert!(
            heard.reached().iter().all(|r| r.holds == Some(false)),
            "most were not reached"
        );
    }

    #[test]
    fn silence_holds_nothing() {
        let silent = Heard::read("test result: ok. 6 passed");
        let rows = [silent.walked(true), silent.reached(), silent.caught()].concat();
        let held: Vec<_> = rows.iter().filter(|r| r.holds == Some(true)).collect();
        assert_eq!(
            held.len(),
            1,
            "only the number of faults is known: {held:?}"
        );
    }
}
