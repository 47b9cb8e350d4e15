//! Listening and stopping: limits, a second daemon, an end that comes in time and revokes nothing.
use std::time::Duration;

use evenkeel_core::unit::Millis;
use evenkeel_proto::v1 as pb;
use evenkeeld::api::{Api, Config, Connections, ServeError, Tenants};
use evenkeeld::audit::Audit;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::kit::{Rig, Who, acquire, next, reference, unenforced, until, why};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_comes_in_time_and_leases_stay() {
    let mut rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    // Streams that would go on for ever, and a call that waits for an hour.
    let frame = pb::SessionRequest {
        renew: vec![reference(&lease)],
        ..Default::default()
    };
    let frames = tokio_stream::iter([frame]).chain(tokio_stream::pending());
    let mut session = alice.session(frames).await.unwrap().into_inner();
    assert_eq!(next("a renewal", &mut session).await.renewals.len(), 1);
    let mut nodes = rig.nodes(Who::Bob).await;
    let mut watched = nodes
        .watch_node(pb::WatchNodeRequest {})
        .await
        .unwrap()
        .into_inner();
    next("the node", &mut watched).await;
    let mut bob = rig.leases(Who::Bob).await;
    let patient = pb::AcquireLeaseRequest {
        wait_ms: 3_600_000,
        ..unenforced(8)
    };
    let waiting = tokio::spawn(async move { bob.acquire_lease(patient).await });
    until("bob waits", async || {
        let queued = rig
            .handle()
            .read(|s, _| s.durable.queue().count())
            .await
            .unwrap();
        (queued == 1).then_some(())
    })
    .await;

    let took = rig.end().await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    let status = session
        .message()
        .await
        .expect_err("a session is told to come back");
    assert_eq!(why(&status).0, "RECONNECT", "{status:?}");
    assert!(watched.message().await.is_err());
    assert!(waiting.await.unwrap().is_err());
    assert!(
        !rig.socket(Who::Alice).exists(),
        "nobody is there, and that shows"
    );

    let mut rig = rig;
    rig.begin_again().await;
    let got = rig
        .leases(Who::Alice)
        .await
        .get_lease(pb::GetLeaseRequest { lease_id: lease.id })
        .await;
    assert_eq!(
        got.unwrap().into_inner().lease.unwrap().phase(),
        pb::LeasePhase::Active
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_daemons_do_not_share_a_socket_and_rest_stays_at_home() {
    let rig = Rig::synthetic().await;
    let config = |socket| Config {
        socket,
        socket_mode: 0o600,
        tcp: None,
        rest: None,
        rest_writes: false,
        tenants: Tenants::everybody(Who::Alice.caller()),
        rates: Default::default(),
        audit: Audit::off(),
        node_name: "second".into(),
        default_ttl: Millis::secs(30),
        gpu_sockets: Default::default(),
        troubles: std::sync::Arc::new(Vec::new),
        connections: Connections::default(),
    };
    let spawn = async |config| {
        let api = Api {
            config,
            handle: rig.handle().clone(),
        };
        api.spawn(CancellationToken::new()).await
    };
    let taken = spawn(config(rig.socket(Who::Alice))).await;
    assert!(matches!(taken, Err(ServeError::Taken(_))), "{taken:?}");
    acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let open = Config {
        rest: Some(([0, 0, 0, 0], 0).into()),
        ..config(folder.path().join("s"))
    };
    let open = spawn(open).await;
    assert!(matches!(open, Err(ServeError::NotLoopback(_))), "{open:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_reads_nothing_does_not_stop_the_others() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    let frame = pb::SessionRequest {
        renew: vec![reference(&lease); 1_000],
        ..Default::default()
    };
    let flood = tokio_stream::iter(std::iter::repeat_n(frame, 2_000));
    let deaf = alice.session(flood).await.unwrap();
    for _ in 0..20 {
        let got = alice
            .get_lease(pb::GetLeaseRequest { lease_id: lease.id })
            .await;
        assert_eq!(got.unwrap().into_inner().lease.unwrap().id, lease.id);
    }
    drop(deaf);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_socket_comes_back_and_anothers_is_left_alone_while_connections_live_on() {
    let mut rig = Rig::synthetic().await;
    let socket = rig.socket(Who::Alice);
    let mut alice = rig.leases(Who::Alice).await;
    let mut nodes = rig.nodes(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    let frame = || pb::SessionRequest {
        renew: vec![reference(&lease)],
        ..Default::default()
    };
    let (say, frames) = tokio::sync::mpsc::channel(4);
    let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
    let mut session = alice.session(frames).await.unwrap().into_inner();
    let mut astray = async || {
        let node = nodes.get_node(pb::GetNodeRequest {}).await.unwrap();
        let troubles = node.into_inner().node.unwrap().troubles;
        let socket = socket.to_str().unwrap();
        troubles.into_iter().find(|told| told.contains(socket))
    };

    std::fs::remove_file(&socket).unwrap();
    until("the socket is there again", async || {
        tokio::net::UnixStream::connect(&socket).await.ok()
    })
    .await;
    acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    assert_eq!(astray().await, None);

    // Another daemon's, which nobody may take away.
    let elsewhere = socket.with_extension("other");
    let other = tokio::net::UnixListener::bind(&elsewhere).unwrap();
    std::fs::rename(&elsewhere, &socket).unwrap();
    let told = until("the trouble", async || astray().await).await;
    assert!(told.contains("another file"), "{told}");
    let came = tokio::join!(tokio::net::UnixStream::connect(&socket), other.accept());
    assert!(came.0.is_ok() && came.1.is_ok(), "it is still the other's");

    std::fs::remove_file(&socket).unwrap();
    until("all is well", async || {
        astray().await.is_none().then_some(())
    })
    .await;
    acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    say.send(frame()).await.unwrap();
    assert_eq!(next("a renewal", &mut session).await.renewals.len(), 1);

    std::fs::write(&elsewhere, "precious").unwrap();
    std::fs::rename(&elsewhere, &socket).unwrap();
    rig.end().await;
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}
