//! What the demo and its worker processes say to each other: one JSON object a line, over a Unix socket. The data of
//! the pipeline do not pass here.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_rollout::stage::StepDone;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::seeds::Stage;

/// Who a worker process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// One of the pipeline's stages.
    Stage(Stage),
    /// Reads caps and affinities back.
    Observer,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::Observer => "observer",
        }
    }
}

/// How a worker comes by its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Share {
    /// From the daemon that listens here.
    Leased {
        /// Its socket.
        daemon: PathBuf,
        /// The job.
        job: String,
    },
    /// As told: no daemon.
    Fixed {
        /// SMs; none: no cap.
        sms: Option<u32>,
        /// CPUs to be bound to; empty: wherever the kernel likes.
        cpus: Vec<u32>,
        /// Threads of the simulator.
        threads: usize,
    },
}

/// All that a worker process has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) role: Role,
    /// Where the sockets of the stages are.
    pub(crate) dir: PathBuf,
    /// Where the emulated GPU listens.
    pub(crate) gpu: PathBuf,
    pub(crate) share: Share,
    pub(crate) seed: u64,
    pub(crate) load: Load,
}

/// A training iteration, as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) n: u64,
    pub(crate) end_ns: u64,
    pub(crate) consumed: f64,
    pub(crate) discarded: f64,
    pub(crate) staleness: u64,
    pub(crate) loss: f32,
    pub(crate) episodes: u32,
    pub(crate) successes: u32,
}

impl From<&StepDone> for Step {
    fn from(done: &StepDone) -> Self {
        Self {
            n: done.n,
            end_ns: done.end_ns,
            consumed: done.consumed,
            discarded: done.discarded,
            staleness: done.staleness,
            loss: done.loss,
            episodes: done.episodes,
            successes: done.successes,
        }
    }
}

/// What the observer found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Observed {
    /// Looks that it took.
    pub(crate) looks: u64,
    /// Seconds during which something was promised twice.
    pub(crate) overcommit_seconds: f64,
    /// The highest sum of SM caps seen.
    pub(crate) sms_most: u32,
    /// What was wrong first, for a person; empty: nothing.
    pub(crate) first: String,
}

impl Observed {
    /// Takes in what was found in another run.
    pub(crate) fn add(&mut self, other: Self) {
        self.looks += other.looks;
        self.overcommit_seconds += other.overcommit_seconds;
        self.sms_most = self.sms_most.max(other.sms_most);
        if self.first.is_empty() {
            self.first = other.first;
        }
    }
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Up {
    /// First of all.
    Hello { role: Role },
    /// It has its share and its peers, and is about to work.
    Ready { sms: u32, cpus: Vec<u32> },
    /// It has taken up another share.
    Resized { sms: u32, cpus: Vec<u32> },
    /// Training has done an iteration.
    Stepped(Step),
    /// What the observer found so far.
    Observed(Observed),
    /// It cannot go on.
    Failed { why: String },
}

/// A process that the observer looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Watched {
    pub(crate) pid: u32,
    /// Its lease has cores of its own.
    pub(crate) owns_cores: bool,
}

/// To a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Down {
    /// The task has changed.
    Load(Load),
    /// The observer looks at these from now on.
    Watch(Vec<Watched>),
    /// The observer tells what it found.
    Tell,
    /// The end.
    Stop,
}

/// The writing half; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Teller(Arc<Mutex<UnixStream>>);

impl Teller {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    pub(crate) fn tell(&self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&line)
    }
}

/// The reading half.
#[derive(Debug)]
pub(crate) struct Listener(BufReader<UnixStream>);

impl Listener {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// The next message; none when the other side has hung up.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}

/// The demo's own socket.
pub(crate) fn head_socket(dir: &Path) -> PathBuf {
    dir.join("head.sock")
}

/// Where a stage takes its data.
pub(crate) fn stage_socket(dir: &Path, stage: Stage) -> PathBuf {
    dir.join(format!("{}.sock", stage.name()))
}

/// Where generation takes new weights.
pub(crate) fn weights_socket(dir: &Path) -> PathBuf {
    dir.join("weights.sock")
}
