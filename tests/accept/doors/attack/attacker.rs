//! The attacker's process: one kind of attack at a time, for a while; at the end it says what it did.
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::conn::{Door, Doors, Tally};
use super::{bodies, floods, grants, readers, silent};

/// After a connection that was not served, so long until the next: an attacker is no busy loop of `connect`.
const AGAIN: Duration = Duration::from_millis(20);

/// Ways to harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Attack {
    /// Connections that say nothing, or greet and say nothing more.
    Idle,
    /// Headers that never end, a byte at a time.
    SlowHeaders,
    /// Streams that are begun and reset at once.
    RapidReset,
    /// A block of headers that never ends, as fast as it goes.
    Continuation,
    /// DATA frames with nothing in them.
    EmptyData,
    /// PING, SETTINGS, PRIORITY, WINDOW_UPDATE.
    Control,
    /// Answers that nobody reads.
    SlowReaders,
    /// Requests that never end.
    SlowBodies,
    /// Messages and JSON that are too large or too deep.
    Oversized,
    /// Grants, as many as one tenant can ask for.
    Grants,
}

impl Attack {
    /// All of them.
    pub(super) const ALL: [Self; 10] = [
        Self::Idle,
        Self::SlowHeaders,
        Self::RapidReset,
        Self::Continuation,
        Self::EmptyData,
        Self::Control,
        Self::SlowReaders,
        Self::SlowBodies,
        Self::Oversized,
        Self::Grants,
    ];

    /// As on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SlowHeaders => "slow-headers",
            Self::RapidReset => "rapid-reset",
            Self::Continuation => "continuation",
            Self::EmptyData => "empty-data",
            Self::Control => "control",
            Self::SlowReaders => "slow-readers",
            Self::SlowBodies => "slow-bodies",
            Self::Oversized => "oversized",
            Self::Grants => "grants",
        }
    }

    /// In words, and what is counted as sent.
    pub(super) const fn in_words(self) -> (&'static str, &'static str) {
        match self {
            Self::Idle => ("2,000 idle connections", "connections"),
            Self::SlowHeaders => ("slow headers (gRPC and REST)", "bytes of headers"),
            Self::RapidReset => ("HTTP/2 rapid reset", "streams begun and reset"),
            Self::Continuation => ("CONTINUATION flood", "frames"),
            Self::EmptyData => ("empty-DATA flood", "frames"),
            Self::Control => ("PING, SETTINGS, PRIORITY, WINDOW_UPDATE floods", "frames"),
            Self::SlowReaders => ("1,000 slow readers", "requests whose answers nobody reads"),
            Self::SlowBodies => ("requests that never end", "requests"),
            Self::Oversized => ("oversized and deeply nested messages and JSON", "requests"),
            Self::Grants => ("a grant flood from one tenant", "requests"),
        }
    }

    /// How many there have to be at once, where it is named for a number: idle connections that are open or that a limit
    /// turned away, of which so many are open; and answers that nobody reads.
    pub(super) const fn at_once(self, short: bool, together: bool) -> AtOnce {
        let part = part(short, together);
        let (pressing, open, unread) = match self {
            // A user may have 1,024 connections, and the seats that are left: the rest is turned away.
            Self::Idle => (2_000, 1_000, 0),
            Self::SlowReaders => (0, 0, 1_000),
            _ => (0, 0, 0),
        };
        AtOnce {
            pressing: pressing / part,
            open: open / part,
            unread: unread / part,
        }
    }

    /// Connections without which it is no attack; and how much of what it sends. Where all share two cores, and in a
    /// short run, it is less.
    pub(super) const fn at_least(self, short: bool, together: bool) -> (u64, u64) {
        let part = part(short, together);
        let (connected, sent) = match self {
            Self::Idle => (1_000, 1_000),
            Self::SlowHeaders => (300, 300),
            Self::RapidReset => (8, 400),
            Self::Continuation => (8, 40),
            Self::EmptyData => (4, 1_000),
            Self::Control => (8, 10_000),
            Self::SlowReaders => (50, 1_000),
            Self::SlowBodies => (50, 1_000),
            Self::Oversized => (8, 100),
            Self::Grants => (8, 2_000),
        };
        (connected / part, sent / part)
    }
}

