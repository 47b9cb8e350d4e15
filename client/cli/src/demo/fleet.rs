//! The demo's worker processes: started together, listened to, measured, and ended together, whatever happens.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_rollout::affinity::boottime_ns;

use super::DemoError;
use super::load::Load;
use super::seeds::Stage;
use super::talk::{Down, Listener, Observed, Orders, Role, Share, Step, Teller, Up, head_socket};

/// How long workers may take to be ready: seconds on a loaded machine.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long they may take to end when told, before they are killed.
const END_WITHIN: Duration = Duration::from_secs(2);
/// A pipeline that does no step for so long has come to a stop.
const STALL: Duration = Duration::from_secs(20);
/// And how long when the demo itself is being ended: somebody waits for the prompt.
const DROP_WITHIN: Duration = Duration::from_millis(500);
/// How long one wait for the workers takes while they start or end.
const POLL: Duration = Duration::from_millis(20);
/// And while they are measured.
const LISTEN: Duration = Duration::from_millis(50);
/// A worker's own word on why it failed may come after its peers have noticed that it is gone.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Fleets started by this process.
static FLEETS: AtomicU32 = AtomicU32::new(0);

/// What a fleet runs on.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// This very program.
    pub(crate) program: PathBuf,
    /// A directory of this demo's own.
    pub(crate) dir: PathBuf,
    /// Where the emulated GPU listens.
    pub(crate) gpu: PathBuf,
    pub(crate) seed: u64,
    /// Somebody wants the demo to end.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The processes of one pipeline (or an observer).
pub(crate) struct Fleet {
    members: BTreeMap<Role, Member>,
    heard: Receiver<(Role, Heard)>,
    stop: Arc<AtomicBool>,
    /// Every step since the start.
    pub(crate) steps: Vec<Step>,
    last_step: Instant,
    observed: Option<Observed>,
}

struct Member {
    child: Child,
    teller: Option<Teller>,
    ready: bool,
}

enum Heard {
    Connected(Teller),
    Said(Up),
    Gone,
}

/// Throughput over a stretch of wall-clock time, from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) units_per_s: f64,
    pub(crate) steps: usize,
    pub(crate) seconds: f64,
    /// The oldest data that were trained on.
    pub(crate) staleness: u64,
}

impl Fleet {
    /// Starts the three stages and waits until all of them work.
    pub(crate) fn pipeline(
        site: &Site,
        load: Load,
        share: impl Fn(Stage) -> Share,
    ) -> Result<Self, DemoError> {
        let mut fleet = Self::launch(site, load, share)?;
        fleet.wait_until_ready()?;
        Ok(fleet)
    }

    /// Starts the three stages. They come by their shares while the caller listens.
    pub(crate) fn launch(
        site: &Site,
        load: Load,
        share: impl Fn(Stage) -> Share,
    ) -> Result<Self, DemoError> {
        let roles = Stage::ALL.map(|stage| (Role::Stage(stage), share(stage)));
        Self::start(site, load, &roles)
    }

    /// Starts the observer.
    pub(crate) fn observer(site: &Site, load: Load) -> Result<Self, DemoError> {
        let share = Share::Fixed {
            sms: None,
            cpus: Vec::new(),
            threads: 1,
        };
        let mut fleet = Self::start(site, load, &[(Role::Observer, share)])?;
        fleet.wait_until_ready()?;
        Ok(fleet)
    }

