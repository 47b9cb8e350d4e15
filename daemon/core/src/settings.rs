//! The times and limits that decisions depend on. Each default has its reason beside it.
use serde::{Deserialize, Serialize};

use crate::unit::Millis;

/// Settings of the core. Set by the daemon's configuration; fixed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Life of a lease without a renewal, where the request does not say: six missed heartbeats of 5 s.
    pub ttl: Millis,
    /// Time past the deadline in which a renewal still saves a held lease: a hiccup is not a death.
    pub grace: Millis,
    /// Time in which the workers of a cancelled job may give their leases back before these are revoked: a step, and
    /// a checkpoint of what it led to.
    pub release_grace: Millis,
    /// Time in quarantine before the tree is told to end.
    pub quarantine_kill: Millis,
    /// Time between telling the tree to end and ending it.
    pub kill_after_term: Millis,
    /// An admitted job without any live lease for so long gives its quotas back.
    pub park_after: Millis,
    /// A lease that was given back and whose processes keep their GPU contexts for so long is a trouble that is told;
    /// its share stays counted, and nobody is killed for it.
    pub drain: Millis,
    /// A worker that has reported progress and then nothing for so long is a trouble that is told.
    pub worker_stall: Millis,
    /// Answers of ended requests are remembered for so long after their end, or after the daemon's last start: when
    /// they ended before it is not stored.
    pub remember_for: Millis,
    /// And so many of each tenant at most: the newest.
    pub remember_ends: u32,
    /// A wake-up later than this was the daemon's stall, not the holders': deadlines move by it.
    pub stall: Millis,
    /// A lease that nobody renewed over restarts of the daemon lives so many TTLs at most, of the time in which the
    /// daemon ran.
    pub unrenewed_ttls: u64,
    /// Live leases, the queue among them.
    pub leases_max: u32,
    /// Requests in the queue.
    pub queue_max: u32,
    /// Live jobs.
    pub jobs_max: u32,
    /// Live leases of one tenant: half of all, so that nobody can shut the others out, and who is alone rarely meets it.
    pub tenant_leases_max: u32,
    /// Requests of one tenant in the queue: half, for the same reason.
    pub tenant_queue_max: u32,
    /// Live jobs of one tenant: half, for the same reason.
    pub tenant_jobs_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Millis::secs(30),
            grace: Millis::secs(10),
            release_grace: Millis::secs(60),
            quarantine_kill: Millis::secs(30),
            kill_after_term: Millis::secs(10),
            park_after: Millis::secs(600),
            drain: Millis::secs(60),
            worker_stall: Millis::secs(600),
            remember_for: Millis::secs(24 * 3600),
            remember_ends: 100_000,
            stall: Millis::secs(2),
            unrenewed_ttls: 3,
            leases_max: 100_000,
            queue_max: 10_000,
            jobs_max: 1_000,
            tenant_leases_max: 50_000,
            tenant_queue_max: 5_000,
            tenant_jobs_max: 500,
        }
    }
}
