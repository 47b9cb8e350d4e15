//! `evenkeel run` while the daemon moves its share.
use super::over::tell;
use super::*;

#[test]
fn a_moved_share_restarts_the_command_under_the_same_lease() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let log = flag(&dir, "log");
    // Goes on until its second life.
    let text = format!(
        "echo start $SHARE >> {log}; trap 'echo saved >> {log}; exit 0' TERM
         [ \"$SHARE\" = 20 ] && exit 3
         while :; do sleep 0.02; done",
        log = log.display()
    );
    fake.world()
        .environment
        .extend([("SHARE".to_owned(), "10".to_owned())]);
    let child = script(&fake, &[], &text).spawn().unwrap();
    fake.wait("a session", |w| !w.sessions.is_empty());
    until("the first life", || {
        fs::read_to_string(&log).is_ok_and(|l| l.contains("start 10"))
    });
    tell(&fake, 1, pb::DirectiveKind::Restart, |directive| {
        directive.generation = 5;
        let target = directive.target.get_or_insert_default();
        target.gpus[0].guarantee_sms = 20;
        directive.batch = 32;
        directive.reason = "training is slower".into();
        directive.environment = [("SHARE".to_owned(), "20".to_owned())].into();
    });
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "start 10\nsaved\nstart 20\n"
    );
    assert!(
        stderr(&output).contains("training is slower"),
        "{}",
        stderr(&output)
    );
    let world = fake.world();
    let acknowledged = world.acknowledgements.first().unwrap();
    assert_eq!(acknowledged.generation, 5);
    assert_eq!(
        acknowledged.effective.as_ref().unwrap().gpus[0].guarantee_sms,
        20
    );
    assert_eq!(world.leases.len(), 1, "it took another lease");
}

/// What the daemon says to move lease 1: `sms` SMs and a batch size.
fn move_to(fake: &Fake, kind: pb::DirectiveKind, generation: u64, sms: u32, batch: u32) {
    let lease = fake.world().leases[&1].clone();
    let mut target = lease.target.clone().unwrap();
    target.gpus[0].guarantee_sms = sms;
    let directive = pb::Directive {
        lease: Some(pb::LeaseRef {
            lease_id: 1,
            fence: lease.fence,
        }),
        kind: kind.into(),
        generation,
        target: Some(target),
        batch,
        ..pb::Directive::default()
    };
    fake.world().send(&pb::SessionResponse {
        directives: vec![directive],
        ..pb::SessionResponse::default()
    });
}

#[test]
fn a_signal_during_a_move_ends_the_command() {
    for (signal, user_first) in [
        (Signal::SIGTERM, false),
        (Signal::SIGINT, false),
        (Signal::SIGHUP, false),
        (Signal::SIGTERM, true),
    ] {
        let fake = Fake::start();
        let dir = tempfile::tempdir().unwrap();
        let (log, told) = (flag(&dir, "log"), flag(&dir, "told"));
        // Goes on until it was told twice, and not at all in a second life.
        let text = format!(
            "echo start >> {log}; [ -e {told}2 ] && exit 9
             n=0; trap 'n=$((n+1)); touch {told}$n' TERM INT HUP; touch {told}0
             while [ $n -lt 2 ]; do sleep 0.02; done; exit 7",
            log = log.display(),
            told = told.display()
        );
        let child = script(&fake, &[], &text).spawn().unwrap();
        until("the script is ready", there(&flag(&dir, "told0")));
        fake.wait("a session", |w| !w.sessions.is_empty());
        let restart = || move_to(&fake, pb::DirectiveKind::Restart, 5, 20, 0);
        if user_first {
            send(&child, signal);
        } else {
            restart();
        }
        until("it was told once", there(&flag(&dir, "told1")));
        if user_first {
            restart();
        } else {
            send(&child, signal);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(7),
            "{signal}: {}",
            stderr(&output)
        );
        assert_eq!(fs::read_to_string(&log).unwrap(), "start\n", "{signal}");
        assert_eq!(phase(&fake, 1), pb::LeasePhase::Ended);
    }
}

#[test]
fn another_batch_size_restarts_the_command_with_it() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let log = flag(&dir, "log");
    let text = format!(
        "echo batch $EVENKEEL_BATCH >> {log}; trap 'exit 0' TERM
         [ \"$EVENKEEL_BATCH\" = 64 ] && exit 3
         while :; do sleep 0.02; done",
        log = log.display()
    );
    fake.world().batch = 32;
    fake.world()
        .environment
        .extend([("EVENKEEL_BATCH".to_owned(), "32".to_owned())]);
    let child = script(&fake, &[], &text).spawn().unwrap();
    until("the first life", || {
        fs::read_to_string(&log).is_ok_and(|l| l.contains("batch 32"))
    });
    fake.wait("a session", |w| !w.sessions.is_empty());
    // The same share and batch size: nothing to do but to say so.
    move_to(&fake, pb::DirectiveKind::Target, 5, 10, 32);
    fake.wait("an acknowledgement", |w| {
        w.acknowledgements.iter().any(|a| a.generation == 5)
    });
    move_to(&fake, pb::DirectiveKind::Target, 6, 10, 64);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "batch 32\nbatch 64\n",
        "{}",
        stderr(&output)
    );
    let world = fake.world();
    assert!(world.acknowledgements.iter().any(|a| a.generation == 6));
}

#[test]
fn cores_change_while_the_command_runs() {
    let fake = Fake::start();
    fake.world().cpus = "0-1".into();
    let dir = tempfile::tempdir().unwrap();
    let (ready, go) = (flag(&dir, "ready"), flag(&dir, "go"));
    // What is started from `run` after the move inherits it; the command's own processes are the daemon's to bind.
    let text = format!(
        "touch {}; while ! [ -e {} ]; do sleep 0.02; done; grep Cpus_allowed_list /proc/$PPID/status",
        ready.display(),
        go.display()
    );
    for mode in ["live", "restart", "fixed"] {
        let child = script(&fake, &["--resize", mode], &text).spawn().unwrap();
        until("the script is ready", there(&ready));
        let id = fake.world().leases.len() as u64;
        tell(&fake, id, pb::DirectiveKind::Target, |d| {
            d.generation = 5;
            let target = d.target.get_or_insert_default();
            (target.cores, target.cpus) = ("1".into(), "1".into());
        });
        fake.wait("an acknowledgement", |w| !w.acknowledgements.is_empty());
        fs::write(&go, "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{mode}: {}", stderr(&output));
        assert_eq!(stdout(&output), "Cpus_allowed_list:\t1\n", "{mode}");
        let told = fake.world().acknowledgements.remove(0);
        assert_eq!((told.generation, &*told.effective.unwrap().cpus), (5, "1"));
        fs::remove_file(&ready).unwrap();
        fs::remove_file(&go).unwrap();
    }
}
