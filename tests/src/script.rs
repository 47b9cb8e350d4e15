//! Golden scripts: commands in words over the world's shell, machine and truth, with a perfect network and no chance
//! in it. Each command is followed by what came of it; `tests/scenarios.rs` compares that with the file.
//!
//! Lines that begin with `> ` are commands, those with `#` are for people, the rest is output.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_core::command::{Caller, Command, Rejection, Reply};
use evenkeel_core::converge::{Order, Target, steps, troubles};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::event::Event;
use evenkeel_core::grant::{GpuShare, Vector};
use evenkeel_core::id::{Fence, GpuId, JobId, LeaseId, Name};
use evenkeel_core::invariant::Violation;
use evenkeel_core::lease::{Holder, Lease};
use evenkeel_core::node::{Node, PoolKind, Unavailable};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::{Bytes, Millis, Sms, Time};
use evenkeeld::reconcile::observation;

use crate::world::hardware::Hardware;
use crate::world::shell::{Fate, Outcome, Said, Shell, Ticket, Who};
use crate::world::swarm;
use crate::world::truth::{Truth, sound};

mod ask;
mod words;

use words::Words;

/// One lease's holder, under the name that the script gives it.
#[derive(Clone, Debug, Default)]
struct Client {
    tenant: String,
    lease: Option<LeaseId>,
    fence: Fence,
    holder: Option<Holder>,
    env: BTreeMap<GpuId, GpuShare>,
    acquire: Option<Command>,
}

/// The stage on which a script plays.
pub struct Script {
    now: Time,
    shell: Shell,
    truth: Truth,
    hw: Hardware,
    node: Node,
    settings: Settings,
    clients: BTreeMap<String, Client>,
    jobs: BTreeMap<String, (String, JobId)>,
    fate: Fate,
    requests: u128,
    out: String,
}

/// A command that the script's author got wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(String);

/// Plays a script: the same text with the outputs as they are now.
///
/// # Errors
/// When a command is none, or an invariant is broken.
pub fn play(text: &str) -> Result<String, Mistake> {
    let mut script = Script::new();
    let mut played = String::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            let said = script
                .line(command)
                .map_err(|e| Mistake(format!("{line}: {e}\nso far:\n{played}")))?;
            let _ = writeln!(played, "{line}\n{said}");
        } else if line.starts_with('#') {
            let _ = writeln!(played, "{line}");
        }
    }
    Ok(played.trim_end().to_owned() + "\n")
}

impl Script {
    fn new() -> Self {
        let node = swarm::node(
            PoolKind::Local,
            8,
            1,
            false,
            vec![swarm::gpu(0, 132, 4, Bytes::gib(80))],
        );
        let settings = Settings::default();
        let mut script = Self {
            now: Time(1_000),
            shell: Shell::new(settings, None),
            truth: Truth::new(&settings),
            hw: Hardware::new(node.shared_cpus()),
            node,
            settings,
            clients: BTreeMap::new(),
            jobs: BTreeMap::new(),
            fate: Fate::Durable,
            requests: 0,
            out: String::new(),
        };
        // A start on an empty ledger cannot fail.
        let _ = script.start(true);
        script.out.clear();
        script
    }

    fn line(&mut self, command: &str) -> Result<String, Mistake> {
        self.out.clear();
        let mut words = Words::of(command);
        self.command(&mut words)?;
        words.all_used()?;
        Ok(std::mem::take(&mut self.out))
    }

    fn command(&mut self, words: &mut Words) -> Result<(), Mistake> {
        match words.next()?.as_str() {
            "node" => self.install(words),
            "settings" => self.set(words),
            "acquire" => self.acquire(words),
            "again" => self.again(words),
            "attach" => self.attach(words),
            "open" => self.open(words),
            "widen" => self.widen(words),
            "hang" | "answer" => self.device(words),
            "renew" => self.renew(words),
            "ack" => self.acknowledge(words),
            "release" | "revoke" | "clear" => self.end(words),
            "kill" => self.kill(words),
            "look" => self.look(),
            "advance" => self.advance(words),
            "crash" => self.crash(words),
            "full" => self.with_fate(Fate::Full, words),
            "start" => self.start(true),
            "reboot" => self.reboot(),
            "drain" => self.drain(words),
            "lose" => self.lose(words),
            "submit" => self.submit(words),
            "replan" | "cancel" => self.about_job(words),
            "profile" => self.profile(words),
            "report" => self.report(words),
            "show" => self.show(words),
            other => Err(Mistake(format!("there is no command {other}"))),
        }
    }

