//! A limit on everything that comes from outside, each with its reason. tonic's and hyper's own defaults are
//! unlimited in most of these places.
use std::time::Duration;

use super::rate::RateLimit;

/// Bytes of one request message: 1,024 renewals take 16 KiB, a full report of 512 intervals 20 KiB.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Bytes of a message that carries profiles: 10,000 points take about 600 KiB.
pub const PROFILE_MESSAGE_MAX: usize = 768 << 10;
/// Bytes of one answer: a job of 8 × 1,024 workers with its leases takes some 8 MiB.
pub const ANSWER_MAX: usize = 12 << 20;
/// Bytes of an answer that are on their way to its reader at once.
pub const ANSWER_CHUNK: usize = 16 << 10;
/// An answer that its reader takes piece by piece is taken whole within this time: 12 MiB at 200 KiB a second.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// A request has to come whole within this time, and on a session each message that has begun.
pub const MESSAGE_PATIENCE: Duration = Duration::from_secs(10);

/// Leases in one renewal or session frame: with them a frame is handled in under 0.2 ms.
pub const RENEWALS_MAX: usize = 1_024;
/// Leases of one session: beyond it, several sessions share the work.
pub const SESSION_LEASES_MAX: usize = 16_384;
/// Reports in one session frame; so many workers report through one process at once at most.
pub const REPORTS_MAX: usize = 64;
/// Acknowledgements in one session frame; likewise.
pub const ACKNOWLEDGEMENTS_MAX: usize = 64;
/// Busy intervals of one report: workers merge more than that.
pub const INTERVALS_MAX: usize = 512;
/// Steps of one report: a worker that finishes more between two frames does not step, it spins.
pub const STEPS_MAX: usize = 64;
/// Offers of trials, and results of trials, in one session frame: a worker makes one trial at a time.
pub const TRIALS_MAX: usize = 64;
/// Workers that offer themselves for trials at once: all those of a full server, and more.
pub const TRIAL_OFFERS_MAX: usize = 1_024;
/// Trials that a session has not told its process yet: it sends each at once.
pub const TRIALS_WAITING: usize = 64;
/// When to come back to workers that are at work on others' trials, which take seconds.
pub const TRIAL_AGAIN: Duration = Duration::from_secs(1);
/// The longest part of a trial: a day. Longer times are mistakes of a unit.
pub const TRIAL_MAX: Duration = Duration::from_secs(86_400);
/// How long the answer to a trial may take beyond its own time, where its caller does not say.
pub const TRIAL_PATIENCE: Duration = Duration::from_secs(60);
/// Reports and acknowledgements of one session that may wait for the controller; more are refused.
pub const SESSION_PENDING_MAX: usize = 256;
/// Answers of a session that may wait for its reader. A reader slower than that is behind the times anyway.
pub const OUTBOUND_MAX: usize = 8;
/// How long an answer, a stream or a connection waits for a reader who takes nothing before it is dropped. The leases
/// keep their TTL.
pub const READER_PATIENCE: Duration = Duration::from_secs(5);
/// Leases of a session that one look at the state asks about. Each may have a directive, with an environment to be
/// written: the controller is held for about a millisecond at most.
pub const SESSION_LOOK: usize = 256;
/// A session looks for directives at most so often when it is rung for: a burst of commits is one look.
pub const DIRECT_EVERY: Duration = Duration::from_millis(10);
/// How often a directive is said again until it is acknowledged.
pub const DIRECTIVE_AGAIN: Duration = Duration::from_secs(3);
/// Watchers are told at most so often.
pub const WATCH_EVERY: Duration = Duration::from_millis(100);
/// So many watchers of a tenant are told that often; of more, each is told less often: a look takes the controller's
/// time, and many looks would take it all.
pub const WATCHERS_OFTEN: usize = 8;
/// What changes without a commit (rates, counters) is looked at so often for watchers.
pub const WATCH_LOOK: Duration = Duration::from_millis(500);

