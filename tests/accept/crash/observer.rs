//! The observer: believes nobody. Reads the device's client list and the kernel's affinities, and adds up.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use evenkeel_gpu::Admin;

use super::workers::Log;

/// Looks every few milliseconds until told to stop.
pub(super) fn observe(dir: &Path, log: &mut Log) -> anyhow::Result<()> {
    let gpus = dir.parent().unwrap_or(dir).join("gpu");
    let admins = [0, 1].map(|n| Admin::connect(&evenkeel_gpu::socket_path(&gpus, n)));
    let mut looks = 0u64;
    while !log.stopped() {
        looks += 1;
        for admin in &admins {
            let admin = admin.as_ref().map_err(Clone::clone)?;
            let spec = admin.gpu()?.spec;
            let clients = admin.list()?;
            let (used, bytes) = clients
                .iter()
                .fold((0u32, 0u64), |(s, b), c| (s + c.sms, b + c.memory_limit));
            if used > spec.sms || bytes > spec.memory_bytes {
                let (sms, memory) = (spec.sms, spec.memory_bytes);
                log.say(&format!(
                    "complaint over: {used} of {sms} SMs, {bytes} of {memory} bytes on a device"
                ));
            }
        }
        if let Some(what) = shared_core(dir) {
            log.say(&format!("complaint over: {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    log.say(&format!("looks {looks}"));
    Ok(())
}

/// Two workers that say they hold the same core, or one that may run elsewhere than where it says.
fn shared_core(dir: &Path) -> Option<String> {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix("core-").and_then(|n| n.split('-').next()) else {
            continue;
        };
        let Ok(cores) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let allowed = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
            .map(|l| l.trim().to_owned());
        // The mark goes before the release: a mark that is still there was true during the look.
        if !entry.path().exists() || cores.is_empty() {
            continue;
        }
        if let Some(allowed) = allowed.filter(|a| *a != cores) {
            return Some(format!(
                "{name} holds core {cores} and may run on {allowed}"
            ));
        }
        if let Some(other) = owners.insert(cores.clone(), name.clone()) {
            return Some(format!("{name} and {other} both hold core {cores}"));
        }
    }
    None
}
