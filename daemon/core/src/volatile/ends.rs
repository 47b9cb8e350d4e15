//! Requests that are over, in the order in which they ended: which answers to forget, and when. Each tenant has its
//! own line, so that nobody's flood makes the daemon forget what it told somebody else.
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::id::{Name, RequestId};
use crate::settings::Settings;
use crate::unit::Time;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Ends {
    of: BTreeMap<Name, VecDeque<(Time, RequestId)>>,
    /// Tenants that have more than may be remembered.
    crowded: BTreeSet<Name>,
}

impl Ends {
    /// A request is over.
    pub(super) fn push(&mut self, at: Time, (tenant, request): (Name, RequestId), most: u32) {
        let line = self.of.entry(tenant.clone()).or_default();
        line.push_back((at, request));
        if line.len() > most as usize {
            self.crowded.insert(tenant);
        }
    }
    /// Whether somebody has more than may be remembered.
    pub(super) fn is_crowded(&self) -> bool {
        !self.crowded.is_empty()
    }

    /// The requests to forget at `now`, at most `most`: of each tenant what is beyond its newest, and what is old.
    pub(super) fn take(
        &mut self,
        now: Time,
        settings: &Settings,
        most: usize,
    ) -> Vec<(Name, RequestId)> {
        let mut keys = Vec::new();
        let newest = settings.remember_ends as usize;
        for (tenant, line) in &mut self.of {
            while keys.len() < most
                && let Some((at, request)) = line.front().copied()
                && (line.len() > newest || at.after(settings.remember_for) <= now)
            {
                line.pop_front();
                keys.push((tenant.clone(), request));
            }
            if line.len() <= newest {
                self.crowded.remove(tenant);
            }
        }
        self.of.retain(|_, line| !line.is_empty());
        keys
    }
    /// They were not forgotten after all.
    pub(super) fn put_back(&mut self, keys: Vec<(Name, RequestId)>, most: u32) {
        for (tenant, request) in keys.into_iter().rev() {
            let line = self.of.entry(tenant.clone()).or_default();
            line.push_front((Time(0), request)); // due already
            if line.len() > most as usize {
                self.crowded.insert(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Millis;

    #[test]
    fn a_flood_of_one_tenant_is_forgotten_and_everybody_elses_is_not() {
        let name = |s: &str| Name::new(s).unwrap();
        let settings = Settings {
            remember_ends: 3,
            remember_for: Millis(1_000),
            ..Settings::default()
        };
        let mut ends = Ends::default();
        ends.push(Time(0), (name("bob"), RequestId(1)), 3);
        for n in 0..5 {
            ends.push(Time(n), (name("alice"), RequestId(n.into())), 3);
        }
        assert!(ends.is_crowded());
        let flood = ends.take(Time(10), &settings, 9);
        let expect = [0, 1].map(|n| (name("alice"), RequestId(n)));
        assert_eq!(flood, expect, "alice's newest three stay, and bob's one");
        assert!(!ends.is_crowded());
        ends.put_back(flood, 3);
        assert!(ends.is_crowded(), "the commit failed");
        assert_eq!(
            ends.take(Time(10), &settings, 1),
            expect[..1],
            "a piece at a time"
        );
        assert_eq!(ends.take(Time(10), &settings, 9), expect[1..]);
        let old = ends.take(Time(1_000), &settings, 9);
        assert_eq!(
            old,
            [(name("bob"), RequestId(1))],
            "a day is over for the first"
        );
        assert_eq!(ends.take(Time(1_004), &settings, 9).len(), 3);
    }
}
