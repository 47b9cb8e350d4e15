//! The heartbeats of this process: one thread, one stream, all leases.
//!
//! The thread has a runtime of its own, so that a worker that keeps its cores (or Python's lock) busy
//! keeps its leases. It ends with the last guard.

mod beat;
mod held;
mod link;
mod outbox;
mod trials;

use std::collections::BTreeMap;
use std::process;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

pub use held::{Callback, GuardEvent, GuardState, LossReason, OnDaemonLost};
pub(crate) use held::{Held, Terms};

use crate::error::{Error, Result};
use crate::model::Lease;
use crate::retry::ClientConfig;

/// The hubs of this process by daemon. A child after a fork has none of the threads, so the pid is part of the key.
static HUBS: Mutex<BTreeMap<(u32, ClientConfig), Weak<Hub>>> = Mutex::new(BTreeMap::new());

/// What a guard asks of the hub.
enum Command {
    Hold(Arc<Held>),
    /// Stop renewing, and say nothing.
    Forget(Arc<Held>),
    Release {
        held: Arc<Held>,
        within: Duration,
        reply: Reply,
    },
}

/// Where the result of a release goes.
type Reply = Box<dyn FnOnce(Result<Lease>) + Send>;

/// The heartbeat thread for one daemon.
pub(crate) struct Hub {
    pid: u32,
    commands: mpsc::UnboundedSender<Command>,
    work: Arc<Notify>,
}

impl Hub {
    /// The hub for a daemon, started if this process has none.
    pub(crate) fn of(config: &ClientConfig) -> Result<Arc<Self>> {
        let pid = process::id();
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|(owner, _), hub| *owner == pid && hub.strong_count() > 0);
        let key = (pid, config.clone());
        if let Some(hub) = hubs.get(&key).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let hub = Arc::new(Self::start(pid, config.clone())?);
        hubs.insert(key, Arc::downgrade(&hub));
        Ok(hub)
    }

    fn start(pid: u32, config: ClientConfig) -> Result<Self> {
        let failed = |source| Error::Start {
            what: "the heartbeat's thread",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let work = Arc::new(Notify::new());
        let wake = Arc::clone(&work);
        thread::Builder::new()
            .name("evenkeel-beat".to_owned())
            .spawn(move || runtime.block_on(beat::run(config, inbox, wake)))
            .map_err(failed)?;
        Ok(Self {
            pid,
            commands,
            work,
        })
    }

    /// Whether this is a child that was forked from the process that has the thread.
    pub(crate) fn is_inert(&self) -> bool {
        process::id() != self.pid
    }

    pub(crate) fn hold(&self, held: Arc<Held>) {
        self.tell(Command::Hold(held));
    }

    pub(crate) fn forget(&self, held: Arc<Held>) {
        self.tell(Command::Forget(held));
    }

    pub(crate) fn release(&self, held: Arc<Held>, within: Duration, reply: Reply) {
        self.tell(Command::Release {
            held,
            within,
            reply,
        });
    }

    /// There is something to send.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    fn tell(&self, command: Command) {
        if self.commands.send(command).is_err() {
            // The thread can only be gone if it panicked; deadlines then pass, which guards can see.
            tracing::error!("the heartbeat's thread is gone");
        }
    }
}