    fn install(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let cores = words.number("cores")?.unwrap_or(8) as u32;
        let gpus = words.number("gpus")?.unwrap_or(1) as u16;
        let gpus = (0..gpus).map(|id| swarm::gpu(id, 132, 4, Bytes::gib(80)));
        self.node = swarm::node(PoolKind::Local, cores, 1, false, gpus.collect());
        self.hw = Hardware::new(self.node.shared_cpus());
        self.discover(Unavailable::default())
    }
    fn discover(&mut self, unavailable: Unavailable) -> Result<(), Mistake> {
        let node = Box::new(self.node.clone());
        self.ask(Command::Discovered {
            node,
            unavailable: Box::new(unavailable),
        })
        .map(drop)
    }
    fn lose(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let cores: CpuSet = words
            .text("cores")
            .unwrap_or_default()
            .parse()
            .unwrap_or_default();
        let gpus = match words.number("sms")? {
            Some(n) => [(GpuId(0), (Sms(n as u32), Bytes(0)))].into(),
            None => BTreeMap::new(),
        };
        self.discover(Unavailable { cores, gpus })
    }
    /// Other settings: only before anything has happened.
    fn set(&mut self, words: &mut Words) -> Result<(), Mistake> {
        for (name, field) in [
            ("grace", &mut self.settings.grace),
            ("release", &mut self.settings.release_grace),
            ("kill", &mut self.settings.quarantine_kill),
            ("park", &mut self.settings.park_after),
            ("drain", &mut self.settings.drain),
            ("remember", &mut self.settings.remember_for),
        ] {
            if let Some(ms) = words.millis(name)? {
                *field = Millis(ms);
            }
        }
        self.shell = Shell::new(self.settings, None);
        self.truth = Truth::new(&self.settings);
        let start = self.start(true);
        self.out.clear();
        start
    }

