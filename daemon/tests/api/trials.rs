//! Trials by running workers: offered over a session, asked for by a calibration, answered, or not.
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use super::kit::{Rig, Who, acquire, next, reference, refused, unenforced, until, why};

/// A worker with a session that renews its lease.
struct Worker {
    lease: pb::Lease,
    up: mpsc::Sender<pb::SessionRequest>,
    down: Streaming<pb::SessionResponse>,
}

impl Worker {
    async fn start(rig: &Rig, cores: u32) -> Self {
        let mut leases = rig.leases(Who::Alice).await;
        let lease = acquire(&mut leases, unenforced(cores)).await;
        let (up, frames) = mpsc::channel(16);
        let down = leases.session(ReceiverStream::new(frames)).await;
        let down = down.unwrap().into_inner();
        let mut worker = Self { lease, up, down };
        let renew = vec![reference(&worker.lease)];
        worker
            .tell(pb::SessionRequest {
                renew,
                ..Default::default()
            })
            .await;
        assert_eq!(worker.next("the renewal").await.renewals.len(), 1);
        worker
    }
    async fn tell(&self, frame: pb::SessionRequest) {
        self.up.send(frame).await.unwrap();
    }
    async fn next(&mut self, what: &str) -> pb::SessionResponse {
        next(what, &mut self.down).await
    }
    async fn offer(&self, stage: &str) {
        let trial_offers = vec![pb::TrialOffer {
            lease: Some(reference(&self.lease)),
            stage: stage.to_owned(),
        }];
        self.tell(pb::SessionRequest {
            trial_offers,
            ..Default::default()
        })
        .await;
    }
    async fn answer(&self, trial_id: u64, units_per_s: f64, failure: &str) {
        let trial_results = vec![pb::TrialResult {
            lease: Some(reference(&self.lease)),
            trial_id,
            units_per_s,
            memory_bytes: 7,
            failure: failure.to_owned(),
        }];
        self.tell(pb::SessionRequest {
            trial_results,
            ..Default::default()
        })
        .await;
    }
    /// The next trial; what else comes is passed over.
    async fn trial(&mut self) -> pb::Trial {
        loop {
            let answer = self.next("a trial").await;
            if let Some(trial) = answer.trials.into_iter().next() {
                return trial;
            }
        }
    }
    /// Why something was refused.
    async fn refusal(&mut self) -> String {
        loop {
            let answer = self.next("a refusal").await;
            if let Some(why) = answer.refused.into_iter().next() {
                return why;
            }
        }
    }
}

fn wanted(cores: u32) -> pb::RunTrialRequest {
    pb::RunTrialRequest {
        stage: "pick/sim".to_owned(),
        cores,
        batch: 4,
        warmup_ms: 20,
        measure_ms: 50,
        ..Default::default()
    }
}

type Called = tokio::task::JoinHandle<Result<pb::RunTrialResponse, tonic::Status>>;

