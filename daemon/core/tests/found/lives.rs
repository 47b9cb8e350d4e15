//! Deadlines over restarts, downtimes and stalls of the daemon; and what time is told as a trouble.
use evenkeel_core::converge::{Trouble, troubles};
use evenkeel_core::volatile::without_downtime;

use super::*;

/// One life after another, on the same leases: what the ledger's notes make of it.
struct Lives {
    s: State,
    noted: BTreeMap<LeaseId, Time>,
    alive: Option<Time>,
    at: u64,
}

impl Lives {
    /// A lease with a holder, in a daemon that has never restarted.
    fn begin() -> Self {
        let mut s = fresh();
        let _ = run(&mut s, 0, acquire(1, 1, vec![]));
        let _ = run(&mut s, 0, attach(1, 1));
        Self {
            s,
            noted: BTreeMap::new(),
            alive: None,
            at: 0,
        }
    }
    /// The daemon starts. Returns how long the lease has until its deadline; negative: how long ago that was.
    fn start(&mut self, at: u64) -> i64 {
        let unrenewed = without_downtime(&self.noted, self.alive, Time(at));
        self.s = start(self.s.durable.clone(), Time(at), unrenewed);
        self.noted = self.s.volatile.unrenewed.clone();
        (self.alive, self.at) = (Some(Time(at)), at);
        let _ = self.s.next_wakeup(Time(at));
        self.deadline().cast_signed() - at.cast_signed()
    }
    fn deadline(&self) -> u64 {
        self.s.volatile.clocks[&LeaseId(1)].deadline().0
    }
    /// Time passes, and the daemon notes each second that it lives.
    fn live(&mut self, until: u64) {
        while self.at < until {
            self.sleep(self.at + 1_000);
        }
    }
    /// The daemon does nothing until then; then it notes that it lives.
    fn sleep(&mut self, until: u64) {
        let _ = run(&mut self.s, until, Command::Tick);
        self.alive = self.s.volatile.alive(Time(until)).or(self.alive);
        self.at = until;
    }
}

#[test]
fn a_downtime_is_not_the_holders() {
    let mut lives = Lives::begin();
    assert_eq!(lives.start(1_000_000), 30_000);
    // It dies before anybody has renewed, and comes back much later than three TTLs.
    assert_eq!(lives.start(2_000_000), 30_000);
    let (events, _) = run(&mut lives.s, 2_000_000, Command::Tick);
    assert_eq!(events, [], "nobody is ended before somebody could renew");
    // Without a word of when it lived, nothing counts either.
    lives.alive = None;
    assert_eq!(lives.start(3_000_000), 30_000);
}

#[test]
fn nobody_is_immortal_in_a_crash_loop() {
    // Up for so long, down for an hour, again and again: what is left at each start, in seconds, until it expires.
    for (up, expect) in [
        (20_000, vec![30, 30, 30, 30, 10]),
        // Shorter than the grace.
        (9_000, vec![30, 30, 30, 30, 30, 30, 30, 27, 18, 9, 0, -9]),
        (90_000, vec![30]),
    ] {
        let (mut lives, mut left) = (Lives::begin(), Vec::new());
        let usable = |s: &State| s.durable.leases()[&LeaseId(1)].phase.is_usable();
        while usable(&lives.s) && left.len() < 100 {
            let at = 3_600_000 * (left.len() as u64 + 1);
            left.push(lives.start(at) / 1_000);
            lives.live(at + up);
        }
        assert_eq!(left, expect, "up for {up} ms");
    }
}

#[test]
fn a_renewal_in_any_life_starts_the_count_anew() {
    let mut lives = Lives::begin();
    for n in 1..=20 {
        let at = n * 3_600_000;
        assert_eq!(lives.start(at), 30_000, "life {n}");
        lives.live(at + 20_000);
        if n % 3 == 0 {
            lives.s.volatile.clocks[&LeaseId(1)].renew(Fence(2), Time(at + 50_000));
            let renewed = lives.s.volatile.renewed();
            for id in &renewed {
                lives.noted.remove(id);
            }
            lives.s.volatile.noted(&renewed);
            assert_eq!(
                lives.s.volatile.alive(Time(at)),
                None,
                "nobody to count for"
            );
        }
    }
}

#[test]
fn a_stall_does_not_count_against_those_who_could_not_be_heard() {
    let mut lives = Lives::begin();
    assert_eq!(lives.start(1_000), 30_000);
    lives.live(2_000);
    // Suspended for an hour, and it dies right after it has noted that it lives.
    lives.sleep(3_602_000);
    // Its timer was set for a second later: that second was its own.
    assert_eq!(lives.alive, Some(Time(3_000)));
    assert_eq!(lives.start(3_603_000), 30_000);
}

#[test]
fn a_grant_from_the_queue_starts_the_count_anew() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 7, vec![]));
    let Command::Acquire(mut wants) = acquire(2, 7, vec![]) else {
        unreachable!()
    };
    wants.wait = true;
    let _ = run(&mut s, 0, Command::Acquire(wants));
    let mut s = start(s.durable, Time(1_000), BTreeMap::new());
    let release = Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(1),
    };
    let _ = run(&mut s, 2_000, release);
    assert_eq!(s.durable.leases()[&LeaseId(2)].phase, Phase::Pending);
    let noted = s.volatile.renewed();
    assert!(noted.contains(&LeaseId(2)), "{noted:?}");
}

