//! Tests of discovery: a fake sysfs, hwloc's synthetic topologies, what this process may use, and what is reserved.

use std::path::Path;
use std::process::Command;

use evenkeel_core::id::GpuId;

use super::*;

/// Set in a second run of a test, in a process whose hwloc reads HWLOC_SYNTHETIC.
const SECOND_RUN: &str = "EVENKEELD_TEST_HWLOC";

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

/// Two packages, two cores each, two threads each; CPU 7 is offline.
fn sysfs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(root, "devices/system/cpu/online", "0-6");
    write(root, "devices/system/cpu/isolated", "");
    for cpu in 0..8 {
        let core = cpu % 4;
        let topology = format!("devices/system/cpu/cpu{cpu}/topology");
        let siblings = format!("{core},{}", core + 4);
        write(root, &format!("{topology}/core_cpus_list"), &siblings);
        write(
            root,
            &format!("{topology}/physical_package_id"),
            &(core / 2).to_string(),
        );
    }
    write(root, "devices/system/node/node0/cpulist", "0-1,4-5");
    write(root, "devices/system/node/node1/cpulist", "2-3,6-7");
    write(root, "devices/system/node/possible", "0-1");
    dir
}

fn look(config: &Config, root: &Path, allowed: &str) -> Found {
    let sources = Sources {
        sysfs: root.to_owned(),
        allowed: Some(allowed.parse().unwrap()),
        hwloc: false,
    };
    discover(config, &sources).unwrap()
}

/// Cores as `id:cpus@numa/package`.
fn shown(found: &Found) -> String {
    let show = |c: &Core| format!("{}:{}@{}/{}", c.id, c.cpus, c.numa, c.package);
    found
        .node
        .cores
        .iter()
        .map(show)
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn sysfs_alone_tells_cores_packages_and_numa_nodes() {
    let root = sysfs();
    let mut config = Config::default();
    let found = look(&config, root.path(), "0-7");
    assert_eq!(shown(&found), "0:0,4@0/0 1:1,5@0/0 2:2,6@1/1 3:3@1/1");
    assert_eq!(found.node.reserved_cores.to_string(), "0", "one of four");
    config.node.smt = Smt::Threads;
    config.node.reserve_cores = Reserve::Cores(2);
    let found = look(&config, root.path(), "0-7");
    assert_eq!(found.node.cores.len(), 7);
    assert_eq!(found.node.reserved_cores.to_string(), "0-1");
}

#[test]
fn only_what_this_process_may_use_is_leased() {
    let root = sysfs();
    let found = look(&Config::default(), root.path(), "1,4-6");
    assert_eq!(shown(&found), "1:1,5@0/0 4:4@0/0 6:6@1/1");
    assert!(found.node.reserved_cores.is_empty(), "none of three");
    assert!(
        found.notes.iter().any(|n| n.starts_with("3 of 7 CPUs")),
        "{:?}",
        found.notes
    );
}

#[test]
fn a_machine_that_says_nothing_is_an_error_with_the_reasons() {
    let empty = tempfile::tempdir().unwrap();
    let sources = Sources {
        sysfs: empty.path().to_owned(),
        allowed: Some(CpuSet::range(0, 1)),
        hwloc: false,
    };
    let error = discover(&Config::default(), &sources)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is /sys mounted?") && error.contains("online"),
        "{error}"
    );
}

#[test]
fn a_reservation_that_leaves_nothing_is_noted() {
    let root = sysfs();
    let mut config = Config::default();
    config.node.reserve_cores = Reserve::Cores(4);
    let found = look(&config, root.path(), "0-7");
    assert!(found.node.leasable_cores().is_empty());
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.contains("leaves none of the 4 cores"))
    );
}

#[test]
fn hwloc_tells_packages_and_threads_and_sysfs_the_numa_nodes() {
    if std::env::var_os(SECOND_RUN).is_none() {
        // hwloc reads its variable when a topology is made: a process of its own, so that no other test sees it.
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("discover::tests::hwloc_tells_packages_and_threads_and_sysfs_the_numa_nodes")
            .env("HWLOC_SYNTHETIC", "pack:2 [numa] core:2 pu:2")
            .env(SECOND_RUN, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "devices/system/cpu/online", "0-7");
    write(root.path(), "devices/system/node/node0/cpulist", "0-3");
    write(root.path(), "devices/system/node/node1/cpulist", "4-7");
    let sources = Sources {
        sysfs: root.path().to_owned(),
        allowed: Some(CpuSet::range(0, 7)),
        hwloc: true,
    };
    let found = discover(&Config::default(), &sources).unwrap();
    assert_eq!(shown(&found), "0:0-1@0/0 2:2-3@0/0 4:4-5@1/1 6:6-7@1/1");
}

#[test]
fn this_machine_has_cores() {
    let found = discover(&Config::default(), &Sources::default()).unwrap();
    assert!(!found.node.cores.is_empty());
    let ids: Vec<u32> = found.node.cores.iter().map(|c| c.id).collect();
    assert!(ids.is_sorted());
}

#[test]
fn a_synthetic_pool_is_what_was_asked_for() {
    let mut config = Config::default();
    config.node.pool = PoolKind::Synthetic;
    config.synthetic.granularity = 8;
    let found = discover(&config, &Sources::default()).unwrap();
    assert_eq!(found.node.cores.len(), 64);
    assert!(found.node.reserved_cores.is_empty());
    let gpu = found.node.gpu(GpuId(7)).unwrap();
    assert_eq!(gpu.round_up(Sms(9)), Some(Sms(16)));
    assert_eq!(gpu.enforceable.last(), Some(&Sms(128)));
    assert_eq!(gpu.leasable_memory(), Bytes::gib(80));
}
