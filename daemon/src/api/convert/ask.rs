//! Requests for leases, parsed.
use evenkeel_core::command::Acquire;
use evenkeel_core::grant::{Ask, GpuAsk, Member, SmAsk};
use evenkeel_core::id::{JobId, Name, StageId, WorkerId};
use evenkeel_core::unit::{Bytes, Millis, Sms};
use evenkeel_proto::v1 as pb;

use super::vector::gpu_id;
use super::{Bad, request_id, resize};
use crate::api::hash;

/// Longest wait in the queue: a day. Who waits longer asks again.
const WAIT_MAX: Millis = Millis::secs(24 * 3600);
/// Most GPUs of one request.
const GPUS_MAX: usize = 16;

/// A worker's place by numbers.
pub(in crate::api) fn member(job: JobId, stage: usize, worker: u32) -> Member {
    Member {
        job,
        stage: StageId(u8::try_from(stage).unwrap_or(u8::MAX)),
        worker: WorkerId(worker),
    }
}

/// A request for a lease, parsed; its member still by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) struct Asked {
    /// All but the member.
    pub(in crate::api) acquire: Acquire,
    /// Job, stage and worker.
    pub(in crate::api) member: Option<(Name, Name, u32)>,
    /// How long to wait in the queue.
    pub(in crate::api) wait: Millis,
}

/// Parses a request for a lease.
pub(in crate::api) fn acquire(
    w: &pb::AcquireLeaseRequest,
    tenant: &Name,
    default_ttl: Millis,
) -> Result<Asked, Bad> {
    let request = request_id(&w.request_id)?;
    if w.wait_ms > WAIT_MAX.0 {
        let why = format!("{} is more than a day ({WAIT_MAX})", Millis(w.wait_ms));
        return Err(Bad::new("wait_ms", why));
    }
    let (ask, member) = match &w.member {
        Some(m) => {
            if w.cores != 0 || !w.gpus.is_empty() {
                let why = "a worker of a job gets what its plan says; leave cores and gpus out";
                return Err(Bad::new("member", why));
            }
            let job = super::name("member.job", &m.job)?;
            let stage = super::name("member.stage", &m.stage)?;
            let nobody = member_of_nobody(m.worker);
            (Ask::Stage(nobody), Some((job, stage, m.worker)))
        }
        None => (alone(w)?, None),
    };
    let acquire = Acquire {
        tenant: tenant.clone(),
        request,
        body: hash::acquire(w),
        ask,
        enforced: !w.unenforced,
        resize: Some(resize("resize", w.resize)?).filter(|_| w.resize != 0),
        processes: (w.processes > 0).then_some(w.processes),
        ttl: if w.ttl_ms == 0 {
            default_ttl
        } else {
            Millis(w.ttl_ms)
        },
        wait: w.wait_ms > 0,
        priority: w.priority,
    };
    Ok(Asked {
        acquire,
        member,
        wait: Millis(w.wait_ms),
    })
}

/// Job numbers start at 1: this one is nobody's. A retry may name a job that is over; then its answer is
/// remembered, and the number does not matter.
fn member_of_nobody(worker: u32) -> Member {
    member(JobId(0), 0, worker)
}

fn alone(w: &pb::AcquireLeaseRequest) -> Result<Ask, Bad> {
    if w.cores == 0 && w.gpus.is_empty() {
        let why = "nothing is asked; ask for cores, for a GPU share (gpus), or for a job's stage (member)";
        return Err(Bad::new("cores", why));
    }
    if w.gpus.len() > GPUS_MAX {
        let why = format!(
            "{} GPU shares; a lease has at most {GPUS_MAX}",
            w.gpus.len()
        );
        return Err(Bad::new("gpus", why));
    }
    let gpus = w.gpus.iter().enumerate();
    let gpus = gpus.map(|(i, g)| gpu_ask(g).map_err(|bad| bad.within(format!("gpus[{i}]"))));
    let gpus: Vec<GpuAsk> = gpus.collect::<Result<_, _>>()?;
    if !w.unenforced && !is_one_percentage(&gpus) {
        let why = "the GPUs of one lease are to have different SMs, and a process has one percentage for all of its \
                   GPUs: ask the same of each, or take a lease for each";
        return Err(Bad::new("gpus", why));
    }
    Ok(Ask::Alone {
        cores: w.cores,
        gpus,
    })
}

/// Whether one percentage for all GPUs gives what the ledger would count of each. MPS reads one from the environment;
/// the lowest would leave the others with less than they are charged for. (A job's worker has the same on each of its
/// GPUs by construction: `allocate::place`.)
fn is_one_percentage(gpus: &[GpuAsk]) -> bool {
    gpus.windows(2).all(|pair| pair[0].sms == pair[1].sms)
}