/// Calls until the offer, which goes another way, has arrived.
async fn call(rig: &Rig, who: Who, asked: pb::RunTrialRequest) -> Called {
    let mut profiles = rig.profiles(who).await;
    tokio::spawn(async move {
        loop {
            match profiles.run_trial(asked.clone()).await {
                Err(status) if status.code() == Code::NotFound => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return other.map(tonic::Response::into_inner),
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_offers_itself_runs_trials_within_its_lease() {
    let rig = Rig::synthetic().await;
    let mut profiles = rig.profiles(Who::Alice).await;
    let nobody = refused(
        "nobody",
        profiles.run_trial(wanted(1)).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    assert!(
        nobody
            .message()
            .contains("offers itself for trials of pick/sim")
    );
    let mut worker = Worker::start(&rig, 2).await;
    worker.offer("pick/sim").await;
    let called = call(&rig, Who::Alice, wanted(2)).await;
    let trial = worker.trial().await;
    assert_eq!(
        (trial.cores, trial.batch, trial.replicas, trial.measure_ms),
        (2, 4, 1, 50)
    );
    // It is at work on that one, and others come back; another tenant's call finds nobody.
    let busy = refused(
        "busy",
        profiles.run_trial(wanted(1)).await,
        Code::ResourceExhausted,
        "BUSY",
    );
    assert!(busy.message().contains("at work on others"), "{busy:?}");
    let mut bobs = rig.profiles(Who::Bob).await;
    refused(
        "another's",
        bobs.run_trial(wanted(1)).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    worker.answer(trial.trial_id, 123.5, "").await;
    let told = called.await.unwrap().unwrap();
    assert_eq!(
        (told.units_per_s, told.memory_bytes, told.lease_id),
        (123.5, 7, worker.lease.id)
    );
    // More than its lease has: nobody is asked.
    let beyond = refused(
        "too large",
        profiles.run_trial(wanted(3)).await,
        Code::FailedPrecondition,
        "BEYOND_LEASE",
    );
    assert!(beyond.message().contains("has 2 cores"), "{beyond:?}");
    let (_, short) = why(&beyond);
    assert_eq!(
        (&short["resource"], &short["short_by"]),
        (&"cores".to_owned(), &"1".to_owned())
    );
    // What does not fit is an answer, and so is no answer in time.
    let called = call(&rig, Who::Alice, wanted(1)).await;
    let trial = worker.trial().await;
    worker.answer(trial.trial_id, 5.0, "out of memory").await;
    let told = called.await.unwrap().unwrap();
    assert_eq!(
        (told.units_per_s, told.failure.as_str()),
        (0.0, "out of memory")
    );
    let impatient = pb::RunTrialRequest {
        patience_ms: 1,
        ..wanted(1)
    };
    let called = call(&rig, Who::Alice, impatient).await;
    let trial = worker.trial().await;
    let told = called.await.unwrap().unwrap();
    assert!(told.failure.contains("did not answer within"), "{told:?}");
    worker.answer(trial.trial_id, 5.0, "").await;
    assert!(worker.refusal().await.contains("nobody waits"));
    // It takes its offer back.
    worker.offer("").await;
    // A trial that got in before is withdrawn with the offer.
    until("the end of the offer", async || {
        let answer = profiles.run_trial(wanted(1)).await;
        answer.err().filter(|s| s.code() == Code::NotFound)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_goes_away_fails_its_trial_and_its_offer() {
    let rig = Rig::synthetic().await;
    let mut worker = Worker::start(&rig, 2).await;
    worker.offer("pick/sim").await;
    let called = call(&rig, Who::Alice, wanted(2)).await;
    worker.trial().await;
    drop(worker);
    let status = called.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    let mut profiles = rig.profiles(Who::Alice).await;
    refused(
        "nobody",
        profiles.run_trial(wanted(1)).await,
        Code::NotFound,
        "NOT_FOUND",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_holder_of_a_lease_offers_it() {
    let rig = Rig::synthetic().await;
    let mut worker = Worker::start(&rig, 1).await;
    let offer = |lease_id, fence, stage: &str| pb::SessionRequest {
        trial_offers: vec![pb::TrialOffer {
            lease: Some(pb::LeaseRef { lease_id, fence }),
            stage: stage.to_owned(),
        }],
        ..Default::default()
    };
    let (id, fence) = (worker.lease.id, worker.lease.fence);
    for (frame, why) in [
        (offer(id, fence + 1, "pick/sim"), "does not renew"),
        (offer(id + 7, fence, "pick/sim"), "does not renew"),
        (offer(id, fence, "no such\nname"), "stage"),
    ] {
        worker.tell(frame).await;
        let said = worker.refusal().await;
        assert!(
            said.starts_with("trial_offers[0]") && said.contains(why),
            "{said}"
        );
    }
    worker.answer(99, f64::NAN, "").await;
    assert!(worker.refusal().await.contains("units_per_s"));
    let many = pb::SessionRequest {
        trial_offers: vec![pb::TrialOffer::default(); 65],
        ..Default::default()
    };
    worker.tell(many).await;
    assert!(worker.refusal().await.contains("at most"));
    let mut profiles = rig.profiles(Who::Alice).await;
    refused(
        "nobody",
        profiles.run_trial(wanted(1)).await,
        Code::NotFound,
        "NOT_FOUND",
    );
}
