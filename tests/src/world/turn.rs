//! An actor's turn: what it may look at, and the calls that it makes. Agents and drivers take it.
use evenkeel_core::command::{Caller, Command};
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::unit::Time;

use super::hardware::Hardware;
use super::job::Model;
use super::rng::Rng;
use super::shell::Who;
use super::swarm::Swarm;

/// What goes to the daemon.
#[derive(Clone, Debug)]
pub enum What {
    /// A command, for the controller.
    Command(Command),
    /// A renewal, for the handle.
    Renew(Caller, LeaseId, Fence),
}

/// A call on its way.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who asks.
    pub who: Who,
    /// Its number for the answer.
    pub token: u64,
    /// What.
    pub what: What,
}

/// What an actor may look at and do in its turn.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Milliseconds since the world began.
    pub now: u64,
    /// The same as BOOTTIME.
    pub clock: Time,
    /// The machine.
    pub hw: &'a mut Hardware,
    /// How this world is.
    pub swarm: &'a Swarm,
    /// Faults have stopped, and nobody begins anything new.
    pub calm: bool,
    /// Live jobs, by driver.
    pub models: &'a [Option<Model>],
    /// Calls to make.
    pub out: Vec<Call>,
    /// Queue entries that are given up.
    pub given_up: Vec<LeaseId>,
    /// The next call's number.
    pub tokens: &'a mut u64,
}

impl Turn<'_> {
    pub(super) fn token(&mut self) -> u64 {
        *self.tokens += 1;
        *self.tokens
    }
    /// A time within this range from now; in a steady world, never.
    pub(super) fn until(&self, rng: &mut Rng, (low, high): (u64, u64)) -> u64 {
        let after = rng.range(low, high);
        if self.swarm.steady {
            u64::MAX
        } else {
            self.now + after
        }
    }
    pub(super) fn chance(&self, rng: &mut Rng, permille: u32) -> bool {
        !self.calm && rng.chance(permille)
    }
}