fn gpu_ask(g: &pb::GpuRequest) -> Result<GpuAsk, Bad> {
    let sms = match (g.sms, g.percent) {
        (0, 0) => {
            let why = "say how many SMs (sms) or what percentage of them (percent) is needed";
            return Err(Bad::new("sms", why));
        }
        (sms, 0) => SmAsk::Count(Sms(sms)),
        (0, percent) => match u8::try_from(percent) {
            Ok(p @ 1..=100) => SmAsk::Percent(p),
            _ => return Err(Bad::new("percent", format!("{percent} is not 1 to 100"))),
        },
        _ => return Err(Bad::new("percent", "give either sms or percent, not both")),
    };
    if g.memory_bytes == 0 {
        let why =
            "a GPU share needs memory, in bytes: even an empty context takes some hundred MiB";
        return Err(Bad::new("memory_bytes", why));
    }
    Ok(GpuAsk {
        gpu: g.gpu.map(|n| gpu_id("gpu", n)).transpose()?,
        sms,
        memory: Bytes(g.memory_bytes),
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_core::grant::Resize;

    use super::*;

    fn request() -> pb::AcquireLeaseRequest {
        pb::AcquireLeaseRequest {
            request_id: "0190b6a0-0000-7000-8000-000000000001".into(),
            cores: 2,
            ..Default::default()
        }
    }

    fn check(name: &str, w: pb::AcquireLeaseRequest, field: Option<&str>) {
        let parsed = acquire(&w, &Name::new("me").unwrap(), Millis::secs(30));
        assert_eq!(parsed.err().map(|b| b.field).as_deref(), field, "{name}");
    }

    #[test]
    fn what_is_left_out_is_not_said() {
        let said = |resize: i32, processes| {
            let w = pb::AcquireLeaseRequest {
                resize,
                processes,
                ..request()
            };
            let me = Name::new("me").unwrap();
            let a = acquire(&w, &me, Millis::secs(30)).unwrap().acquire;
            (a.resize, a.processes)
        };
        assert_eq!(said(0, 0), (None, None));
        let restart = pb::ResizeMode::Restart.into();
        assert_eq!(said(restart, 1), (Some(Resize::Restart), Some(1)));
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn bad_fields_are_named() {
        let gpu = |sms, percent, memory_bytes| pb::GpuRequest {
            gpu: None,
            sms,
            percent,
            memory_bytes,
        };
        let with = |g: pb::GpuRequest| pb::AcquireLeaseRequest {
            gpus: vec![g],
            ..request()
        };
        let of_job = pb::Member {
            job: "j".into(),
            stage: "s".into(),
            worker: 0,
        };
        check("all good", request(), None);
        check("a share", with(gpu(4, 0, 1)), None);
        check(
            "no id",
            pb::AcquireLeaseRequest {
                request_id: String::new(),
                ..request()
            },
            Some("request_id"),
        );
        check(
            "not a uuid",
            pb::AcquireLeaseRequest {
                request_id: "x".into(),
                ..request()
            },
            Some("request_id"),
        );
        check(
            "nothing asked",
            pb::AcquireLeaseRequest {
                cores: 0,
                ..request()
            },
            Some("cores"),
        );
        check("no SMs", with(gpu(0, 0, 1)), Some("gpus[0].sms"));
        check("both", with(gpu(1, 1, 1)), Some("gpus[0].percent"));
        check("101 %", with(gpu(0, 101, 1)), Some("gpus[0].percent"));
        check("256 + 50 %", with(gpu(0, 306, 1)), Some("gpus[0].percent"));
        check(
            "no memory",
            with(gpu(1, 0, 0)),
            Some("gpus[0].memory_bytes"),
        );
        check(
            "gpu 70000",
            with(pb::GpuRequest {
                gpu: Some(70_000),
                ..gpu(1, 0, 1)
            }),
            Some("gpus[0].gpu"),
        );
        check(
            "17 GPUs",
            pb::AcquireLeaseRequest {
                gpus: vec![gpu(1, 0, 1); 17],
                ..request()
            },
            Some("gpus"),
        );
        let enforced = |shares: &[(u32, u32)]| pb::AcquireLeaseRequest {
            gpus: shares.iter().map(|(n, p)| gpu(*n, *p, 1)).collect(),
            ..request()
        };
        check("two alike", enforced(&[(66, 0), (66, 0)]), None);
        check("two unlike", enforced(&[(66, 0), (32, 0)]), Some("gpus"));
        check("50 % and 25 %", enforced(&[(0, 50), (0, 25)]), Some("gpus"));
        check(
            "the third",
            enforced(&[(0, 50), (0, 50), (0, 49)]),
            Some("gpus"),
        );
        check(
            "two unlike that nobody enforces",
            pb::AcquireLeaseRequest {
                unenforced: true,
                ..enforced(&[(66, 0), (32, 0)])
            },
            None,
        );
        check(
            "waits for ever",
            pb::AcquireLeaseRequest {
                wait_ms: u64::MAX,
                ..request()
            },
            Some("wait_ms"),
        );
        check(
            "resize 9",
            pb::AcquireLeaseRequest {
                resize: 9,
                ..request()
            },
            Some("resize"),
        );
        check(
            "both kinds",
            pb::AcquireLeaseRequest {
                member: Some(of_job.clone()),
                ..request()
            },
            Some("member"),
        );
        check(
            "a worker",
            pb::AcquireLeaseRequest {
                member: Some(of_job.clone()),
                cores: 0,
                ..request()
            },
            None,
        );
        let nameless = pb::Member {
            job: "a b".into(),
            ..of_job
        };
        check(
            "a name",
            pb::AcquireLeaseRequest {
                member: Some(nameless),
                cores: 0,
                ..request()
            },
            Some("member.job"),
        );
    }
}
