//! How long restarts of a job's stages took: what the next move will cost. Measured, not judged; `decide::job` notes
//! what it sees, and `decide::rebalance` asks.
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::id::StageId;
use crate::unit::Millis;

/// Restarts of a stage that count: enough that one that went wrong does not decide, few enough to follow a change.
const KEPT: usize = 5;

/// The newest restarts of each stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    took: Vec<VecDeque<Millis>>,
}

impl Restarts {
    /// Nothing measured yet.
    pub(super) fn of(stages: usize) -> Self {
        Self {
            took: alloc::vec![VecDeque::new(); stages],
        }
    }

    /// A worker of the stage has restarted.
    pub(super) fn note(&mut self, stage: StageId, took: Millis) {
        if let Some(kept) = self.took.get_mut(usize::from(stage.0)) {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(took);
        }
    }

    /// The median of each stage (of an even count the longer of the middle two); none where nothing was measured.
    pub(super) fn medians(&self) -> Vec<Option<Millis>> {
        let median = |kept: &VecDeque<Millis>| {
            let mut sorted: Vec<Millis> = kept.iter().copied().collect();
            sorted.sort_unstable();
            sorted.get(sorted.len() / 2).copied()
        };
        self.took.iter().map(median).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_that_went_wrong_does_not_decide_and_old_ones_go() {
        let mut restarts = Restarts::of(2);
        assert_eq!(restarts.medians(), [None, None]);
        for (took, expect) in [
            (8, 8),
            (300, 300),
            (7, 8),
            (9, 9),
            (6, 8),
            (60, 9),
            (60, 9),
            (60, 60),
        ] {
            restarts.note(StageId(1), Millis::secs(took));
            let expect = Some(Millis::secs(expect));
            assert_eq!(restarts.medians(), [None, expect], "after {took} s");
        }
        restarts.note(StageId(9), Millis(1)); // a stage that is not there
    }
}
