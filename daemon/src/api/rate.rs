//! How often each tenant may call: a token bucket for each that has a rate. Called where a tenant's requests are counted.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_core::id::Name;

use crate::bucket::Bucket;
pub use crate::bucket::RateLimit;

/// Tenants whose buckets are remembered; beyond it, full ones are forgotten first: they say nothing.
const REMEMBERED: usize = 4_096;

/// How often each tenant may call.
#[derive(Clone, Debug, Default)]
pub struct RateLimits {
    /// Of those that are named.
    pub named: BTreeMap<Name, Option<RateLimit>>,
    /// Of each of the others.
    pub others: Option<RateLimit>,
}

impl RateLimits {
    /// A tenant's; none: as often as it likes.
    pub fn of(&self, tenant: &Name) -> Option<RateLimit> {
        self.named.get(tenant).copied().unwrap_or(self.others)
    }
}

/// The buckets of all tenants.
#[derive(Debug, Default)]
pub struct Rates {
    of: Mutex<HashMap<Name, Bucket>>,
}

impl Rates {
    /// Takes one of the tenant's tokens, or says when to come back.
    ///
    /// # Errors
    /// There is none: the time until there is one.
    pub fn take(&self, tenant: &Name, limit: RateLimit, now: Instant) -> Result<(), Duration> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = of.get_mut(tenant) {
            return bucket.take(limit, now);
        }
        if of.len() >= REMEMBERED {
            of.retain(|_, bucket| !bucket.is_full(now));
        }
        of.entry(tenant.clone()).or_default().take(limit, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(per_second: u32, burst: u32) -> RateLimit {
        RateLimit::new(per_second, burst).unwrap()
    }

    /// Tokens that can be taken at this time.
    fn drain(rates: &Rates, tenant: &Name, limit: RateLimit, now: Instant) -> u32 {
        let mut n = 0;
        while rates.take(tenant, limit, now).is_ok() {
            n += 1;
        }
        n
    }

    #[test]
    fn a_burst_and_then_so_many_a_second() {
        let (rates, start) = (Rates::default(), Instant::now());
        let (alice, bob) = (Name::new("alice").unwrap(), Name::new("bob").unwrap());
        let limit = limit(50, 100);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(drain(&rates, &alice, limit, start), 100, "the burst");
        let wait = rates.take(&alice, limit, start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(20), "until the next token");
        assert!(rates.take(&alice, limit, start + wait).is_ok());
        assert_eq!(drain(&rates, &alice, limit, at(1_020)), 50, "a second's");
        assert_eq!(
            drain(&rates, &bob, limit, at(1_020)),
            100,
            "another's is another"
        );
        assert_eq!(
            drain(&rates, &alice, limit, at(60_000)),
            100,
            "never more than the burst"
        );
    }

    #[test]
    fn no_rate_is_no_limit_and_a_burst_of_none_is_two_seconds() {
        assert_eq!(RateLimit::new(0, 5), None);
        assert_eq!(limit(3, 0), limit(3, 6));
        let (rates, now) = (Rates::default(), Instant::now());
        let most = limit(u32::MAX, 0);
        let alice = Name::new("alice").unwrap();
        assert!(rates.take(&alice, most, now).is_ok(), "no overflow");
    }

    #[test]
    fn who_is_quiet_is_forgotten() {
        let (rates, start) = (Rates::default(), Instant::now());
        let limit = limit(1, 1);
        for n in 0..2 * REMEMBERED {
            let tenant = Name::new(&format!("uid:{n}")).unwrap();
            // Each comes long after the one before.
            let now = start + Duration::from_secs(10 * n as u64);
            rates.take(&tenant, limit, now).unwrap();
        }
        assert!(rates.of.lock().unwrap().len() <= REMEMBERED);
    }
}
