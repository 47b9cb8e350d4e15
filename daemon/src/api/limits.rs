//! A limit on everything that comes from outside, each with its reason. tonic's and hyper's own defaults are
//! unlimited in most of these places.
use std::time::Duration;

/// Bytes of one request message: 1,024 renewals take 16 KiB, a full report of 512 intervals 20 KiB.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Bytes of a message that carries profiles: 10,000 points take about 600 KiB.
pub const PROFILE_MESSAGE_MAX: usize = 2 << 20;
/// Bytes of one answer: a job of 8 × 1,024 workers with its leases takes some 8 MiB.
pub const ANSWER_MAX: usize = 32 << 20;

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
/// Reports and acknowledgements of one session that may wait for the controller; more are refused.
pub const SESSION_PENDING_MAX: usize = 256;
/// Answers of a stream that may wait for its reader. A reader slower than that is behind the times anyway.
pub const OUTBOUND_MAX: usize = 8;
/// How long a stream waits for a reader before it is dropped. The leases keep their TTL.
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

/// Open gRPC connections: each costs a descriptor and some 100 KiB under load.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Of one user (or, over TCP, of all): one of them cannot shut the others out.
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
/// Flow-control window of a stream: one message of the largest size.
pub const STREAM_WINDOW: u32 = MESSAGE_MAX as u32;
/// Flow-control window of a connection.
pub const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;
/// Bytes that wait in one stream for its reader.
pub const SEND_BUFFER: usize = 64 << 10;
/// Calls that wait for an answer, renewals and releases apart. Beyond it, callers are told to come back.
pub const CALLS_MAX: usize = 2_048;
/// Renewals, releases and the like that wait for an answer: a flood of other calls cannot use these up.
pub const URGENT_CALLS_MAX: usize = 2_048;
/// Callers that wait in the queue for a lease.
pub const WAITS_MAX: usize = 4_096;
/// Sessions and watchers.
pub const STREAMS_MAX: usize = 8_192;
/// Of each of these budgets, one tenant's part at most, in percent: one of them, by itself, cannot keep the others
/// from renewing, giving back or listening; and one that is alone still has more than its connections need.
pub const TENANT_SHARE_PERCENT: usize = 50;
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