/// Of what is asked for alone and for a minute.
const fn part(short: bool, together: bool) -> u64 {
    (if short { 4 } else { 1 }) * (if together { 4 } else { 1 })
}

/// The most that there was at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AtOnce {
    /// Who was connected, or was refused when he last tried to be.
    pub(super) pressing: u64,
    /// Of them, those who were connected.
    pub(super) open: u64,
    /// Answers that nobody read.
    pub(super) unread: u64,
}

impl AtOnce {
    pub(super) const fn is_enough_for(self, asked: Self) -> bool {
        self.pressing >= asked.pressing && self.open >= asked.open && self.unread >= asked.unread
    }
}

/// Arguments of an attacker.
#[derive(clap::Args)]
pub(crate) struct AttackerArgs {
    #[command(flatten)]
    doors: Doors,
    #[arg(long, value_enum)]
    attack: Attack,
    /// How long.
    #[arg(long)]
    seconds: u64,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Did {
    pub(super) connected: u64,
    pub(super) refused: u64,
    pub(super) ended: u64,
    pub(super) goaways: u64,
    pub(super) resets: u64,
    pub(super) taken_in: u64,
    pub(super) sent: u64,
    pub(super) at_once: AtOnce,
}

/// What an attack works with.
#[derive(Clone)]
pub(super) struct Field {
    pub(super) doors: Doors,
    pub(super) tally: Arc<Tally>,
    pub(super) until: Instant,
}

impl Field {
    pub(super) fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// So many at once, each again and again until the end, with a pause; each is told its number.
    pub(super) async fn crowd<F>(
        &self,
        n: usize,
        once: impl Fn(Self, usize) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut all = tokio::task::JoinSet::new();
        for i in 0..n {
            let (field, once) = (self.clone(), once.clone());
            all.spawn(async move {
                while field.goes_on() {
                    let _ = tokio::time::timeout_at(field.until, once(field.clone(), i)).await;
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        while all.join_next().await.is_some() {}
    }
}

/// Two thirds over the Unix socket, one over TCP.
pub(super) const fn door(i: usize) -> Door {
    if i % 3 == 2 { Door::Tcp } else { Door::Unix }
}

/// The attacker's process.
#[allow(clippy::print_stdout, reason = "the harness reads what it says")]
pub(crate) async fn attacker(args: AttackerArgs) -> anyhow::Result<bool> {
    let field = Field {
        doors: args.doors,
        tally: Arc::default(),
        until: Instant::now() + Duration::from_secs(args.seconds),
    };
    match args.attack {
        Attack::Idle => silent::idle(&field).await,
        Attack::SlowHeaders => silent::slow_headers(&field).await,
        Attack::RapidReset => floods::rapid_reset(&field).await,
        Attack::Continuation => floods::continuation(&field).await,
        Attack::EmptyData => floods::empty_data(&field).await,
        Attack::Control => floods::control(&field).await,
        Attack::SlowReaders => readers::slow(&field).await,
        Attack::SlowBodies => bodies::slow(&field).await,
        Attack::Oversized => bodies::oversized(&field).await,
        Attack::Grants => grants::flood(&field).await,
    }
    let (of, t) = (Ordering::Relaxed, &field.tally);
    let seats = t.seats();
    let did = Did {
        connected: t.connected.load(of),
        refused: t.refused.load(of),
        ended: t.ended.load(of),
        goaways: t.goaways.load(of),
        resets: t.resets.load(of),
        taken_in: t.taken_in.load(of),
        sent: t.sent.load(of),
        at_once: AtOnce {
            pressing: seats.most_at_once as u64,
            open: seats.most_open as u64,
            unread: t.unread.most.load(of),
        },
    };
    println!("{}", serde_json::to_string(&did)?);
    Ok(true)
}
