//! How often, and for how long, a call is tried.
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::address::{Address, BadAddress};
use crate::tls::Credentials;

/// First pause between two tries: a local daemon that restarts is back in tens of milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause: a worker should notice a daemon that is back within a heartbeat.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How a client reaches its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientConfig {
    /// Where it listens.
    pub address: Address,
    /// For an `https://` address: who this client is, and whom it believes.
    pub credentials: Option<Credentials>,
    /// How long one logical call is tried in all; a wait in the queue comes on top.
    pub deadline: Duration,
    /// How long one try may take; a wait in the queue comes on top.
    pub try_timeout: Duration,
}

impl ClientConfig {
    /// With the default times: 30 s in all, 10 s a try.
    pub const fn new(address: Address) -> Self {
        Self {
            address,
            credentials: None,
            deadline: Duration::from_secs(30),
            try_timeout: Duration::from_secs(10),
        }
    }
    /// With the address from `EVENKEEL_SOCKET`, or the default one, and with credentials from `EVENKEEL_TLS_CERT`,
    /// `EVENKEEL_TLS_KEY` and `EVENKEEL_TLS_CA`, if they are set.
    ///
    /// # Errors
    /// The variable holds something else than an address.
    pub fn from_env() -> Result<Self, BadAddress> {
        Ok(Self {
            credentials: Credentials::from_env(),
            ..Self::new(Address::from_env()?)
        })
    }
    /// With files for mutual TLS.
    #[must_use]
    pub fn credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }
    /// With another time for one logical call.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::new(Address::default())
    }
}

/// Pauses that double from the first to the longest, each drawn between half of it and all of it:
/// clients that lost the daemon together do not come back together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let whole = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        // Without the system's randomness the pause is whole: jitter is a courtesy.
        SmallRng::try_from_os_rng()
            .map_or(whole, |mut rng| whole.mul_f64(rng.random_range(0.5..=1.0)))
    }
    /// It worked: start small again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..64).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= FIRST_PAUSE && pauses[0] >= FIRST_PAUSE / 2);
        assert!(pauses.iter().all(|p| *p <= LONGEST_PAUSE));
        assert!(pauses[20..].iter().all(|p| *p >= LONGEST_PAUSE / 2));
        assert!(pauses[20..].windows(2).any(|w| w[0] != w[1]), "no jitter");
    }
}
