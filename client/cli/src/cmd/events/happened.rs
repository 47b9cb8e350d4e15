//! An event of the audit trail in a sentence. What it cannot read (another version's, say) it shows field by field.

use evenkeel_core::grant::{Ask, GpuShare, SmAsk, Vector};
use evenkeel_core::lease::Lease;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::units::{counted, show_bytes, show_rate};

/// Characters of the fields of an event that is not known.
const DETAILS_MAX: usize = 160;

/// What happened; the lease or job that it happened to is said beside it.
pub(super) fn sentence(kind: &str, json: &str) -> String {
    let event: Value = serde_json::from_str(json).unwrap_or_default();
    of_lease(kind, &event)
        .or_else(|| of_job(kind, &event))
        .or_else(|| of_node(kind, &event))
        .unwrap_or_else(|| format!("{kind} {}", shortened(details(json))))
}

fn of_lease(kind: &str, event: &Value) -> Option<String> {
    Some(match kind {
        "lease_queued" => {
            let lease: Lease = read(&event["lease"])?;
            format!("waits for {}", asked(&lease.ask))
        }
        "lease_granted" => {
            let lease: Lease = read(&event["lease"])?;
            let whose = match lease.ask {
                Ask::Stage(member) => format!(", for a worker of {}", member.job),
                Ask::Alone { .. } => String::new(),
            };
            format!("granted {}{whose}", shares(&lease.target))
        }
        "lease_attached" => format!("process {} has it", event["holder"]["pid"].as_u64()?),
        "lease_activated" => "in force".to_owned(),
        "lease_verified" => "its processes were seen on the GPU with the right limits".to_owned(),
        "lease_unverified" => "its processes have more of the GPU than it counts".to_owned(),
        "lease_retargeted" => format!("is to have {}", shares(&read(&event["target"])?)),
        "lease_held" => format!("has {}", shares(&read(&event["held"])?)),
        "lease_draining" => "given back; its processes are not off the share yet".to_owned(),
        "lease_quarantined" => match event["cause"].as_str()? {
            "expired" => "expired: not renewed in time; counted until its processes are gone",
            "revoked" => "revoked; counted until its processes are gone",
            _ => return None,
        }
        .to_owned(),
        "lease_ended" => ended(event)?,
        _ => return None,
    })
}

fn ended(event: &Value) -> Option<String> {
    let how = match event["how"].as_str()? {
        "released" => "over: given back",
        "expired" => "over: expired",
        "revoked" => "over: revoked",
        "failed" => "over: its processes ended without giving it back",
        "abandoned" => "over: nobody waits for it any more",
        _ => return None,
    };
    Some(match event["reason"].as_str() {
        Some(reason) => format!("{how} ({reason})"),
        None => how.to_owned(),
    })
}

fn of_job(kind: &str, event: &Value) -> Option<String> {
    let reason = || event["reason"].as_str();
    Some(match kind {
        "job_submitted" => {
            let spec = &event["job"]["spec"];
            let stages = counted(spec["stages"].as_array()?.len() as u64, "stage");
            format!("{} submitted, with {stages}", spec["name"].as_str()?)
        }
        "job_admitted" => format!("begins; split by {}", event["plan"]["by"].as_str()?),
        "job_replanned" => format!("its shares move: {}", reason()?),
        "job_stayed" => format!("its shares stay: {}", reason()?),
        "job_refitted" => {
            let factors = event["scale"].as_array()?.iter();
            let factors = factors.filter_map(|f| Some(format!("{:.2}", f.as_f64()?)));
            let factors = factors.collect::<Vec<_>>().join(", ");
            format!("its curves are refitted; measured ÷ profiled by stage: {factors}")
        }
        "job_updated" => {
            let may = if event["rebalance"]["enabled"].as_bool()? {
                "may move"
            } else {
                "are frozen"
            };
            let by = event["policy"].as_str()?;
            format!("its rules are set: shares {may}, plans by {by}")
        }
        "slot_reserved" => {
            let kept: Vector = read(&event["unclaimed"])?;
            let worker = event["member"]["worker"].as_u64()?;
            let stage = event["member"]["stage"].as_u64()? + 1;
            format!(
                "{} kept for worker {worker} of its stage {stage}",
                shares(&kept)
            )
        }
        "job_parked" => "parked: nobody used it for long, so its shares are free".to_owned(),
        "job_ended" => "over".to_owned(),
        _ => return None,
    })
}

