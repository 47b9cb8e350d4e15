//! Turns to make an answer that may be large, and the work that such an answer takes.
//!
//! Who waits for a turn waits in a line of its tenant's, and the tenants' lines come round one after the other: a large
//! one is not overtaken for ever by small ones, and a tenant that asks for much does not go before one that asks once.
//! Not here: how many turns there are, and how many of them one tenant has (`budget`).
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::id::Name;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::budget::{Budget, Kind, Place};
use super::error;
use super::limits::{MAKING_LOOK, STREAM_WINDOW};

/// A turn. It ends with its last clone: work that nothing can stop has one, so that what is asked for and given up, again
/// and again, still counts for as long as it runs.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    _place: Arc<Place>,
}

/// A turn that counts as so many, for a call of this kind; whoever waits for one too long is told to come back.
pub(super) async fn turn(
    budget: &Budget,
    kind: Kind,
    tenant: &Name,
    as_many: usize,
    patience: Duration,
) -> Result<Turn, Status> {
    // What its client has sent lies unread meanwhile.
    let _unread = budget.hold(kind, tenant, STREAM_WINDOW as usize)?;
    let end = Instant::now() + patience;
    let waiter = Waiter::enter(&budget.line, tenant, as_many);
    loop {
        if let Some(place) = waiter.try_take(budget) {
            let place = Arc::new(place);
            return Ok(Turn { _place: place });
        }
        if Instant::now() >= end {
            return Err(error::overloaded());
        }
        sleep(MAKING_LOOK).await;
    }
}

/// The turn that a request has, for work that outlives it.
pub(super) fn of<T>(request: &tonic::Request<T>) -> Result<Turn, Status> {
    let turn = request.extensions().get::<Turn>().cloned();
    turn.ok_or_else(|| Status::internal("the request has no turn; this is a bug of the daemon"))
}

/// Does what takes a processor for a while, away from the runtime's threads. Once begun it runs to its end, whoever waits
/// for it, and has its turn until then: what is abandoned would else fill the machine.
pub(super) async fn aside<T: Send + 'static>(
    turn: Turn,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    done.await
        .map_err(|_| Status::internal("the planner failed; this is a bug of the daemon"))
}

/// Who waits for a turn.
#[derive(Debug, Default)]
pub(super) struct Line {
    next_id: u64,
    /// In the order in which they come round; none is empty.
    tenants: VecDeque<(Name, VecDeque<Waiting>)>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    as_many: usize,
}

impl Line {
    fn enter(&mut self, tenant: &Name, as_many: usize) -> u64 {
        self.next_id += 1;
        let waiting = Waiting {
            id: self.next_id,
            as_many,
        };
        match self.tenants.iter_mut().find(|(name, _)| name == tenant) {
            Some((_, line)) => line.push_back(waiting),
            None => (self.tenants).push_back((tenant.clone(), [waiting].into())),
        }
        self.next_id
    }

    /// Whether nobody comes first who waits for others' turns to end. Who waits for its own tenant's holds up nobody else.
    fn is_next(&self, id: u64, budget: &Budget) -> bool {
        for (tenant, line) in &self.tenants {
            let Some(first) = line.front() else { continue };
            if first.id == id {
                return true;
            }
            if budget.may_have(Kind::Making, tenant, first.as_many) {
                return false;
            }
        }
        false
    }

    fn leave(&mut self, tenant: &Name, id: u64) {
        let Some(at) = self.tenants.iter().position(|(name, _)| name == tenant) else {
            return;
        };
        let Some((name, mut line)) = self.tenants.remove(at) else {
            return;
        };
        let was_first = line.front().is_some_and(|first| first.id == id);
        line.retain(|waiting| waiting.id != id);
        if line.is_empty() {
            return;
        }
        // Who had its turn, or gave up waiting for it, lets the others come round.
        let to = if was_first { self.tenants.len() } else { at };
        self.tenants.insert(to, (name, line));
    }
}

/// A place in the line; left when dropped.
struct Waiter<'a> {
    line: &'a Mutex<Line>,
    tenant: &'a Name,
    id: u64,
    as_many: usize,
}

impl<'a> Waiter<'a> {
    fn enter(line: &'a Mutex<Line>, tenant: &'a Name, as_many: usize) -> Self {
        let id = locked(line).enter(tenant, as_many);
        Self {
            line,
            tenant,
            id,
            as_many,
        }
    }

