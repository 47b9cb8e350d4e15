//! How many lines there are of each source and of all: a flood of refusals is one finding, not a million, and who floods
//! does not hide the others.
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Lines a second, over a burst after a quiet time.
#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
}

/// Of all sources together.
const ALL: Rate = Rate {
    per_second: 50.0,
    burst: 500.0,
};
/// Of one source: alone, it needs a day to fill the files.
const ONE: Rate = Rate {
    per_second: 1.0,
    burst: 100.0,
};
/// Sources that are told apart; of more, those that have been quiet are forgotten, and the rest counts as one.
const SOURCES_MAX: usize = 1_024;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Pace {
    tokens: f64,
    at: Instant,
}

impl Pace {
    const fn new(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            at: now,
        }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_second;
        self.tokens = (self.tokens + more).min(rate.burst);
        self.at = now;
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Paces {
    all: Pace,
    /// Those who came when there was no room to tell them apart.
    rest: Pace,
    each: HashMap<String, Pace>,
}

impl Paces {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all: Pace::new(ALL, now),
            rest: Pace::new(ONE, now),
            each: HashMap::new(),
        }
    }

    /// Whether there may be a line for what has come from here.
    pub(super) fn may(&mut self, from: &str, now: Instant) -> bool {
        let source = source(from);
        if self.each.len() >= SOURCES_MAX && !self.each.contains_key(&source) {
            self.each.retain(|_, pace| {
                pace.refill(ONE, now);
                pace.tokens < ONE.burst
            });
        }
        let one = match self.each.len() < SOURCES_MAX || self.each.contains_key(&source) {
            true => (self.each.entry(source)).or_insert_with(|| Pace::new(ONE, now)),
            false => &mut self.rest,
        };
        one.refill(ONE, now);
        self.all.refill(ALL, now);
        let may = one.tokens >= 1.0 && self.all.tokens >= 1.0;
        if may {
            one.tokens -= 1.0;
            self.all.tokens -= 1.0;
        }
        may
    }
}

/// What counts as one source: a user of this machine where that is known, else an address, of IPv6 the half that names a
/// network (RFC 4291, section 2.5.4): the other half is its owner's to choose.
fn source(from: &str) -> String {
    let (address, user) = from.split_once(", ").unwrap_or((from, ""));
    if !user.is_empty() {
        return user.to_owned();
    }
    match address.parse::<SocketAddr>().map(|a| a.ip().to_canonical()) {
        Ok(IpAddr::V4(ip)) => ip.to_string(),
        Ok(IpAddr::V6(ip)) => format!("{:x}/64", ip.to_bits() >> 64),
        Err(_) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_written_at_a_bounded_rate() {
        let start = Instant::now();
        let mut paces = Paces::new(start);
        let written = |paces: &mut Paces, from: &str, at| {
            let lines = (0..10_000).filter(|_| paces.may(from, at));
            lines.count()
        };
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(written(&mut paces, "10.0.0.9:1", start), 100);
        assert_eq!(written(&mut paces, "10.0.0.9:2", at(2)), 2, "another port");
        assert_eq!(written(&mut paces, "10.0.0.8:1", at(2)), 100, "another");
        assert_eq!(written(&mut paces, "10.0.0.9:1", at(3_600)), 100);
        let many: usize = (0..100)
            .map(|n| written(&mut paces, &format!("uid {n}"), at(7_200)))
            .sum();
        assert_eq!(many, 500, "of all together");
    }

    #[test]
    fn sources_are_few() {
        let start = Instant::now();
        let mut paces = Paces::new(start);
        for n in 0..4 * SOURCES_MAX {
            let late = start + Duration::from_secs(n as u64);
            paces.may(&format!("uid {n}"), late);
        }
        assert!(paces.each.len() <= SOURCES_MAX);
    }

    #[test]
    fn a_source_is_a_user_or_a_network() {
        for (from, expect) in [
            ("uid 1003", "uid 1003"),
            ("127.0.0.1:40112, uid 1003", "uid 1003"),
            ("127.0.0.1:40112", "127.0.0.1"),
            ("[::ffff:10.0.0.9]:40112", "10.0.0.9"),
            ("[2001:db8:1:2:3:4:5:6]:40112", "20010db800010002/64"),
            ("[2001:db8:1:2::9]:40113", "20010db800010002/64"),
            ("", ""),
        ] {
            assert_eq!(source(from), expect, "{from}");
        }
    }
}
