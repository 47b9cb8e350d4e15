//! One function per command: what events it makes, or why it is refused. Reads the state, changes nothing durable.
use alloc::string::ToString;
use alloc::vec::Vec;

use crate::command::{Caller, Command, Rejection, Reply};
use crate::event::Event;
use crate::id::LeaseId;
use crate::lease::Lease;
use crate::state::Durable;
use crate::unit::Time;
use crate::volatile::Volatile;

mod cap;
mod fit;
pub mod follow;
pub mod job;
pub mod lease;
pub mod node;
pub mod observe;
pub mod queue;
pub mod rebalance;
mod recall;
mod room;
mod share;
pub mod time;

pub use fit::fit;
pub use follow::{Touched, follow};

/// What a command leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What happens.
    pub events: Vec<Event>,
    /// What the caller is told, after the commit.
    pub reply: Answer,
}

/// What the caller is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This.
    Reply(Reply),
    /// The lease as it is when the whole step is done.
    LeaseAfter(LeaseId),
}

impl Decision {
    const fn done() -> Self {
        Self {
            events: Vec::new(),
            reply: Answer::Reply(Reply::Done),
        }
    }
    fn of(events: impl Into<Vec<Event>>) -> Self {
        Self {
            events: events.into(),
            reply: Answer::Reply(Reply::Done),
        }
    }
    fn about(id: LeaseId, events: impl Into<Vec<Event>>) -> Self {
        Self {
            events: events.into(),
            reply: Answer::LeaseAfter(id),
        }
    }
}

/// Decides one command. Volatile state may note what was seen (acknowledgements, samples, closed clocks).
pub fn decide(
    d: &Durable,
    v: &mut Volatile,
    now: Time,
    command: &Command,
) -> Result<Decision, Rejection> {
    match command {
        Command::Acquire(a) => lease::acquire(d, v, a),
        Command::Attach {
            caller,
            lease,
            fence,
            holder,
        } => lease::attach(d, caller, *lease, *fence, holder),
        Command::Renew {
            caller,
            lease,
            fence,
        } => lease::renew(d, v, now, caller, *lease, *fence),
        Command::Release {
            caller,
            lease,
            fence,
        } => lease::release(d, caller, *lease, *fence),
        Command::Revoke { caller, lease } => lease::revoke(d, caller, *lease),
        Command::Clear {
            caller,
            lease,
            reason,
        } => lease::clear(d, caller, *lease, reason),
        Command::Abandon { lease } => Ok(lease::abandon(d, *lease)),
        Command::Acknowledge {
            caller,
            lease,
            fence,
            generation,
            effective,
        } => observe::acknowledge(d, v, caller, (*lease, *fence, *generation), effective),
        Command::Report {
            caller,
            lease,
            fence,
            report,
        } => {
            let decision = job::report(d, v, now, caller, (*lease, *fence), report)?;
            let progress = !report.steps.is_empty() || report.busy.iter().any(|b| b.units > 0.0);
            v.reported(*lease, progress, now);
            Ok(decision)
        }
        Command::Observe(o) => Ok(observe::observe(d, v, o)),
        Command::Submit {
            caller,
            request,
            body,
            spec,
        } => job::submit(d, v, caller, *request, *body, spec),
        Command::Update {
            caller,
            job,
            rebalance,
            policy,
            replan,
        } => job::update(d, v, caller, job, rebalance.as_ref(), *policy, *replan),
        Command::Cancel { caller, job } => job::cancel(d, caller, job),
        Command::Trial {
            key,
            point,
            replaces,
        } => node::trial(d, key, point, *replaces),
        Command::Import { profile } => node::import(d, profile),
        Command::Drain { caller, draining } => node::drain(d, caller, *draining),
        Command::Discovered { node, unavailable } => Ok(node::discovered(d, node, unavailable)),
        Command::Rebooted => Ok(time::rebooted(d)),
        Command::Tick => Ok(time::tick(d, v, now)),
    }
}

/// The caller's live lease; another tenant's does not exist.
fn find<'a>(d: &'a Durable, caller: &Caller, id: LeaseId) -> Result<&'a Lease, Rejection> {
    if let Some(l) = d.leases().get(&id).filter(|l| d.is_seen_by(l, caller)) {
        return Ok(l);
    }
    match d.ended_seen_by(id, caller) {
        Some((_, how, _)) => Err(Rejection::Lost { id, how: how.why() }),
        None => Err(Rejection::NotFound(id.to_string())),
    }
}

/// The caller's live lease, if the fence is right.
fn find_fenced<'a>(
    d: &'a Durable,
    caller: &Caller,
    id: LeaseId,
    fence: crate::id::Fence,
) -> Result<&'a Lease, Rejection> {
    let lease = find(d, caller, id)?;
    if lease.fence == fence {
        Ok(lease)
    } else {
        Err(Rejection::Fenced { id, given: fence })
    }
}
