//! What one lease's worker offers to measure, and the trial that it is asked for.
use crate::model::{Trial, TrialAnswer};

/// An offer, what was asked, and what was answered.
#[derive(Debug, Default)]
pub(super) struct Offered {
    /// The stage; none: nothing is offered.
    stage: Option<String>,
    /// The daemon has to be told of the offer, or that it is taken back.
    due: bool,
    /// Asked for and not taken by the worker yet.
    asked: Option<Trial>,
    answer: Option<(u64, TrialAnswer)>,
}

/// What goes up.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    /// The stage of a new offer; an empty one takes it back.
    pub(super) offer: Option<String>,
    pub(super) answer: Option<(u64, TrialAnswer)>,
}

impl Offered {
    pub(super) fn offer(&mut self, stage: Option<String>) {
        if stage.is_none() {
            self.asked = None;
        }
        self.stage = stage;
        self.due = true;
    }

    /// The daemon asks for a trial. Says whether the worker is to hear of it.
    pub(super) fn ask(&mut self, trial: Trial) -> bool {
        let wanted = self.stage.is_some();
        if wanted {
            self.asked = Some(trial);
        }
        wanted
    }

    /// The trial to run, once.
    pub(super) fn take(&mut self) -> Option<Trial> {
        self.asked.take()
    }

    pub(super) fn answer(&mut self, id: u64, answer: TrialAnswer) {
        self.answer = Some((id, answer));
    }

    /// A new stream is open. The daemon has forgotten offers and trials of the last one.
    pub(super) fn reopened(&mut self) {
        self.due = self.stage.is_some();
        self.asked = None;
        self.answer = None;
    }

    /// What is to be told, once.
    pub(super) fn tell(&mut self) -> Option<Told> {
        let due = std::mem::take(&mut self.due);
        let told = Told {
            offer: due.then(|| self.stage.clone().unwrap_or_default()),
            answer: self.answer.take(),
        };
        (told.offer.is_some() || told.answer.is_some()).then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TRIAL: Trial = Trial {
        id: 7,
        cores: 1,
        sms: 33,
        batch: 8,
        replicas: 1,
        warmup: Duration::ZERO,
        measure: Duration::from_secs(1),
    };

    #[test]
    fn an_offer_is_told_on_each_stream_and_an_answer_once() {
        let mut offered = Offered::default();
        assert!(!offered.ask(TRIAL), "nothing was offered");
        assert_eq!((offered.take(), offered.tell()), (None, None));
        offered.offer(Some("j/gen".to_owned()));
        let told = offered.tell().unwrap();
        assert_eq!((told.offer.as_deref(), told.answer), (Some("j/gen"), None));
        assert_eq!(offered.tell(), None);
        assert!(offered.ask(TRIAL));
        assert_eq!((offered.take(), offered.take()), (Some(TRIAL), None));
        let answer = TrialAnswer::Measured {
            units_per_s: 5.0,
            memory_bytes: 0,
        };
        offered.answer(7, answer.clone());
        assert_eq!(offered.tell().unwrap().answer, Some((7, answer.clone())));
        assert_eq!(offered.tell(), None);
        // The next stream: the offer stands, the daemon knows nothing of the trial.
        offered.answer(7, answer);
        offered.reopened();
        let told = offered.tell().unwrap();
        assert_eq!((told.offer.as_deref(), told.answer), (Some("j/gen"), None));
        offered.offer(None);
        assert_eq!(offered.tell().unwrap().offer.as_deref(), Some(""));
        offered.reopened();
        assert_eq!(offered.tell(), None);
    }
}
