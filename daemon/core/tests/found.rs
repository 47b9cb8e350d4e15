//! What the simulated world found, each as the smallest case that shows it, with the value that is right.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use evenkeel_core::command::{Acquire, Command, Observation, Rejection, Reply, Resource, Seen};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::decide::Answer;
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuAsk, GpuShare, Resize, SmAsk, Vector};
use evenkeel_core::id::{BodyHash, Fence, Generation, GpuId, LeaseId, RequestId};
use evenkeel_core::lease::{End, Holder, Phase};
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{State, step};
use evenkeel_core::unit::{Bytes, Millis, Sms, Time};
use evenkeel_core::volatile::Volatile;

#[path = "found/lives.rs"]
mod lives;
mod rig;
#[path = "found/shares.rs"]
mod shares;

use rig::{alice, name, node};

const TTL: Millis = Millis(30_000);

fn holder() -> Holder {
    Holder {
        pid: 7,
        start_time: 7,
        uid: 1000,
    }
}

fn start(d: Durable, now: Time, unrenewed: BTreeMap<LeaseId, Time>) -> State {
    let volatile = Volatile::start(&d, Settings::default(), now, unrenewed);
    State {
        durable: d,
        volatile,
    }
}
fn fresh() -> State {
    start(Durable::new(node()), Time(0), BTreeMap::new())
}

/// One command, committed at once.
fn run(s: &mut State, at: u64, command: Command) -> (Vec<Event>, Result<Reply, Rejection>) {
    let settled = step(s, Time(at), &[command]).settle(s, Time(at));
    let _ = s.next_wakeup(Time(at));
    (settled.events, settled.answers.into_iter().next().unwrap())
}
fn acquire(n: u128, cores: u32, gpus: Vec<GpuAsk>) -> Command {
    Command::Acquire(Box::new(Acquire {
        tenant: name("alice"),
        request: RequestId(n),
        body: BodyHash(1),
        ask: Ask::Alone { cores, gpus },
        enforced: true,
        resize: Some(Resize::Live),
        processes: None,
        ttl: TTL,
        wait: false,
        priority: 0,
    }))
}
fn ask(gpu: Option<u16>, sms: u32) -> GpuAsk {
    GpuAsk {
        gpu: gpu.map(GpuId),
        sms: SmAsk::Count(Sms(sms)),
        memory: Bytes::gib(1),
    }
}
fn attach(lease: u64, fence: u64) -> Command {
    Command::Attach {
        caller: alice(),
        lease: LeaseId(lease),
        fence: Fence(fence),
        holder: holder(),
    }
}
fn look(s: &State, lease: u64, cores: &str, clients: Option<(u32, u32)>) -> Command {
    let l = &s.durable.leases()[&LeaseId(lease)];
    let seen = |(clients, cap)| Seen {
        clients,
        cap: Sms(cap),
        memory: Bytes(0),
    };
    Command::Observe(Box::new(Observation {
        lease: l.id,
        fence: l.fence,
        generation: l.generation,
        gone: false,
        cores: Some(cores.parse().unwrap()),
        gpus: clients.map(|c| (GpuId(0), seen(c))).into_iter().collect(),
    }))
}
/// Sets a target, as a new plan would.
fn retarget(s: &mut State, lease: u64, cores: &str, sms: u32) {
    let l = &s.durable.leases()[&LeaseId(lease)];
    let share = GpuShare {
        guarantee: Sms(sms),
        cap: Sms(sms),
        memory: Bytes::gib(1),
    };
    let target = Vector {
        cores: cores.parse().unwrap(),
        gpus: if sms > 0 {
            [(GpuId(0), share)].into()
        } else {
            BTreeMap::new()
        },
    };
    let event = Event::LeaseRetargeted {
        id: l.id,
        generation: l.generation.next(),
        target,
        batch: 1,
    };
    s.durable.evolve(&event);
    s.durable.commit();
    s.volatile.settle(&s.durable, Time(0), &[event]);
}
fn held(s: &State, lease: u64) -> String {
    let l = &s.durable.leases()[&LeaseId(lease)];
    let sms = l.held.gpus.get(&GpuId(0)).map_or(0, |g| g.guarantee.0);
    format!("cores {} sms {sms}", l.held.cores)
}

#[test]
fn an_ask_for_any_gpu_leaves_the_named_one_to_the_ask_that_names_it() {
    let mut s = fresh();
    let (_, first) = run(&mut s, 0, acquire(1, 0, vec![ask(Some(0), 40)]));
    assert!(first.is_ok());
    // The fullest that still has room is GPU 0, and the second ask names it.
    let (_, reply) = run(
        &mut s,
        0,
        acquire(2, 0, vec![ask(None, 50), ask(Some(0), 20)]),
    );
    let Ok(Reply::Lease(l)) = reply else {
        panic!("{reply:?}")
    };
    let given: Vec<(u16, u32)> = l
        .target
        .gpus
        .iter()
        .map(|(id, s)| (id.0, s.guarantee.0))
        .collect();
    assert_eq!(given, [(0, 20), (1, 50)]);
    // Each alone would fit, both at once do not: what is short are GPUs.
    let (_, reply) = run(&mut s, 0, acquire(3, 0, vec![ask(None, 50), ask(None, 50)]));
    let Err(Rejection::Short {
        resource,
        asked,
        free,
        ..
    }) = reply
    else {
        panic!("{reply:?}")
    };
    assert_eq!((resource, asked, free), (Resource::Gpus, 2, 1));
}