    fn try_take(&self, budget: &Budget) -> Option<Place> {
        // Held while it is taken: nobody comes between.
        let line = locked(self.line);
        if !line.is_next(self.id, budget) {
            return None;
        }
        budget.take_free(Kind::Making, self.tenant, self.as_many)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        locked(self.line).leave(self.tenant, self.id);
    }
}

fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::api::limits::{MAKING_PATIENCE, MAKINGS_MAX, PROFILE_MAKINGS};

    fn tenant(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    /// Begins to wait, and says when it is its turn.
    fn wait(
        budget: &Arc<Budget>,
        name: &'static str,
        as_many: usize,
    ) -> tokio::task::JoinHandle<Turn> {
        let budget = budget.clone();
        tokio::spawn(async move {
            let turn = turn(&budget, Kind::Call, &tenant(name), as_many, MAKING_PATIENCE).await;
            turn.unwrap()
        })
    }

    async fn some_looks() {
        sleep(10 * MAKING_LOOK).await;
    }

    #[tokio::test]
    async fn what_is_given_up_counts_until_it_has_ended() {
        let budget = Arc::new(Budget::default());
        let alice = tenant("alice");
        let begun = Arc::new(AtomicUsize::new(0));
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..50 {
            let (begun, held) = (begun.clone(), held.clone());
            let work = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let _ = held.lock().unwrap().recv();
            };
            let asked = async {
                let turn = turn(&budget, Kind::Call, &alice, 1, Duration::ZERO).await?;
                aside(turn, work).await
            };
            // Its client hangs up at once.
            let _ = tokio::time::timeout(Duration::from_millis(1), asked).await;
        }
        let most = MAKINGS_MAX / 2;
        while begun.load(Ordering::SeqCst) < most {
            sleep(MAKING_LOOK).await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), most, "no more run than may");
        assert!(budget.take_free(Kind::Making, &alice, 1).is_none());
        drop(let_go);
        while budget.take_free(Kind::Making, &alice, most).is_none() {
            sleep(MAKING_LOOK).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_one_is_not_overtaken() {
        let budget = Arc::new(Budget::default());
        let small = [("a", 1), ("b", 1)].map(|(name, n)| {
            let place = budget.take_free(Kind::Making, &tenant(name), n);
            place.unwrap()
        });
        let large = wait(&budget, "c", PROFILE_MAKINGS);
        some_looks().await;
        let late = wait(&budget, "d", 1);
        some_looks().await;
        assert!(!large.is_finished() && !late.is_finished(), "it is behind");
        drop(small);
        let large = large.await.unwrap();
        let late = late.await.unwrap();
        drop((large, late));
        assert!(locked(&budget.line).tenants.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_its_own_holds_up_nobody_and_tenants_come_round() {
        let budget = Arc::new(Budget::default());
        let first = wait(&budget, "alice", PROFILE_MAKINGS).await.unwrap();
        let more: Vec<_> = (0..3)
            .map(|_| wait(&budget, "alice", PROFILE_MAKINGS))
            .collect();
        some_looks().await;
        let small = wait(&budget, "bob", 1).await.unwrap();
        drop(small);
        // One of those that wait goes on, and then the others come round.
        let large = wait(&budget, "bob", PROFILE_MAKINGS);
        some_looks().await;
        drop(first);
        let of_one = wait(&budget, "carl", 1);
        some_looks().await;
        let begun = more.iter().filter(|m| m.is_finished()).count();
        assert_eq!(begun + usize::from(large.is_finished()), 1);
        for waiter in more {
            waiter.abort();
            let _ = waiter.await;
        }
        drop(large.await.unwrap());
        drop(of_one.await.unwrap());
        assert!(locked(&budget.line).tenants.is_empty());
    }

    #[test]
    fn a_tenant_that_had_its_turn_lets_the_others_come_round() {
        let budget = Budget::default();
        let (alice, bob) = (tenant("alice"), tenant("bob"));
        let mut line = Line::default();
        let [a1, a2] = [1, 1].map(|n| line.enter(&alice, n));
        let b1 = line.enter(&bob, PROFILE_MAKINGS);
        assert!(line.is_next(a1, &budget));
        assert!(!line.is_next(a2, &budget) && !line.is_next(b1, &budget));
        line.leave(&alice, a1);
        assert!(line.is_next(b1, &budget) && !line.is_next(a2, &budget));
        line.leave(&bob, b1);
        assert!(line.is_next(a2, &budget));
    }
}
