//! Leases: taken, kept, given back, said twice, and hidden from others.
use evenkeel_proto::v1 as pb;
use tonic::Code;

use super::kit::{
    Rig, Who, acquire, enforced, next, reference, refused, request_id, unenforced, until, why,
};

fn release(lease: &pb::Lease) -> pb::ReleaseLeaseRequest {
    pb::ReleaseLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
    }
}

async fn get(rig: &Rig, who: Who, id: u64) -> Result<pb::Lease, tonic::Status> {
    let mut client = rig.leases(who).await;
    let answer = client
        .get_lease(pb::GetLeaseRequest { lease_id: id })
        .await?;
    Ok(answer.into_inner().lease.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_taken_renewed_and_given_back() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(3)).await;
    assert_eq!(
        lease.phase(),
        pb::LeasePhase::Active,
        "nobody enforces it, so it is active at once"
    );
    assert_eq!(
        (lease.tenant.as_str(), lease.fence, lease.generation),
        ("alice", 1, 1)
    );
    assert_eq!(lease.ttl_ms, 30_000);
    assert!(
        (1..=30_000).contains(&lease.remaining_ms),
        "{}",
        lease.remaining_ms
    );
    let held = lease.held.as_ref().unwrap();
    assert_eq!(
        (held.cores.as_str(), held.cpus.as_str()),
        ("0-2", "0-2,100-102")
    );

    let renewed = alice.renew_leases(pb::RenewLeasesRequest {
        leases: vec![
            reference(&lease),
            pb::LeaseRef {
                fence: 9,
                ..reference(&lease)
            },
            pb::LeaseRef {
                lease_id: 77,
                fence: 1,
            },
        ],
    });
    let results = renewed.await.unwrap().into_inner().results;
    let statuses: Vec<_> = results.iter().map(|r| (r.lease_id, r.status())).collect();
    use pb::RenewStatus::{Fenced, Lost, Renewed};
    assert_eq!(
        statuses,
        [(lease.id, Renewed), (lease.id, Fenced), (77, Lost)]
    );
    assert_eq!(results[0].remaining_ms, 30_000);

    let listed = alice
        .list_leases(pb::ListLeasesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        listed.leases.iter().map(|l| l.id).collect::<Vec<_>>(),
        [lease.id]
    );
    assert_eq!(listed.next_after_id, 0);

    let released = alice
        .release_lease(release(&lease))
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(
        (released.phase(), released.end()),
        (pb::LeasePhase::Ended, pb::LeaseEnd::Released)
    );
    let again = alice
        .release_lease(release(&lease))
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(
        (again.id, again.end()),
        (lease.id, pb::LeaseEnd::Released),
        "said again"
    );
    let remembered = get(&rig, Who::Alice, lease.id).await.unwrap();
    assert_eq!(remembered.end(), pb::LeaseEnd::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_gives_the_same_lease_also_in_the_next_life() {
    let mut rig = Rig::synthetic().await;
    let request = unenforced(2);
    let first = acquire(&mut rig.leases(Who::Alice).await, request.clone()).await;
    let other = pb::AcquireLeaseRequest {
        cores: 3,
        ..request.clone()
    };
    for life in ["the same life", "the next life"] {
        let mut alice = rig.leases(Who::Alice).await;
        let again = acquire(&mut alice, request.clone()).await;
        assert_eq!((again.id, again.fence), (first.id, first.fence), "{life}");
        refused(
            life,
            alice.acquire_lease(other.clone()).await,
            Code::AlreadyExists,
            "OTHER_BODY",
        );
        // Another tenant's id is another request.
        let mut bob = rig.leases(Who::Bob).await;
        let bobs = acquire(&mut bob, request.clone()).await;
        assert_ne!(bobs.id, first.id);
        bob.release_lease(release(&bobs)).await.unwrap();
        rig.restart().await;
    }
    let mut alice = rig.leases(Who::Alice).await;
    alice.release_lease(release(&first)).await.unwrap();
    rig.restart().await;
    let over = acquire(&mut rig.leases(Who::Alice).await, request).await;
    assert_eq!(
        (over.id, over.end()),
        (first.id, pb::LeaseEnd::Released),
        "its end is remembered"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_lease_does_not_exist() {
    let rig = Rig::synthetic().await;
    let lease = acquire(&mut rig.leases(Who::Alice).await, unenforced(6)).await;
    let mut bob = rig.leases(Who::Bob).await;
    let before = rig.snapshot().await;
    let id = lease.id;
    let not_found = (Code::NotFound, "NOT_FOUND");
    let got = bob.get_lease(pb::GetLeaseRequest { lease_id: id }).await;
    refused("get", got, not_found.0, not_found.1);
    let released = bob.release_lease(release(&lease)).await;
    refused("release", released, not_found.0, not_found.1);
    let revoked = bob
        .revoke_lease(pb::RevokeLeaseRequest { lease_id: id })
        .await;
    refused("revoke", revoked, not_found.0, not_found.1);
    let clear = pb::ClearLeaseRequest {
        lease_id: id,
        reason: "sure".into(),
    };
    refused(
        "clear",
        bob.clear_lease(clear).await,
        Code::PermissionDenied,
        "NOT_ADMIN",
    );
    let renewed = bob.renew_leases(pb::RenewLeasesRequest {
        leases: vec![reference(&lease)],
    });
    assert_eq!(
        renewed.await.unwrap().into_inner().results[0].status(),
        pb::RenewStatus::Lost
    );
    let listed = bob
        .list_leases(pb::ListLeasesRequest::default())
        .await
        .unwrap();
    assert!(listed.into_inner().leases.is_empty());
    // What is short is told, and not who has it.
    let short = bob.acquire_lease(unenforced(4)).await;
    let status = refused("short", short, Code::ResourceExhausted, "SHORT");
    let (_, metadata) = why(&status);
    assert_eq!(
        (metadata["resource"].as_str(), metadata["short_by"].as_str()),
        ("cores", "2")
    );
    assert_eq!(metadata["holder"], "another tenant (6 cores)");
    assert!(!status.message().contains("alice"), "{status:?}");
    assert_eq!(rig.snapshot().await, before, "nothing changed");
    // An admin sees it, and may take it back.
    assert_eq!(get(&rig, Who::Admin, id).await.unwrap().tenant, "alice");
    let mut admin = rig.leases(Who::Admin).await;
    let revoked = admin
        .revoke_lease(pb::RevokeLeaseRequest { lease_id: id })
        .await
        .unwrap();
    assert_eq!(
        revoked.into_inner().lease.unwrap().end(),
        pb::LeaseEnd::Revoked
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_fits_is_said_at_once() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let waiting = pb::AcquireLeaseRequest {
        wait_ms: 60_000,
        ..unenforced(9)
    };
    let never = alice.acquire_lease(waiting).await;
    let status = refused("9 of 8", never, Code::FailedPrecondition, "NEVER_FITS");
    let (_, metadata) = why(&status);
    assert_eq!(
        (metadata["resource"].as_str(), metadata["has"].as_str()),
        ("cores", "8")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_waited_in_and_left() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let all = acquire(&mut alice, unenforced(8)).await;
    let request = pb::AcquireLeaseRequest {
        wait_ms: 60_000,
        ..unenforced(2)
    };
    let mut bob = rig.leases(Who::Bob).await;
    let waiting = tokio::spawn(async move { acquire(&mut bob, request).await });
    let queued = async || {
        rig.handle()
            .read(|s, _| s.durable.queue().count())
            .await
            .unwrap()
    };
    until("bob is in the queue", async || {
        (queued().await == 1).then_some(())
    })
    .await;
    alice.release_lease(release(&all)).await.unwrap();
    let granted = waiting.await.unwrap();
    assert_eq!(
        (granted.tenant.as_str(), granted.phase()),
        ("bob", pb::LeasePhase::Active)
    );

    let hasty = pb::AcquireLeaseRequest {
        wait_ms: 50,
        ..unenforced(8)
    };
    let late = alice.acquire_lease(hasty).await;
    refused(
        "too little time",
        late,
        Code::DeadlineExceeded,
        "QUEUE_TIMEOUT",
    );
    assert_eq!(queued().await, 0, "who does not wait is not in the queue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_loses_nothing() {
    let rig = Rig::synthetic().await;
    for _ in 0..20 {
        let request = unenforced(1);
        let mut vanishing = rig.leases(Who::Alice).await;
        let sent = request.clone();
        let call = tokio::spawn(async move { vanishing.acquire_lease(sent).await });
        tokio::task::yield_now().await;
        call.abort();
        let mut alice = rig.leases(Who::Alice).await;
        let lease = acquire(&mut alice, request.clone()).await;
        assert_eq!(acquire(&mut alice, request).await.id, lease.id);
        let listed = alice
            .list_leases(pb::ListLeasesRequest::default())
            .await
            .unwrap();
        assert_eq!(
            listed.into_inner().leases.len(),
            1,
            "granted once, whoever heard of it"
        );
        alice.release_lease(release(&lease)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_go_on_where_they_ended() {
    let rig = Rig::synthetic().await;
    let (mut alice, mut bob) = (rig.leases(Who::Alice).await, rig.leases(Who::Bob).await);
    let mut mine = Vec::new();
    for _ in 0..4 {
        mine.push(acquire(&mut alice, unenforced(1)).await.id);
        acquire(&mut bob, unenforced(1)).await;
    }
    let mut after_id = 0;
    let mut seen = Vec::new();
    loop {
        let page = pb::ListLeasesRequest {
            page_size: 2,
            after_id,
            ..Default::default()
        };
        let page = alice.list_leases(page).await.unwrap().into_inner();
        assert!(page.leases.len() <= 2);
        seen.extend(page.leases.iter().map(|l| l.id));
        after_id = page.next_after_id;
        if after_id == 0 {
            break;
        }
    }
    assert_eq!(seen, mine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_caller_attaches_and_gets_its_environment() {
    let rig = Rig::local().await;
    let mut alice = rig.leases(Who::Alice).await;
    let request = pb::AcquireLeaseRequest {
        processes: 4,
        ..enforced(2, 33, 10)
    };
    let lease = acquire(&mut alice, request).await;
    assert_eq!(lease.phase(), pb::LeasePhase::Pending);
    let share = &lease.target.as_ref().unwrap().gpus[0];
    assert_eq!(
        (share.cap_sms, share.cap_percent),
        (34, 26),
        "the next count that can be enforced"
    );
    assert_eq!(
        (share.gpu_uuid.as_str(), share.emulated_socket.as_str()),
        ("GPU-0", "/run/gpu-0.sock")
    );

    let attach = |pid, fence| pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence,
        pid,
    };
    let stranger = alice.attach_lease(attach(1, 1)).await;
    let status = refused(
        "init is no child of ours",
        stranger,
        Code::InvalidArgument,
        "INVALID",
    );
    assert_eq!(why(&status).1["field"], "pid");
    let attached = alice.attach_lease(attach(0, 1)).await.unwrap().into_inner();
    let held = attached.lease.unwrap();
    assert_eq!(
        (held.fence, held.pid, held.phase()),
        (2, std::process::id(), pb::LeasePhase::Attached)
    );
    let expect = [
        ("EVENKEEL_LEASE_ID", lease.id.to_string()),
        ("EVENKEEL_LEASE_FENCE", "2".into()),
        (
            "EVENKEEL_SOCKET",
            rig.socket(Who::Alice).display().to_string(),
        ),
        ("EVENKEEL_CORES", "1-2".into()),
        ("EVENKEEL_CPUS", "1-2,101-102".into()),
        ("CUDA_VISIBLE_DEVICES", "GPU-0".into()),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "26".into()),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2560M".into()),
        ("EVENKEEL_GPU_SOCKET", "/run/gpu-0.sock".into()),
    ];
    for (variable, value) in &expect {
        assert_eq!(
            attached.environment.get(*variable),
            Some(value),
            "{variable}"
        );
    }
    assert_eq!(
        attached.environment.len(),
        expect.len(),
        "{:?}",
        attached.environment
    );
    let again = alice
        .attach_lease(attach(0, 1))
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(again.fence, 2, "said again");
    let wrong = alice.attach_lease(attach(0, 9)).await;
    let status = refused("a wrong fence", wrong, Code::FailedPrecondition, "FENCED");
    let told = why(&status).1;
    assert_eq!(
        (told.get("given").map(String::as_str), told.get("current")),
        (Some("9"), None),
        "which fence is right is not told"
    );

    assert_eq!(held.share_kind, "unverified");
    rig.observe(&held).await;
    let active = get(&rig, Who::Alice, lease.id).await.unwrap();
    assert_eq!(active.phase(), pb::LeasePhase::Active);
    rig.observe(&active).await;
    assert_eq!(
        get(&rig, Who::Alice, lease.id).await.unwrap().share_kind,
        "capped"
    );

    // Released: draining until the tree is off the GPU. An admin can clear it.
    let released = alice
        .release_lease(release(&active))
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(
        (released.phase(), released.fence),
        (pb::LeasePhase::Draining, 3)
    );
    let mut admin = rig.leases(Who::Admin).await;
    let clear = pb::ClearLeaseRequest {
        lease_id: lease.id,
        reason: "it is unplugged".into(),
    };
    let cleared = admin
        .clear_lease(clear)
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(cleared.end(), pb::LeaseEnd::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_holds_for_its_parent_and_nobody_attaches_from_afar() {
    let rig = Rig::local().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, enforced(1, 2, 1)).await;
    let mut child = tokio::process::Command::new("sleep")
        .arg("600")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = child.id().unwrap();
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: 1,
        pid,
    };
    let uri = format!("http://{}", rig.tcp());
    let mut far = pb::lease_service_client::LeaseServiceClient::connect(uri)
        .await
        .unwrap();
    refused(
        "from afar",
        far.attach_lease(attach).await,
        Code::FailedPrecondition,
        "NOT_LOCAL",
    );
    assert_eq!(
        far.get_lease(pb::GetLeaseRequest { lease_id: lease.id })
            .await
            .unwrap()
            .into_inner()
            .lease
            .unwrap()
            .id,
        lease.id
    );
    let held = alice
        .attach_lease(attach)
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    assert_eq!(held.pid, pid);
    child.kill().await.unwrap();
    rig.see_gone(&held).await;
    let failed = get(&rig, Who::Alice, lease.id).await.unwrap();
    assert_eq!(failed.end(), pb::LeaseEnd::Failed);
    let dead = acquire(&mut alice, enforced(1, 2, 1)).await;
    let attach = pb::AttachLeaseRequest {
        lease_id: dead.id,
        fence: 1,
        pid,
    };
    refused(
        "a dead one",
        alice.attach_lease(attach).await,
        Code::InvalidArgument,
        "INVALID",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_renews_expires_and_that_is_told() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let short = pb::AcquireLeaseRequest {
        ttl_ms: 1_000,
        ..unenforced(1)
    };
    let lease = acquire(&mut alice, short.clone()).await;
    let ended = until("it expires", async || {
        let lease = get(&rig, Who::Alice, lease.id).await.unwrap();
        (lease.phase() == pb::LeasePhase::Ended).then_some(lease)
    });
    assert_eq!(ended.await.end(), pb::LeaseEnd::Expired);
    let late = alice.release_lease(release(&lease)).await;
    refused(
        "released late",
        late,
        Code::FailedPrecondition,
        "LEASE_LOST",
    );
    assert_eq!(
        acquire(&mut alice, short).await.end(),
        pb::LeaseEnd::Expired,
        "a retry learns it, too"
    );
    let mut watch = rig.nodes(Who::Alice).await;
    let mut node = watch
        .watch_node(pb::WatchNodeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        next("the node", &mut node).await.node.unwrap().live_leases,
        0
    );
    assert_ne!(request_id(), request_id());
}
