//! Trials that running workers make for a calibration: who offers itself, what is under way, who waits for the result.
//!
//! Not part of the state: an offer lives as long as its session, and a trial as long as its caller waits. Nothing is
//! decided or stored here; the caller stores what it wants to keep.
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::id::{Fence, LeaseId, Name};
use evenkeel_core::unit::Time;
use evenkeel_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};

use super::limits::TRIAL_OFFERS_MAX;

/// What somebody offers to measure: a tenant's stage, by the fingerprint of its profile.
pub(super) type Stage = (Name, Name);
/// Where a session takes its trials from.
pub(super) type Inbox = mpsc::Receiver<pb::Trial>;
/// Where a session is told of trials.
pub(super) type Door = mpsc::Sender<pb::Trial>;

/// See the module's text.
#[derive(Default)]
pub(super) struct Trials(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// The last trial's number.
    last: u64,
    offers: BTreeMap<LeaseId, Offer>,
}

/// A worker that offers itself.
struct Offer {
    stage: Stage,
    fence: Fence,
    door: Door,
    under_way: Option<UnderWay>,
}

/// A trial that the worker has not answered.
struct UnderWay {
    id: u64,
    /// Whoever waits for it may have gone; the worker is at work until it answers all the same.
    reply: oneshot::Sender<pb::TrialResult>,
}

/// Why an offer, or a result, is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "{TRIAL_OFFERS_MAX} workers offer themselves for trials already; take some offers back"
    )]
    TooMany,
    #[error("nobody waits for this trial: it took too long, or its caller has gone")]
    Unknown,
}

/// Why no trial has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// None of these workers offers itself any more.
    Nobody,
    /// All are at work on others' trials.
    Busy,
}

