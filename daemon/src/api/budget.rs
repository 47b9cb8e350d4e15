//! How much of what may be under way, by number and by the bytes that it holds. Renewals and releases have budgets of
//! their own, so that a flood of other calls cannot keep anybody from keeping or giving back what they have. And no
//! tenant takes more of a budget than is left in it (dynamic thresholds: Choudhury and Hahne, 1998): one alone has
//! half, two a third each, and there is always some for who comes next.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::id::Name;
use tonic::Status;

use super::error;
use super::limits::{
    CALL_BYTES_MAX, CALLS_MAX, MAKINGS_MAX, REST_STREAMS_MAX, STREAM_BYTES_MAX, STREAMS_MAX,
    URGENT_BYTES_MAX, URGENT_CALLS_MAX, WAITS_MAX, WATCHERS_MAX,
};
use super::turns::Line;

/// What a call draws on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Most calls.
    Call,
    /// Renewals, releases, and what takes back.
    Urgent,
    /// Waits in the queue for a lease.
    Wait,
    /// A session.
    Stream,
    /// A stream of events over REST, where connections are few.
    Feed,
    /// A watcher.
    Watch,
    /// Makes an answer that may be large.
    Making,
}

/// A place that is given back when dropped.
#[derive(Debug)]
pub(super) struct Place(Held);

impl Place {
    /// How many its tenant has of these.
    pub(super) fn own(&self) -> usize {
        self.0.pot.own(&self.0.tenant)
    }
}

/// Bytes that are held for a tenant's client; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pot: Arc<Pot>,
    tenant: Name,
    n: usize,
}

impl Held {
    /// Holds so many from now on. False: there is no room for more, and nothing has changed.
    pub(super) fn set(&mut self, n: usize) -> bool {
        if n > self.n {
            if !self.pot.take(&self.tenant, n - self.n) {
                return false;
            }
        } else if n < self.n {
            self.pot.give_back(&self.tenant, self.n - n);
        }
        self.n = n;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What a call holds, shared with who handles it: once its message is read, a wait takes less.
#[derive(Clone, Debug)]
pub(super) struct Cost(Arc<Mutex<Held>>);

impl Cost {
    pub(super) fn new(held: Held) -> Self {
        Self(Arc::new(Mutex::new(held)))
    }

    /// Holds no more than this from now on.
    pub(super) fn lower(&self, n: usize) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n = n.min(held.n);
        held.set(n);
    }
}

/// The budgets.
#[derive(Debug)]
pub(super) struct Budget {
    calls: Arc<Pot>,
    urgent: Arc<Pot>,
    waits: Arc<Pot>,
    streams: Arc<Pot>,
    feeds: Arc<Pot>,
    watchers: Arc<Pot>,
    makings: Arc<Pot>,
    call_bytes: Arc<Pot>,
    urgent_bytes: Arc<Pot>,
    stream_bytes: Arc<Pot>,
    /// Who waits for a turn to make an answer.
    pub(super) line: Mutex<Line>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            calls: Pot::of(CALLS_MAX),
            urgent: Pot::of(URGENT_CALLS_MAX),
            waits: Pot::of(WAITS_MAX),
            streams: Pot::of(STREAMS_MAX),
            feeds: Pot::of(REST_STREAMS_MAX),
            watchers: Pot::of(WATCHERS_MAX),
            makings: Pot::of(MAKINGS_MAX),
            call_bytes: Pot::of(CALL_BYTES_MAX),
            urgent_bytes: Pot::of(URGENT_BYTES_MAX),
            stream_bytes: Pot::of(STREAM_BYTES_MAX),
            line: Mutex::default(),
        }
    }
}

impl Budget {
    /// A place for a call of this tenant's, or the answer that there is none.
    pub(super) fn take(&self, kind: Kind, tenant: &Name) -> Result<Place, Status> {
        self.take_free(kind, tenant, 1)
            .ok_or_else(error::overloaded)
    }

    /// The same for a call that counts as several; none: there is none.
    pub(super) fn take_free(&self, kind: Kind, tenant: &Name, n: usize) -> Option<Place> {
        of(self.places(kind), tenant, n).map(Place)
    }

    /// Whether there would be places for it if no other tenant had any.
    pub(super) fn may_have(&self, kind: Kind, tenant: &Name, n: usize) -> bool {
        let pot = self.places(kind);
        let own = pot.own(tenant);
        own.saturating_mul(2).saturating_add(n) <= pot.most
    }

