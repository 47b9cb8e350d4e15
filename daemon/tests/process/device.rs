//! The emulated GPU's device dies under a running daemon: it is started again, and the GPU can be leased again.

use std::path::{Path, PathBuf};

use evenkeel_gpu::{Admin, socket_path};
use evenkeel_proto::v1 as pb;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pb::LeasePhase;

use crate::helper::{Tree, device_program, until};
use crate::kit::{Daemon, TTL_MS, block_on, eventually, request_id};

/// Whatever serves the directory is ended with the test.
struct Device(PathBuf);

impl Device {
    fn socket(&self) -> PathBuf {
        socket_path(&self.0, 0)
    }

    /// The process that serves it.
    fn pid(&self) -> Option<Pid> {
        let gpu = Admin::connect(&self.socket()).ok()?.gpu().ok()?;
        Some(Pid::from_raw(gpu.device_pid as i32))
    }

    /// A worker with a context on it.
    fn worker(&self, percentage: u32) -> Tree {
        Tree::play(&format!("context {percentage} {}", self.socket().display()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

fn tables(dir: &Path) -> String {
    format!(
        "[leases]\nreconcile_ms = 50\n[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = '{}/gpu'\nprogram = '{}'",
        dir.display(),
        device_program(dir).display()
    )
}

/// A share of the GPU, for a worker whose limit is one GiB.
fn share(percent: u32) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: request_id(),
        gpus: vec![pb::GpuRequest {
            percent,
            memory_bytes: 1 << 30,
            ..Default::default()
        }],
        ttl_ms: TTL_MS,
        ..Default::default()
    }
}

async fn get(daemon: &Daemon, lease_id: u64) -> Option<pb::Lease> {
    let mut leases = daemon.leases().await;
    let got = leases.get_lease(pb::GetLeaseRequest { lease_id }).await;
    got.ok()?.into_inner().lease
}

/// The worker holds the lease, and its context was seen.
async fn verified(daemon: &Daemon, lease: &pb::Lease, worker: &Tree) {
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
        pid: worker.holder.pid,
    };
    daemon.leases().await.attach_lease(attach).await.unwrap();
    eventually("the context is verified", async || {
        let lease = get(daemon, lease.id).await?;
        (lease.share_kind == "capped").then_some(())
    })
    .await;
}

#[test]
fn a_device_that_dies_is_started_again_and_its_gpu_is_leased_again() {
    let mut daemon = Daemon::new(tables);
    let device = Device(daemon.dir().join("gpu"));
    daemon.start(&[]);
    let old = device.pid().expect("the daemon has started it");
    block_on(async {
        let worker = device.worker(25);
        let mut leases = daemon.leases().await;
        let before = leases.acquire_lease(share(25)).await.unwrap().into_inner();
        let before = before.lease.unwrap();
        verified(&daemon, &before, &worker).await;

        kill(old, Signal::SIGKILL).unwrap();
        let new = until("another device serves", || {
            device.pid().filter(|p| *p != old)
        });
        assert_ne!(new, old);
        // Until the daemon has seen it the GPU is lost, and nothing of it is granted.
        let after = eventually("the GPU can be leased", async || {
            let granted = leases.acquire_lease(share(50)).await.ok()?;
            granted.into_inner().lease
        })
        .await;
        let second = device.worker(50);
        verified(&daemon, &after, &second).await;

        // The context of the first worker went with the old device; its lease ends as ever, when its process does.
        let still = get(&daemon, before.id).await.unwrap();
        assert_eq!(still.phase(), LeasePhase::Active);
        drop(worker);
        eventually("the first lease ends", async || {
            match get(&daemon, before.id).await {
                Some(lease) if lease.phase() != LeasePhase::Ended => None,
                _ => Some(()),
            }
        })
        .await;
        assert_eq!(get(&daemon, after.id).await.unwrap().share_kind, "capped");
    });
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
    assert_eq!(
        daemon.log().matches("started an EMULATED GPU").count(),
        2,
        "{}",
        daemon.log()
    );
}

#[test]
fn a_device_that_somebody_else_starts_is_left_alone() {
    let mut daemon = Daemon::new(|dir| format!("{}\nstart = false", tables(dir)));
    let device = Device(daemon.dir().join("gpu"));
    daemon.start(&[]);
    until("the daemon has looked", || {
        daemon.log().contains("looked at again").then_some(())
    });
    assert_eq!(device.pid(), None);
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
    assert!(!daemon.log().contains("EMULATED GPU"), "{}", daemon.log());
}

#[test]
fn a_start_that_cannot_listen_ends_the_device_that_it_started_and_no_other() {
    let mut daemon = Daemon::new(tables);
    let device = Device(daemon.dir().join("gpu"));
    std::fs::write(daemon.socket(), "in the way").unwrap();
    assert_eq!(daemon.start_in_vain().code(), Some(1));
    let log = daemon.log();
    assert!(log.contains("started an EMULATED GPU"), "{log}");
    assert!(log.contains("cannot listen at"), "{log}");
    assert_eq!(device.pid(), None, "it went with the daemon");

    std::fs::remove_file(daemon.socket()).unwrap();
    daemon.start(&[]);
    let pid = device.pid().expect("the daemon has started it");
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
    std::fs::write(daemon.socket(), "in the way").unwrap();
    assert_eq!(daemon.start_in_vain().code(), Some(1));
    assert_eq!(device.pid(), Some(pid), "it was there before this start");
}
