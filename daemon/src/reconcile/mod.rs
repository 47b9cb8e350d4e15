//! Compares what should be with what is, and does what has to be done: level-triggered, every period and when poked.
//!
//! Nothing is decided here: `core::converge::steps` says what to do, a backend does it, and what was seen goes back
//! to the controller as commands. Backends block, so each look runs off the async threads. The controller publishes
//! [`Targets`] and pokes; `main` starts it with [`spawn`].

mod group;
mod look;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::command::Command;
use evenkeel_core::converge::Target;
use evenkeel_core::node::{Node, Unavailable};
use evenkeel_core::unit::Time;
use futures::FutureExt;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
pub use look::{Looker, observation};

/// Between two looks at least: a burst of commits is one look.
const BREATH: Duration = Duration::from_millis(5);

/// What should be: a snapshot that the controller publishes after each commit that changes it.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The node, as in the ledger.
    pub node: Node,
    /// What of it cannot be leased now, as in the ledger.
    pub unavailable: Unavailable,
    /// What is wanted of each tree.
    pub targets: Vec<Target>,
    /// When the snapshot was taken.
    pub at: Time,
}

/// What is wrong just now, for a person: lost GPUs, neighbours, limits that could not be set. Replaced by each look.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Arc<Mutex<Vec<String>>>);

impl Troubles {
    /// Those of the last look.
    pub fn list(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, troubles: Vec<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
    }
}

/// What the reconciler needs from the rest of the daemon.
#[derive(Debug)]
pub struct Service {
    /// What should be; the newest counts.
    pub targets: watch::Receiver<Arc<Targets>>,
    /// Asks for a look now: after a commit that changed the targets, and after an acknowledgement (its
    /// observation may confirm a shrink).
    pub poke: Arc<Notify>,
    /// Takes [`Command::Observe`] for each tree, and [`Command::Discovered`] when the hardware changes, again and
    /// again until the ledger knows it.
    pub commands: mpsc::Sender<Command>,
    /// Where to say what is wrong.
    pub troubles: Troubles,
    /// Time between looks that nobody asked for.
    pub period: Duration,
    /// Ends the reconciler after the look that runs.
    pub stop: CancellationToken,
}

/// Starts looking. `found` is what discovery installed at start; changes of the hardware are told against it.
pub fn spawn(
    service: Service,
    found: (Node, Unavailable),
    backends: Vec<Box<dyn Backend>>,
) -> JoinHandle<()> {
    tokio::spawn(run(service, Looker::new(found, backends)))
}

async fn run(mut service: Service, mut looker: Looker) {
    let mut period = tokio::time::interval(service.period);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            () = service.stop.cancelled() => return,
            () = service.poke.notified() => true,
            changed = service.targets.changed() => match changed {
                Ok(()) => true,
                // The controller is gone: nobody knows what should be.
                Err(_) => return,
            },
            _ = period.tick() => false,
        };
        // A commit both changes the targets and pokes: one look answers both.
        let asked = service.poke.notified().now_or_never().is_some() || asked;
        let targets = service.targets.borrow_and_update().clone();
        let look = tokio::task::spawn_blocking(move || {
            let commands = looker.look(&targets, asked);
            (looker, commands)
        });
        let commands = match look.await {
            Ok((back, commands)) => {
                looker = back;
                service.troubles.set(looker.troubles().to_vec());
                commands
            }
            Err(error) => {
                // A bug of ours. Enforcement stands; only changes do not happen any more.
                tracing::error!(%error, "the reconciler failed; limits are no longer adjusted, restart the daemon");
                return;
            }
        };
        for command in commands {
            if service.commands.send(command).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(BREATH).await;
    }
}
