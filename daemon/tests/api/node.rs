//! The node, its audit trail, health and reflection.
use evenkeel_core::node::PoolKind;
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::Millis;
use evenkeel_proto::v1 as pb;
use tonic::Code;
use tonic_health::pb as health;

use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, enforced, next, node, refused, unenforced, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_says_what_it_has_and_who_drains_it() {
    let rig = Rig::local().await;
    acquire(&mut rig.leases(Who::Alice).await, enforced(2, 20, 10)).await;
    let mut bob = rig.nodes(Who::Bob).await;
    let node = bob
        .get_node(pb::GetNodeRequest {})
        .await
        .unwrap()
        .into_inner()
        .node
        .unwrap();
    assert_eq!(
        (node.name.as_str(), node.kind.as_str()),
        ("testnode", "local")
    );
    assert_eq!(
        (node.cores.as_str(), node.reserved_cores.as_str()),
        ("0-7", "0")
    );
    assert_eq!(
        (node.used_cores.as_str(), node.live_leases, node.queued),
        ("1-2", 1, 0)
    );
    let gpu = &node.gpus[0];
    assert_eq!((gpu.used_sms, gpu.used_memory_bytes), (20, 10 << 30));
    assert_eq!(
        (gpu.sms, gpu.backend.as_str(), gpu.mode.as_str()),
        (132, "emulated", "enforce")
    );
    assert_eq!(gpu.emulated_socket, "/run/gpu-0.sock");
    assert_eq!(gpu.enforceable_sms.len(), 66);
    assert!(
        node.troubles.contains(&"a fan is loud".into()),
        "{:?}",
        node.troubles
    );
    assert_eq!(node.version, env!("CARGO_PKG_VERSION"));

    let mut watched = bob
        .watch_node(pb::WatchNodeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(!next("the node", &mut watched).await.node.unwrap().draining);
    let drain = pb::DrainNodeRequest { draining: true };
    refused(
        "bob",
        bob.drain_node(drain).await,
        Code::PermissionDenied,
        "NOT_ADMIN",
    );
    let drained = rig
        .nodes(Who::Admin)
        .await
        .drain_node(drain)
        .await
        .unwrap()
        .into_inner();
    assert!(drained.node.unwrap().draining);
    assert!(next("the drain", &mut watched).await.node.unwrap().draining);
    let late = rig
        .leases(Who::Alice)
        .await
        .acquire_lease(enforced(1, 2, 1))
        .await;
    refused("no grants", late, Code::FailedPrecondition, "DRAINING");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyone_reads_their_own_part_of_the_trail() {
    let rig = Rig::synthetic().await;
    let lease = acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let events = async |who, request: pb::ListEventsRequest| {
        let mut nodes = rig.nodes(who).await;
        nodes.list_events(request).await.unwrap().into_inner()
    };
    let all = events(Who::Admin, Default::default()).await;
    assert_eq!(all.events[0].kind, "node_installed");
    assert!(all.events.windows(2).all(|two| two[0].seq < two[1].seq));
    assert_eq!(all.next_after_seq, all.events.last().unwrap().seq);
    let own = events(Who::Alice, Default::default()).await.events;
    assert!(
        own.len() == 1 && own[0].lease_id == lease.id && own[0].tenant == "alice",
        "{own:?}"
    );
    assert!(own[0].json.contains("lease_granted"), "{}", own[0].json);

    let newest = pb::ListEventsRequest {
        newest: true,
        page_size: 1,
        ..Default::default()
    };
    assert_eq!(events(Who::Admin, newest).await.events[0].tenant, "bob");
    let after = pb::ListEventsRequest {
        after_seq: all.next_after_seq,
        ..Default::default()
    };
    assert!(events(Who::Admin, after).await.events.is_empty());
    let of_lease = pb::ListEventsRequest {
        lease_id: lease.id,
        ..Default::default()
    };
    assert_eq!(events(Who::Admin, of_lease).await.events.len(), 1);

    submit(&rig, Who::Alice, spec("pick")).await;
    let of_job = pb::ListEventsRequest {
        job: "pick".into(),
        ..Default::default()
    };
    let told = events(Who::Alice, of_job.clone()).await.events;
    assert_eq!(told[0].kind, "job_submitted", "{told:?}");
    let cancel = pb::CancelJobRequest {
        name: "pick".into(),
    };
    rig.jobs(Who::Alice).await.cancel_job(cancel).await.unwrap();
    let past = events(Who::Alice, of_job.clone()).await.events;
    assert_eq!(past.last().unwrap().kind, "job_ended", "also after its end");
    let bobs = rig.nodes(Who::Bob).await.list_events(of_job).await;
    refused("bob", bobs, Code::NotFound, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_reflection() {
    let rig = Rig::synthetic().await;
    let mut client = health::health_client::HealthClient::new(rig.channel(Who::Bob).await);
    for service in [
        "",
        "grants",
        "evenkeel.v1.LeaseService",
        "evenkeel.v1.NodeService",
    ] {
        let request = health::HealthCheckRequest {
            service: service.into(),
        };
        let watched = client.watch(request).await.unwrap();
        let serving = next(service, &mut { watched.into_inner() }).await;
        assert_eq!(
            serving.status(),
            health::health_check_response::ServingStatus::Serving,
            "{service:?}"
        );
    }
    use tonic_reflection::pb::v1 as reflection;
    let channel = rig.channel(Who::Bob).await;
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(channel);
    let ask = reflection::ServerReflectionRequest {
        message_request: Some(
            reflection::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
        ..Default::default()
    };
    let answers = client
        .server_reflection_info(tokio_stream::once(ask))
        .await
        .unwrap();
    let answer = next("the services", &mut { answers.into_inner() }).await;
    let text = format!("{answer:?}");
    for service in ["Lease", "Job", "Profile", "Plan", "Node"] {
        assert!(
            text.contains(&format!("evenkeel.v1.{service}Service")),
            "{service}: {text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_lease_is_told_to_its_owner_and_to_admins() {
    let settings = Settings {
        drain: Millis(1),
        ..Settings::default()
    };
    let rig = Rig::start(node(PoolKind::Local, 8, 1), settings).await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, enforced(1, 20, 10)).await;
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: 1,
        pid: 0,
    };
    let attached = alice.attach_lease(attach).await.unwrap().into_inner();
    let held = attached.lease.unwrap();
    let release = pb::ReleaseLeaseRequest {
        lease_id: held.id,
        fence: held.fence,
    };
    alice.release_lease(release).await.unwrap();
    let troubles = async |who| {
        let request = pb::GetNodeRequest {};
        let answer = rig.nodes(who).await.get_node(request).await.unwrap();
        let told = answer.into_inner().node.unwrap().troubles;
        told.into_iter().find(|t| t.contains("was given back"))
    };
    let told = until("the trouble", async || troubles(Who::Alice).await).await;
    assert!(told.contains("20 SMs and 10 GiB of gpu 0"), "{told}");
    assert_eq!(troubles(Who::Admin).await, Some(told));
    assert_eq!(troubles(Who::Bob).await, None, "it is not his");
}
