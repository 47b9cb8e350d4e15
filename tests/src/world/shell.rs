//! The daemon as the core sees it: an inbox, one step at a time, a commit with its crash points, a start.
//!
//! Stands in for the daemon's controller, handle and ledger, in their order of things; the decisions, the fold into
//! rows and the loading of rows are the production code. It is also where faults are planted.
use std::collections::{BTreeMap, VecDeque};

use evenkeel_core::clock::Renewal;
use evenkeel_core::command::{Caller, Command, Rejection, Reply};
use evenkeel_core::converge::{self, Directive, Target};
use evenkeel_core::decide::Answer;
use evenkeel_core::event::Event;
use evenkeel_core::id::{Fence, LeaseId, Name};
use evenkeel_core::invariant::Violation;
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{State, Step, step};
use evenkeel_core::unit::{Millis, Time};
use evenkeel_core::volatile::{Volatile, without_downtime};
use evenkeeld::ledger::{Tables, fold, load};

use super::planted::Planted;
use super::sabotage;

/// Who asked, so that the answer finds its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// An agent: a worker and its client.
    Agent(usize),
    /// The owner of a job.
    Driver(usize),
    /// Somebody who tries what is not allowed.
    Mischief,
    /// An admin, the scanners.
    Admin,
    /// The reconciler.
    Reconciler,
    /// The daemon's own timer.
    Timer,
}

/// A command in the inbox.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Who asked.
    pub who: Who,
    /// The asker's number for it.
    pub token: u64,
    /// What.
    pub command: Command,
}

/// What an asker hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// The controller's answer, after the commit.
    Answer(Result<Reply, Rejection>),
    /// The handle renewed the lease; with what its holder has to be told.
    Renewed(Option<Directive>),
    /// The handle refused: the fence is old, or the lease is not there.
    Refused,
    /// Nothing happened: the disk is full, or nobody is there. To be asked again.
    Unavailable,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It is durable, and the answers go out.
    Durable,
    /// The disk is full: nothing happened, and everybody knows.
    Full,
    /// The daemon ends before the commit.
    CrashBefore,
    /// The commit fails in doubt, and the daemon ends; the rows are not there.
    DoubtLost,
    /// The commit fails in doubt, and the daemon ends; the rows are there.
    DoubtKept,
    /// The daemon ends after the commit and before any answer.
    CrashAfter,
}

impl Fate {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Durable,
        Self::Full,
        Self::CrashBefore,
        Self::DoubtLost,
        Self::DoubtKept,
        Self::CrashAfter,
    ];
    /// A name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Full => "disk full",
            Self::CrashBefore => "before commit",
            Self::DoubtLost => "in doubt, lost",
            Self::DoubtKept => "in doubt, kept",
            Self::CrashAfter => "after commit",
        }
    }
}

/// Events that became durable, with the time of the decision.
pub type Landed = (Vec<Event>, Time);

/// What came of a commit.
#[derive(Debug)]
pub enum Outcome {
    /// Durable and answered.
    Settled(Landed, Vec<(Ticket, Said)>),
    /// Taken back.
    Undone(Vec<(Ticket, Said)>),
    /// The daemon is down; the events landed or not.
    Crashed(Option<Landed>),
}

enum Deed {
    Core(Step),
    Broken(Vec<Event>, Vec<Result<Answer, Rejection>>),
}

struct Work {
    deed: Deed,
    batch: Vec<Ticket>,
    decided_at: Time,
}

/// The daemon.
pub struct Shell {
    state: Option<State>,
    work: Option<Work>,
    /// The ledger's tables.
    pub disk: Tables,
    /// Commands that wait.
    pub inbox: VecDeque<Ticket>,
    /// When the timer goes off.
    pub wake_at: Time,
    /// Lives of the daemon.
    pub epoch: u32,
    settings: Settings,
    planted: Option<Planted>,
    owners: BTreeMap<LeaseId, (Name, Millis)>,
    targets: Vec<Target>,
    published: bool,
    noted_at: Time,
}

/// How often renewals and the daemon's being there are noted beside the batches, as the controller does it.
const NOTE_EVERY: Millis = Millis::secs(1);