/// Leases and events on one page.
pub const PAGE_MAX: u32 = 1_000;
/// Leases that one look at the state copies: the controller is held for well under a millisecond.
pub const LOOK_COPIES: usize = 128;
/// Leases that one look at the state passes over.
pub const LOOK_SCANS: usize = 10_000;
/// Events that are searched for jobs that have ended: ten pages.
pub const ENDED_SEARCH_PAGES: u32 = 10;
/// Events that one page of decisions passes over at most: some ten milliseconds of SQLite's time, which other readers
/// of the audit trail wait for.
pub const DECISIONS_STRETCH: u64 = 50_000;
/// Jobs on one page over REST: each may have thousands of leases.
pub const JOBS_PAGE_MAX: u32 = 100;
/// The highest number that a REST request may name: above it, JSON numbers are no longer exact everywhere (2^53 - 1).
pub const NUMBER_MAX: u64 = (1 << 53) - 1;
/// Bytes of a reason in words: it is kept in the audit trail.
pub const REASON_MAX: usize = 500;
/// Work units per second that a measurement may claim: beyond 2^53 a count is no longer exact.
pub const RATE_MAX: f64 = 9_007_199_254_740_992.0;
/// GPUs that a job names.
pub const JOB_GPUS_MAX: usize = 16;
/// Profiles that a what-if brings along: one for each stage.
pub const PLAN_PROFILES_MAX: usize = 8;
/// Cores of an imagined pool; larger than any server.
pub const PLAN_CORES_MAX: u32 = 4_096;
/// SMs of an imagined GPU; larger than any.
pub const PLAN_SMS_MAX: u32 = 1_024;