    const fn places(&self, kind: Kind) -> &Arc<Pot> {
        match kind {
            Kind::Call => &self.calls,
            Kind::Urgent => &self.urgent,
            Kind::Wait => &self.waits,
            Kind::Stream => &self.streams,
            Kind::Feed => &self.feeds,
            Kind::Watch => &self.watchers,
            Kind::Making => &self.makings,
        }
    }

    /// So many bytes for this tenant's, to be changed as they come and go; or the answer that there is no room.
    pub(super) fn hold(&self, kind: Kind, tenant: &Name, n: usize) -> Result<Held, Status> {
        let pot = match kind {
            Kind::Call | Kind::Wait | Kind::Making => &self.call_bytes,
            Kind::Urgent => &self.urgent_bytes,
            Kind::Stream | Kind::Watch | Kind::Feed => &self.stream_bytes,
        };
        of(pot, tenant, n).ok_or_else(error::overloaded)
    }
}

fn of(pot: &Arc<Pot>, tenant: &Name, n: usize) -> Option<Held> {
    let mut held = Held {
        pot: pot.clone(),
        tenant: tenant.clone(),
        n: 0,
    };
    held.set(n).then_some(held)
}

/// One budget.
#[derive(Debug)]
struct Pot {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only tenants that have some.
    by: HashMap<Name, usize>,
}

impl Pot {
    fn of(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
        })
    }

    fn own(&self, tenant: &Name) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.by.get(tenant).copied().unwrap_or(0)
    }

    fn take(&self, tenant: &Name, n: usize) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by.get(tenant).copied().unwrap_or(0);
        let left = self.most.saturating_sub(taken.all);
        if own.saturating_add(n) > left {
            return false;
        }
        taken.all += n;
        taken.by.insert(tenant.clone(), own + n);
        true
    }

    fn give_back(&self, tenant: &Name, n: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(n);
        if let Entry::Occupied(mut own) = taken.by.entry(tenant.clone()) {
            *own.get_mut() = own.get().saturating_sub(n);
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    /// Places until there is none.
    fn flood(budget: &Budget, kind: Kind, tenant: &Name) -> Vec<Place> {
        std::iter::from_fn(|| budget.take(kind, tenant).ok()).collect()
    }

    #[test]
    fn a_flood_of_calls_leaves_renewals_their_places() {
        let budget = Budget::default();
        let (alice, bob) = (tenant("alice"), tenant("bob"));
        let floods = [&alice, &bob].map(|who| flood(&budget, Kind::Call, who));
        let refused = budget.take(Kind::Call, &alice).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(budget.take(Kind::Urgent, &alice).is_ok());
        drop(floods);
        assert!(budget.take(Kind::Call, &alice).is_ok());
    }

    #[test]
    fn no_tenant_takes_it_all_and_all_together_leave_some() {
        let budget = Budget::default();
        for (kind, most) in [
            (Kind::Call, CALLS_MAX),
            (Kind::Urgent, URGENT_CALLS_MAX),
            (Kind::Wait, WAITS_MAX),
            (Kind::Stream, STREAMS_MAX),
            (Kind::Feed, REST_STREAMS_MAX),
            (Kind::Watch, WATCHERS_MAX),
            (Kind::Making, MAKINGS_MAX),
        ] {
            let alice = tenant("alice");
            let mut all = vec![flood(&budget, kind, &alice)];
            assert_eq!(all[0].len(), most / 2, "{kind:?}");
            // What is given back can be taken again.
            all[0].pop();
            all[0].push(budget.take(kind, &alice).unwrap());
            while most > 100 && all.len() < 8 {
                let next = tenant(&format!("uid:{}", all.len()));
                all.push(flood(&budget, kind, &next));
            }
            let late = budget.take(kind, &tenant("late"));
            assert!(late.is_ok(), "{kind:?}");
        }
        assert!(
            budget.urgent.taken.lock().unwrap().by.is_empty(),
            "who has nothing is forgotten"
        );
    }

    #[test]
    fn bytes_are_held_and_given_back() {
        let budget = Budget::default();
        let (alice, bob) = (tenant("alice"), tenant("bob"));
        let half = CALL_BYTES_MAX / 2;
        let mut all = budget.hold(Kind::Call, &alice, half).unwrap();
        assert!(!all.set(half + 1), "no more than is left");
        assert!(budget.hold(Kind::Call, &alice, 1).is_err());
        assert!(budget.hold(Kind::Call, &bob, half / 2).is_ok());
        assert!(
            budget.hold(Kind::Urgent, &alice, 1).is_ok(),
            "of another budget"
        );
        assert!(all.set(1));
        assert!(budget.hold(Kind::Call, &alice, half - 1).is_ok());
        drop(all);
        assert_eq!(budget.call_bytes.taken.lock().unwrap().all, 0);
    }
}