impl Shell {
    /// A daemon that has never run, on an empty ledger.
    pub fn new(settings: Settings, planted: Option<Planted>) -> Self {
        Self {
            state: None,
            work: None,
            disk: Tables::default(),
            inbox: VecDeque::new(),
            wake_at: Time(0),
            epoch: 0,
            settings,
            planted,
            owners: BTreeMap::new(),
            targets: Vec::new(),
            published: false,
            noted_at: Time(0),
        }
    }
    /// Renewals that wait for a verdict.
    pub fn renewals(&self) -> Vec<Ticket> {
        let batch = self.work.iter().flat_map(|w| &w.batch);
        let renews = |t: &&Ticket| matches!(t.command, Command::Renew { .. });
        batch.chain(&self.inbox).filter(renews).cloned().collect()
    }
    /// Whether it runs.
    pub const fn is_up(&self) -> bool {
        self.state.is_some()
    }
    /// Whether a commit is under way.
    pub const fn is_busy(&self) -> bool {
        self.work.is_some()
    }
    /// The state, while it runs. During a commit it is ahead of the ledger.
    pub const fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }
    /// The state, to spoil it.
    pub const fn state_mut(&mut self) -> Option<&mut State> {
        self.state.as_mut()
    }
    /// The answers that a step under way has in mind, with what was asked.
    pub fn intended(&self) -> Vec<(&Ticket, Result<&Answer, &Rejection>)> {
        let Some(work) = &self.work else {
            return Vec::new();
        };
        let answers = match &work.deed {
            Deed::Core(step) => &step.answers,
            Deed::Broken(_, answers) => answers,
        };
        work.batch
            .iter()
            .zip(answers.iter().map(Result::as_ref))
            .collect()
    }
    /// Whether the step under way changes anything durable.
    pub fn has_events(&self) -> bool {
        self.work.as_ref().is_some_and(|w| match &w.deed {
            Deed::Core(step) => !step.events.is_empty(),
            Deed::Broken(events, _) => !events.is_empty(),
        })
    }

    /// Starts on what is on the disk.
    pub fn start(&mut self, now: Time, same_boot: bool) -> Result<(), Violation> {
        let mut parts = load(&self.disk).map_err(|e| Violation {
            invariant: "memory_tables_and_fold_agree",
            detail: e.to_string(),
        })?;
        sabotage::on_load(self.planted, &mut parts);
        let durable = Durable::load(parts);
        if !same_boot {
            self.disk.unrenewed.clear();
        }
        let noted = &self.disk.unrenewed;
        let unrenewed = match self.planted {
            Some(Planted::DowntimeCounted) => noted.clone(),
            _ => without_downtime(noted, self.disk.alive, now),
        };
        let volatile = Volatile::start(&durable, self.settings, now, unrenewed);
        self.disk.unrenewed.clone_from(&volatile.unrenewed);
        (self.disk.alive, self.noted_at) = (Some(now), now);
        self.owners = owners(&durable);
        let mut state = State { durable, volatile };
        sabotage::on_start(self.planted, &mut state, now);
        self.inbox.clear();
        if !same_boot {
            let command = Command::Rebooted;
            self.inbox.push_back(Ticket {
                who: Who::Timer,
                token: 0,
                command,
            });
        }
        self.wake_at = state.next_wakeup(now);
        (self.state, self.work, self.published) = (Some(state), None, false);
        self.epoch += 1;
        Ok(())
    }
    /// Ends without a word.
    pub fn crash(&mut self) {
        (self.state, self.work) = (None, None);
        self.inbox.clear();
    }

    /// A renewal, as the handle does it: no disk, no controller. None: the controller has to be asked.
    pub fn renew(&self, caller: &Caller, id: LeaseId, fence: Fence, now: Time) -> Option<Said> {
        let Some(state) = &self.state else {
            return Some(Said::Unavailable);
        };
        let known = self
            .owners
            .get(&id)
            .filter(|(t, _)| caller.admin || *t == caller.tenant);
        let (Some((_, ttl)), Some(clock)) = (known, state.volatile.clocks.get(&id)) else {
            return Some(Said::Refused);
        };
        let fence = sabotage::on_renew(self.planted, state, id, fence);
        match clock.renew(fence, now.after(*ttl)) {
            Renewal::Renewed => Some(Said::Renewed(self.directive(id, now))),
            Renewal::Fenced => Some(Said::Refused),
            Renewal::Closing => None,
        }
    }
    /// What the holder of a lease is told; nothing while a commit is under way.
    pub fn directive(&self, id: LeaseId, now: Time) -> Option<Directive> {
        let state = self.state.as_ref().filter(|_| self.work.is_none())?;
        let lease = state.durable.leases().get(&id)?;
        converge::directive(&state.durable, &state.volatile, now, lease)
    }
    /// What the reconciler is to bring about: as of the newest commit that was published.
    pub fn targets(&mut self, now: Time) -> &[Target] {
        if let Some(state) = self
            .state
            .as_ref()
            .filter(|_| self.work.is_none() && !self.published)
        {
            self.targets = converge::target(&state.durable, &state.volatile, now);
            self.published = true;
        }
        &self.targets
    }

    /// Decides a batch. Its commit is under way from here on.
    pub fn begin(&mut self, now: Time, batch: Vec<Ticket>) {
        let Some(state) = &mut self.state else { return };
        sabotage::before_step(self.planted, state, now);
        let mut commands: Vec<Command> = batch.iter().map(|t| t.command.clone()).collect();
        let changed = sabotage::commands(self.planted, state, &mut commands);
        let done = step(state, now, &commands);
        let deed = match sabotage::events(self.planted, state, &done.events, &changed) {
            None => Deed::Core(done),
            Some(events) => {
                let answers = done.answers.clone();
                done.undo(state, now);
                events.iter().for_each(|e| state.durable.evolve(e));
                Deed::Broken(events, answers)
            }
        };
        self.work = Some(Work {
            deed,
            batch,
            decided_at: now,
        });
    }
    /// Answers as they would be given now, before the commit (a planted fault).
    pub fn early_answers(&self) -> Vec<(Ticket, Said)> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let said = |a: Result<&Answer, &Rejection>| match a {
            Ok(a) => Said::Answer(Ok(reply(&state.durable, a.clone()))),
            Err(e) => Said::Answer(Err(e.clone())),
        };
        self.intended()
            .into_iter()
            .map(|(t, a)| (t.clone(), said(a)))
            .collect()
    }

    /// The commit ends like this.
    pub fn finish(&mut self, now: Time, fate: Fate) -> Result<Outcome, Violation> {
        let (Some(state), Some(work)) = (&mut self.state, self.work.take()) else {
            return Ok(Outcome::Crashed(None));
        };
        let Work {
            deed,
            batch,
            decided_at,
        } = work;
        if fate == Fate::Full {
            match deed {
                Deed::Core(step) => {
                    let events = step.events.clone();
                    step.undo(state, now);
                    sabotage::after_undo(self.planted, state, &events);
                }
                Deed::Broken(..) => return Ok(Outcome::Crashed(None)),
            }
            self.wake_at = state.next_wakeup(now);
            let said = batch.into_iter().map(|t| (t, Said::Unavailable)).collect();
            return Ok(Outcome::Undone(said));
        }
        let events = match &deed {
            Deed::Core(step) => &step.events,
            Deed::Broken(events, _) => events,
        };
        if matches!(fate, Fate::CrashBefore | Fate::DoubtLost) {
            self.crash();
            return Ok(Outcome::Crashed(None));
        }
        write(&mut self.disk, self.planted, events, &state.durable)?;
        if matches!(fate, Fate::DoubtKept | Fate::CrashAfter) {
            let landed = (events.clone(), decided_at);
            self.crash();
            return Ok(Outcome::Crashed(Some(landed)));
        }
        let (events, answers) = settle(state, now, deed);
        if now >= self.noted_at.after(NOTE_EVERY) {
            self.noted_at = now;
            let renewed = state.volatile.renewed();
            for id in &renewed {
                self.disk.unrenewed.remove(id);
            }
            state.volatile.noted(&renewed);
            self.disk.alive = state.volatile.alive(now).or(self.disk.alive);
        }
        self.owners = owners(&state.durable);
        self.published = false;
        self.wake_at = state.next_wakeup(now);
        let said = batch
            .into_iter()
            .zip(answers.into_iter().map(Said::Answer))
            .collect();
        Ok(Outcome::Settled((events, decided_at), said))
    }
}

