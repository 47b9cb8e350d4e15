//! How each planted fault is made: small changes to what passes through the shell.
use evenkeel_core::command::Command;
use evenkeel_core::decide::fit;
use evenkeel_core::event::Event;
use evenkeel_core::grant::Ask;
use evenkeel_core::id::{Fence, LeaseId, RequestId};
use evenkeel_core::lease::{Cause, Lease, Phase};
use evenkeel_core::state::Parts;
use evenkeel_core::step::State;
use evenkeel_core::unit::Time;

use super::planted::Planted;

/// Rows that a start reads.
pub fn on_load(planted: Option<Planted>, parts: &mut Parts) {
    match planted {
        Some(Planted::RequestsForgottenByCrash) => parts.requests.clear(),
        Some(Planted::QuarantineForgottenByCrash) => {
            parts
                .leases
                .retain(|l| !matches!(l.phase, Phase::Quarantined { .. }));
        }
        _ => {}
    }
}

/// Deadlines that a start gives.
pub fn on_start(planted: Option<Planted>, state: &mut State, now: Time) {
    if planted == Some(Planted::NoTtlAfterRestart) {
        for lease in state.durable.leases().values() {
            if let Some(clock) = state.volatile.clocks.get(&lease.id) {
                clock.reset(lease.fence, now);
            }
            state.volatile.look_again(lease.id, now);
        }
    }
}

/// The fence of a renewal.
pub fn on_renew(planted: Option<Planted>, state: &State, id: LeaseId, fence: Fence) -> Fence {
    let lease = state.durable.leases().get(&id);
    match planted {
        Some(Planted::OldFenceAccepted) => lease
            .filter(|l| l.phase.is_usable())
            .map_or(fence, |l| l.fence),
        Some(Planted::RenewalAfterClosing) => {
            if let Some(clock) = state.volatile.clocks.get(&id) {
                clock.reopen();
            }
            fence
        }
        _ => fence,
    }
}

/// Before a batch is decided.
pub fn before_step(planted: Option<Planted>, state: &mut State, now: Time) {
    if planted == Some(Planted::StallNotCredited) {
        let _ = state.next_wakeup(now);
    }
}

/// Commands on their way in. Says which requests were given another id.
pub fn commands(
    planted: Option<Planted>,
    state: &State,
    batch: &mut [Command],
) -> Vec<(RequestId, RequestId)> {
    let mut changed = Vec::new();
    for command in batch {
        match (command, planted) {
            (Command::Acquire(a), Some(Planted::RetryGrantedTwice))
                if state.durable.requests().get(&a.tenant, a.request).is_some() =>
            {
                let other = RequestId(a.request.0 ^ (1 << 127));
                changed.push((other, a.request));
                a.request = other;
            }
            (command, Some(Planted::OtherTenantVisible)) => everybody_is_admin(command),
            _ => {}
        }
    }
    changed
}

fn everybody_is_admin(command: &mut Command) {
    match command {
        Command::Attach { caller, .. }
        | Command::Renew { caller, .. }
        | Command::Release { caller, .. }
        | Command::Revoke { caller, .. } => caller.admin = true,
        _ => {}
    }
}

/// The events of a step as they are to be, if they are to be other ones.
pub fn events(
    planted: Option<Planted>,
    state: &State,
    events: &[Event],
    renamed: &[(RequestId, RequestId)],
) -> Option<Vec<Event>> {
    let mut all = events.to_vec();
    match planted? {
        Planted::FenceNotRaisedOnAttach => {
            for event in &mut all {
                if let Event::LeaseAttached { fence, .. } = event {
                    *fence = Fence(fence.0 - 1);
                }
            }
        }
        Planted::RetryGrantedTwice => {
            let entered = all.iter_mut().filter_map(|event| match event {
                Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => Some(lease),
                _ => None,
            });
            for lease in entered {
                if let Some((_, real)) = renamed.iter().find(|(other, _)| *other == lease.request) {
                    lease.request = *real;
                }
            }
        }
        Planted::QueueJumped => {
            if let [Event::LeaseQueued { lease }] = &all[..] {
                let granted = jump(state, lease)?;
                all = vec![Event::LeaseGranted { lease: granted }];
            }
        }
        Planted::CancelTakesAtOnce => {
            let cancelled = |e: &Event| match e {
                Event::JobEnded { id } => Some(*id),
                _ => None,
            };
            let job = all.iter().find_map(cancelled)?;
            let leases = state.durable.leases().values().filter(|l| {
                matches!(l.ask, Ask::Stage(m) if m.job == job)
                    && l.phase.is_usable()
                    && l.phase.holder().is_some()
            });
            all.extend(leases.map(|l| Event::LeaseQuarantined {
                id: l.id,
                fence: l.fence.next(),
                cause: Cause::Revoked,
            }));
        }
        _ => return None,
    }
    (all != events).then_some(all)
}

fn jump(state: &State, lease: &Lease) -> Option<Lease> {
    let Ask::Alone { cores, gpus } = &lease.ask else {
        return None;
    };
    let target = fit(&state.durable, *cores, gpus).ok()?;
    Some(Lease {
        phase: Phase::Pending,
        target,
        ..lease.clone()
    })
}

/// After a failed commit was taken back.
pub fn after_undo(planted: Option<Planted>, state: &mut State, events: &[Event]) {
    if planted == Some(Planted::UndoIncomplete)
        && let Some(event) = events.last()
    {
        state.durable.evolve(event);
        state.durable.commit();
    }
}

/// What is written of a batch, if not all of it.
pub fn rows(planted: Option<Planted>, events: &[Event]) -> Option<Vec<Event>> {
    let kept = |e: &&Event| !matches!(e, Event::LeaseHeld { .. } | Event::LeaseRetargeted { .. });
    (planted == Some(Planted::TargetsNotWritten))
        .then(|| events.iter().filter(kept).cloned().collect())
}
