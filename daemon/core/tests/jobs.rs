//! Jobs through the one entry: how they end, and what their moves cost.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod rig;

use std::collections::BTreeMap;

use evenkeel_core::balance::{Busy, Report};
use evenkeel_core::command::{Acquire, Command, Observation, Reply, Seen};
use evenkeel_core::converge::{Order, directive};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, Member, Resize};
use evenkeel_core::id::{BodyHash, Fence, JobId, LeaseId, RequestId, StageId, WorkerId};
use evenkeel_core::invariant::violations;
use evenkeel_core::lease::{Cause, End, Holder, Lease, PhaseName};
use evenkeel_core::node::{Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::State;
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms, Time};
use rig::{alice, fresh, job, name, run, stage, start};

const FIRST: LeaseId = LeaseId(1);
const SECOND: LeaseId = LeaseId(2);
const THIRD: LeaseId = LeaseId(3);

fn submit() -> Command {
    Command::Submit {
        caller: alice(),
        request: RequestId(1),
        body: BodyHash(1),
        spec: Box::new(job((0..3).map(stage).collect())),
    }
}
fn cancel() -> Command {
    Command::Cancel {
        caller: alice(),
        job: name("j"),
    }
}
fn acquire(stage: u8, enforced: bool) -> Command {
    let member = Member {
        job: JobId(1),
        stage: StageId(stage),
        worker: WorkerId(0),
    };
    Command::Acquire(Box::new(Acquire {
        tenant: name("alice"),
        request: RequestId(10 + u128::from(stage)),
        body: BodyHash(1),
        ask: Ask::Stage(member),
        enforced,
        resize: Some(Resize::Restart),
        processes: Some(1),
        ttl: Millis::secs(30),
        wait: false,
        priority: 0,
    }))
}
fn of(s: &State, id: LeaseId) -> Lease {
    s.durable.leases()[&id].clone()
}
fn look(s: &State, id: LeaseId, gone: bool) -> Command {
    let l = of(s, id);
    let gpus = l
        .counted()
        .gpus
        .keys()
        .map(|g| (*g, Seen::default()))
        .collect();
    Command::Observe(Box::new(Observation {
        lease: id,
        fence: l.fence,
        generation: l.generation,
        gone,
        cores: Some(l.target.cores.clone()),
        gpus: if gone { BTreeMap::new() } else { gpus },
    }))
}
/// A worker of the job asks, attaches, and is seen on its cores.
fn worker(s: &mut State, at: u64, stage: u8) -> LeaseId {
    let (_, answers) = run(s, at, &[acquire(stage, true)]);
    let Ok(Reply::Lease(lease)) = &answers[0] else {
        panic!("{answers:?}")
    };
    let attach = Command::Attach {
        caller: alice(),
        lease: lease.id,
        fence: Fence(1),
        holder: Holder {
            pid: 100 + u32::from(stage),
            start_time: 1,
            uid: 1000,
        },
    };
    run(s, at, &[attach]);
    let seen = look(s, lease.id, false);
    run(s, at, &[seen]);
    assert_eq!(of(s, lease.id).phase.name(), PhaseName::Active);
    lease.id
}
/// Time passes, a second at a time; everybody renews. What happens, and when.
fn pass(s: &mut State, from: u64, until: u64) -> Vec<(u64, Event)> {
    let mut seen = Vec::new();
    for at in (from..=until).step_by(1000) {
        for (id, lease) in s.durable.leases() {
            let _ = s.volatile.clocks[id].renew(lease.fence, Time(at).after(lease.ttl));
        }
        let (events, _) = run(s, at, &[Command::Tick]);
        seen.extend(events.into_iter().map(|e| (at, e)));
    }
    assert_eq!(violations(&s.durable), []);
    seen
}
fn told(s: &State, at: u64, id: LeaseId) -> Option<Order> {
    let lease = s.durable.leases().get(&id)?;
    directive(&s.durable, &s.volatile, Time(at), lease).map(|d| d.order)
}
fn taken(id: LeaseId, fence: u64) -> Event {
    Event::LeaseQuarantined {
        id,
        fence: Fence(fence),
        cause: Cause::Revoked,
    }
}