    /// Asks, commits by the fate that is set, and says what came of it.
    fn ask(&mut self, command: Command) -> Result<Option<Result<Reply, Rejection>>, Mistake> {
        if !self.shell.is_up() {
            self.say("nobody is there");
            return Ok(None);
        }
        let fate = std::mem::replace(&mut self.fate, Fate::Durable);
        self.truth.asked(&command);
        let who = Who::Agent(0);
        self.shell.begin(
            self.now,
            vec![Ticket {
                who,
                token: 0,
                command,
            }],
        );
        let outcome = self.shell.finish(self.now, fate).map_err(violated)?;
        let answer = match outcome {
            Outcome::Settled((events, at), said) => {
                self.landed(&events, at)?;
                said.into_iter().find_map(|(ticket, said)| match said {
                    Said::Answer(answer) => Some((ticket, answer)),
                    _ => None,
                })
            }
            Outcome::Undone(_) => {
                self.say("unavailable: the disk is full, and nothing happened");
                None
            }
            Outcome::Crashed(landed) => {
                if let Some((events, at)) = landed {
                    self.landed(&events, at)?;
                }
                self.say("no answer: the daemon is down");
                None
            }
        };
        let Some((ticket, answer)) = answer else {
            return Ok(None);
        };
        self.truth
            .said(&ticket.command, &answer)
            .map_err(violated)?;
        let text = match &answer {
            Ok(reply) => words::reply(reply),
            Err(refusal) => format!("refused {}: {refusal}", refusal.reason()),
        };
        self.say(&text);
        self.shell.wake_at = self.now;
        Ok(Some(answer))
    }
    fn landed(&mut self, events: &[Event], at: Time) -> Result<(), Mistake> {
        events
            .iter()
            .for_each(|e| self.say(&format!("  {}", words::event(e))));
        self.truth.commit(events, at, &self.hw).map_err(violated)
    }
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }

    fn start(&mut self, same_boot: bool) -> Result<(), Mistake> {
        self.shell.start(self.now, same_boot).map_err(violated)?;
        if let Some(state) = self.shell.state() {
            sound(&state.durable).map_err(violated)?;
            self.truth
                .acknowledged_effects_survive(&state.durable)
                .map_err(violated)?;
        }
        self.say("the daemon is up");
        if !same_boot {
            self.ask(Command::Rebooted)?;
        }
        self.discover_quietly()
    }
    fn discover_quietly(&mut self) -> Result<(), Mistake> {
        let before = self.out.clone();
        self.discover(Unavailable::default())?;
        self.out = before;
        Ok(())
    }
    fn reboot(&mut self) -> Result<(), Mistake> {
        self.shell.crash();
        self.hw.reboot();
        self.now = Time(1_000);
        self.start(false)
    }
    fn crash(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let fate = match words.next_or("").as_str() {
            "" => {
                self.shell.crash();
                self.say("the daemon is down");
                return Ok(());
            }
            "before-commit" => Fate::CrashBefore,
            "after-commit" => Fate::CrashAfter,
            "in-doubt-lost" => Fate::DoubtLost,
            "in-doubt-kept" => Fate::DoubtKept,
            other => return Err(Mistake(format!("there is no crash {other}"))),
        };
        self.with_fate(fate, words)
    }
    fn with_fate(&mut self, fate: Fate, words: &mut Words) -> Result<(), Mistake> {
        self.fate = fate;
        let done = self.command(words);
        self.fate = Fate::Durable;
        done
    }

    /// Time passes; the daemon's timer goes off whenever it wants.
    fn advance(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let ms = words::millis(&words.next()?)?;
        let until = self.now.after(Millis(ms));
        while self.now < until {
            self.now = self.now.after(Millis(500)).min(until);
            if self.shell.is_up() {
                let before = self.out.len();
                self.ask(Command::Tick)?;
                // The timer's own answer says nothing.
                let said = self.out.split_off(before);
                let lines = said.lines().filter(|l| *l != "done");
                let at = (self.now.0 - 1_000) as f64 / 1_000.0;
                for line in lines
                    .map(str::trim_start)
                    .map(|l| format!("  at {at} s: {l}\n"))
                {
                    self.out.push_str(&line);
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), Mistake> {
        let targets = self.shell.targets(self.now).to_vec();
        let gpus: Vec<GpuId> = self.node.gpus.iter().map(|g| g.id).collect();
        let sight = |s: &Self, t: &Target| s.hw.sight(&t.holder, gpus.iter().copied());
        let seen = targets
            .iter()
            .map(|t| (t.lease, sight(self, t).tree()))
            .collect();
        for step in steps(&self.node, &targets, &seen) {
            self.hw.apply(&step);
            self.say(&format!("  does {}", words::step(&step)));
        }
        for t in targets {
            let seen = observation(&self.node, &t, &sight(self, &t), &CpuSet::new());
            let command = Command::Observe(Box::new(seen));
            let before = self.out.len();
            self.ask(command)?;
            let said = self.out.split_off(before);
            said.lines()
                .filter(|l| *l != "done")
                .for_each(|l| self.say(l));
        }
        Ok(())
    }

    /// The device of GPU 0 hangs, or answers again.
    fn device(&mut self, words: &mut Words) -> Result<(), Mistake> {
        match words.command() {
            "hang" => self.hw.silence(GpuId(0)),
            _ => self.hw.answer(GpuId(0)),
        }
        Ok(())
    }

    fn drain(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let draining = words.next()? == "on";
        let caller = caller("root", true);
        self.ask(Command::Drain { caller, draining }).map(drop)
    }

    fn show(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let what = words.next()?;
        if what == "free" {
            let d = &self.truth.fold;
            let mut line = format!("free: cores {}", d.pool().free_cores());
            for g in &d.node().gpus {
                let free = d.pool().free_on(d.node(), d.unavailable(), g.id);
                let _ = write!(line, ", {} {} {}", g.id, free.sms, free.memory);
            }
            self.say(&line);
            return Ok(());
        }
        if what == "troubles" {
            let state = self.shell.state();
            let all = state.map(|s| troubles(&s.durable, &s.volatile, self.now));
            for trouble in all.unwrap_or_default() {
                self.say(&format!("{}: {}", trouble.name, trouble.text));
            }
            return Ok(());
        }
        let client = self.client(&what)?;
        let lease = client
            .lease
            .and_then(|id| self.truth.fold.leases().get(&id));
        let line = lease.map_or_else(|| "no lease".to_owned(), words::lease);
        let order = client
            .lease
            .and_then(|id| self.shell.directive(id, self.now));
        let order = order.map(|d| match d.order {
            Order::Target { generation, .. } => format!("told: apply {generation}"),
            Order::Restart { generation, .. } => format!("told: restart with {generation}"),
            Order::Release => "told: release".to_owned(),
            Order::Drain => "told: drain".to_owned(),
        });
        self.say(&line);
        order.into_iter().for_each(|o| self.say(&o));
        Ok(())
    }

    fn client(&self, name: &str) -> Result<&Client, Mistake> {
        self.clients
            .get(name)
            .ok_or_else(|| Mistake(format!("nobody is called {name}")))
    }
}

fn caller(tenant: &str, admin: bool) -> Caller {
    Caller {
        tenant: Name::new(tenant).unwrap_or_else(|_| Name::unknown()),
        admin,
        job: None,
    }
}

fn violated(v: Violation) -> Mistake {
    Mistake(format!("broken: {}: {}", v.invariant, v.detail))
}

/// What a lease's holder is to have.
fn target_of(lease: &Lease) -> Vector {
    lease.target.clone()
}
