//! How many connections are open, in all and of each user: one user cannot shut the others out, and nobody takes more
//! than is left, so that many together cannot either.
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::id::Name;

/// Whose connection it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// A user on the Unix socket.
    User(u32),
    /// An admin on the Unix socket.
    Admin(u32),
    /// Somebody of a tenant, by certificate.
    Tenant(Name),
    /// An admin of a tenant, by certificate.
    AdminOf(Name),
    /// Somebody at an address, who has not said yet who it is. See [`Who::at`].
    Address(IpAddr),
    /// Somebody on a listener where nobody is told apart.
    Anybody,
}

impl Who {
    /// Somebody at an address: of IPv6, the half that names the network (RFC 4291, section 2.5.4). The other half is its
    /// owner's to choose, and who chooses often is one all the same.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
            v4 => v4,
        })
    }
}

/// The seats of a listener.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    taken: Arc<Mutex<Taken>>,
    most: usize,
    most_each: usize,
    for_admins: usize,
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
    /// `most` in all, of which `for_admins` are kept for admins; `most_each` of one user.
    pub(super) fn new(most: usize, most_each: usize, for_admins: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
            most_each,
            for_admins,
        }
    }

    /// A seat; none: they are taken.
    pub(super) fn take(&self, who: Who) -> Option<Seat> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.each.get(&who).copied().unwrap_or(0);
        let most = match who {
            Who::Admin(_) | Who::AdminOf(_) => self.most,
            _ => self.most.saturating_sub(self.for_admins),
        };
        let left = most.saturating_sub(taken.all);
        if left == 0 || own >= self.most_each.min(left) {
            return None;
        }
        taken.all += 1;
        taken.each.insert(who.clone(), own + 1);
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
        let seats = Seats::new(6, 2, 0);
        let (alice, bob) = (Who::User(1), Who::User(2));
        let first = seats.take(alice.clone()).unwrap();
        let _second = seats.take(alice.clone()).unwrap();
        assert!(seats.take(alice.clone()).is_none(), "her share is used up");
        drop(first);
        assert!(seats.take(alice).is_some());
        assert!(seats.take(bob).is_some());
    }

    #[test]
    fn nobody_takes_more_than_is_left() {
        let seats = Seats::new(16, 100, 0);
        let mut all = Vec::new();
        let mut take = |uid| {
            let own = std::iter::from_fn(|| seats.take(Who::User(uid)));
            let before = all.len();
            all.extend(own);
            all.len() - before
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut take), [8, 4, 2, 1, 1]);
        assert!(seats.take(Who::User(6)).is_none(), "all are taken");
        all.clear();
        assert!(seats.take(Who::User(6)).is_some());
    }

    #[test]
    fn users_together_cannot_shut_an_admin_out() {
        let seats = Seats::new(3, 2, 1);
        let _users: Vec<_> = [1, 2].map(|uid| seats.take(Who::User(uid)).unwrap()).into();
        assert!(seats.take(Who::User(3)).is_none(), "the last is not theirs");
        let admin = seats.take(Who::Admin(0));
        assert!(admin.is_some());
        assert!(seats.take(Who::Admin(0)).is_none(), "all are taken");
        drop(admin);
        let ops = Who::AdminOf(Name::new("ops").unwrap());
        assert!(seats.take(ops).is_some(), "by certificate, too");
    }

    #[test]
    fn an_address_is_its_network() {
        let at = |text: &str| Who::at(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2:3:4:5:6"), at("2001:db8:1:2::9"));
        assert_ne!(at("2001:db8:1:2::9"), at("2001:db8:1:3::9"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
    }
}
