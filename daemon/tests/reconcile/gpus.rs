//! Emulated GPUs: whose contexts are whose, which are ended, neighbours, and devices that end, hang or were never there.

use std::path::Path;

use evenkeel_core::command::{Command, Seen};
use evenkeel_core::converge::{Push, Target, Want};
use evenkeel_core::id::{GpuId, LeaseId};
use evenkeel_core::node::{Gpu, GpuMode, Node, Unavailable};
use evenkeel_core::unit::{Bytes, Sms};
use evenkeel_gpu::{Admin, GpuSpec, socket_path};
use evenkeeld::backend::cpu::CpuBackend;
use evenkeeld::backend::emulated::{Emulated, EmulatedBackend, ensure_served};
use evenkeeld::config::{Config, EmulatedConfig};
use evenkeeld::discover::{Sources, discover};
use evenkeeld::reconcile::{Looker, Targets};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::helper::{Tree, device_program, until};
use crate::{look, node, socket, target, targets};

const GPU: GpuId = GpuId(0);
const LEASE: LeaseId = LeaseId(7);

/// An emulated H100 in a directory of its own, ended with the test.
struct Device {
    dir: tempfile::TempDir,
    pid: i32,
}

impl Device {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ensure_served(&Self::config(dir.path())).unwrap();
        let admin = Admin::connect(&socket_path(&dir.path().join("gpu"), 0)).unwrap();
        let pid = admin.gpu().unwrap().device_pid as i32;
        Self { dir, pid }
    }

    fn config(dir: &Path) -> EmulatedConfig {
        EmulatedConfig {
            dir: dir.join("gpu"),
            program: device_program(dir).display().to_string(),
            ..EmulatedConfig::default()
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        socket_path(&self.dir.path().join("gpu"), 0)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap();
    }
    /// It hangs. The signal takes a moment to reach its threads: what they hear meanwhile they still answer.
    fn hang(&self) {
        self.signal(Signal::SIGSTOP);
        // One that cannot be read is just ending.
        let stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = thread.and_then(|t| std::fs::read_to_string(t.path().join("stat")));
            stat.is_ok_and(|s| s.rsplit_once(") ").unwrap().1.starts_with('T'))
        };
        until("it hangs", || {
            let mut threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
            threads.all(stopped).then_some(())
        });
    }

    fn emulated(&self, mode: GpuMode) -> Emulated {
        Emulated {
            id: GPU,
            socket: self.socket(),
            mode,
            reserved: Bytes::mib(512),
        }
    }

    fn gpu(&self) -> Gpu {
        self.emulated(GpuMode::Enforce).describe(&GpuSpec::h100())
    }

    fn node(&self) -> Node {
        node(false, vec![self.gpu()])
    }

    fn looker(&self, mode: GpuMode) -> Looker {
        let mut node = self.node();
        node.gpus[0].mode = mode;
        let emulated = EmulatedBackend::new(vec![self.emulated(mode)]);
        let cpu = CpuBackend::new(socket());
        Looker::new(
            (node, Unavailable::default()),
            vec![Box::new(cpu), Box::new(emulated)],
        )
    }

    /// A worker with a context on it.
    fn worker(&self, percentage: u32) -> Tree {
        Tree::play(&format!("context {percentage} {}", self.socket().display()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }
}

fn with_share(lease: u64, tree: &Tree, want: Want) -> Target {
    let mut target = target(lease, &tree.holder, want);
    target.caps.insert(GPU, Sms(66));
    target.gpus.insert(GPU);
    target
}

fn bound() -> Want {
    Want::Bound(Default::default())
}

/// What the last change of the hardware says is unavailable of the GPU, if there was one in this look.
fn unavailable(looker: &mut Looker, targets: &Targets) -> Option<Option<(Sms, Bytes)>> {
    let commands = looker.look(targets, true).into_iter();
    let changed = |command| match command {
        Command::Discovered { unavailable, .. } => Some(unavailable.gpus.get(&GPU).copied()),
        _ => None,
    };
    commands.filter_map(changed).last()
}

#[test]
fn a_context_is_the_lease_s_of_its_tree() {
    let device = Device::start();
    let worker = device.worker(50);
    let idle = Tree::play("threads 1");
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let wanted = targets(
        &node,
        vec![
            with_share(7, &worker, bound()),
            with_share(8, &idle, bound()),
        ],
    );
    let seen = look(&mut looker, &wanted);
    let expect = Seen {
        clients: 1,
        cap: Sms(66),
        memory: Bytes(1 << 30),
    };
    assert_eq!(seen[&LEASE].gpus.get(&GPU), Some(&expect));
    assert_eq!(seen[&LeaseId(8)].gpus.get(&GPU), Some(&Seen::default()));
}

#[test]
fn a_tree_with_a_context_is_gone_when_both_are() {
    let device = Device::start();
    let mut worker = device.worker(25);
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let wanted = targets(&node, vec![with_share(7, &worker, bound())]);
    assert!(!look(&mut looker, &wanted)[&LEASE].gone);
    worker.end_root();
    until("the device has noticed", || {
        look(&mut looker, &wanted)[&LEASE].gone.then_some(())
    });
}

#[test]
fn a_quarantined_tree_loses_its_contexts_where_shares_are_enforced() {
    let device = Device::start();
    let worker = device.worker(25);
    let node = device.node();
    let end = vec![with_share(7, &worker, Want::Gone(Push::Terminate))];
    let wanted = targets(&node, end);
    let admin = Admin::connect(&device.socket()).unwrap();
    // Only looking.
    let observe = EmulatedBackend::new(vec![device.emulated(GpuMode::Observe)]);
    let mut only_gpu = crate::looker(&node, vec![Box::new(observe)]);
    look(&mut only_gpu, &wanted);
    assert_eq!(admin.list().unwrap().len(), 1);

    look(&mut device.looker(GpuMode::Enforce), &wanted);
    until("the context is ended", || {
        admin.list().unwrap().is_empty().then_some(())
    });
}

#[test]
fn neighbours_are_counted_after_a_moment_and_never_touched() {
    let device = Device::start();
    let neighbour = device.worker(25);
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let nobody = targets(&node, vec![]);
    assert_eq!(
        unavailable(&mut looker, &nobody),
        None,
        "it may be attaching"
    );
    let taken = until("it counts", || unavailable(&mut looker, &nobody));
    assert_eq!(taken, Some((Sms(32), Bytes(1 << 30))));
    let admin = Admin::connect(&device.socket()).unwrap();
    assert_eq!(admin.list().unwrap().len(), 1, "it is still there");
    drop(neighbour);
    let taken = until("it does not count any more", || {
        unavailable(&mut looker, &nobody).filter(Option::is_none)
    });
    assert_eq!(taken, None);
}

#[test]
fn a_device_that_ends_is_unavailable_until_it_is_back() {
    let device = Device::start();
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let worker = device.worker(25);
    let wanted = targets(&node, vec![with_share(7, &worker, bound())]);
    look(&mut looker, &wanted);
    device.signal(Signal::SIGTERM);
    let lost = until("it is lost", || unavailable(&mut looker, &wanted));
    assert_eq!(lost, Some((Sms(132), device.gpu().memory)));
    // Where there is no device there are no contexts.
    assert_eq!(
        look(&mut looker, &wanted)[&LEASE].gpus.get(&GPU),
        Some(&Seen::default())
    );

    // Its connections end before its lock on the directory does, which the next one needs.
    let old = Pid::from_raw(device.pid);
    until("its process is gone", || kill(old, None).err());
    ensure_served(&Device::config(device.dir.path())).unwrap();
    let pid = Admin::connect(&device.socket())
        .unwrap()
        .gpu()
        .unwrap()
        .device_pid;
    let back = until("it is back", || {
        unavailable(&mut looker, &wanted).filter(Option::is_none)
    });
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    assert_eq!(back, None);
}

#[test]
fn a_device_that_dies_is_started_again_where_the_daemon_is_to_start_it() {
    let device = Device::start();
    let node = device.node();
    let emulated = EmulatedBackend::new(vec![device.emulated(GpuMode::Enforce)]);
    let emulated = emulated.reviving(&Device::config(device.dir.path()));
    let mut looker = crate::looker(&node, vec![Box::new(emulated)]);
    let nobody = targets(&node, vec![]);
    assert_eq!(unavailable(&mut looker, &nobody), None);
    device.signal(Signal::SIGKILL);
    let lost = until("it is lost", || unavailable(&mut looker, &nobody));
    assert_eq!(lost, Some((Sms(132), device.gpu().memory)));
    let mut told = false;
    let back = until("it is back", || {
        // A process that is just ending hangs up before it is gone: told from the next look on.
        let mut troubles = looker.troubles().iter();
        told |= troubles.any(|t| t.contains("is lost") && t.contains("being started again"));
        unavailable(&mut looker, &nobody)
    });
    assert_eq!(back, None);
    assert!(told, "a person is told that it is being started");
    let new = Admin::connect(&device.socket()).unwrap().gpu().unwrap();
    kill(Pid::from_raw(new.device_pid as i32), Signal::SIGKILL).unwrap();
    assert_ne!(new.device_pid as i32, device.pid);
    assert!(looker.troubles().is_empty(), "{:?}", looker.troubles());
}

#[test]
fn a_loss_is_told_again_until_the_ledger_knows_it() {
    let device = Device::start();
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let mut wanted = targets(&node, vec![]);
    device.signal(Signal::SIGTERM);
    let lost = until("it is lost", || unavailable(&mut looker, &wanted));
    assert_eq!(
        unavailable(&mut looker, &wanted),
        None,
        "it may be on its way"
    );
    // The command met a full disk: the ledger still grants what is not there.
    let again = until("it is told again", || unavailable(&mut looker, &wanted));
    assert_eq!(again, lost);
    wanted.unavailable.gpus.extend(again.map(|all| (GPU, all)));
    let known = std::time::Instant::now();
    until("longer than until it would be told again", || {
        let told = unavailable(&mut looker, &wanted);
        assert_eq!(told, None, "what the ledger knows is not told");
        (known.elapsed() > std::time::Duration::from_millis(1_200)).then_some(())
    });
}

#[test]
fn a_device_that_hangs_proves_nothing_and_stops_nobody() {
    hangs_while_the_worker_ends(bound());
}

#[test]
fn a_lease_that_was_given_back_is_gone_when_its_gpu_says_so() {
    hangs_while_the_worker_ends(Want::Shared);
}

fn hangs_while_the_worker_ends(want: Want) {
    let device = Device::start();
    let node = device.node();
    let mut looker = device.looker(GpuMode::Enforce);
    let mut worker = device.worker(25);
    let mut target = with_share(7, &worker, want);
    if target.want == Want::Shared {
        target.caps.clear(); // it is to have nothing; its share is counted all the same
    }
    let wanted = targets(&node, vec![target]);
    look(&mut looker, &wanted);
    device.hang();
    worker.end_root();
    let seen = look(&mut looker, &wanted);
    assert!(!seen[&LEASE].gone, "its context may still run");
    assert_eq!(seen[&LEASE].gpus.get(&GPU), None, "nobody looked");
    device.signal(Signal::SIGCONT);
    until("it answers again", || {
        look(&mut looker, &wanted)[&LEASE].gone.then_some(())
    });
}

#[test]
fn discovery_starts_the_device_and_asks_what_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.gpu.backend = evenkeeld::config::GpuSource::Emulated;
    config.gpu.modes.insert("1".into(), GpuMode::Observe);
    config.gpu.emulated = EmulatedConfig {
        count: 2,
        ..Device::config(dir.path())
    };
    let found = discover(&config, &Sources::default()).unwrap();
    let admin = Admin::connect(&socket_path(&dir.path().join("gpu"), 1)).unwrap();
    let pid = admin.gpu().unwrap().device_pid;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    assert_eq!(found.emulated.len(), 2);
    let gpu = &found.node.gpus[1];
    assert_eq!(
        (gpu.id, gpu.sms, gpu.mode),
        (GpuId(1), Sms(132), GpuMode::Observe)
    );
    assert_eq!(gpu.enforceable.len(), 66);
    assert_eq!(gpu.model.as_str(), "emulated-h100");
    assert_eq!(gpu.leasable_memory(), gpu.memory - Bytes::mib(512));
    assert!(found.unavailable.gpus.is_empty());
}

#[test]
fn a_device_that_cannot_be_started_is_installed_and_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.gpu.backend = evenkeeld::config::GpuSource::Emulated;
    config.gpu.emulated = EmulatedConfig {
        dir: dir.path().join("gpu"),
        program: "/nowhere/evenkeel-gpu".into(),
        ..EmulatedConfig::default()
    };
    let found = discover(&config, &Sources::default()).unwrap();
    let gpu = &found.node.gpus[0];
    assert_eq!(
        found.unavailable.gpus.get(&GPU),
        Some(&(gpu.sms, gpu.memory))
    );
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.contains("/nowhere/evenkeel-gpu")),
        "{:?}",
        found.notes
    );
    assert!(!found.node.cores.is_empty(), "cores are served");
}