/// A job with two workers that run and a third that has a lease and has not come yet.
fn running() -> State {
    let mut s = fresh();
    run(&mut s, 0, &[submit()]);
    assert_eq!(
        (worker(&mut s, 0, 0), worker(&mut s, 0, 1)),
        (FIRST, SECOND)
    );
    run(&mut s, 0, &[acquire(2, true)]);
    s
}

#[test]
fn a_cancelled_jobs_workers_are_told_and_only_what_is_left_after_the_grace_is_taken() {
    let mut s = running();
    let (events, answers) = run(&mut s, 0, &[cancel()]);
    let ended = Event::LeaseEnded {
        id: THIRD,
        fence: Fence(2),
        how: End::Revoked,
        reason: None,
    };
    assert_eq!(events, [ended, Event::JobEnded { id: JobId(1) }]);
    let reply = Reply::Cancelled {
        job: JobId(1),
        told: vec![FIRST, SECOND],
    };
    assert_eq!(answers, [Ok(reply)]);
    assert!(s.durable.jobs().is_empty(), "the name is free");
    for id in [FIRST, SECOND] {
        assert_eq!(told(&s, 0, id), Some(Order::Release));
        assert!(of(&s, id).phase.is_usable() && !of(&s, id).held.is_empty());
    }

    // One does as it is told. The other goes on renewing, and is told for as long as it does.
    let release = Command::Release {
        caller: alice(),
        lease: FIRST,
        fence: Fence(2),
    };
    run(&mut s, 0, &[release]);
    assert_eq!(of(&s, FIRST).phase.name(), PhaseName::Draining);
    assert_eq!(told(&s, 0, FIRST), None);
    let gone = look(&s, FIRST, true);
    let (events, _) = run(&mut s, 0, &[gone]);
    assert!(matches!(
        events[..],
        [Event::LeaseEnded {
            how: End::Released,
            ..
        }]
    ));
    let grace = Settings::default().release_grace.0;
    assert_eq!(pass(&mut s, 1000, grace - 1000), []);
    assert_eq!(told(&s, grace - 1000, SECOND), Some(Order::Release));
    assert_eq!(
        pass(&mut s, grace, grace + 5000),
        [(grace, taken(SECOND, 3))]
    );
    assert!(
        !of(&s, SECOND).held.is_empty(),
        "counted until its tree is gone"
    );
}

#[test]
fn a_worker_that_ends_without_a_word_after_a_cancel_has_not_failed() {
    let mut s = running();
    run(&mut s, 0, &[cancel()]);
    let gone = look(&s, FIRST, true);
    let (events, _) = run(&mut s, 0, &[gone]);
    assert!(matches!(
        events[..],
        [Event::LeaseEnded {
            how: End::Revoked,
            ..
        }]
    ));
}

#[test]
fn a_restart_and_a_stall_of_the_daemon_give_the_time_back_in_which_nobody_was_told() {
    let grace = Settings::default().release_grace.0;
    let mut s = running();
    run(&mut s, 0, &[cancel()]);
    assert_eq!(pass(&mut s, 1000, 50_000), []);

    let mut again = start(s.durable.clone(), Time(50_000));
    assert_eq!(told(&again, 50_000, FIRST), Some(Order::Release));
    assert_eq!(pass(&mut again, 51_000, 49_000 + grace), []);
    let both = [
        (50_000 + grace, taken(FIRST, 3)),
        (50_000 + grace, taken(SECOND, 3)),
    ];
    assert_eq!(pass(&mut again, 50_000 + grace, 50_000 + grace), both);

    // It wanted to be called at 51 s, and stood still until 71 s.
    assert_eq!(pass(&mut s, 71_000, 19_000 + grace), []);
    assert_eq!(
        pass(&mut s, 20_000 + grace, 20_000 + grace)
            .iter()
            .map(|(at, _)| *at)
            .collect::<Vec<_>>(),
        [20_000 + grace; 2]
    );
}

