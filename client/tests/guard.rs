//! Guards against a daemon that answers, is silent, restarts, and takes leases away.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

mod fake;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_client::blocking::{Client, Worker};
use evenkeel_client::{
    Address, BootTime, BusyInterval, ClientConfig, DirectiveKind, GuardEvent, GuardOptions,
    GuardState, LeasePhase, LeaseRequest, LossReason, OnDaemonLost, Step, Vector,
};
use evenkeel_proto::v1 as pb;
use fake::{Fake, PATIENCE, until};

const TTL: Duration = Duration::from_millis(900);

fn client(fake: &Fake) -> Client {
    Client::new(ClientConfig::new(Address::Unix(fake.socket.clone()))).unwrap()
}

fn hold(fake: &Fake, options: GuardOptions) -> Worker {
    let request = LeaseRequest::amounts(1, Vec::new()).ttl(TTL);
    client(fake).hold(&request, options).unwrap()
}

fn wait_state(worker: &Worker, state: GuardState) {
    until(&format!("{state:?}"), || worker.guard.state() == state);
}

/// Waits for an event, whatever a slow machine brings before it.
fn wait_event(worker: &Worker, wanted: &GuardEvent) {
    until(&format!("{wanted:?}"), || {
        worker.guard.wait_event(PATIENCE).as_ref() == Some(wanted)
    });
}

fn directive(worker: &Worker, kind: pb::DirectiveKind, generation: u64) -> pb::SessionResponse {
    let lease = worker.guard.lease();
    pb::SessionResponse {
        directives: vec![pb::Directive {
            lease: Some(pb::LeaseRef {
                lease_id: lease.lease_id,
                fence: lease.fence,
            }),
            kind: kind.into(),
            generation,
            target: Some(pb::ResourceVector {
                cores: "0".into(),
                cpus: "0".into(),
                gpus: Vec::new(),
            }),
            ..pb::Directive::default()
        }],
        ..pb::SessionResponse::default()
    }
}

fn interval(units: f64) -> BusyInterval {
    BusyInterval {
        lane: 0,
        began: BootTime::now(),
        busy: Duration::ZERO,
        units,
        batch: 1,
        cpu: Duration::ZERO,
    }
}

fn units(reports: &[pb::WorkReport]) -> f64 {
    let all = reports.iter().flat_map(|r| &r.intervals);
    all.map(|i| i.units).sum()
}

#[test]
fn heartbeats_keep_a_lease_confirmed_past_many_ttls() {
    let fake = Fake::start();
    let worker = hold(&fake, GuardOptions::default());
    let first = worker.guard.deadline();
    let until_then = first.after(3 * TTL);
    until("three more TTLs", || {
        assert_eq!(worker.guard.state(), GuardState::Confirmed);
        worker.guard.deadline() > until_then
    });
    // Never later than from now: it counts from when the renewal was sent.
    assert!(worker.guard.deadline() <= BootTime::now().after(TTL));
    assert_eq!(fake.world().sessions_opened, 1);
    assert_eq!(fake.world().unary_renewals, 0, "the stream was up");
}

#[test]
fn leases_of_a_process_share_one_stream() {
    let fake = Fake::start();
    let workers: Vec<Worker> = (0..4)
        .map(|_| hold(&fake, GuardOptions::default()))
        .collect();
    fake.wait("renewals of all four", |w| w.renewals > 20);
    for worker in &workers {
        wait_state(worker, GuardState::Confirmed);
    }
    assert_eq!(fake.world().sessions_opened, 1);
}

#[test]
fn a_silent_daemon_leaves_the_lease_unconfirmed_and_an_answer_confirms_it() {
    let mut fake = Fake::start();
    let worker = hold(&fake, GuardOptions::default());
    fake.wait("a renewal", |w| w.renewals > 0);
    fake.stop();
    wait_state(&worker, GuardState::Unconfirmed);
    assert!(worker.guard.may_work());
    fake.restart();
    wait_state(&worker, GuardState::Confirmed);
    let mut states = Vec::new();
    until("both events", || {
        if let Some(GuardEvent::State(state)) = worker.guard.wait_event(Duration::ZERO) {
            return state == GuardState::Confirmed;
        }
        false
    });
    states.push(worker.guard.state());
    assert_eq!(states, [GuardState::Confirmed]);
}

