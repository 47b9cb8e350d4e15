//! The stream of a process: renewals, reports, acknowledgements up; directives down.
use evenkeel_proto::v1 as pb;
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use super::jobs::{attach, job_with_workers, spec, submit, uneven_profiles, worker};
use super::kit::{Rig, SOON, Who, acquire, next, reference, unenforced, until};

struct Session {
    up: mpsc::Sender<pb::SessionRequest>,
    down: Streaming<pb::SessionResponse>,
}

impl Session {
    async fn open(rig: &Rig, who: Who) -> Self {
        let (up, frames) = mpsc::channel(16);
        let down = rig
            .leases(who)
            .await
            .session(ReceiverStream::new(frames))
            .await;
        let down = down.unwrap().into_inner();
        Self { up, down }
    }
    async fn send(&self, frame: pb::SessionRequest) {
        self.up.send(frame).await.unwrap();
    }
    async fn renew(&self, leases: &[pb::Lease]) {
        let renew = leases.iter().map(reference).collect();
        self.send(pb::SessionRequest {
            renew,
            ..Default::default()
        })
        .await;
    }
    async fn next(&mut self, what: &str) -> pb::SessionResponse {
        next(what, &mut self.down).await
    }
    /// The next directive; what else comes is passed over.
    async fn directive(&mut self, what: &str) -> pb::Directive {
        loop {
            if let Some(directive) = self.next(what).await.directives.into_iter().next() {
                return directive;
            }
        }
    }
    /// The status that the stream ends with.
    async fn end(mut self) -> tonic::Status {
        let end = async {
            loop {
                match self.down.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("ended without a word"),
                    Err(status) => return status,
                }
            }
        };
        tokio::time::timeout(SOON, end).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_frame_renews_many_in_order() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let bobs = acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(acquire(&mut alice, unenforced(1)).await);
    }
    leases.insert(2, bobs);
    leases[4].fence = 7;
    let mut session = Session::open(&rig, Who::Alice).await;
    for round in 0..3 {
        session.renew(&leases).await;
        let renewals = session.next("the renewals").await.renewals;
        let ids: Vec<u64> = renewals.iter().map(|r| r.lease_id).collect();
        assert_eq!(
            ids,
            leases.iter().map(|l| l.id).collect::<Vec<_>>(),
            "round {round}"
        );
        use pb::RenewStatus::{Fenced, Lost, Renewed};
        let statuses: Vec<_> = renewals.iter().map(|r| r.status()).collect();
        assert_eq!(statuses, [Renewed, Renewed, Lost, Renewed, Fenced, Renewed]);
        assert_eq!(renewals[0].remaining_ms, 30_000);
    }
    // An empty frame is answered, too: the line is up.
    session.send(pb::SessionRequest::default()).await;
    assert_eq!(
        session.next("an answer").await,
        pb::SessionResponse::default()
    );
    drop(session.up);
    assert!(
        session.down.message().await.unwrap().is_none(),
        "ended by its client, without an error"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_told_and_the_rest_goes_on() {
    let rig = Rig::synthetic().await;
    let lease = acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    let mut session = Session::open(&rig, Who::Alice).await;
    let report = |units| pb::WorkReport {
        lease: Some(reference(&lease)),
        lanes: 1,
        intervals: vec![pb::BusyInterval {
            began_us_ago: 9,
            busy_us: 9,
            units,
            ..Default::default()
        }],
        steps: vec![],
    };
    let before = rig.snapshot().await;
    for (what, frame, expect) in [
        ("NaN", report(f64::NAN), "reports[0]: intervals[0].units: "),
        ("no job", report(1.0), "reports[0]: report: "),
        (
            "an old fence",
            pb::WorkReport {
                lease: Some(pb::LeaseRef {
                    fence: 9,
                    ..reference(&lease)
                }),
                ..report(1.0)
            },
            "reports[0]: the fence",
        ),
        (
            "no lease",
            pb::WorkReport {
                lease: None,
                ..report(1.0)
            },
            "reports[0]: lease: ",
        ),
    ] {
        let reports = vec![frame];
        session
            .send(pb::SessionRequest {
                reports,
                ..Default::default()
            })
            .await;
        let refused = session.next(what).await.refused;
        assert!(
            refused.len() == 1 && refused[0].starts_with(expect),
            "{what}: {refused:?}"
        );
    }
    let acknowledgement = pb::Acknowledge {
        lease: Some(reference(&lease)),
        generation: 5,
        effective: lease.held.clone(),
    };
    let frame = pb::SessionRequest {
        acknowledgements: vec![acknowledgement],
        ..Default::default()
    };
    session.send(frame).await;
    let refused = session.next("a generation of the future").await.refused;
    assert!(
        refused[0].starts_with("acknowledgements[0]: generation: "),
        "{refused:?}"
    );
    session.renew(std::slice::from_ref(&lease)).await;
    assert_eq!(
        session.next("a renewal").await.renewals[0].status(),
        pb::RenewStatus::Renewed
    );
    assert_eq!(rig.snapshot().await, before, "nothing changed");

    let renew = vec![reference(&lease); 1_025];
    session
        .send(pb::SessionRequest {
            renew,
            ..Default::default()
        })
        .await;
    assert_eq!(
        session.end().await.code(),
        Code::InvalidArgument,
        "a frame over the limit ends it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replan_reaches_the_workers_shrinks_first() {
    let rig = Rig::local().await;
    let mut jobs = rig.jobs(Who::Alice).await;
    let (mut generation, mut training) = job_with_workers(&rig, "pick").await;
    let mut session = Session::open(&rig, Who::Alice).await;
    session.renew(&[generation.clone(), training.clone()]).await;
    assert_eq!(session.next("renewals").await.renewals.len(), 2);

    uneven_profiles(&rig, "pick").await;
    let update = pb::UpdateJobRequest {
        name: "pick".into(),
        replan: true,
        ..Default::default()
    };
    let job = jobs
        .update_job(update)
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(
        (
            job.moves,
            job.moving,
            job.plan.as_ref().unwrap().by.as_str()
        ),
        (1, true, "waterfill")
    );

    // Cores may go first, SMs after them: each is a generation of its own, and the latest counts.
    let mut moved = Vec::new();
    while moved.len() < 2 {
        let directive = session.directive("a directive").await;
        let lease = if directive.lease.unwrap().lease_id == generation.id {
            &mut generation
        } else {
            &mut training
        };
        if directive.generation <= lease.generation {
            continue; // said again before our acknowledgement was there
        }
        let target = directive.target.clone().unwrap();
        let (had, gets) = (sms(lease.target.as_ref().unwrap()), sms(&target));
        if had != gets {
            moved.push(gets < had);
        }
        // The training stage changes while it runs, generation's GPU share by a restart.
        let live = lease.resize() == pb::ResizeMode::Live || had == gets;
        let expect = if live {
            pb::DirectiveKind::Target
        } else {
            pb::DirectiveKind::Restart
        };
        assert_eq!(directive.kind(), expect);
        assert_eq!(
            directive.environment.is_empty(),
            live,
            "a restarted worker needs its environment"
        );
        (lease.generation, lease.target) = (directive.generation, Some(target.clone()));
        let acknowledgement = pb::Acknowledge {
            lease: directive.lease,
            generation: directive.generation,
            effective: Some(target),
        };
        let acknowledgements = vec![acknowledgement];
        session
            .send(pb::SessionRequest {
                acknowledgements,
                ..Default::default()
            })
            .await;
        let lease = lease.clone();
        until("the acknowledgement is in", async || {
            rig.observe(&lease).await;
            let mut client = rig.leases(Who::Alice).await;
            let got = client
                .get_lease(pb::GetLeaseRequest { lease_id: lease.id })
                .await
                .unwrap();
            let got = got.into_inner().lease.unwrap();
            let done = got.held == got.target && got.generation == lease.generation;
            (done || got.generation > lease.generation).then_some(())
        })
        .await;
    }
    assert_eq!(moved, [true, false], "the shrink goes first");
    let settled = until("the job is settled", async || {
        let mut jobs = rig.jobs(Who::Alice).await;
        let job = jobs
            .get_job(pb::GetJobRequest {
                name: "pick".into(),
            })
            .await
            .unwrap();
        job.into_inner().job.filter(|j| !j.moving)
    });
    assert_eq!(settled.await.leases.len(), 2);
}

/// Profiles by which generation and training are alike, and generation is twice as fast at the first batch size as at
/// the second.
async fn batched_profiles(rig: &Rig, job: &str, [best, other]: [u32; 2]) {
    let mut profiles = rig.profiles(Who::Alice).await;
    let at = |sms: u32, batch, units_per_s| pb::ProfilePoint {
        cores: 1,
        sms,
        batch,
        units_per_s,
        memory_bytes: if sms == 0 { 0 } else { 4 << 30 },
        ..Default::default()
    };
    let curve = |batch, units_per_sm: f64| {
        let sms = [2, 34, 66, 100, 132].into_iter();
        sms.map(move |sms| at(sms, batch, f64::from(sms) * units_per_sm))
    };
    for (stage, gpu, points) in [
        ("sim", "none", vec![at(0, 1, 2_000.0)]),
        (
            "gen",
            "H100",
            curve(best, 10.0).chain(curve(other, 5.0)).collect(),
        ),
        ("train", "H100", curve(1, 10.0).collect()),
    ] {
        let key = Some(pb::ProfileKey {
            stage: format!("{job}/{stage}"),
            gpu: gpu.into(),
        });
        let profile = Some(pb::Profile {
            key,
            points,
            ..Default::default()
        });
        let request = pb::ImportProfileRequest { profile };
        profiles.import_profile(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_size_reaches_its_worker_also_when_nothing_else_changes() {
    let rig = Rig::local().await;
    batched_profiles(&rig, "pick", [8, 16]).await;
    let mut declared = spec("pick");
    declared.stages[1].batches = vec![8, 16];
    submit(&rig, Who::Alice, declared).await;
    let granted = worker(&rig, "pick", "gen").await;
    assert_eq!(granted.batch, 8, "the plan's, with the grant");
    let held = attach(&rig, &granted).await;
    assert_eq!((held.batch, held.generation), (8, 1));
    let again = pb::AttachLeaseRequest {
        lease_id: granted.id,
        fence: granted.fence,
        pid: 0,
    };
    let mut alice = rig.leases(Who::Alice).await;
    let environment = alice
        .attach_lease(again)
        .await
        .unwrap()
        .into_inner()
        .environment;
    assert_eq!(
        environment.get("EVENKEEL_BATCH").map(String::as_str),
        Some("8")
    );
    let mut session = Session::open(&rig, Who::Alice).await;
    session.renew(std::slice::from_ref(&held)).await;

    // Another batch size is as good now as the one was before: the same shares.
    batched_profiles(&rig, "pick", [16, 8]).await;
    let update = pb::UpdateJobRequest {
        name: "pick".into(),
        replan: true,
        ..Default::default()
    };
    rig.jobs(Who::Alice).await.update_job(update).await.unwrap();
    let directive = session.directive("the batch size").await;
    assert_eq!(
        (directive.kind(), directive.generation, directive.batch),
        (pb::DirectiveKind::Target, 2, 16)
    );
    assert_eq!(directive.target, held.target, "nothing else changes");
    let acknowledgements = vec![pb::Acknowledge {
        lease: directive.lease,
        generation: 2,
        effective: directive.target,
    }];
    session
        .send(pb::SessionRequest {
            acknowledgements,
            ..Default::default()
        })
        .await;
    let get = pb::GetLeaseRequest { lease_id: held.id };
    let lease = alice
        .get_lease(get)
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!((lease.batch, lease.generation), (16, 2));
    assert_eq!((lease.held, lease.phase), (held.held, held.phase));
}

fn sms(v: &pb::ResourceVector) -> u32 {
    v.gpus.iter().map(|g| g.guarantee_sms).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_is_told_what_the_old_one_was_not() {
    let rig = Rig::local().await;
    let (generation, training) = job_with_workers(&rig, "pick").await;
    uneven_profiles(&rig, "pick").await;
    let update = pb::UpdateJobRequest {
        name: "pick".into(),
        replan: true,
        ..Default::default()
    };
    rig.jobs(Who::Alice).await.update_job(update).await.unwrap();
    for _ in 0..2 {
        let mut session = Session::open(&rig, Who::Alice).await;
        session.renew(&[generation.clone(), training.clone()]).await;
        let directive = session.directive("what is still to be done").await;
        assert!(directive.generation > 1);
        let again = session
            .directive("it is said again until it is acknowledged")
            .await;
        assert_eq!(
            (again.generation, again.lease),
            (directive.generation, directive.lease)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_and_drained_holders_are_told() {
    let rig = Rig::local().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, super::kit::enforced(1, 2, 1)).await;
    let held = attach(&rig, &lease).await;
    let mut session = Session::open(&rig, Who::Alice).await;
    session.renew(std::slice::from_ref(&held)).await;
    let mut admin = rig.nodes(Who::Admin).await;
    admin
        .drain_node(pb::DrainNodeRequest { draining: true })
        .await
        .unwrap();
    let drain = session.directive("the drain").await;
    assert_eq!(drain.kind(), pb::DirectiveKind::Drain);
    assert_eq!(drain.lease, Some(reference(&held)));
    admin
        .drain_node(pb::DrainNodeRequest { draining: false })
        .await
        .unwrap();

    let revoked = alice
        .revoke_lease(pb::RevokeLeaseRequest { lease_id: held.id })
        .await
        .unwrap();
    assert_eq!(
        revoked.into_inner().lease.unwrap().phase(),
        pb::LeasePhase::Quarantined
    );
    let release = loop {
        let directive = session.directive("the revocation").await;
        if directive.kind() != pb::DirectiveKind::Drain {
            break directive;
        }
    };
    assert_eq!(release.kind(), pb::DirectiveKind::Release);
    assert_eq!(
        release.lease,
        Some(reference(&held)),
        "with the fence that its holder knows"
    );
    session.renew(std::slice::from_ref(&held)).await;
    loop {
        if let Some(renewal) = session.next("a renewal").await.renewals.first() {
            assert_eq!(renewal.status(), pb::RenewStatus::Fenced);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_jobs_workers_are_told_and_can_still_renew_and_give_back() {
    let rig = Rig::local().await;
    let (generation, training) = job_with_workers(&rig, "pick").await;
    let mut session = Session::open(&rig, Who::Alice).await;
    session.renew(&[generation.clone(), training.clone()]).await;
    let cancel = pb::CancelJobRequest {
        name: "pick".into(),
    };
    let mut jobs = rig.jobs(Who::Alice).await;
    let cancelled = jobs.cancel_job(cancel).await.unwrap().into_inner();
    let job = cancelled.job.unwrap();
    assert_eq!(job.phase(), pb::JobPhase::Ended);
    let told: Vec<_> = job.leases.iter().map(|l| (l.id, l.fence)).collect();
    let both = [&generation, &training].map(|l| (l.id, l.fence));
    assert_eq!(told, both, "the answer says who was told");
    let member = job.leases[1].member.clone().unwrap();
    assert_eq!(
        (member.job.as_str(), member.stage.as_str()),
        ("pick", "train")
    );

    for _ in 0..2 {
        let release = session.directive("told, and told again").await;
        assert_eq!(release.kind(), pb::DirectiveKind::Release);
        assert!(release.reason.contains("its job is over"), "{release:?}");
    }
    session.renew(std::slice::from_ref(&training)).await;
    loop {
        if let Some(renewal) = session.next("a renewal").await.renewals.first() {
            assert_eq!(renewal.status(), pb::RenewStatus::Renewed);
            break;
        }
    }
    let release = pb::ReleaseLeaseRequest {
        lease_id: training.id,
        fence: training.fence,
    };
    let mut alice = rig.leases(Who::Alice).await;
    let released = alice.release_lease(release).await.unwrap().into_inner();
    assert_eq!(released.lease.unwrap().phase(), pb::LeasePhase::Draining);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_answered_while_the_ledger_is_written() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    let mut session = Session::open(&rig, Who::Alice).await;
    // Somebody with `sqlite3` holds the ledger: the controller waits for it in its next commit, and is not looked at.
    let ledger = format!("sqlite://{}", rig.ledger().display());
    let mut other = SqliteConnection::connect(&ledger).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let grant = tokio::spawn(async move { alice.acquire_lease(unenforced(1)).await });
    until("the controller waits for the disk", async || {
        let look = rig.handle().read(|_, _| ());
        let seen = tokio::time::timeout(std::time::Duration::from_millis(50), look).await;
        seen.is_err().then_some(())
    })
    .await;
    for round in 0..3 {
        session.renew(std::slice::from_ref(&lease)).await;
        let renewals = session.next("a renewal").await.renewals;
        assert_eq!(
            renewals[0].status(),
            pb::RenewStatus::Renewed,
            "round {round}"
        );
    }
    assert!(!grant.is_finished(), "the ledger was free");
    other.execute("ROLLBACK").await.unwrap();
    grant.await.unwrap().unwrap();
}