fn of_node(kind: &str, event: &Value) -> Option<String> {
    let stage = |key: &Value| {
        let of = |name: &str| key[name].as_str().map(str::to_owned);
        Some(format!("{} on {}", of("stage")?, of("gpu")?))
    };
    Some(match kind {
        "node_installed" => {
            let count = |what: &str| Some(event["node"][what].as_array()?.len() as u64);
            let (cores, gpus) = (count("cores")?, count("gpus")?);
            format!(
                "node has {} and {}",
                counted(cores, "core"),
                counted(gpus, "GPU")
            )
        }
        "unavailable_changed" => {
            let lost = &event["unavailable"];
            let gpus = lost["gpus"].as_object()?.iter().filter_map(|(id, lost)| {
                let (sms, bytes) = (lost[0].as_u64()?, lost[1].as_u64()?);
                let sms = counted(sms, "SM");
                Some(format!("gpu {id}: {sms}, {}", show_bytes(bytes)))
            });
            let cores = lost["cores"].as_str()?;
            let cores = (!cores.is_empty()).then(|| format!("cores {cores}"));
            let all: Vec<String> = cores.into_iter().chain(gpus).collect();
            match all.is_empty() {
                true => "all of the node is available".to_owned(),
                false => format!("not available: {}", all.join("; ")),
            }
        }
        "node_drained" => match event["draining"].as_bool()? {
            true => "node is drained: it grants nothing new",
            false => "node grants again",
        }
        .to_owned(),
        "requests_forgotten" => {
            let n = event["requests"].as_array()?.len() as u64;
            format!("answers to {} forgotten, by age", counted(n, "request"))
        }
        "trial_reported" => {
            let point = &event["point"];
            let rate = show_rate(point["rate"].as_f64()?);
            let at = amounts(point["cores"].as_u64()?, point["sms"].as_u64()?);
            let of = stage(&event["key"])?;
            format!(
                "trial of {of}: {rate} units/s at {at}, batch {}",
                point["batch"]
            )
        }
        "profile_imported" => {
            let profile = &event["profile"];
            let n = profile["points"].as_array()?.len() as u64;
            let of = stage(&profile["key"])?;
            format!("profile of {of} replaced: {}", counted(n, "point"))
        }
        _ => return None,
    })
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn amounts(cores: u64, sms: u64) -> String {
    let cores = (cores > 0).then(|| counted(cores, "core"));
    let sms = (sms > 0).then(|| counted(sms, "SM"));
    let all: Vec<String> = cores.into_iter().chain(sms).collect();
    all.join(", ")
}

fn asked(ask: &Ask) -> String {
    match ask {
        Ask::Stage(member) => format!("the share of a worker of {}", member.job),
        Ask::Alone { cores, gpus } => {
            let cores = (*cores > 0).then(|| counted((*cores).into(), "core"));
            let gpus = gpus.iter().map(|g| {
                let gpu = g.gpu.map_or("any gpu".to_owned(), |id| id.to_string());
                let sms = match g.sms {
                    SmAsk::Count(n) => counted(n.0.into(), "SM"),
                    SmAsk::Percent(p) => format!("{p} %"),
                };
                format!("{gpu}: {sms}, {}", show_bytes(g.memory.0))
            });
            cores.into_iter().chain(gpus).collect::<Vec<_>>().join("; ")
        }
    }
}

fn shares(vector: &Vector) -> String {
    let cores = (!vector.cores.is_empty()).then(|| format!("cores {}", vector.cores));
    let share = |s: &GpuShare| {
        let sms = counted(s.guarantee.0.into(), "SM");
        match s.cap > s.guarantee {
            true => format!("{sms} (up to {}), {}", s.cap.0, show_bytes(s.memory.0)),
            false => format!("{sms}, {}", show_bytes(s.memory.0)),
        }
    };
    let gpus = vector
        .gpus
        .iter()
        .map(|(id, s)| format!("{id}: {}", share(s)));
    let all: Vec<String> = cores.into_iter().chain(gpus).collect();
    match all.is_empty() {
        true => "nothing".to_owned(),
        false => all.join("; "),
    }
}

/// A line that a person reads; the whole is in the JSON.
fn shortened(text: String) -> String {
    if text.chars().count() <= DETAILS_MAX {
        return text;
    }
    text.chars().take(DETAILS_MAX).chain(['…']).collect()
}

/// The event's own fields on one line, without its name, which is shown already.
fn details(json: &str) -> String {
    let fields = match serde_json::from_str(json) {
        Ok(Value::Object(outer)) if outer.len() == 1 => outer.into_iter().next().map(|(_, v)| v),
        Ok(other) => Some(other),
        Err(_) => None,
    };
    match fields {
        Some(Value::Object(fields)) => {
            let own = fields.iter().filter(|(name, _)| *name != "kind");
            let own: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
            own.join(" ")
        }
        Some(other) => other.to_string(),
        None => json.to_owned(),
    }
}

#[cfg(test)]
mod tests;