#[test]
fn a_guard_that_is_to_stop_counts_silence_as_loss_for_good() {
    let mut fake = Fake::start();
    let options = GuardOptions {
        on_daemon_lost: OnDaemonLost::Stop,
        ..GuardOptions::default()
    };
    let worker = hold(&fake, options);
    fake.wait("a renewal", |w| w.renewals > 0);
    fake.stop();
    let lost = GuardState::Lost(LossReason::Silence);
    wait_event(&worker, &GuardEvent::State(lost));
    fake.restart();
    let renewals = fake.world().renewals;
    // Another guard's renewals show that the hub is at work again.
    let other = hold(&fake, GuardOptions::default());
    fake.wait("the other's renewals", |w| w.renewals > renewals + 3);
    assert_eq!(worker.guard.state(), lost);
    assert!(!worker.guard.may_work() && other.guard.may_work());
}

#[test]
fn a_fenced_lease_is_lost() {
    let fake = Fake::start();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let options = GuardOptions {
        on_event: Some({
            let seen = Arc::clone(&seen);
            Arc::new(move |event: &GuardEvent| seen.lock().unwrap().push(event.clone()))
        }),
        ..GuardOptions::default()
    };
    let worker = hold(&fake, options);
    fake.world().fence(worker.guard.lease().lease_id);
    let lost = GuardEvent::State(GuardState::Lost(LossReason::Fenced));
    wait_event(&worker, &lost);
    until("the callback", || {
        seen.lock().unwrap().last() == Some(&lost)
    });
    assert!(!worker.guard.may_work());
}

#[test]
fn without_sessions_renewals_go_out_one_by_one() {
    let fake = Fake::start();
    fake.world().no_session = true;
    let worker = hold(&fake, GuardOptions::default());
    fake.wait("many unary renewals", |w| w.unary_renewals > 8);
    assert_eq!(worker.guard.state(), GuardState::Confirmed);
}

#[test]
fn a_stream_that_does_not_answer_is_replaced_and_the_lease_kept() {
    let fake = Fake::start();
    fake.world().mute = true;
    let worker = hold(&fake, GuardOptions::default());
    fake.wait("another stream", |w| w.sessions_opened > 1);
    fake.wait("a unary renewal", |w| w.unary_renewals > 0);
    wait_state(&worker, GuardState::Confirmed);
}

#[test]
fn a_directive_comes_once_and_its_acknowledgement_again_after_a_restart() {
    let mut fake = Fake::start();
    let worker = hold(&fake, GuardOptions::default());
    fake.wait("a session", |w| !w.sessions.is_empty());
    let target = directive(&worker, pb::DirectiveKind::Target, 7);
    fake.world().send(&target);
    let Some(GuardEvent::Directive(got)) = worker.guard.wait_event(PATIENCE) else {
        panic!("no directive came");
    };
    assert_eq!((got.kind, got.generation), (DirectiveKind::Target, 7));
    assert_eq!(got.target.cores.to_string(), "0");
    fake.world().send(&target);
    worker.guard.acknowledge(7, got.target);
    fake.wait("the acknowledgement", |w| w.acknowledgements.len() == 1);
    fake.restart();
    fake.wait("it again", |w| w.acknowledgements.len() >= 2);
    // The daemon repeats itself: the worker is not bothered, the daemon gets its answer.
    let heard = fake.world().acknowledgements.len();
    fake.world().send(&target);
    fake.wait("an answer", |w| w.acknowledgements.len() > heard);
    while let Some(event) = worker.guard.wait_event(Duration::ZERO) {
        assert!(
            matches!(event, GuardEvent::State(_)),
            "{event:?} came again"
        );
    }
    let all = fake.world().acknowledgements.clone();
    assert!(all.iter().all(|a| a.generation == 7));
}

