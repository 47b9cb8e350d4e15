//! When the core wants to be called: a daemon that is never idle has its wake-ups, too.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_core::command::Command;
use evenkeel_core::settings::Settings;
use evenkeel_core::step::step;
use evenkeel_core::unit::{Millis, Time};

mod stage;
use stage::{Stage, caller, cores, node};

#[test]
fn commands_that_never_cease_do_not_put_off_what_only_time_leads_to() {
    let mut s = Stage::new();
    let _ = s.acquire("alice", cores(1), |a| a.ttl = Millis(600_000));
    let first = s.s.next_wakeup(Time(1));
    assert_eq!(first, Time(1_000), "nothing waits longer than a second");
    for now in (10..1_000).step_by(10).map(Time) {
        let drain = Command::Drain {
            caller: caller("alice"),
            draining: false,
        };
        let _ = step(&mut s.s, now, &[drain]).settle(&mut s.s, now);
        assert_eq!(s.s.next_wakeup(now), first, "at {now:?}");
    }
    let _ = step(&mut s.s, first, &[Command::Tick]).settle(&mut s.s, first);
    assert_eq!(s.s.next_wakeup(first), Time(2_000));
}

#[test]
fn a_flood_that_never_ceases_is_forgotten_as_it_goes() {
    let settings = Settings {
        remember_ends: 100,
        ..Settings::default()
    };
    let mut s = Stage::with(node(), settings);
    let (mut most, mut ticks) = (0, 0);
    for n in 1..2_000 {
        let now = Time(n);
        let _ = s.acquire("alice", cores(1), |a| a.ttl = Millis(600_000));
        let _ = s.release(n);
        if s.s.next_wakeup(now) <= now {
            let _ = step(&mut s.s, now, &[Command::Tick]).settle(&mut s.s, now);
            ticks += 1;
        }
        most = most.max(s.d().requests().len());
    }
    assert!(ticks >= 10, "{ticks} ticks");
    assert!(most <= 160, "{most} answers, at an end each millisecond");
}