#[test]
fn what_a_holder_was_told_is_counted_until_it_is_seen_to_be_without_it() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![ask(Some(0), 40)]));
    let _ = run(&mut s, 0, attach(1, 1));
    assert_eq!(held(&s, 1), "cores 1-2 sms 40", "from the attach on");
    // A shrink while it is still attached: its process has the old limits in its environment.
    retarget(&mut s, 1, "1", 20);
    let c = look(&s, 1, "1", Some((0, 0)));
    let _ = run(&mut s, 1, c);
    assert_eq!(
        held(&s, 1),
        "cores 1 sms 40",
        "no context yet, and nothing acknowledged"
    );
    // A grow that nobody has looked at, and then a release: the tree may be bound to all of it.
    retarget(&mut s, 1, "1-3", 20);
    let release = Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(2),
    };
    let _ = run(&mut s, 2, release);
    assert_eq!(held(&s, 1), "cores 1-3 sms 40");
    let c = look(&s, 1, "0", Some((1, 40)));
    let _ = run(&mut s, 3, c);
    assert_eq!(
        held(&s, 1),
        "cores  sms 40",
        "off its cores, not off the GPU"
    );
    let c = look(&s, 1, "0", Some((0, 0)));
    let (events, _) = run(&mut s, 4, c);
    assert!(matches!(
        events[..],
        [Event::LeaseEnded {
            how: End::Released,
            ..
        }]
    ));
}

#[test]
fn a_shrink_to_no_cores_has_to_be_seen_like_any_other() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    let c = look(&s, 1, "1-2", None);
    let _ = run(&mut s, 0, c);
    retarget(&mut s, 1, "", 0);
    for (seen, expect) in [
        ("1-2", "cores 1-2 sms 0"),
        ("1", "cores 1 sms 0"),
        ("0", "cores  sms 0"),
    ] {
        let c = look(&s, 1, seen, None);
        let _ = run(&mut s, 1, c);
        assert_eq!(held(&s, 1), expect, "seen on {seen}");
    }
}

#[test]
fn a_look_for_an_older_target_proves_nothing() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    let Command::Observe(old) = look(&s, 1, "1", None) else {
        unreachable!()
    };
    retarget(&mut s, 1, "1-3", 0);
    retarget(&mut s, 1, "1", 0);
    assert_eq!(held(&s, 1), "cores 1-3 sms 0");
    let (events, _) = run(&mut s, 1, Command::Observe(old));
    assert_eq!((events, held(&s, 1).as_str()), (vec![], "cores 1-3 sms 0"));
}

#[test]
fn an_attach_whose_answer_was_lost_is_answered_again() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    let (events, reply) = run(&mut s, 1, attach(1, 1));
    let Ok(Reply::Lease(l)) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!((events.len(), l.fence), (0, Fence(2)));
    // Not to another process.
    let other = Holder { pid: 8, ..holder() };
    let stolen = Command::Attach {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(1),
        holder: other,
    };
    assert!(matches!(
        run(&mut s, 1, stolen).1,
        Err(Rejection::Fenced { .. })
    ));
}

#[test]
fn a_stall_is_credited_whatever_wakes_the_daemon_and_an_overdue_look_is_none() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let deadline = |s: &State| s.volatile.clocks[&LeaseId(1)].deadline().0;
    assert_eq!(deadline(&s), 30_000);
    let _ = s.next_wakeup(Time(0)); // in a second
    let _ = run(&mut s, 21_000, acquire(2, 1, vec![]));
    assert_eq!(deadline(&s), 50_000, "a request came before the timer");
    // During a commit, too.
    let stood = step(&mut s, Time(21_000), &[acquire(3, 1, vec![])]);
    let _ = stood.settle(&mut s, Time(31_000));
    assert_eq!(deadline(&s), 60_000);
    // A look that was due long ago is not the daemon's stall.
    s.volatile.look_again(LeaseId(1), Time(1));
    let _ = s.next_wakeup(Time(31_000));
    let _ = run(&mut s, 31_100, Command::Tick);
    assert_eq!(deadline(&s), 60_000);
}

#[test]
fn a_stall_is_no_renewal() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let mut s = start(s.durable, Time(1_000), [(LeaseId(1), Time(500))].into());
    let _ = s.next_wakeup(Time(1_000));
    let _ = run(&mut s, 20_000, Command::Tick);
    assert_eq!(s.volatile.renewed(), []);
    let ttl_later = Time(20_000).after(TTL);
    s.volatile.clocks[&LeaseId(1)].renew(Fence(1), ttl_later);
    let renewed = s.volatile.renewed();
    assert_eq!(
        renewed,
        [LeaseId(1)],
        "although the stall's credit reaches as far"
    );
    assert_eq!(s.volatile.renewed(), renewed, "told until it is noted");
    s.volatile.noted(&renewed);
    assert_eq!(s.volatile.renewed(), []);
}