#[test]
fn the_latest_target_replaces_one_that_nobody_took() {
    let fake = Fake::start();
    let heard = Arc::new(Mutex::new(0));
    let options = GuardOptions {
        on_event: Some({
            let heard = Arc::clone(&heard);
            Arc::new(move |event: &GuardEvent| {
                if matches!(event, GuardEvent::Directive(_)) {
                    *heard.lock().unwrap() += 1;
                }
            })
        }),
        ..GuardOptions::default()
    };
    let worker = hold(&fake, options);
    fake.wait("a session", |w| !w.sessions.is_empty());
    for (kind, generation) in [
        (pb::DirectiveKind::Target, 2),
        (pb::DirectiveKind::Restart, 3),
        (pb::DirectiveKind::Drain, 0),
    ] {
        fake.world().send(&directive(&worker, kind, generation));
    }
    until("all three", || *heard.lock().unwrap() == 3);
    let mut got = Vec::new();
    while let Some(event) = worker.guard.wait_event(Duration::ZERO) {
        if let GuardEvent::Directive(d) = event {
            got.push((d.kind, d.generation));
        }
    }
    assert_eq!(
        got,
        [(DirectiveKind::Restart, 3), (DirectiveKind::Drain, 0)]
    );
}

#[test]
fn reports_arrive_and_wait_for_a_daemon_that_is_away() {
    let mut fake = Fake::start();
    let worker = hold(&fake, GuardOptions::default());
    let step = |n| Step {
        n,
        consumed_units: 1.0,
        discarded_units: 0.0,
    };
    worker.guard.report(1, &[interval(5.0)], &[step(1)]);
    fake.wait("the report", |w| units(&w.reports) == 5.0);
    fake.stop();
    // What goes into a stream that is just breaking is lost: let the guard notice.
    wait_state(&worker, GuardState::Unconfirmed);
    for n in 0..10_000 {
        worker.guard.report(1, &[interval(1.0)], &[step(n + 2)]);
    }
    fake.restart();
    fake.wait("all that was done meanwhile", |w| {
        units(&w.reports) == 10_005.0
    });
    let steps = |w: &fake::World| -> Vec<pb::StepReport> {
        w.reports.iter().flat_map(|r| r.steps.clone()).collect()
    };
    fake.wait("its steps", |w| {
        let consumed: f64 = steps(w).iter().map(|s| s.consumed_units).sum();
        consumed == 10_001.0
    });
    let world = fake.world();
    assert_eq!(steps(&world).last().map(|s| s.n), Some(10_001));
    assert!(
        world
            .reports
            .iter()
            .all(|r| r.intervals.len() <= 512 && r.steps.len() <= 64)
    );
}

#[test]
fn dropping_a_guard_gives_the_lease_back_and_forgetting_it_does_not() {
    let fake = Fake::start();
    let phase = |id: u64| fake.world().leases[&id].phase();
    let dropped = hold(&fake, GuardOptions::default());
    let id = dropped.guard.lease().lease_id;
    drop(dropped);
    assert_eq!(phase(id), pb::LeasePhase::Ended);
    let released = hold(&fake, GuardOptions::default());
    let lease = released.guard.release().unwrap();
    assert_eq!(lease.phase, LeasePhase::Ended);
    let forgotten = hold(&fake, GuardOptions::default());
    let id = forgotten.guard.lease().lease_id;
    forgotten.guard.forget();
    assert_eq!(phase(id), pb::LeasePhase::Attached);
}

#[test]
fn in_a_forked_child_a_guard_does_nothing() {
    let fake = Fake::start();
    let worker = hold(&fake, GuardOptions::default());
    fake.wait("a renewal", |w| w.renewals > 0);
    // SAFETY: the child calls only what a forked child of a threaded process may: no allocation that
    // another thread's lock could block is needed, and it leaves without running destructors.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let guard = worker.guard;
            let mut fine = guard.is_inert();
            guard.acknowledge(1, Vector::default());
            guard.report(1, &[], &[]);
            fine &= guard.wait_event(Duration::from_secs(60)).is_none();
            drop(guard);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(i32::from(!fine)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let ended = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    let id = worker.guard.lease().lease_id;
    assert_eq!(fake.world().leases[&id].phase(), pb::LeasePhase::Attached);
    let renewals = fake.world().renewals;
    fake.wait("the parent's renewals go on", |w| w.renewals > renewals);
    assert_eq!(worker.guard.state(), GuardState::Confirmed);
}
