//! Which stages keep the next window from closing, and since when: without windows nothing is measured, no detector
//! fires, and no share moves. What `top` and `explain` say about it.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::{StageId, WorkerId};
use crate::job::StageSpec;
use crate::unit::{Millis, Time};

/// Shorter silences are not worth a word: two heartbeats of 5 s, with which reports come.
pub const SILENT_AFTER: Millis = Millis::secs(10);

/// What is missing of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// Busy intervals with work units.
    Work,
    /// A new training step. (Its work was reported.)
    Step,
}

/// A stage that keeps the next window from closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The stage.
    pub stage: StageId,
    /// Its worker that has been silent for longest; none: all of them are.
    pub worker: Option<WorkerId>,
    /// What of it is missing.
    pub missing: Missing,
    /// When that last came; where it never did, when the watch began.
    pub since: Time,
    /// Since when the next window has waited for it.
    pub waited_for: Time,
}

impl Silent {
    /// What is said of a stage with so many `workers`, of which these are silent.
    pub(super) fn of_stage(silent: Vec<Self>, workers: u32) -> Option<Self> {
        let longest = silent.iter().min_by_key(|s| (s.since, s.worker)).copied()?;
        let alike = silent.iter().all(|s| s.missing == longest.missing);
        if silent.len() < workers as usize || !alike {
            return Some(longest);
        }
        // The stage as a whole was heard when the last of them was.
        let last = silent.into_iter().max_by_key(|s| s.since)?;
        Some(Self {
            worker: None,
            ..last
        })
    }
}

/// A sentence about those that have been silent for a while; none if nobody has. A stage that nobody works for is not to
/// blame for its silence: `is_manned` says whether a worker of it has a lease.
pub(super) fn sentence(
    silent: &[Silent],
    stages: &[StageSpec],
    is_manned: impl Fn(StageId) -> bool,
    now: Time,
) -> Option<String> {
    let long = silent
        .iter()
        .filter(|s| now.since(s.waited_for) >= SILENT_AFTER)
        .filter_map(|s| Some((s, stages.get(usize::from(s.stage.0))?)));
    let of = |(s, stage): (&Silent, &StageSpec)| {
        let who = match s.worker {
            None => format!("{}", stage.name),
            Some(worker) => format!("{worker} of {}", stage.name),
        };
        let what = match s.missing {
            Missing::Work => "reported no work",
            Missing::Step => "finished no step",
        };
        // Whole seconds: who reads it has no use for more.
        format!("{who} has {what} for {} s", now.since(s.since).0 / 1000)
    };
    let (manned, empty): (Vec<_>, Vec<_>) = long.partition(|(s, _)| is_manned(s.stage));
    let empty = empty.iter().map(|(_, stage)| stage.name.as_str());
    let empty: Vec<&str> = empty.collect();
    let mut all: Vec<String> = manned.into_iter().map(of).collect();
    if !empty.is_empty() {
        all.push(format!("no worker of {} is attached", empty.join(" or ")));
    }
    (!all.is_empty()).then(|| {
        format!(
            "Nothing is measured, so nothing can move: {}.",
            all.join("; ")
        )
    })
}