#[test]
fn a_lease_that_nobody_enforces_has_the_same_grace_and_ends_without_proof() {
    let node = Node {
        kind: PoolKind::Synthetic,
        ..fresh().durable.node().clone()
    };
    let mut s = start(Durable::new(node), Time(0));
    run(&mut s, 0, &[submit(), acquire(0, false), cancel()]);
    assert_eq!(told(&s, 0, FIRST), Some(Order::Release));
    let grace = Settings::default().release_grace.0;
    let seen = pass(&mut s, 1000, grace + 1000);
    let [
        (
            at,
            Event::LeaseEnded {
                how: End::Revoked, ..
            },
        ),
    ] = seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!(at, grace);
    assert_eq!(s.durable.leases().len(), 0);
}

/// What a calibration measured: so many units a second for each SM.
fn profile(stage: &str, per_sm: f64) -> Command {
    let point = |n: u32| Point {
        cores: 1,
        sms: Sms(2 * n),
        batch: 1,
        replicas: 1,
        rate: Rate::clamped(per_sm * f64::from(2 * n)),
        memory: Bytes(0),
        weight: 1.0,
        ..Point::default()
    };
    let key = ProfileKey {
        tenant: name("alice"),
        stage: name(&format!("j/{stage}")),
        gpu: name("EMU"),
    };
    let points = (1..=50).map(point).collect();
    Command::Import {
        profile: Box::new(Profile { key, points }),
    }
}
fn work(s: &State, id: LeaseId) -> Command {
    let busy = Busy {
        lane: 0,
        start_us_ago: 1000,
        dur_us: 1000,
        units: 1.0,
        batch: 1,
    };
    let report = Report {
        lanes: 1,
        busy: vec![busy],
        ..Report::default()
    };
    Command::Report {
        caller: alice(),
        lease: id,
        fence: of(s, id).fence,
        report: Box::new(report),
    }
}

#[test]
fn a_restart_is_measured_from_the_commit_of_the_new_share_to_the_first_work_with_it() {
    let mut s = running();
    let costs = |s: &State| s.volatile.watches[&JobId(1)].restart_costs();
    assert_eq!(costs(&s), [None; 3]);

    // Generation is fast and the others are slow: it has to give SMs up.
    let profiles = [("sim0", 1.0), ("gen1", 50.0), ("train2", 1.0)];
    let mut batch: Vec<Command> = profiles.iter().map(|(n, f)| profile(n, *f)).collect();
    batch.push(Command::Update {
        caller: alice(),
        job: name("j"),
        rebalance: None,
        policy: None,
        replan: true,
    });
    let (events, _) = run(&mut s, 1000, &batch);
    let moved = |id| move |e: &Event| matches!(e, Event::LeaseRetargeted { id: i, .. } if *i == id);
    assert!(events.iter().any(moved(SECOND)), "{events:?}");
    assert!(matches!(
        told(&s, 1000, SECOND),
        Some(Order::Restart { .. })
    ));

    // It still works with its old share: that is not the end of its restart.
    let old = work(&s, SECOND);
    run(&mut s, 2000, &[old]);
    let lease = of(&s, SECOND);
    let acknowledge = Command::Acknowledge {
        caller: alice(),
        lease: SECOND,
        fence: lease.fence,
        generation: lease.generation,
        effective: lease.target.clone(),
    };
    run(&mut s, 3000, &[acknowledge]);
    let seen = look(&s, SECOND, false);
    run(&mut s, 4000, &[seen]);
    assert_eq!(of(&s, SECOND).held, of(&s, SECOND).target);
    assert_eq!(costs(&s), [None; 3], "it has not worked yet");
    for at in [4500, 5000] {
        let new = work(&s, SECOND);
        run(&mut s, at, &[new]);
        let took = Some(Millis(3500));
        assert_eq!(costs(&s), [None, took, None], "the first work counts");
    }
}
