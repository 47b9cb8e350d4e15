//! What the passing of time leads to: expiry, fallback of unconfirmed shrinks, the end of a cancelled job's last
//! leases, parking, forgetting.
use alloc::vec::Vec;

use super::Decision;
use super::lease::{ended, revoked};
use crate::event::Event;
use crate::grant::Ask;
use crate::id::{Generation, LeaseId};
use crate::job::{JobPhase, ShrinkFallback};
use crate::lease::{Cause, End, Lease, Phase};
use crate::state::Durable;
use crate::unit::{Millis, Time};
use crate::volatile::Volatile;

/// Leases looked at in one step: ten thousand that expire together must not stall everyone else.
pub const LOOKS_PER_STEP: usize = 256;
/// Answers forgotten in one step, for the same reason.
pub const FORGOTTEN_PER_STEP: usize = 1024;

pub(super) fn tick(d: &Durable, v: &mut Volatile, now: Time) -> Decision {
    v.tick(now);
    let mut events = Vec::new();
    for id in v.take_due(now, LOOKS_PER_STEP) {
        events.extend(look(d, v, now, id));
    }
    let overdue = fallbacks(d, v, now).into_iter().chain(kept(d, v, now));
    let ended: Vec<Option<LeaseId>> = events.iter().map(Event::lease).collect();
    events.extend(overdue.filter(|e| !ended.contains(&e.lease())));
    events.extend(parked(d, v, now));
    let requests = v.take_forgettable(now, FORGOTTEN_PER_STEP);
    if !requests.is_empty() {
        events.push(Event::RequestsForgotten { requests });
    }
    Decision::of(events)
}

/// After a restart of the machine no tree is left, and a pending lease's asker is gone too: the restart is the
/// proof. Unenforced leases may be held from elsewhere and queue entries may be asked for again: time ends those.
pub(super) fn rebooted(d: &Durable) -> Decision {
    let lost = |l: &&Lease| l.enforced && l.phase != Phase::Queued;
    let how = |l: &Lease| match &l.phase {
        Phase::Draining(_) => End::Released,
        Phase::Quarantined { cause, .. } => cause.end(),
        _ => End::Failed,
    };
    Decision::of(
        d.leases()
            .values()
            .filter(lost)
            .map(|l| ended(l, how(l), None))
            .collect::<Vec<_>>(),
    )
}

/// Looks at one lease whose time may be up. The clock decides: a renewal that came before it closes wins.
fn look(d: &Durable, v: &mut Volatile, now: Time, id: LeaseId) -> Option<Event> {
    let lease = d.leases().get(&id)?;
    let clock = v.clocks.get(&id)?.clone();
    if matches!(
        lease.phase,
        Phase::Draining(_) | Phase::Quarantined { .. } | Phase::Ended(_)
    ) {
        return None; // proof ends these, not time
    }
    let grace = v.grace(lease);
    let at = clock.deadline().after(grace);
    if at > now {
        v.look_again(id, at);
        return None;
    }
    let limit = Time(now.0.saturating_sub(grace.0));
    if !clock.close_if_due(limit) {
        v.look_again(id, clock.deadline().after(grace));
        return None;
    }
    v.closed(id);
    Some(expire(lease))
}

/// A lease without a holder ends; one with a holder is quarantined until the tree is proved gone.
fn expire(lease: &Lease) -> Event {
    let (id, fence) = (lease.id, lease.fence.next());
    match &lease.phase {
        Phase::Queued => ended(lease, End::Abandoned, None),
        p if p.holder().is_some() => Event::LeaseQuarantined {
            id,
            fence,
            cause: Cause::Expired,
        },
        _ => ended(lease, End::Expired, None),
    }
}

/// A shrink that its holder does not confirm: after twice the limit, where the job says so, the lease is revoked.
/// (After once the limit the directive already says restart: see [`crate::converge::directive`].)
fn fallbacks(d: &Durable, v: &Volatile, now: Time) -> Vec<Event> {
    let overdue = |(id, since): (&LeaseId, &Time)| {
        let lease = d
            .leases()
            .get(id)
            .filter(|l| l.phase.is_usable() && !l.held.fits_in(&l.target))
            // Nobody asked it to shrink yet: its contexts were seen with more than it was given. A person is told.
            .filter(|l| l.generation > Generation(1))?;
        let Ask::Stage(member) = lease.ask else {
            return None;
        };
        let rules = &d.jobs().get(&member.job)?.spec.rebalance;
        let limit = Millis(rules.shrink_timeout.0.saturating_mul(2));
        let revoke = rules.fallback == ShrinkFallback::Escalate && since.after(limit) <= now;
        revoke.then(|| revoked(lease))
    };
    let taken = v.moving.iter().filter(|(id, _)| {
        d.leases()
            .get(id)
            .is_some_and(|l| l.phase.holder().is_some())
    });
    taken.filter_map(overdue).collect()
}

/// Leases of cancelled jobs whose workers were told to give them back and have had their time.
fn kept(d: &Durable, v: &Volatile, now: Time) -> Vec<Event> {
    let over = |(_, since): &(&LeaseId, &Time)| since.after(v.settings.release_grace) <= now;
    let leases = v.releasing.iter().filter(over);
    let usable = leases.filter_map(|(id, _)| d.leases().get(id).filter(|l| l.phase.is_usable()));
    usable.map(revoked).collect()
}

/// Admitted jobs that nobody has used for long.
fn parked(d: &Durable, v: &Volatile, now: Time) -> Vec<Event> {
    let long = |(id, since): (&crate::id::JobId, &Time)| {
        let job = d.jobs().get(id).filter(|j| j.phase == JobPhase::Admitted)?;
        let unused = crate::state::slots(job).all(|(_, s)| s.lease.is_none());
        (unused && since.after(v.settings.park_after) <= now)
            .then_some(Event::JobParked { id: *id })
    };
    v.idle.iter().filter_map(long).collect()
}
