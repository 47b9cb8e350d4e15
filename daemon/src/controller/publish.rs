//! What becomes visible after a commit: clocks for renewals, waiters, listeners, targets. Decides nothing; called by
//! the controller alone, and only for what is durable.
use std::sync::{Arc, PoisonError};

use evenkeel_core::command::Rejection;
use evenkeel_core::converge::target_of;
use evenkeel_core::event::Event;
use evenkeel_core::id::LeaseId;
use evenkeel_core::lease::Phase;
use evenkeel_core::unit::Time;

use super::Controller;
use crate::handle::Published;
use crate::reconcile::Targets;

impl Controller {
    /// What was committed becomes visible: clocks for renewals, waiters, listeners, targets.
    pub(super) fn publish(&mut self, events: &[Event], now: Time) {
        let mut retarget = false;
        for event in events {
            metrics::counter!("evenkeel_events_total", "kind" => event.kind()).increment(1);
            if let Some(id) = event.lease() {
                self.publish_lease(event, id);
                retarget |= self.target_changed(id, now);
            }
            match event {
                Event::NodeInstalled { .. } | Event::UnavailableChanged { .. } => retarget = true,
                // What holders are told has changed, without an event of their leases.
                Event::NodeDrained { .. } => {
                    self.ends.shared.published.iter().for_each(|l| l.wake())
                }
                Event::JobEnded { .. } => {
                    let told = self.state.volatile.releasing.keys();
                    let published = told.filter_map(|id| self.ends.shared.published.get(id));
                    published.for_each(|lease| lease.wake());
                }
                _ => {}
            }
        }
        if retarget {
            self.send_targets(now);
        }
        self.ends.shared.changes.send_modify(|n| *n += 1);
    }

    fn publish_lease(&self, event: &Event, id: LeaseId) {
        let shared = &self.ends.shared;
        match event {
            Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => {
                if let Some(clock) = self.state.volatile.clocks.get(&id) {
                    let old = shared.published.remove(&id).map(|(_, p)| p);
                    let job = self.state.durable.job_of(lease);
                    let new = Published::new(clock.clone(), lease, job, old.as_ref());
                    shared.published.insert(id, new);
                }
                if lease.phase != Phase::Queued {
                    self.tell_waiters(id, &Ok(()));
                }
            }
            Event::LeaseEnded { how, .. } => {
                if let Some((_, lease)) = shared.published.remove(&id) {
                    lease.wake();
                }
                self.tell_waiters(id, &Err(how.why()));
            }
            Event::LeaseRetargeted { .. } | Event::LeaseQuarantined { .. } => {
                if let Some(lease) = shared.published.get(&id) {
                    lease.wake();
                }
            }
            _ => {}
        }
    }

    fn tell_waiters(&self, id: LeaseId, outcome: &Result<(), &'static str>) {
        let mut waiters = self
            .ends
            .shared
            .waiters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for waiter in waiters.remove(&id).unwrap_or_default() {
            let lease = self.state.durable.leases().get(&id);
            drop(
                waiter.send(match (outcome, lease) {
                    (Ok(()), Some(lease)) => Ok(lease.clone()),
                    (Err(how), _) => Err(Rejection::Lost { id, how }.into()),
                    (Ok(()), None) => Err(Rejection::Lost {
                        id,
                        how: "it ended",
                    }
                    .into()),
                }),
            );
        }
    }

    /// Brings one lease's target up to date; says whether it changed.
    pub(super) fn target_changed(&mut self, id: LeaseId, now: Time) -> bool {
        let lease = self.state.durable.leases().get(&id);
        let new = lease.and_then(|l| target_of(&self.state.durable, &self.state.volatile, now, l));
        match new {
            Some(target) => self.targets.insert(id, target.clone()).as_ref() != Some(&target),
            None => self.targets.remove(&id).is_some(),
        }
    }

    pub(super) fn send_targets(&self, now: Time) {
        let d = &self.state.durable;
        self.publish_targets.send_replace(Arc::new(Targets {
            node: d.node().clone(),
            unavailable: d.unavailable().clone(),
            targets: self.targets.values().cloned().collect(),
            at: now,
        }));
        self.poke.notify_one();
    }

    /// Everything, at start.
    pub(super) fn publish_all(&mut self, now: Time) {
        for (id, lease) in self.state.durable.leases() {
            if let Some(clock) = self.state.volatile.clocks.get(id) {
                let job = self.state.durable.job_of(lease);
                let new = Published::new(clock.clone(), lease, job, None);
                self.ends.shared.published.insert(*id, new);
            }
        }
        let ids: Vec<_> = self.state.durable.leases().keys().copied().collect();
        ids.into_iter().for_each(|id| {
            self.target_changed(id, now);
        });
        self.send_targets(now);
        self.wake = self.state.next_wakeup(now);
    }
}
