//! Reading a script's words, and saying what came of them in a person's words.
use std::collections::BTreeMap;

use evenkeel_core::command::Reply;
use evenkeel_core::converge::Step;
use evenkeel_core::event::Event;
use evenkeel_core::grant::{GpuShare, Vector};
use evenkeel_core::id::GpuId;
use evenkeel_core::lease::{Lease, Phase};

use super::Mistake;

/// The words of one command: plain ones in order, `key=value` in any order.
pub(super) struct Words {
    plain: Vec<String>,
    pairs: BTreeMap<String, String>,
    at: usize,
}

impl Words {
    pub(super) fn of(line: &str) -> Self {
        let (mut plain, mut pairs) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => drop(pairs.insert(key.to_owned(), value.to_owned())),
                None => plain.push(word.to_owned()),
            }
        }
        Self {
            plain,
            pairs,
            at: 0,
        }
    }
    pub(super) fn next(&mut self) -> Result<String, Mistake> {
        let word = self.plain.get(self.at).cloned();
        self.at += 1;
        word.ok_or_else(|| Mistake("a word is missing".into()))
    }
    pub(super) fn next_or(&mut self, default: &str) -> String {
        self.next().unwrap_or_else(|_| default.to_owned())
    }
    /// The command's own word.
    pub(super) fn first(&self) -> &str {
        let own = self.at.checked_sub(2).and_then(|i| self.plain.get(i));
        own.map_or("", String::as_str)
    }
    /// The command's own word, for one that takes no other.
    pub(super) fn command(&self) -> &str {
        self.plain.first().map_or("", String::as_str)
    }
    /// Whether this plain word is among the rest.
    pub(super) fn flag(&mut self, word: &str) -> bool {
        let at = self.plain.iter().skip(self.at).position(|w| w == word);
        at.map(|i| self.plain.remove(self.at + i)).is_some()
    }
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        self.pairs.remove(key)
    }
    pub(super) fn number(&mut self, key: &str) -> Result<Option<u64>, Mistake> {
        let value = self.pairs.remove(key);
        value
            .map(|v| {
                v.parse()
                    .map_err(|_| Mistake(format!("{key}={v} is no number")))
            })
            .transpose()
    }
    pub(super) fn millis(&mut self, key: &str) -> Result<Option<u64>, Mistake> {
        self.pairs.remove(key).map(|v| millis(&v)).transpose()
    }
    /// Every word was understood.
    pub(super) fn all_used(&self) -> Result<(), Mistake> {
        let rest = self.plain.get(self.at..).unwrap_or_default();
        if rest.is_empty() && self.pairs.is_empty() {
            return Ok(());
        }
        Err(Mistake(format!(
            "not understood: {rest:?} {:?}",
            self.pairs
        )))
    }
}

/// `500ms`, `31s`, `10m`.
pub(super) fn millis(text: &str) -> Result<u64, Mistake> {
    let (number, factor) = match (
        text.strip_suffix("ms"),
        text.strip_suffix('s'),
        text.strip_suffix('m'),
    ) {
        (Some(n), ..) => (n, 1),
        (_, Some(n), _) => (n, 1_000),
        (_, _, Some(n)) => (n, 60_000),
        _ => (text, 1_000),
    };
    number
        .parse::<u64>()
        .map(|n| n * factor)
        .map_err(|_| Mistake(format!("{text} is no time")))
}

fn shares(gpus: &BTreeMap<GpuId, GpuShare>) -> String {
    gpus.iter()
        .map(|(id, s)| format!(", {id} {} {}", s.guarantee, s.memory))
        .collect()
}
fn vector(v: &Vector) -> String {
    let cores = if v.cores.is_empty() {
        "none".to_owned()
    } else {
        v.cores.to_string()
    };
    format!("cores {cores}{}", shares(&v.gpus))
}

pub(super) fn lease(l: &Lease) -> String {
    let phase = match &l.phase {
        Phase::Ended(how) => format!("ended ({how:?})").to_lowercase(),
        Phase::Active { verified: true, .. } => "active, verified".to_owned(),
        p => p.name().as_str().to_owned(),
    };
    let moving = if l.held == l.target || l.held.is_empty() {
        String::new()
    } else {
        format!("; has {}", vector(&l.held))
    };
    format!(
        "{} {phase}, {}, {}: {}{moving}",
        l.id,
        l.fence,
        l.generation,
        vector(&l.target)
    )
}

pub(super) fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Lease(l) => lease(l),
        Reply::Waiting(id) => format!("{id} waits"),
        Reply::Job(id) => format!("{id}"),
        Reply::Cancelled { job, told } if told.is_empty() => format!("{job} is over"),
        Reply::Cancelled { job, told } => {
            let told: Vec<String> = told.iter().map(ToString::to_string).collect();
            format!("{job} is over; told to give back: {}", told.join(", "))
        }
        Reply::Points(n) => format!("{n} points"),
        Reply::Done => "done".to_owned(),
    }
}

pub(super) fn event(event: &Event) -> String {
    let rest = match event {
        Event::LeaseQueued { lease } => format!("{}", lease.id),
        Event::LeaseGranted { lease } => format!("{}: {}", lease.id, vector(&lease.target)),
        Event::LeaseAttached { id, fence, .. } | Event::LeaseDraining { id, fence } => {
            format!("{id}: {fence}")
        }
        Event::LeaseRetargeted {
            id,
            generation,
            target,
            ..
        } => format!("{id}: {generation}, {}", vector(target)),
        Event::LeaseHeld { id, held } => format!("{id}: {}", vector(held)),
        Event::LeaseQuarantined { id, fence, cause } => format!("{id}: {fence}, {cause:?}"),
        Event::LeaseEnded { id, how, .. } => format!("{id}: {how:?}"),
        Event::JobAdmitted { id, plan, .. } => {
            let stages: Vec<String> = plan
                .stages
                .iter()
                .map(|s| format!("{} cores {}", s.cores, s.sms))
                .collect();
            format!("{id}: {}", stages.join(" | "))
        }
        Event::JobReplanned { id, plan, reason } => {
            let stages: Vec<String> = plan
                .stages
                .iter()
                .map(|s| format!("{} cores {}", s.cores, s.sms))
                .collect();
            format!("{id}: {}; {reason}", stages.join(" | "))
        }
        Event::JobStayed { id, reason } => format!("{id}: {reason}"),
        Event::SlotReserved { member, unclaimed } => {
            format!(
                "{} of {}: {}",
                member.worker,
                member.stage,
                vector(unclaimed)
            )
        }
        Event::NodeDrained { draining } => format!("{draining}"),
        Event::UnavailableChanged { unavailable } => {
            let gpus: String = unavailable
                .gpus
                .iter()
                .map(|(id, (s, _))| format!(", {id} {s}"))
                .collect();
            format!("cores {}{gpus}", unavailable.cores)
        }
        other => {
            let lease = other.lease().map(|id| id.to_string());
            lease
                .or(other.job().map(|id| id.to_string()))
                .unwrap_or_default()
        }
    };
    format!("{} {rest}", event.kind()).trim_end().to_owned()
}

pub(super) fn step(step: &Step) -> String {
    match step {
        Step::Bind { lease, cpus, .. } => format!("bind {lease} to {cpus}"),
        Step::TerminateClient { lease, client } => {
            format!("end a context of {lease} on {}", client.gpu)
        }
        Step::Terminate { lease, .. } => format!("SIGTERM to {lease}"),
        Step::Kill { lease, .. } => format!("SIGKILL to {lease}"),
    }
}