    fn start(site: &Site, load: Load, roles: &[(Role, Share)]) -> Result<Self, DemoError> {
        // Each fleet has a directory of its own: no socket of an earlier one is found.
        let number = FLEETS.fetch_add(1, Ordering::Relaxed);
        let dir = site.dir.join(format!("fleet-{number}"));
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| DemoError::File { path, source }
        };
        fs::create_dir(&dir).map_err(at(&dir))?;
        let socket = head_socket(&dir);
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let (sender, heard) = channel();
        let expected = roles.len();
        thread::Builder::new()
            .name("head".to_owned())
            .spawn(move || answer(&listener, expected, &sender))
            .map_err(DemoError::Thread)?;
        let mut fleet = Self {
            members: BTreeMap::new(),
            heard,
            stop: Arc::clone(&site.stop),
            steps: Vec::new(),
            last_step: Instant::now(),
            observed: None,
        };
        for (role, share) in roles {
            let orders = Orders {
                role: *role,
                dir: dir.clone(),
                gpu: site.gpu.clone(),
                share: share.clone(),
                seed: site.seed,
                load,
            };
            let child = spawn(site, &orders)?;
            let member = Member {
                child,
                teller: None,
                ready: false,
            };
            fleet.members.insert(*role, member);
        }
        Ok(fleet)
    }

    /// Listens until all workers work.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), DemoError> {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_ready() {
            self.listen(POLL)?;
            if Instant::now() > deadline {
                let late = self.members.iter().find(|(_, member)| !member.ready);
                return Err(DemoError::NotReady {
                    worker: late.map_or("worker", |(role, _)| role.name()),
                    seconds: READY_WITHIN.as_secs(),
                });
            }
        }
        Ok(())
    }

    /// Whether all workers have their shares and work.
    pub(crate) fn is_ready(&self) -> bool {
        self.members.values().all(|member| member.ready)
    }

    /// The process of a stage.
    pub(crate) fn pid(&self, stage: Stage) -> u32 {
        let member = self.members.get(&Role::Stage(stage));
        member.map_or(0, |member| member.child.id())
    }

    /// Tells every worker.
    pub(crate) fn tell(&self, what: &Down) {
        for teller in self.members.values().filter_map(|m| m.teller.as_ref()) {
            // One that is gone is noticed by its silence.
            teller.tell(what).ok();
        }
    }

    /// Takes in what the workers say, for at most `wait`.
    pub(crate) fn listen(&mut self, wait: Duration) -> Result<(), DemoError> {
        if self.stop.load(Ordering::SeqCst) {
            return Err(DemoError::Interrupted);
        }
        let mut next = self.heard.recv_timeout(wait);
        loop {
            match next {
                Ok((role, heard)) => self.take(role, heard)?,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    // Everybody hung up, or nobody has connected yet.
                    thread::sleep(POLL);
                    break;
                }
            }
            next = self.heard.recv_timeout(Duration::ZERO);
        }
        for (role, member) in &mut self.members {
            if let Ok(Some(status)) = member.child.try_wait() {
                let why = format!("it ended with {status}");
                let worker = role.name();
                return Err(self.last_words(DemoError::Worker { worker, why }));
            }
        }
        Ok(())
    }

    /// What a worker that failed says itself, if it does; else what was seen of it.
    fn last_words(&self, seen: DemoError) -> DemoError {
        let deadline = Instant::now() + LAST_WORDS;
        while let Ok((role, heard)) = self
            .heard
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Heard::Said(Up::Failed { why }) = heard {
                let worker = role.name();
                return DemoError::Worker { worker, why };
            }
        }
        seen
    }

    fn take(&mut self, role: Role, heard: Heard) -> Result<(), DemoError> {
        let Some(member) = self.members.get_mut(&role) else {
            return Ok(());
        };
        let worker = role.name();
        match heard {
            Heard::Connected(teller) => member.teller = Some(teller),
            Heard::Said(Up::Ready { sms, cpus }) => {
                tracing::debug!(worker, sms, ?cpus, "ready");
                member.ready = true;
                // Until now it had nothing to stand still with.
                self.last_step = Instant::now();
            }
            Heard::Said(Up::Resized { sms, cpus }) => {
                tracing::debug!(worker, sms, ?cpus, "took another share up");
            }
            Heard::Said(Up::Stepped(step)) => {
                self.steps.push(step);
                self.last_step = Instant::now();
            }
            Heard::Said(Up::Observed(found)) => self.observed = Some(found),
            Heard::Said(Up::Failed { why }) => return Err(DemoError::Worker { worker, why }),
            Heard::Said(Up::Hello { .. }) => {}
            Heard::Gone => {
                let why = "it hung up".to_owned();
                return Err(self.last_words(DemoError::Worker { worker, why }));
            }
        }
        Ok(())
    }

    /// Whether the pipeline has come to a stop.
    pub(crate) fn check_stall(&self) -> Result<(), DemoError> {
        if self.last_step.elapsed() > STALL {
            return Err(DemoError::Stalled {
                seconds: STALL.as_secs(),
            });
        }
        Ok(())
    }

    /// Lets the pipeline run and measures it; `each` is called several times a second.
    pub(crate) fn measure(
        &mut self,
        length: Duration,
        mut each: impl FnMut(&mut Self) -> Result<(), DemoError>,
    ) -> Result<Measured, DemoError> {
        let from_ns = boottime_ns();
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.listen(LISTEN)?;
            self.check_stall()?;
            each(self)?;
        }
        Ok(self.measured(from_ns, boottime_ns()))
    }

    /// Throughput between two moments.
    pub(crate) fn measured(&self, from_ns: u64, to_ns: u64) -> Measured {
        measured(&self.steps, from_ns, to_ns)
    }

    /// What the observer has found so far.
    pub(crate) fn found(&mut self) -> Result<Observed, DemoError> {
        self.observed = None;
        self.tell(&Down::Tell);
        let deadline = Instant::now() + END_WITHIN;
        while self.observed.is_none() && Instant::now() < deadline {
            self.listen(POLL)?;
        }
        self.observed.take().ok_or(DemoError::NotReady {
            worker: Role::Observer.name(),
            seconds: END_WITHIN.as_secs(),
        })
    }

    /// Ends the workers: told first, killed if they do not listen.
    pub(crate) fn end(mut self) {
        self.finish(END_WITHIN);
    }

    fn finish(&mut self, within: Duration) {
        self.tell(&Down::Stop);
        let deadline = Instant::now() + within;
        for member in self.members.values_mut() {
            while Instant::now() < deadline && matches!(member.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            if matches!(member.child.try_wait(), Ok(None)) {
                // It may have ended by itself just now.
                member.child.kill().ok();
                member.child.wait().ok();
            }
        }
        self.members.clear();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.finish(DROP_WITHIN);
    }
}