/// Open gRPC connections: one for each process of the fullest servers, and as many again.
pub const CONNECTIONS_MAX: usize = 2_048;
/// Bytes that a connection takes, idle or not, without its streams: measured on 1,000 idle ones, and rounded up.
pub const CONNECTION_COST: usize = 24 << 10;
/// Of one user (or, over TCP, of all), and never more than are left: nobody can shut the others out.
pub const CONNECTIONS_PER_USER_MAX: usize = 1_024;
/// Of all, so many are for admins alone: whoever fills the rest cannot keep out who is to end it.
pub const CONNECTIONS_FOR_ADMINS: usize = 16;
/// Connections over TCP that have not finished their handshake: each costs a descriptor and some 30 KiB, for
/// [`FIRST_BYTE`] at most.
pub const HANDSHAKES_MAX: usize = 1_024;
/// Of one address: who opens many and says nothing keeps out only those beside it.
pub const HANDSHAKES_PER_ADDRESS_MAX: usize = 256;
/// Open REST connections: people and a scraper.
pub const REST_CONNECTIONS_MAX: usize = 128;
/// Streams of events among them: half of the connections are left to those who ask and go.
pub const REST_STREAMS_MAX: usize = 64;
/// Bytes of a REST request's body.
pub const REST_BODY_MAX: usize = 64 << 10;
/// Events that a stream over REST reads from the audit trail at once.
pub const STREAM_PAGE: u32 = 100;
/// Descriptors that are not connections: standard streams, the runtime's, the ledger and its history with their WAL,
/// listeners, a link to each of 16 GPUs, the walk over the processes. Under 64 are open at once; twice that.
pub const OWN_DESCRIPTORS: usize = 128;
/// So many connections are served at least, however low the limit of open files: a daemon that nobody reaches is none.
pub const CONNECTIONS_LEAST: usize = 16;
/// Streams of one HTTP/2 connection: a process that needs more opens another.
pub const STREAMS_PER_CONNECTION: u32 = 256;
/// Streams that a client opened and reset before we looked at them ("rapid reset").
pub const RESETS_PENDING_MAX: usize = 20;
/// Streams that we reset because of what a client sent, before the connection is closed.
pub const RESETS_LOCAL_MAX: usize = 128;
/// Bytes of a request's headers.
pub const HEADERS_MAX: u32 = 16 << 10;
/// Flow-control window of a stream: a frame with 1,024 renewals, twice. Larger messages come in parts.
pub const STREAM_WINDOW: u32 = 32 << 10;
/// Flow-control window of a connection, the least that HTTP/2 allows: so much of what was sent may lie unread here.
pub const CONNECTION_WINDOW: u32 = 65_535;
/// Bytes that wait in one stream for its reader, beyond the piece that is on its way.
pub const SEND_BUFFER: usize = ANSWER_CHUNK;
/// Frames that carry nothing (PING, SETTINGS, RST_STREAM, PRIORITY, CONTINUATION, empty DATA) of one connection: a
/// client that cancels a thousand calls at once is an honest one still.
pub const CONTROL_FRAMES: RateLimit = RateLimit::fixed(200, 1_000);
/// WINDOW_UPDATE frames of one connection: one or two for each answer that is read.
pub const WINDOW_FRAMES: RateLimit = RateLimit::fixed(20_000, 20_000);
/// A frame, or a block of headers, that has begun has to end within this time.
pub const FRAME_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that a client whose line is full takes within [`READER_PATIENCE`] at least.
pub const LINE_PROGRESS: usize = 32 << 10;
/// Calls that wait for an answer, renewals and releases apart. Beyond it, callers are told to come back.
pub const CALLS_MAX: usize = 2_048;
/// Renewals, releases and the like that wait for an answer: a flood of other calls cannot use these up.
pub const URGENT_CALLS_MAX: usize = 2_048;
/// Callers that wait in the queue for a lease.
pub const WAITS_MAX: usize = 4_096;
/// Sessions.
pub const STREAMS_MAX: usize = 8_192;
/// Watchers: people, and programs that show something to them.
pub const WATCHERS_MAX: usize = 1_024;
/// Answers that are being made and may be large (pages, jobs, plans, profiles), for all that they hold until they are
/// written. Beyond it they are made one after the other.
pub const MAKINGS_MAX: usize = 4;
/// A message with profiles counts as so many of them: its 768 KiB can become 30 MiB in memory, and two of them at once
/// are too much.
pub const PROFILE_MAKINGS: usize = 3;
/// How long an answer waits for its turn to be made, and how often it looks.
pub const MAKING_PATIENCE: Duration = Duration::from_secs(5);
/// The same over REST: whoever looks there looks again.
pub const REST_PATIENCE: Duration = Duration::from_secs(1);
/// See [`MAKING_PATIENCE`].
pub const MAKING_LOOK: Duration = Duration::from_millis(10);
/// A call whose client has hung up is seen through for so long at most; it counts as that client's meanwhile.
pub const UNHEARD_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that calls hold: messages that come, answers that go, and [`CALL_COST`] for each.
pub const CALL_BYTES_MAX: usize = 24 << 20;
/// The same for renewals, releases and the like.
pub const URGENT_BYTES_MAX: usize = 12 << 20;
/// The same for sessions and watchers, with [`STREAM_COST`] for each: some 1,200 of one tenant that is alone.
pub const STREAM_BYTES_MAX: usize = 40 << 20;
/// Bytes that a call takes while it is under way, beside its headers and messages.
pub const CALL_COST: usize = 8 << 10;
/// Bytes that it takes while it waits in the queue, once its message and its headers are read: so many that a tenant whose
/// requests all wait can make other calls still.
pub const WAIT_COST: usize = 4 << 10;
/// Bytes that a session or a watcher takes, likewise.
pub const STREAM_COST: usize = 16 << 10;
/// When a caller that found the daemon full should come back.
pub const COME_BACK: Duration = Duration::from_millis(100);

