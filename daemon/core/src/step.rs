//! The one entry: a batch of commands in; events, answers, and a way back out.
//!
//! The daemon calls [`step`], writes the events in one transaction, and then calls [`Step::settle`]; if the
//! transaction failed it calls [`Step::undo`] and nothing has happened. Between the two calls nothing else may
//! touch the state.
use alloc::vec::Vec;

use crate::command::{Command, Rejection, Reply};
use crate::decide::{Answer, Touched, decide, follow};
use crate::event::Event;
use crate::invariant::{gate, usage};
use crate::lease::{Lease, Phase};
use crate::state::Durable;
use crate::unit::Time;
use crate::volatile::Volatile;

/// Most commands in one step, and so in one transaction: beyond it, latency grows faster than throughput.
pub const BATCH_MAX: usize = 128;
/// Most events that may follow from one command: a plan for every worker of every stage, twice.
const FOLLOW_MAX: usize = 20_000;

/// The state of a node.
#[derive(Debug)]
pub struct State {
    /// Equal to the ledger's tables.
    pub durable: Durable,
    /// Deadlines, samples, timers.
    pub volatile: Volatile,
}

/// What a batch led to.
#[derive(Debug)]
#[must_use = "commit its events and settle it, or undo it"]
pub struct Step {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// One answer for each command, in order. They are true only after the commit.
    pub answers: Vec<Result<Answer, Rejection>>,
    mark: usize,
}

/// Decides a batch. Durable state is changed at once and can be taken back with [`Step::undo`].
pub fn step(state: &mut State, now: Time, batch: &[Command]) -> Step {
    state.volatile.credit_stall(&state.durable, now);
    state.volatile.began(now);
    let mark = state.durable.mark();
    let mut step = Step {
        events: Vec::new(),
        answers: Vec::with_capacity(batch.len()),
        mark,
    };
    for command in batch {
        let answer = one(state, now, command, &mut step.events);
        step.answers.push(answer);
    }
    step
}

/// One command with all that follows from it: all of it passes the gate, or none of it happens.
fn one(
    state: &mut State,
    now: Time,
    command: &Command,
    events: &mut Vec<Event>,
) -> Result<Answer, Rejection> {
    let closings = state.volatile.closings();
    let decision = decide(&state.durable, &mut state.volatile, now, command)?;
    if decision.events.is_empty() {
        return Ok(decision.reply);
    }
    let (mark, first) = (state.durable.mark(), events.len());
    let used = usage(&state.durable);
    let mut touched = Touched::default();
    let mut next = decision.events;
    while !next.is_empty() && events.len() - first < FOLLOW_MAX {
        for event in next {
            touched.expect(&state.durable, &event);
            state.durable.evolve(&event);
            touched.note(&state.durable, &event);
            state.volatile.fits.note(&state.durable, &event);
            events.push(event);
        }
        next = follow(&state.durable, &mut state.volatile, &mut touched);
    }
    match gate(&state.durable, &used, &events[first..]) {
        None => Ok(decision.reply),
        Some(violation) => {
            state.durable.undo_to(mark);
            state.volatile.reopen(now, closings);
            state.volatile.fits.clear();
            put_back(state, events.split_off(first));
            Err(Rejection::Invariant(violation.invariant))
        }
    }
}

/// What was to be forgotten is not.
fn put_back(state: &mut State, events: Vec<Event>) {
    for event in events.into_iter().rev() {
        if let Event::RequestsForgotten { requests } = event {
            state.volatile.put_back(requests);
        }
    }
}

impl Step {
    /// The transaction failed: nothing has happened.
    pub fn undo(self, state: &mut State, now: Time) {
        state.volatile.credit_stall(&state.durable, now);
        state.durable.undo_to(self.mark);
        state.volatile.reopen(now, 0);
        state.volatile.fits.clear();
        put_back(state, self.events);
    }

    /// The transaction is durable: timers follow, answers become true. The events come back for whoever publishes.
    pub fn settle(self, state: &mut State, now: Time) -> Settled {
        state.volatile.credit_stall(&state.durable, now);
        state.durable.commit();
        state.volatile.settle(&state.durable, now, &self.events);
        let answers = self
            .answers
            .into_iter()
            .map(|a| a.map(|a| finish(&state.durable, &self.events, a)))
            .collect();
        Settled {
            events: self.events,
            answers,
        }
    }
}

/// What is true after a commit.
#[derive(Debug)]
pub struct Settled {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// One answer for each command, in order.
    pub answers: Vec<Result<Reply, Rejection>>,
}

fn finish(d: &Durable, events: &[Event], answer: Answer) -> Reply {
    let id = match answer {
        Answer::Reply(reply) => return reply,
        Answer::LeaseAfter(id) => id,
    };
    if let Some(lease) = d.leases().get(&id) {
        return Reply::Lease(lease.clone().into());
    }
    // It ended in this very step: what is left of it is how.
    let ended = events.iter().rev().find_map(|e| match e {
        Event::LeaseEnded {
            id: i, fence, how, ..
        } if *i == id => Some((*fence, *how)),
        _ => None,
    });
    match ended {
        Some((fence, how)) => Reply::Lease(ended_lease(d, id, fence, Phase::Ended(how)).into()),
        None => Reply::Done,
    }
}

fn ended_lease(
    d: &Durable,
    id: crate::id::LeaseId,
    fence: crate::id::Fence,
    phase: Phase,
) -> Lease {
    use crate::grant::{Ask, Resize, Vector};
    let (tenant, request) = match d.ended_key(id) {
        Some((tenant, request)) => (tenant.clone(), *request),
        None => (crate::id::Name::unknown(), Default::default()),
    };
    Lease {
        id,
        tenant,
        request,
        body: Default::default(),
        ask: Ask::Alone {
            cores: 0,
            gpus: Vec::new(),
        },
        enforced: false,
        resize: Resize::Restart,
        processes: 1,
        ttl: Default::default(),
        priority: 0,
        fence,
        generation: Default::default(),
        held: Vector::empty(),
        target: Vector::empty(),
        batch: 1,
        phase,
    }
}

impl State {
    /// By when to call [`step`] with [`Command::Tick`], whatever else happens meanwhile. Where that is past: at once.
    pub fn next_wakeup(&mut self, now: Time) -> Time {
        self.volatile.next_wakeup(now)
    }
}
