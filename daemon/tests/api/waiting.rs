//! What a job in the queue is told to wait for, and what it is not told of others.
use evenkeel_proto::v1 as pb;

use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, enforced};

/// A job that needs so many cores at least.
fn on_cores(name: &str, n: u32) -> pb::JobSpec {
    let mut spec = spec(name);
    spec.stages.truncate(1);
    spec.stages[0].min_cores = n;
    spec
}

async fn told(rig: &Rig, who: Who, name: &str) -> String {
    let name = name.to_owned();
    let explained = rig
        .plans(who)
        .await
        .explain_job(pb::ExplainJobRequest { name })
        .await;
    let sentences = explained.unwrap().into_inner().sentences;
    let waits = sentences.into_iter().filter(|s| s.contains("waits for"));
    waits.collect::<Vec<_>>().join(" | ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_in_the_queue_says_what_is_short_and_who_has_it() {
    let rig = Rig::local().await;
    // Seven cores can be leased; alice takes four of them, and half of the memory.
    acquire(&mut rig.leases(Who::Alice).await, enforced(4, 66, 50)).await;
    submit(&rig, Who::Alice, on_cores("own", 5)).await;
    assert_eq!(
        told(&rig, Who::Alice, "own").await,
        "It waits for room: 2 more cores are needed than are free (5 asked, 3 free); held by lease 1 of alice (4 cores)."
    );
    submit(&rig, Who::Bob, on_cores("other", 4)).await;
    assert_eq!(
        told(&rig, Who::Bob, "other").await,
        "It waits for room: 1 more core is needed than is free (4 asked, 3 free); held by another tenant (4 cores)."
    );
    // There is room for this one, and who came first waits for it.
    submit(&rig, Who::Bob, on_cores("small", 1)).await;
    assert_eq!(
        told(&rig, Who::Bob, "small").await,
        "It waits for its turn: somebody else came first and waits for what it needs, too."
    );
    assert_eq!(
        told(&rig, Who::Admin, "small").await,
        "It waits for its turn: job own came first and waits for what it needs, too."
    );
    let mut hungry = spec("hungry");
    hungry.stages[2].memory_bytes = 40 << 30;
    submit(&rig, Who::Alice, hungry).await;
    let said = told(&rig, Who::Alice, "hungry").await;
    assert!(
        said.contains("more memory of") && said.contains("held by lease 1 of alice (50 GiB)"),
        "{said}"
    );
}
