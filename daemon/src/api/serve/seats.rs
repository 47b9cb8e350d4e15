//! How many connections are open, in all and of each user: one user cannot shut the others out.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// A user on the Unix socket.
    User(u32),
    /// Somebody on a listener where nobody is told apart.
    Anybody,
}

/// The seats of a listener.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    taken: Arc<Mutex<Taken>>,
    most: usize,
    most_each: usize,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    each: HashMap<Who, usize>,
}

/// An open connection's seat; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    who: Who,
}

impl Seats {
    pub(super) fn new(most: usize, most_each: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
            most_each,
        }
    }

    /// A seat; none: they are taken.
    pub(super) fn take(&self, who: Who) -> Option<Seat> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.each.get(&who).copied().unwrap_or(0);
        if taken.all >= self.most || own >= self.most_each {
            return None;
        }
        taken.all += 1;
        taken.each.insert(who, own + 1);
        metrics::gauge!("evenkeel_connections").increment(1.0);
        Some(Seat {
            seats: self.clone(),
            who,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self
            .seats
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        metrics::gauge!("evenkeel_connections").decrement(1.0);
        match taken.each.get_mut(&self.who) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.each.remove(&self.who)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all() {
        let seats = Seats::new(3, 2);
        let (alice, bob) = (Who::User(1), Who::User(2));
        let first = seats.take(alice).unwrap();
        let _second = seats.take(alice).unwrap();
        assert!(seats.take(alice).is_none(), "her share is used up");
        let third = seats.take(bob).unwrap();
        assert!(seats.take(bob).is_none(), "all are taken");
        drop(first);
        assert!(seats.take(alice).is_some());
        drop(third);
        assert!(seats.take(bob).is_some());
    }
}