/// From the first step that ended in a stretch of time to the last one.
fn measured(steps: &[Step], from_ns: u64, to_ns: u64) -> Measured {
    let inside: Vec<&Step> = steps
        .iter()
        .filter(|step| (from_ns..=to_ns).contains(&step.end_ns))
        .collect();
    let ([first, rest @ ..], Some(last)) = (&inside[..], inside.last()) else {
        return Measured::default();
    };
    let seconds = last.end_ns.saturating_sub(first.end_ns) as f64 * 1e-9;
    let units: f64 = rest.iter().map(|step| step.consumed).sum();
    Measured {
        units_per_s: if seconds > 0.0 { units / seconds } else { 0.0 },
        steps: rest.len(),
        seconds,
        staleness: inside.iter().map(|step| step.staleness).max().unwrap_or(0),
    }
}

fn spawn(site: &Site, orders: &Orders) -> Result<Child, DemoError> {
    use std::os::unix::process::CommandExt;
    let text = serde_json::to_string(orders).map_err(|error| DemoError::Worker {
        worker: orders.role.name(),
        why: error.to_string(),
    })?;
    let mut command = Command::new(&site.program);
    command
        .args(["demo", "worker", &text])
        // A group of its own: Ctrl-C is for the demo, which then ends its workers.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().map_err(|source| DemoError::Spawn {
        program: site.program.clone(),
        source,
    })
}

/// Takes the workers' connections; each has a reading thread that ends with it.
fn answer(listener: &UnixListener, expected: usize, heard: &Sender<(Role, Heard)>) {
    let deadline = Instant::now() + READY_WITHIN;
    let mut connected = 0;
    while connected < expected && Instant::now() < deadline {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        connected += 1;
        let heard = heard.clone();
        let read = move || -> std::io::Result<()> {
            stream.set_nonblocking(false)?;
            let teller = Teller::new(stream.try_clone()?);
            let mut listener = Listener::new(stream);
            let Some(Up::Hello { role }) = listener.hear()? else {
                return Ok(());
            };
            let mut open = heard.send((role, Heard::Connected(teller))).is_ok();
            while open {
                open = match listener.hear()? {
                    Some(said) => heard.send((role, Heard::Said(said))).is_ok(),
                    None => {
                        heard.send((role, Heard::Gone)).ok();
                        false
                    }
                };
            }
            Ok(())
        };
        let spawned = thread::Builder::new().name("worker".to_owned()).spawn(read);
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot listen to a worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_from_step_to_step() {
        let step = |n: u64, end_ms: u64| Step {
            n,
            end_ns: end_ms * 1_000_000,
            consumed: 100.0,
            ..Step::default()
        };
        let steps = [
            step(1, 900),
            step(2, 1_100),
            step(3, 1_600),
            step(4, 2_100),
            step(5, 5_000),
        ];
        let found = measured(&steps, 1_000_000_000, 3_000_000_000);
        assert_eq!((found.steps, found.seconds), (2, 1.0));
        assert!((found.units_per_s - 200.0).abs() < 1e-9, "{found:?}");
        assert_eq!(measured(&steps, 0, 1), Measured::default());
        assert_eq!(
            measured(&steps[..1], 0, u64::MAX).units_per_s,
            0.0,
            "one step is no stretch"
        );
    }
}