/// A new connection has to say within this time that it speaks HTTP/2.
pub const FIRST_BYTE: Duration = Duration::from_secs(10);
/// A REST request's headers have to arrive within this time; an idle connection is closed after it.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A REST request is answered within this time.
pub const REST_TIMEOUT: Duration = Duration::from_secs(10);
/// A REST request's body has to arrive within this time.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// A stream over REST that has nothing to tell says that it is still there after this time: who is gone is noticed.
pub const STREAM_BEAT: Duration = Duration::from_secs(15);
/// When the reader of a stream over REST that ended should come back.
pub const STREAM_AGAIN: Duration = Duration::from_secs(2);
/// A silent peer is asked whether it is there after this time.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// And given up after this one.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is renewed after about this time, so that rights and descriptors do not live for ever.
pub const CONNECTION_AGE: Duration = Duration::from_secs(1_800);
/// One that only gets refusals ends after this time.
pub const STRANGER_AGE: Duration = Duration::from_secs(30);
/// What it has under way may go on for so long then.
pub const AGE_GRACE: Duration = Duration::from_secs(60);
/// And for so long when its certificate has ended: an answer that is on its way still goes out.
pub const CERTIFICATE_GRACE: Duration = Duration::from_secs(1);
/// What is under way when the daemon stops may go on for so long.
pub const STOP_GRACE: Duration = Duration::from_secs(4);
/// After this time the servers are gone, whatever hangs. The daemon as a whole stops within 10 s.
pub const STOP_DEADLINE: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::*;

    /// What the daemon takes at 10,000 leases and without a client: measured, and rounded up.
    const OWN: usize = 80 << 20;
    /// What a page takes until it is written: the events of 2 MiB as rows, as messages, as bytes.
    const PAGE: usize = 6 << 20;
    /// What a message with profiles takes at most while it is read: empty points, two bytes each.
    const PROFILE: usize = 30 << 20;

    #[test]
    fn all_of_it_at_once_stays_under_256_mb() {
        let connections = (CONNECTIONS_MAX + REST_CONNECTIONS_MAX) * CONNECTION_COST;
        let held = CALL_BYTES_MAX + URGENT_BYTES_MAX + STREAM_BYTES_MAX;
        let makings = (MAKINGS_MAX - PROFILE_MAKINGS) * PAGE + PROFILE;
        let all = OWN + connections + held + makings;
        assert!(all < 256_000_000, "{} MiB", all >> 20);
    }

    #[test]
    fn what_one_tenant_needs_fits_into_its_half() {
        let half = |n: usize| n / 2;
        // The workers of a large server, each with a session and a connection of its own.
        let workers = 1_024;
        assert!(half(CONNECTIONS_MAX) >= workers && CONNECTIONS_PER_USER_MAX >= workers);
        assert!(half(STREAM_BYTES_MAX) / STREAM_COST >= workers && half(STREAMS_MAX) >= workers);
        assert!(half(CALL_BYTES_MAX) >= ANSWER_MAX, "its largest answer");
        assert!(
            half(CALL_BYTES_MAX) / CALL_COST >= half(CALLS_MAX),
            "all its calls"
        );
        let waits = half(WAITS_MAX) * WAIT_COST;
        let left = (half(CALL_BYTES_MAX) - waits) / CALL_COST;
        assert!(left >= 256, "calls beside all its waits: {left}");
        // Each of its workers renews as many as go into a message, all at once.
        let answer = 16 << 10;
        assert!(half(URGENT_BYTES_MAX) / (CALL_COST + answer) >= 256);
    }

    #[test]
    fn the_documentation_names_every_limit() {
        let page = include_str!("../../../docs/limits.md");
        let names = include_str!("limits.rs").lines();
        let names = names.filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
        let missing: Vec<&str> = names
            .filter(|name| !page.contains(&format!("`{name}`")))
            .collect();
        assert!(
            missing.is_empty(),
            "docs/limits.md does not name {missing:?}"
        );
    }
}