#[test]
fn a_lease_that_is_due_twice_expires_once() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![]));
    let _ = run(&mut s, 0, attach(1, 1));
    s.volatile.look_again(LeaseId(1), Time(40_001));
    for at in (1_000..41_000).step_by(1_000) {
        let (events, _) = run(&mut s, at, Command::Tick);
        let quarantined = events
            .iter()
            .filter(|e| matches!(e, Event::LeaseQuarantined { .. }))
            .count();
        assert_eq!(quarantined, usize::from(at == 40_000), "at {at}");
    }
}

#[test]
fn the_gate_takes_a_command_back_and_names_what_it_would_have_broken() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![]));
    let _ = run(&mut s, 0, acquire(2, 2, vec![]));
    // A ledger that somebody has written to: both leases count core 1.
    let mut parts = s.durable.parts();
    parts.leases[1].target.cores = "1-2".parse::<CpuSet>().unwrap();
    let mut s = start(Durable::load(parts), Time(0), BTreeMap::new());
    let before = s.durable.parts().leases;
    let done = step(&mut s, Time(0), &[attach(1, 1)]);
    assert!(
        matches!(
            done.answers[..],
            [Err(Rejection::Invariant("one_owner_per_core"))]
        ),
        "{done:?}"
    );
    assert!(done.events.is_empty());
    let _ = done.settle(&mut s, Time(0));
    assert_eq!(s.durable.parts().leases, before);
}

#[test]
fn undo_takes_back_everything_and_opens_what_was_closing() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 2, vec![ask(None, 10)]));
    let before = s.durable.parts();
    let batch = [
        attach(1, 1),
        acquire(2, 1, vec![]),
        Command::Revoke {
            caller: alice(),
            lease: LeaseId(1),
        },
    ];
    let done = step(&mut s, Time(1), &batch);
    assert!(
        done.answers
            .iter()
            .all(|a| matches!(a, Ok(Answer::LeaseAfter(_))))
    );
    done.undo(&mut s, Time(1));
    let after = s.durable.parts();
    assert_eq!(
        (after.leases, after.requests, after.next_lease),
        (before.leases, before.requests, before.next_lease)
    );
    // An expiry that is not committed: a renewal that waited for the verdict is good.
    let late = step(&mut s, Time(30_000), &[Command::Tick]);
    assert!(s.volatile.clocks[&LeaseId(1)].is_closing());
    late.undo(&mut s, Time(30_000));
    assert!(!s.volatile.clocks[&LeaseId(1)].is_closing());
    let renew = Command::Renew {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(1),
    };
    assert!(run(&mut s, 30_000, renew).1.is_ok());
    let (events, _) = run(&mut s, 59_000, Command::Tick);
    assert_eq!(events, []);
    assert!(matches!(
        s.durable.leases()[&LeaseId(1)].phase,
        Phase::Pending
    ));
    assert_eq!(s.durable.leases()[&LeaseId(1)].generation, Generation(1));
}

#[test]
fn an_ended_job_is_forgotten_like_an_ended_lease() {
    use evenkeel_core::job::{JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
    let stage = StageSpec {
        name: name("sim"),
        role: Role::Simulation,
        workers: 1,
        processes: 1,
        cores: (1, 2),
        sms: (Sms(0), Sms(0)),
        memory: Bytes(0),
        batches: vec![],
        synchronous: false,
        resize: Resize::Live,
        profile: None,
    };
    let spec = JobSpec {
        name: name("j"),
        unit: name("step"),
        priority: 0,
        weight: 1.0,
        gpus: vec![],
        gpu_count: 0,
        groups: 1,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages: vec![stage],
    };
    let submit = Command::Submit {
        caller: alice(),
        request: RequestId(9),
        body: BodyHash(1),
        spec: Box::new(spec),
    };
    let mut s = fresh();
    assert!(matches!(
        run(&mut s, 0, submit.clone()).1,
        Ok(Reply::Job(_))
    ));
    let cancel = Command::Cancel {
        caller: alice(),
        job: name("j"),
    };
    let _ = run(&mut s, 1, cancel);
    assert!(
        matches!(run(&mut s, 2, submit).1, Ok(Reply::Job(_))),
        "remembered"
    );
    for mut s in [start(s.durable.clone(), Time(3), BTreeMap::new()), s] {
        let day = Settings::default().remember_for.0;
        let (events, _) = run(&mut s, day, Command::Tick);
        assert_eq!(events, [], "not yet");
        let (events, _) = run(&mut s, day + 3, Command::Tick);
        assert!(
            matches!(&events[..], [Event::RequestsForgotten { requests }] if requests.len() == 1)
        );
        assert!(s.durable.requests().is_empty());
    }
}
