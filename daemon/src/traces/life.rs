//! A lease's life as spans, from its events. Pure; no wire.
//!
//! The root span reaches from the request (or the grant) to the end. Below it lies one span for each phase (`queued`,
//! `pending`, `attached`, `active`, `draining`, `quarantined`) and one for each move of its share (`resize`, from the
//! new target to the moment at which the holder was seen to have it). Trace and span ids are digests of what the spans
//! are about: a life that is sent twice is the same trace.
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, Vector};
use evenkeel_core::id::{Generation, LeaseId};
use evenkeel_core::lease::{End, Lease, PhaseName};
use sha2::{Digest as _, Sha256};

use crate::handle::EventRecord;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Count(u64),
    Flag(bool),
}

/// Names as OpenTelemetry writes them: dots between, what they belong to first.
pub(super) type Attributes = Vec<(&'static str, Value)>;

/// A moment within a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) name: &'static str,
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) attributes: Attributes,
}

/// A stretch of a life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) name: &'static str,
    /// Milliseconds since 1970.
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) attributes: Attributes,
    pub(super) marks: Vec<Mark>,
    /// What went wrong, if something did.
    pub(super) trouble: Option<String>,
}

impl Span {
    fn new(name: &'static str, from_ms: u64) -> Self {
        Self {
            name,
            from_ms,
            to_ms: from_ms,
            attributes: Vec::new(),
            marks: Vec::new(),
            trouble: None,
        }
    }

    /// The wall clock may have been set back meanwhile: no span ends before it begins.
    fn ended(mut self, at_ms: u64) -> Self {
        self.to_ms = at_ms.max(self.from_ms);
        self
    }
}

/// The whole life of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) trace: [u8; 16],
    pub(super) root: Span,
    /// Phases and moves, in the order of their ends.
    pub(super) parts: Vec<Span>,
}

impl Life {
    /// The id of a span: 0 is the root.
    pub(super) fn span_id(&self, index: usize) -> [u8; 8] {
        let mut digest = Sha256::new();
        digest.update(self.trace);
        digest.update(index.to_le_bytes());
        first(digest)
    }
}

/// The beginning of a digest. All zeros mean "none" to OpenTelemetry; no digest is known to begin so.
fn first<const N: usize>(digest: Sha256) -> [u8; N] {
    let bytes = digest.finalize();
    std::array::from_fn(|i| bytes[i])
}

/// The life that these events tell, ascending and all of one lease; none if it has not ended, or began before the
/// trail that is kept.
pub(super) fn life(node: &str, records: &[EventRecord]) -> Option<Life> {
    let mut fold: Option<Fold> = None;
    for record in records {
        let Ok(event) = serde_json::from_str::<Event>(&record.json) else {
            continue; // an event of another version: the others still tell most of it
        };
        match (&mut fold, &event) {
            (None, Event::LeaseQueued { lease } | Event::LeaseGranted { lease }) => {
                fold = Some(Fold::new(lease, record));
            }
            (None, _) => {}
            (Some(fold), _) => fold.hear(&event, record.unix_ms),
        }
    }
    fold.filter(|fold| fold.is_over)
        .map(|fold| fold.finish(node))
}

/// A life as far as it has been told.
struct Fold {
    lease: LeaseId,
    root: Span,
    parts: Vec<Span>,
    phase: Option<Span>,
    moving: Option<(Vector, Span)>,
    is_over: bool,
}

impl Fold {
    fn new(lease: &Lease, record: &EventRecord) -> Self {
        let mut root = Span::new("lease", record.unix_ms);
        root.attributes = described(lease);
        root.attributes.extend(amounts(&lease.target));
        Self {
            lease: lease.id,
            root,
            parts: Vec::new(),
            phase: Some(Span::new(lease.phase.name().as_str(), record.unix_ms)),
            moving: None,
            is_over: false,
        }
    }

    fn hear(&mut self, event: &Event, at_ms: u64) {
        match event {
            Event::LeaseGranted { lease } => {
                self.enter(lease.phase.name(), at_ms);
                // In the queue it had nothing yet.
                self.root.attributes = described(lease);
                self.root.attributes.extend(amounts(&lease.target));
            }
            Event::LeaseAttached { holder, .. } => {
                self.enter(PhaseName::Attached, at_ms);
                self.note("process.pid", Value::Count(holder.pid.into()));
            }
            Event::LeaseActivated { .. } => self.enter(PhaseName::Active, at_ms),
            Event::LeaseDraining { .. } => self.enter(PhaseName::Draining, at_ms),
            Event::LeaseQuarantined { cause, .. } => {
                self.enter(PhaseName::Quarantined, at_ms);
                if let Some(phase) = &mut self.phase {
                    phase.trouble = Some(cause.end().why().into());
                }
            }
            Event::LeaseVerified { .. } => self.mark("verified", at_ms, Vec::new()),
            Event::LeaseUnverified { .. } => self.mark("unverified", at_ms, Vec::new()),
            Event::LeaseRetargeted {
                generation,
                target,
                batch,
                ..
            } => self.move_to(*generation, target, *batch, at_ms),
            Event::LeaseHeld { held, .. } => self.seen(held, at_ms),
            Event::LeaseEnded { how, reason, .. } => self.end(*how, reason.as_deref(), at_ms),
            _ => {}
        }
    }

