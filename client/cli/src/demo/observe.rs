//! The observer: a process of its own that reads SM caps and memory limits from the device's client list and affinities
//! from /proc, and counts how long anything was promised twice. It asks neither the daemon nor the workers.

use std::collections::BTreeSet;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_gpu::Admin;

use super::talk::{Down, Listener, Observed, Orders, Teller, Up, Watched};

/// Between two looks. A resize on the emulated device takes microseconds, and so would a mistake in their order; but
/// one that lasts is seen.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until the demo says stop or is gone.
pub(super) fn run(orders: &Orders, head: &Teller, mut control: Listener) -> anyhow::Result<()> {
    let (sender, inbox) = channel();
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            while let Ok(Some(message)) = control.hear::<Down>() {
                if sender.send(message).is_err() {
                    return;
                }
            }
            sender.send(Down::Stop).ok();
        })?;
    let admin = Admin::connect(&orders.gpu).context("cannot look at the emulated GPU")?;
    let spec = admin.gpu()?.spec;
    let installed = (spec.sms, spec.memory_bytes);
    head.tell(&Up::Ready {
        sms: 0,
        cpus: Vec::new(),
    })?;
    let mut watched: Vec<Watched> = Vec::new();
    let mut found = Observed::default();
    let mut last = Instant::now();
    loop {
        match inbox.recv_timeout(LOOK_EVERY) {
            Ok(Down::Watch(processes)) => watched = processes,
            Ok(Down::Tell) => head.tell(&Up::Observed(found.clone()))?,
            Ok(Down::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Down::Load(_)) | Err(RecvTimeoutError::Timeout) => {}
        }
        let clients = admin.list()?;
        let sms: u32 = clients.iter().map(|client| client.sms).sum();
        let bytes: u64 = clients.iter().map(|client| client.memory_limit).sum();
        let owners: Vec<(u32, BTreeSet<u32>)> = watched
            .iter()
            .filter(|process| process.owns_cores)
            .map(|process| (process.pid, cpus_of(process.pid)))
            .collect();
        let wrong = twice((sms, bytes), installed, &owners);
        let now = Instant::now();
        found.looks += 1;
        found.sms_most = found.sms_most.max(sms);
        if let Some(wrong) = wrong {
            // Seen now, so counted back to the last look.
            found.overcommit_seconds += now.duration_since(last).as_secs_f64();
            if found.first.is_empty() {
                found.first = wrong;
            }
        }
        last = now;
    }
}

/// What is promised twice, if anything is.
fn twice(
    (sms, bytes): (u32, u64),
    installed: (u32, u64),
    owners: &[(u32, BTreeSet<u32>)],
) -> Option<String> {
    if sms > installed.0 {
        return Some(format!("caps of {sms} SMs on a GPU of {}", installed.0));
    }
    if bytes > installed.1 {
        return Some(format!(
            "memory limits of {bytes} bytes on a GPU of {}",
            installed.1
        ));
    }
    for (index, (pid, cpus)) in owners.iter().enumerate() {
        for (other, theirs) in &owners[..index] {
            if let Some(cpu) = cpus.intersection(theirs).next() {
                return Some(format!("CPU {cpu} belongs to processes {other} and {pid}"));
            }
        }
    }
    None
}

/// CPUs that any thread of a process may run on; none once it is gone.
fn cpus_of(pid: u32) -> BTreeSet<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeSet::new();
    };
    let mut cpus = BTreeSet::new();
    for thread in threads.flatten() {
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        if let Some(Ok(list)) = list.map(|list| list.trim().parse::<evenkeel_client::CpuList>()) {
            cpus.extend(list.iter());
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_twice_is_named() {
        let check = |sms, bytes, owners: &[(u32, &[u32])], expect: Option<&str>| {
            let owners: Vec<_> = owners
                .iter()
                .map(|(pid, cpus)| (*pid, cpus.iter().copied().collect()))
                .collect();
            let wrong = twice((sms, bytes), (132, 80), &owners);
            match expect {
                None => assert_eq!(wrong, None),
                Some(part) => assert!(
                    wrong.as_ref().is_some_and(|w| w.contains(part)),
                    "{wrong:?}"
                ),
            }
        };
        check(132, 80, &[(7, &[0, 1]), (8, &[2])], None);
        check(134, 80, &[], Some("134 SMs"));
        check(132, 81, &[], Some("81 bytes"));
        check(0, 0, &[(7, &[0, 1]), (8, &[1, 2])], Some("CPU 1"));
    }

    #[test]
    fn affinities_are_read_from_the_kernel() {
        let cpus = cpus_of(std::process::id());
        let own: BTreeSet<u32> = evenkeel_rollout::affinity::Thread::current()
            .cpus()
            .into_iter()
            .collect();
        assert!(!own.is_empty() && own.is_subset(&cpus), "{own:?} {cpus:?}");
        assert!(cpus_of(u32::MAX).is_empty(), "no such process");
    }
}
