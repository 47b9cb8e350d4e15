//! How many lines there are of each source and of all: a flood of refusals is one finding, not a million, and who floods
//! does not hide the others.
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::bucket::{Bucket, RateLimit};

/// Of all sources together.
const ALL: RateLimit = RateLimit::fixed(50, 500);
/// Of one source: alone, it needs a day to fill the files.
const ONE: RateLimit = RateLimit::fixed(1, 100);
/// Sources that are told apart; of more, those that have been quiet are forgotten, and the rest counts as one.
const SOURCES_MAX: usize = 1_024;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Paces {
    all: Bucket,
    /// Those who came when there was no room to tell them apart.
    rest: Bucket,
    each: HashMap<String, Bucket>,
}

impl Paces {
    /// Whether there may be a line for what has come from here.
    pub(super) fn may(&mut self, from: &str, now: Instant) -> bool {
        let source = source(from);
        if self.each.len() >= SOURCES_MAX && !self.each.contains_key(&source) {
            self.each.retain(|_, bucket| !bucket.is_full(now));
        }
        let one = match self.each.len() < SOURCES_MAX || self.each.contains_key(&source) {
            true => self.each.entry(source).or_default(),
            false => &mut self.rest,
        };
        // Both have one to give, or neither gives.
        let mut less = *one;
        let may = less.take(ONE, now).is_ok() && self.all.take(ALL, now).is_ok();
        if may {
            *one = less;
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
        let mut paces = Paces::default();
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
        let mut paces = Paces::default();
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