    fn enter(&mut self, phase: PhaseName, at_ms: u64) {
        let before = self.phase.replace(Span::new(phase.as_str(), at_ms));
        self.parts.extend(before.map(|span| span.ended(at_ms)));
    }

    fn note(&mut self, name: &'static str, value: Value) {
        if let Some(phase) = &mut self.phase {
            phase.attributes.push((name, value));
        }
    }

    fn mark(&mut self, name: &'static str, at_ms: u64, attributes: Attributes) {
        self.root.marks.push(Mark {
            name,
            at_ms,
            attributes,
        });
    }

    fn move_to(&mut self, generation: Generation, target: &Vector, batch: u32, at_ms: u64) {
        self.leave_move("a newer target took its place", at_ms);
        let mut span = Span::new("resize", at_ms);
        span.attributes = amounts(target);
        span.attributes.extend([
            ("evenkeel.generation", Value::Count(generation.0)),
            ("evenkeel.batch", Value::Count(batch.into())),
        ]);
        self.moving = Some((target.clone(), span));
    }

    /// Ends a move that was not seen to arrive.
    fn leave_move(&mut self, why: &str, at_ms: u64) {
        if let Some((_, mut span)) = self.moving.take() {
            span.trouble = Some(why.into());
            self.parts.push(span.ended(at_ms));
        }
    }

    fn seen(&mut self, held: &Vector, at_ms: u64) {
        self.mark("held", at_ms, amounts(held));
        if let Some((_, span)) = self.moving.take_if(|(target, _)| target == held) {
            self.parts.push(span.ended(at_ms));
        }
    }

    fn end(&mut self, how: End, reason: Option<&str>, at_ms: u64) {
        self.leave_move("the lease ended first", at_ms);
        let last = self.phase.take();
        self.parts.extend(last.map(|span| span.ended(at_ms)));
        self.root
            .attributes
            .push(("evenkeel.lease.end", Value::Text(how.as_str().into())));
        if let Some(reason) = reason {
            self.root
                .attributes
                .push(("evenkeel.lease.end_reason", Value::Text(reason.into())));
        }
        let is_trouble = !matches!(how, End::Released | End::Abandoned);
        self.root.trouble = is_trouble.then(|| how.why().into());
        self.root.to_ms = at_ms.max(self.root.from_ms);
        self.is_over = true;
    }

    fn finish(self, node: &str) -> Life {
        let mut digest = Sha256::new();
        // A ledger that was made anew counts leases from 1 again, at another time.
        digest.update(node.as_bytes());
        digest.update(self.lease.0.to_le_bytes());
        digest.update(self.root.from_ms.to_le_bytes());
        Life {
            trace: first(digest),
            root: self.root,
            parts: self.parts,
        }
    }
}

fn described(lease: &Lease) -> Attributes {
    let mut all = vec![
        ("evenkeel.lease.id", Value::Count(lease.id.0)),
        ("evenkeel.tenant", Value::Text(lease.tenant.to_string())),
        ("evenkeel.lease.enforced", Value::Flag(lease.enforced)),
        ("evenkeel.lease.ttl_ms", Value::Count(lease.ttl.0)),
    ];
    if let Ask::Stage(member) = &lease.ask {
        all.extend([
            ("evenkeel.job.id", Value::Count(member.job.0)),
            ("evenkeel.stage", Value::Count(member.stage.0.into())),
            ("evenkeel.worker", Value::Count(member.worker.0.into())),
        ]);
    }
    all
}

/// Amounts over all GPUs.
fn amounts(vector: &Vector) -> Attributes {
    let mut all = vec![("evenkeel.cores", Value::Text(vector.cores.to_string()))];
    if !vector.gpus.is_empty() {
        let sms = vector.gpus.values().map(|s| u64::from(s.guarantee.0)).sum();
        let memory = vector.gpus.values().map(|s| s.memory.0).sum();
        let gpus: Vec<String> = vector.gpus.keys().map(|id| id.0.to_string()).collect();
        all.extend([
            ("evenkeel.gpus", Value::Text(gpus.join(","))),
            ("evenkeel.sms", Value::Count(sms)),
            ("evenkeel.gpu_memory_bytes", Value::Count(memory)),
        ]);
    }
    all
}

#[cfg(test)]
mod tests;