impl Trials {
    /// Numbers begin after those of all lives before, since the machine started: a worker may still be at work on a trial
    /// of one, and its result is none of this life's.
    pub(super) fn starting(now: Time) -> Self {
        /// More than this many in each millisecond of a life nobody makes.
        const BITS: u32 = 20;
        let book = Book {
            last: now.0 << BITS,
            ..Book::default()
        };
        Self(Mutex::new(book))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each change is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker offers itself, or offers something else. A trial that is under way for the same offer goes on.
    pub(super) fn offer(
        &self,
        (lease, fence): (LeaseId, Fence),
        stage: Stage,
        door: &Door,
    ) -> Result<(), Refusal> {
        let mut book = self.book();
        let full = book.offers.len() >= TRIAL_OFFERS_MAX;
        match book.offers.entry(lease) {
            Entry::Occupied(mut entry) => {
                let old = entry.get_mut();
                let same = old.fence == fence && old.door.same_channel(door);
                if !same {
                    // Another process, or another connection: what was asked of the old one gets no answer.
                    old.under_way = None;
                }
                (old.stage, old.fence, old.door) = (stage, fence, door.clone());
            }
            Entry::Vacant(_) if full => return Err(Refusal::TooMany),
            Entry::Vacant(entry) => {
                let (door, under_way) = (door.clone(), None);
                entry.insert(Offer {
                    stage,
                    fence,
                    door,
                    under_way,
                });
            }
        }
        Ok(())
    }

    /// A worker of this session takes its offer back, or its lease is over.
    pub(super) fn withdraw(&self, lease: LeaseId, door: &Door) {
        let mut book = self.book();
        if let Entry::Occupied(entry) = book.offers.entry(lease)
            && entry.get().door.same_channel(door)
        {
            entry.remove();
        }
    }

    /// A session is over, and all its offers with it.
    pub(super) fn close(&self, door: &Door) {
        self.book().offers.retain(|_, o| !o.door.same_channel(door));
    }

    /// Who offers itself for trials of a stage.
    pub(super) fn offered(&self, stage: &Stage) -> Vec<LeaseId> {
        let book = self.book();
        let mine = book.offers.iter().filter(|(_, o)| o.stage == *stage);
        mine.map(|(lease, _)| *lease).collect()
    }

    /// Asks the first idle one of these workers for a trial. Its result comes through what is returned; nothing comes
    /// when the worker goes away.
    pub(super) fn begin(
        &self,
        stage: &Stage,
        among: &[LeaseId],
        trial: &pb::Trial,
    ) -> Result<(LeaseId, oneshot::Receiver<pb::TrialResult>), Idle> {
        let mut book = self.book();
        let id = book.last + 1;
        let (mut why, mut begun) = (Idle::Nobody, None);
        for lease in among {
            let Some(offer) = book.offers.get_mut(lease).filter(|o| o.stage == *stage) else {
                continue;
            };
            why = Idle::Busy;
            if offer.under_way.is_some() {
                continue;
            }
            let asked = pb::Trial {
                lease: Some(pb::LeaseRef {
                    lease_id: lease.0,
                    fence: offer.fence.0,
                }),
                trial_id: id,
                ..*trial
            };
            // Full or closed: the session is about to end.
            if offer.door.try_send(asked).is_ok() {
                let (reply, result) = oneshot::channel();
                offer.under_way = Some(UnderWay { id, reply });
                begun = Some((*lease, result));
                break;
            }
        }
        let begun = begun.ok_or(why)?;
        book.last = id;
        Ok(begun)
    }

    /// A worker of this session has done its trial.
    pub(super) fn done(
        &self,
        lease: LeaseId,
        door: &Door,
        result: pb::TrialResult,
    ) -> Result<(), Refusal> {
        let mut book = self.book();
        let offer = book.offers.get_mut(&lease);
        let offer = offer.filter(|o| o.door.same_channel(door));
        let under_way = offer.map(|o| &mut o.under_way).ok_or(Refusal::Unknown)?;
        let trial = under_way
            .take_if(|u| u.id == result.trial_id)
            .ok_or(Refusal::Unknown)?;
        trial.reply.send(result).map_err(|_| Refusal::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: (LeaseId, Fence) = (LeaseId(1), Fence(1));
    const SECOND: (LeaseId, Fence) = (LeaseId(2), Fence(1));

    fn stage(name: &str) -> Stage {
        (Name::new("me").unwrap(), Name::new(name).unwrap())
    }

    fn result(trial_id: u64) -> pb::TrialResult {
        pb::TrialResult {
            trial_id,
            units_per_s: 5.0,
            ..Default::default()
        }
    }

    #[test]
    fn a_trial_goes_to_an_idle_worker_and_its_result_to_who_asked() {
        let trials = Trials::default();
        let (door, mut inbox) = mpsc::channel(8);
        let (stage, other) = (stage("j/gen"), stage("j/train"));
        let asked = pb::Trial {
            sms: 33,
            ..Default::default()
        };
        assert_eq!(
            trials.begin(&stage, &[FIRST.0], &asked).err(),
            Some(Idle::Nobody)
        );
        trials.offer(FIRST, stage.clone(), &door).unwrap();
        trials.offer(SECOND, other.clone(), &door).unwrap();
        assert_eq!(trials.offered(&stage), [FIRST.0]);
        let (lease, mut answer) = trials.begin(&stage, &[FIRST.0], &asked).unwrap();
        let told = inbox.try_recv().unwrap();
        assert_eq!(
            (lease, told.sms, told.lease.unwrap().lease_id),
            (FIRST.0, 33, 1)
        );
        assert_eq!(
            trials.begin(&stage, &[FIRST.0], &asked).err(),
            Some(Idle::Busy)
        );
        // An answer to something else, or by somebody else, is none.
        let (stranger, _kept) = mpsc::channel(8);
        let wrong = trials.done(FIRST.0, &door, result(told.trial_id + 1));
        assert_eq!(wrong, Err(Refusal::Unknown));
        let wrong = trials.done(FIRST.0, &stranger, result(told.trial_id));
        assert_eq!(wrong, Err(Refusal::Unknown));
        assert!(answer.try_recv().is_err());
        trials.done(FIRST.0, &door, result(told.trial_id)).unwrap();
        assert_eq!(answer.try_recv().unwrap().units_per_s, 5.0);
        // Nobody waits any more: it is idle again all the same.
        let (_, answer) = trials.begin(&stage, &[FIRST.0], &asked).unwrap();
        drop(answer);
        let told = inbox.try_recv().unwrap();
        let unheard = trials.done(FIRST.0, &door, result(told.trial_id));
        assert_eq!(unheard, Err(Refusal::Unknown));
        assert!(trials.begin(&stage, &[FIRST.0], &asked).is_ok());
    }

    #[test]
    fn who_goes_away_leaves_nobody_waiting() {
        let trials = Trials::default();
        let (door, _inbox) = mpsc::channel(8);
        let stage = stage("j/gen");
        let asked = pb::Trial::default();
        for ends in [
            &(|| trials.withdraw(FIRST.0, &door)) as &dyn Fn(),
            &|| trials.close(&door),
            // The worker has come back with another fence.
            &|| {
                let again = (FIRST.0, Fence(2));
                trials.offer(again, stage.clone(), &door).unwrap();
            },
        ] {
            trials.offer(FIRST, stage.clone(), &door).unwrap();
            let (_, mut answer) = trials.begin(&stage, &[FIRST.0], &asked).unwrap();
            ends();
            assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        }
        // Another session's word does not end it.
        let (stranger, _kept) = mpsc::channel(8);
        trials.withdraw(FIRST.0, &stranger);
        trials.close(&stranger);
        assert_eq!(trials.offered(&stage), [FIRST.0]);
    }

    #[test]
    fn what_an_earlier_life_asked_for_is_no_result_of_this_one() {
        let (door, mut inbox) = mpsc::channel(8);
        let (stage, asked) = (stage("j/gen"), pb::Trial::default());
        let mut number = |started| {
            let life = Trials::starting(Time(started));
            life.offer(FIRST, stage.clone(), &door).unwrap();
            let _answer = life.begin(&stage, &[FIRST.0], &asked).unwrap();
            let told = inbox.try_recv().unwrap();
            (life, told.trial_id)
        };
        let (_, before) = number(5_000);
        let (life, after) = number(5_001);
        assert!(before < after);
        let stale = life.done(FIRST.0, &door, result(before));
        assert_eq!(stale, Err(Refusal::Unknown));
    }

    #[test]
    fn there_are_only_so_many_offers() {
        let trials = Trials::default();
        let (door, _inbox) = mpsc::channel(1);
        let offer = |n| trials.offer((LeaseId(n), Fence(1)), stage("j/gen"), &door);
        for n in 0..TRIAL_OFFERS_MAX as u64 {
            offer(n).unwrap();
        }
        assert_eq!(offer(1 << 40), Err(Refusal::TooMany));
        assert_eq!(offer(3), Ok(()), "the same one again");
        assert_eq!(trials.offered(&stage("j/gen")).len(), TRIAL_OFFERS_MAX);
    }
}