fn settle(state: &mut State, now: Time, deed: Deed) -> (Vec<Event>, Vec<Result<Reply, Rejection>>) {
    match deed {
        Deed::Core(step) => {
            let settled = step.settle(state, now);
            (settled.events, settled.answers)
        }
        Deed::Broken(events, answers) => {
            state.durable.commit();
            state.volatile.settle(&state.durable, now, &events);
            let d = &state.durable;
            let answers = answers
                .into_iter()
                .map(|a| a.map(|a| reply(d, a)))
                .collect();
            (events, answers)
        }
    }
}

fn reply(d: &Durable, answer: Answer) -> Reply {
    match answer {
        Answer::Reply(reply) => reply,
        Answer::LeaseAfter(id) => d
            .leases()
            .get(&id)
            .map_or(Reply::Done, |l| Reply::Lease(l.clone().into())),
    }
}

fn owners(d: &Durable) -> BTreeMap<LeaseId, (Name, Millis)> {
    d.leases()
        .values()
        .map(|l| (l.id, (l.tenant.clone(), l.ttl)))
        .collect()
}

/// One transaction.
fn write(
    disk: &mut Tables,
    planted: Option<Planted>,
    events: &[Event],
    after: &Durable,
) -> Result<(), Violation> {
    if events.is_empty() {
        return Ok(());
    }
    let written = sabotage::rows(planted, events);
    let batch = fold(written.as_deref().unwrap_or(events), after, 0);
    disk.apply(&batch).map_err(|e| Violation {
        invariant: "tables_take_every_commit",
        detail: format!("{e}: {events:?}"),
    })
}
