//! `evenkeel run` when its lease is over before its command is.
use super::*;

#[test]
fn a_lost_lease_stops_the_command() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ready = flag(&dir, "ready");
    let text = format!("touch {}; while :; do sleep 0.02; done", ready.display());
    let child = script(&fake, &["--ttl", "1s"], &text).spawn().unwrap();
    until("the script is ready", there(&ready));
    fake.world().fence(1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("lease 1 is lost"),
        "{}",
        stderr(&output)
    );
}

/// Tells the holder of a lease something.
pub(super) fn tell(
    fake: &Fake,
    id: u64,
    kind: pb::DirectiveKind,
    change: impl FnOnce(&mut pb::Directive),
) {
    fake.wait("a session", |w| w.sessions.iter().any(|s| !s.is_closed()));
    let lease = fake.world().leases[&id].clone();
    let mut directive = pb::Directive {
        lease: Some(pb::LeaseRef {
            lease_id: id,
            fence: lease.fence,
        }),
        kind: kind.into(),
        target: lease.target,
        ..pb::Directive::default()
    };
    change(&mut directive);
    fake.world().send(&pb::SessionResponse {
        directives: vec![directive],
        ..pb::SessionResponse::default()
    });
}

/// Runs until it is told to end, and then says 6.
fn until_told(ready: &Path) -> String {
    let ready = ready.display();
    format!("trap 'exit 6' TERM; touch {ready}; while :; do sleep 0.02; done")
}

#[test]
fn a_lease_that_is_asked_back_is_given_back_and_the_reason_is_told() {
    let fake = Fake::start();
    let revoked = pb::Event {
        kind: "lease_quarantined".into(),
        json: r#"{"kind":"lease_quarantined","id":1,"fence":3,"cause":"revoked"}"#.into(),
        ..pb::Event::default()
    };
    for (kind, lost, reason, expect) in [
        (
            pb::DirectiveKind::Drain,
            false,
            "this node is being drained",
            "(exit code 6): lease 1: this node is being drained",
        ),
        (
            pb::DirectiveKind::Release,
            false,
            "",
            "(exit code 6): lease 2 was asked back",
        ),
        (
            pb::DirectiveKind::Unspecified,
            true,
            "",
            "(exit code 6): lease 3 was revoked, by its owner or an admin",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ready = flag(&dir, "ready");
        let mut command = script(&fake, &["--ttl", "1s"], &until_told(&ready));
        let child = command.spawn().unwrap();
        until("the script is ready", there(&ready));
        let id = fake.world().leases.len() as u64;
        if lost {
            fake.world().events.push(revoked.clone());
            fake.world().fence(id);
        } else {
            tell(&fake, id, kind, |d| d.reason = reason.into());
        }
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(expect), "{said}");
        assert!(
            said.contains(&format!("evenkeel events --lease {id}")),
            "{said}"
        );
        if !lost {
            assert_eq!(phase(&fake, id), pb::LeasePhase::Ended, "it was given back");
        }
    }
}

#[test]
fn a_cancelled_job_is_named_as_the_reason() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ready = flag(&dir, "ready");
    let job = |phase: pb::JobPhase| pb::Job {
        phase: phase.into(),
        spec: Some(pb::JobSpec {
            stages: vec![pb::StageSpec {
                name: "training".into(),
                resize: pb::ResizeMode::Live.into(),
                ..pb::StageSpec::default()
            }],
            ..pb::JobSpec::default()
        }),
        ..pb::Job::default()
    };
    let admitted = job(pb::JobPhase::Admitted);
    fake.world().jobs.insert("reach".into(), admitted);
    let mut command = evenkeel(&fake);
    command
        .args(["run", "--job", "reach", "--stage", "training"])
        .args(["--", "sh", "-c", &until_told(&ready)]);
    let child = command.spawn().unwrap();
    until("the script is ready", there(&ready));
    let resize = fake.world().leases[&1].resize();
    assert_eq!(
        resize,
        pb::ResizeMode::Unspecified,
        "the daemon knows what the stage declares"
    );
    fake.world()
        .jobs
        .insert("reach".into(), job(pb::JobPhase::Ended));
    tell(&fake, 1, pb::DirectiveKind::Release, |_| {});
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("the command was stopped (exit code 6): job reach was cancelled"),
        "{said}"
    );
    assert_eq!(phase(&fake, 1), pb::LeasePhase::Ended, "it was given back");
}
