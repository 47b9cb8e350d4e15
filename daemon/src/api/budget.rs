//! How much of what may be under way. Renewals and releases have a budget of their own, so that a flood of other
//! calls cannot keep anybody from keeping or giving back what they have; and of each budget one tenant has a part at
//! most, so that no tenant's flood keeps the others from it.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::id::Name;
use tonic::Status;

use super::error;
use super::limits::{
    CALLS_MAX, REST_STREAMS_MAX, STREAMS_MAX, TENANT_SHARE_PERCENT, URGENT_CALLS_MAX, WAITS_MAX,
};

/// What a call draws on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Most calls.
    Call,
    /// Renewals, releases, and what takes back.
    Urgent,
    /// Waits in the queue for a lease.
    Wait,
    /// A session or a watcher.
    Stream,
    /// A stream of events over REST, where connections are few.
    Feed,
}

/// A place that is given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    taken: Arc<Pot>,
    tenant: Name,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.give_back(&self.tenant);
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
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            calls: Pot::of(CALLS_MAX),
            urgent: Pot::of(URGENT_CALLS_MAX),
            waits: Pot::of(WAITS_MAX),
            streams: Pot::of(STREAMS_MAX),
            feeds: Pot::of(REST_STREAMS_MAX),
        }
    }
}

impl Budget {
    /// A place for a call of this tenant's, or the answer that there is none.
    pub(super) fn take(&self, kind: Kind, tenant: &Name) -> Result<Place, Status> {
        let from = match kind {
            Kind::Call => &self.calls,
            Kind::Urgent => &self.urgent,
            Kind::Wait => &self.waits,
            Kind::Stream => &self.streams,
            Kind::Feed => &self.feeds,
        };
        if !from.take(tenant) {
            return Err(error::overloaded());
        }
        Ok(Place {
            taken: from.clone(),
            tenant: tenant.clone(),
        })
    }
}

/// One budget.
#[derive(Debug)]
struct Pot {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only tenants that have a place.
    by: HashMap<Name, usize>,
}

impl Pot {
    fn of(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_one: most * TENANT_SHARE_PERCENT / 100,
            taken: Mutex::default(),
        })
    }

    fn take(&self, tenant: &Name) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by.get(tenant).copied().unwrap_or(0);
        if taken.all >= self.most || own >= self.most_of_one {
            return false;
        }
        taken.all += 1;
        taken.by.insert(tenant.clone(), own + 1);
        true
    }

    fn give_back(&self, tenant: &Name) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        if let Entry::Occupied(mut own) = taken.by.entry(tenant.clone()) {
            *own.get_mut() -= 1;
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
        assert_eq!(floods.iter().map(Vec::len).sum::<usize>(), CALLS_MAX);
        let refused = budget.take(Kind::Call, &tenant("carol")).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(budget.take(Kind::Urgent, &alice).is_ok());
        drop(floods);
        assert!(budget.take(Kind::Call, &alice).is_ok());
    }

    #[test]
    fn no_tenant_takes_it_all() {
        let budget = Budget::default();
        let (alice, bob) = (tenant("alice"), tenant("bob"));
        for (kind, most) in [
            (Kind::Call, CALLS_MAX),
            (Kind::Urgent, URGENT_CALLS_MAX),
            (Kind::Wait, WAITS_MAX),
            (Kind::Stream, STREAMS_MAX),
            (Kind::Feed, REST_STREAMS_MAX),
        ] {
            let mut all = flood(&budget, kind, &alice);
            assert_eq!(all.len(), most / 2, "{kind:?}");
            assert!(budget.take(kind, &bob).is_ok(), "{kind:?}");
            // What is given back can be taken again.
            all.pop();
            assert!(budget.take(kind, &alice).is_ok(), "{kind:?}");
        }
        assert!(
            budget.urgent.taken.lock().unwrap().by.is_empty(),
            "who has nothing is forgotten"
        );
    }
}