#[test]
fn a_stall_s_credit_reaches_one_ttl_from_now() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = s.next_wakeup(Time(0));
    // The machine slept for an hour. A thread of the handle is faster than the controller.
    let hour = 3_600_000;
    s.volatile.clocks[&LeaseId(1)].renew(Fence(1), Time(hour).after(TTL));
    let _ = run(&mut s, hour, Command::Tick);
    let deadline = s.volatile.clocks[&LeaseId(1)].deadline();
    assert_eq!(
        deadline,
        Time(hour).after(TTL),
        "a dead holder is noticed in time"
    );
}

#[test]
fn each_target_has_its_own_time_to_be_confirmed() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![ask(Some(0), 40)]));
    let _ = run(&mut s, 0, attach(1, 1));
    let mut at = |generation, sms, at| {
        let share = GpuShare {
            guarantee: Sms(sms),
            cap: Sms(sms),
            memory: Bytes::gib(1),
        };
        let target = Vector {
            cores: "1-2".parse().unwrap(),
            gpus: [(GpuId(0), share)].into(),
        };
        let event = Event::LeaseRetargeted {
            id: LeaseId(1),
            generation: Generation(generation),
            target,
            batch: 1,
        };
        s.durable.evolve(&event);
        s.durable.commit();
        s.volatile.settle(&s.durable, Time(at), &[event]);
        s.volatile.moving.get(&LeaseId(1)).copied()
    };
    assert_eq!(at(2, 60, 1_000), Some(Time(1_000)));
    // Nobody has applied the grow for two minutes; the shrink is a second old when its fallback is looked at.
    assert_eq!(at(3, 20, 120_000), Some(Time(120_000)));
    let c = look(&s, 1, "1-2", Some((1, 40)));
    let _ = run(&mut s, 150_000, c);
    let since = s.volatile.moving.get(&LeaseId(1));
    assert_eq!(since, Some(&Time(120_000)), "a look changes nothing");
}

/// Names and leases of what is wrong.
fn wrong(s: &State, at: u64) -> Vec<(&'static str, u64)> {
    let all = troubles(&s.durable, &s.volatile, Time(at)).into_iter();
    all.map(|Trouble { name, lease, .. }| (name, lease.0))
        .collect()
}

#[test]
fn a_lease_that_is_given_back_and_stays_in_use_is_told_and_nobody_is_killed() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![ask(Some(0), 40)]));
    let _ = run(&mut s, 0, attach(1, 1));
    let release = Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(2),
    };
    let _ = run(&mut s, 1_000, release);
    let kept = look(&s, 1, "0", Some((1, 40)));
    let _ = run(&mut s, 2_000, kept.clone());
    assert_eq!(wrong(&s, 60_999), []);
    assert_eq!(wrong(&s, 61_000), [("drain_overdue", 1)]);
    let text = &troubles(&s.durable, &s.volatile, Time(61_000))[0].text;
    assert!(text.contains("40 SMs and 1 GiB of gpu 0"), "{text}");
    assert!(text.contains("process 7"), "{text}");
    for at in (62_000..3_600_000).step_by(60_000) {
        let (events, _) = run(&mut s, at, Command::Tick);
        assert_eq!(events, [], "its share stays counted, and it stays");
    }
    // A new life of the daemon gives it as long again.
    let mut s = start(s.durable, Time(4_000_000), BTreeMap::new());
    assert_eq!(wrong(&s, 4_059_999), []);
    assert_eq!(wrong(&s, 4_060_000), [("drain_overdue", 1)]);
    let off = look(&s, 1, "0", Some((0, 0)));
    let _ = run(&mut s, 4_060_000, off);
    assert_eq!(
        (wrong(&s, 4_060_000), s.durable.leases().len()),
        (vec![], 0)
    );
}

#[test]
fn a_worker_is_stalled_only_after_it_has_worked() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    let id = LeaseId(1);
    s.volatile.reported(id, false, Time(1_000));
    assert_eq!(s.volatile.heard.get(&id), None, "it has not begun");
    s.volatile.reported(id, true, Time(2_000));
    s.volatile.reported(id, false, Time(9_000));
    let heard = s.volatile.heard.get(&id);
    assert_eq!(heard, Some(&Time(9_000)), "it says that it waits");
    let _ = run(&mut s, 10_000, attach(1, 2));
    assert_eq!(s.volatile.heard.get(&id), None, "another process begins");
}

#[test]
fn a_release_of_what_was_taken_back_is_refused_without_an_alarm() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    let release = |fence| Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(fence),
    };
    let revoke = Command::Revoke {
        caller: alice(),
        lease: LeaseId(1),
    };
    let _ = run(&mut s, 1, revoke);
    assert_eq!(s.durable.leases()[&LeaseId(1)].fence, Fence(3));
    let old = run(&mut s, 2, release(2)).1.unwrap_err();
    let fenced = Rejection::Fenced {
        id: LeaseId(1),
        given: Fence(2),
    };
    assert_eq!(old, fenced);
    assert!(
        !old.to_string().contains('3'),
        "who has an old fence is not told the new one: {old}"
    );
    let now = run(&mut s, 2, release(3)).1.unwrap_err();
    assert!(matches!(now, Rejection::WrongPhase { .. }), "{now}");
    assert_eq!(s.durable.leases()[&LeaseId(1)].fence, Fence(3));
}

#[test]
fn a_release_is_said_again_with_either_fence() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    for fence in [2, 2, 3, 2] {
        let release = Command::Release {
            caller: alice(),
            lease: LeaseId(1),
            fence: Fence(fence),
        };
        let (_, answer) = run(&mut s, 1, release);
        assert!(matches!(answer, Ok(Reply::Lease(_))), "{fence}: {answer:?}");
        assert_eq!(s.durable.leases()[&LeaseId(1)].fence, Fence(3));
    }
}
