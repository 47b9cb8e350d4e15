//! When a lease may expire at the earliest, as far as it is known for certain, over the lives of the daemon. The truth
//! keeps one of these for each lease.
use evenkeel_core::unit::{Millis, Time};

/// TTLs of the daemon's own running time in which a lease that nobody renews has to end.
pub const UNRENEWED_TTLS: u64 = 3;
/// What of a life of the daemon may not be noted: it notes each second what it knows, and later if it is busy.
pub const UNNOTED: Millis = Millis::secs(5);

/// The earliest moments at which a lease may expire, each with its own reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floors {
    /// When it came into being.
    pub began: Time,
    /// When the handle last acknowledged a renewal; or it was granted or attached.
    pub heard: Time,
    /// The same, if nothing has kept the daemon from noting it.
    pub acked: Time,
    /// For how long the daemon has been there since the last renewal that its ledger had time to note.
    pub unheard: Millis,
    /// The same since the last renewal, counted from the first restart, and only as much as is certain.
    pub ignored: Millis,
    /// One TTL after the last renewal (or grant, or attach) that was acknowledged.
    pub renewed: Time,
    /// The same, later by the daemon's stalls since.
    pub credited: Time,
    /// One TTL after the last restart, unless nobody has renewed for several.
    pub restarted: Time,
}

/// A life of the daemon, as it really was.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// When it began.
    pub started: Time,
    /// When it ended.
    pub ended: Time,
    /// How long it stood still.
    pub stood_still: Millis,
}

impl Floors {
    /// A life of the daemon is over.
    pub fn lived(&mut self, ttl: Millis, life: Life) {
        let (started, ended) = (life.started, life.ended);
        let there = ended.since(started.max(self.began));
        self.unheard = if self.acked > started && self.acked.after(ttl.max(UNNOTED)) <= ended {
            ended.since(self.acked)
        } else {
            self.unheard + there
        };
        // What comes after a renewal, or after the beginning, counts from the next life on.
        self.ignored = if self.heard > started || self.began >= started {
            Millis(0)
        } else {
            self.ignored + (there - (life.stood_still + UNNOTED))
        };
    }
}
