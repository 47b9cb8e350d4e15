//! What is counted of a GPU: as much as contexts were seen to use, until they were seen to be gone.
use evenkeel_core::converge::{target_of, troubles};

use super::*;

/// A lease of 40 SMs whose context was seen with them.
fn verified(resize: Resize) -> State {
    let mut s = fresh();
    let Command::Acquire(mut wants) = acquire(1, 1, vec![ask(Some(0), 40)]) else {
        unreachable!()
    };
    wants.resize = Some(resize);
    let _ = run(&mut s, 0, Command::Acquire(wants));
    let _ = run(&mut s, 0, attach(1, 1));
    let c = look(&s, 1, "1", None);
    let _ = run(&mut s, 0, c);
    assert_eq!(kinds(&mut s, 1, (1, 40)), ["lease_verified"]);
    s
}
/// What a look at its contexts leads to.
fn kinds(s: &mut State, at: u64, clients: (u32, u32)) -> Vec<&'static str> {
    let c = look(s, 1, "1", Some(clients));
    run(s, at, c).0.iter().map(Event::kind).collect()
}
fn free(s: &State) -> Sms {
    let d = &s.durable;
    d.pool().free_on(d.node(), d.unavailable(), GpuId(0)).sms
}
fn wrong(s: &State) -> Vec<&'static str> {
    let all = troubles(&s.durable, &s.volatile, Time(0)).into_iter();
    all.map(|t| t.name).collect()
}
fn is_verified(s: &State) -> bool {
    matches!(
        s.durable.leases()[&LeaseId(1)].phase,
        Phase::Active { verified: true, .. }
    )
}
fn acknowledge(s: &State) -> Command {
    let l = &s.durable.leases()[&LeaseId(1)];
    Command::Acknowledge {
        caller: alice(),
        lease: l.id,
        fence: l.fence,
        generation: l.generation,
        effective: l.target.clone(),
    }
}

#[test]
fn a_context_that_widens_is_noticed_counted_and_told() {
    let mut s = verified(Resize::Live);
    let _ = run(&mut s, 1, acquire(2, 0, vec![ask(Some(0), 30)]));
    assert_eq!((free(&s), wrong(&s)), (Sms(30), vec![]));
    // All of the GPU: what is free is counted for it, what the other has cannot be.
    assert_eq!(
        kinds(&mut s, 2, (1, 100)),
        ["lease_unverified", "lease_held"]
    );
    assert_eq!(held(&s, 1), "cores 1 sms 70");
    assert_eq!((free(&s), is_verified(&s)), (Sms(0), false));
    assert_eq!(wrong(&s), ["limits_exceeded"]);
    let (_, other) = run(&mut s, 2, acquire(3, 0, vec![ask(Some(0), 2)]));
    assert!(matches!(other, Err(Rejection::Short { .. })), "{other:?}");
    assert_eq!(kinds(&mut s, 3, (1, 100)), [""; 0], "seen again");
    // Nobody is killed for it, and a new life of the daemon still knows.
    let (events, _) = run(&mut s, 1_000, Command::Tick);
    assert_eq!(events, []);
    let mut s = start(s.durable, Time(2_000), BTreeMap::new());
    assert_eq!(kinds(&mut s, 2_000, (1, 100)), [""; 0]);
    assert_eq!(wrong(&s), ["limits_exceeded"]);
    // It keeps to its share again: seen, and free again. (Nobody asks for an acknowledgement of the first target.)
    assert_eq!(
        kinds(&mut s, 2_001, (1, 40)),
        ["lease_held", "lease_verified"]
    );
    assert_eq!(
        (held(&s, 1).as_str(), free(&s)),
        ("cores 1 sms 40", Sms(30))
    );
    assert_eq!((wrong(&s), is_verified(&s)), (vec![], true));
}

#[test]
fn an_old_share_in_a_shrink_is_no_trouble() {
    let mut s = verified(Resize::Live);
    retarget(&mut s, 1, "1", 20);
    assert_eq!(kinds(&mut s, 2, (1, 40)), [""; 0]);
    assert_eq!((wrong(&s), is_verified(&s)), (vec![], true));
    // More than both is.
    assert_eq!(
        kinds(&mut s, 3, (1, 50)),
        ["lease_unverified", "lease_held"]
    );
    assert_eq!(wrong(&s), ["limits_exceeded"]);
}

#[test]
fn a_context_with_the_old_environment_takes_the_confirmation_back() {
    let mut s = fresh();
    let _ = run(&mut s, 0, acquire(1, 1, vec![ask(Some(0), 40)]));
    let _ = run(&mut s, 0, attach(1, 1));
    let c = look(&s, 1, "1", None);
    let _ = run(&mut s, 0, c);
    retarget(&mut s, 1, "1", 20);
    // It says that it has applied the shrink before it has created its context.
    let ack = acknowledge(&s);
    let _ = run(&mut s, 1, ack);
    assert_eq!(kinds(&mut s, 1, (0, 0)), ["lease_held"]);
    assert_eq!(
        (held(&s, 1).as_str(), free(&s)),
        ("cores 1 sms 20", Sms(80))
    );
    // And then creates it with what it had in its environment.
    assert_eq!(kinds(&mut s, 2, (1, 40)), ["lease_held"]);
    assert_eq!(
        (held(&s, 1).as_str(), free(&s)),
        ("cores 1 sms 40", Sms(60))
    );
    assert_eq!(wrong(&s), ["limits_exceeded"]);
}

#[test]
fn contexts_on_a_gpu_without_a_share_are_a_neighbour_s() {
    let mut s = verified(Resize::Live);
    let Command::Observe(mut o) = look(&s, 1, "1", Some((1, 40))) else {
        unreachable!()
    };
    let all = Seen {
        clients: 1,
        cap: Sms(100),
        memory: Bytes(0),
    };
    o.gpus.insert(GpuId(1), all);
    let (events, _) = run(&mut s, 2, Command::Observe(o));
    assert_eq!((events, wrong(&s)), (vec![], vec![]));
}

#[test]
fn a_tree_is_gone_when_every_gpu_that_counts_a_share_has_said_so() {
    let asked = |s: &State| {
        let l = &s.durable.leases()[&LeaseId(1)];
        let target = target_of(&s.durable, &s.volatile, Time(0), l).unwrap();
        (
            target.caps.len(),
            target.gpus.into_iter().collect::<Vec<_>>(),
        )
    };
    let mut s = verified(Resize::Live);
    assert_eq!(asked(&s), (1, vec![GpuId(0)]));
    // It is to have nothing of the GPU, and was not seen to be off it.
    retarget(&mut s, 1, "1", 0);
    assert_eq!(asked(&s), (0, vec![GpuId(0)]));
    let mut s = verified(Resize::Live);
    let release = Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(2),
    };
    let _ = run(&mut s, 2, release);
    assert_eq!(asked(&s), (0, vec![GpuId(0)]));
    let c = look(&s, 1, "1", Some((0, 0)));
    let _ = run(&mut s, 3, c);
    assert_eq!(asked(&s), (0, vec![]), "seen off the GPU");
}
