//! Commands about jobs: submit, update, cancel, and the reports by which a job is balanced.
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::cap::Ceiling;
use super::fit::enforced;
use super::lease::{PROCESSES_MAX, at_most, ended};
use super::rebalance::{self, Case, Decision as Ruled, Judgement};
use super::room::{free_beside, room_beside_queue, whole_room};
use super::{Answer, Decision, find_fenced};
use crate::allocate::{Inputs, Refusal, Room, Shortage, plan};
use crate::balance::{JobContext, Report, StayReason, Verdict};
use crate::command::{Caller, Rejection, Reply, Resource};
use crate::curve::corun::Caps;
use crate::curve::{Profile, ProfileKey};
use crate::event::Event;
use crate::grant::{Ask, Member};
use crate::id::{BodyHash, Fence, LeaseId, Name, RequestId};
use crate::job::{
    Detector, Job, JobPhase, JobSpec, Plan, Policy, RebalanceSpec, STAGES_MAX, Slot, WEIGHT_RANGE,
    WORKERS_MAX,
};
use crate::lease::{End, Lease, Phase};
use crate::state::{Durable, Effect, slots};
use crate::unit::{Millis, Sms, Time};
use crate::volatile::{Ruling, Volatile};

pub(super) fn submit(
    d: &Durable,
    v: &Volatile,
    caller: &Caller,
    request: RequestId,
    body: BodyHash,
    spec: &JobSpec,
) -> Result<Decision, Rejection> {
    if let Some(r) = d.requests().get(&caller.tenant, request) {
        return match r.effect {
            Effect::Job(id) if r.body == body => Ok(Decision {
                events: vec![],
                reply: Answer::Reply(Reply::Job(id)),
            }),
            _ => Err(Rejection::OtherBody(request)),
        };
    }
    if !caller.may_ask_for(Some(&spec.name)) {
        return Err(Rejection::NotFound(format!("job {}", spec.name)));
    }
    check(spec)?;
    if d.draining() {
        return Err(Rejection::Draining);
    }
    let own = d.tally(&caller.tenant).jobs;
    at_most("live jobs", d.jobs().len(), v.settings.jobs_max)?;
    at_most("live jobs of one tenant", own, v.settings.tenant_jobs_max)?;
    if d.job_named(&caller.tenant, &spec.name).is_some() {
        return Err(Rejection::NameTaken(spec.name.clone()));
    }
    let job = Job {
        id: d.next_job(),
        tenant: caller.tenant.clone(),
        request,
        body,
        arrival: d.next_lease(),
        spec: spec.clone(),
        phase: JobPhase::Queued,
        plan: None,
        slots: vec![],
        scale: vec![1.0; spec.stages.len()],
        learned: vec![vec![]; spec.stages.len()],
        kappa: vec![],
        moves: 0,
    };
    // What does not fit an empty node never fits: said now, not after an hour in the queue.
    let whole = plan_for(d, &job, &whole_room(d, &Ceiling::default()))?;
    let cap = Ceiling::empty(&v.caps, &caller.tenant);
    if !cap.is_open() && plan_for(d, &job, &whole_room(d, &cap)).is_err() {
        return Err(cap.refusal_of(&whole));
    }
    let reply = Answer::Reply(Reply::Job(job.id));
    Ok(Decision {
        events: vec![Event::JobSubmitted { job }],
        reply,
    })
}

/// Whether a job makes sense by itself, on any node.
pub fn check(spec: &JobSpec) -> Result<(), Rejection> {
    let invalid = |field, why: String| Err(Rejection::Invalid { field, why });
    if spec.stages.is_empty() || spec.stages.len() > STAGES_MAX {
        return invalid(
            "stages",
            format!(
                "a job has 1 to {STAGES_MAX} stages; this one has {}",
                spec.stages.len()
            ),
        );
    }
    if !(1..=2).contains(&spec.groups) {
        return invalid(
            "groups",
            format!(
                "{} groups: 1 runs rollout stages in turn, 2 overlaps them",
                spec.groups
            ),
        );
    }
    let (least, most) = WEIGHT_RANGE;
    if !(spec.weight >= least && spec.weight <= most) {
        return invalid(
            "weight",
            format!("{} is no weight: {least} to {most}", spec.weight),
        );
    }
    let mut names = BTreeSet::new();
    for s in &spec.stages {
        if !names.insert(&s.name) {
            return invalid("stages", format!("two stages are named {}", s.name));
        }
        if s.workers == 0 || s.workers > WORKERS_MAX {
            return invalid(
                "workers",
                format!(
                    "stage {} has {} workers; 1 to {WORKERS_MAX} are possible",
                    s.name, s.workers
                ),
            );
        }
        if s.processes > PROCESSES_MAX {
            let why = format!(
                "stage {} has workers of {} processes; 1 to {PROCESSES_MAX} are possible",
                s.name, s.processes
            );
            return invalid("processes", why);
        }
        if s.processes == 0 || s.cores.0 > s.cores.1 || s.sms.0 > s.sms.1 {
            return invalid(
                "stages",
                format!(
                    "stage {}: the least is above the most, or it has no process",
                    s.name
                ),
            );
        }
        if s.cores.1 == 0 && s.sms.1 == Sms(0) {
            return invalid(
                "stages",
                format!("stage {} may have neither cores nor SMs", s.name),
            );
        }
        if s.batches.contains(&0) {
            return invalid(
                "batches",
                format!("stage {}: a batch size is at least 1", s.name),
            );
        }
    }
    check_rules(&spec.rebalance)
}

fn check_rules(rules: &RebalanceSpec) -> Result<(), Rejection> {
    let finite = |x: f64, low: f64, high: f64| x.is_finite() && x >= low && x <= high;
    let ok = finite(rules.min_gain, 0.0, 100.0)
        && match rules.detector {
            Detector::Streak { gap, windows } => finite(gap, 0.0, 1.0) && windows > 0,
            Detector::Cusum { slack, threshold } => {
                finite(slack, 0.0, 100.0) && finite(threshold, 1e-9, 1e6)
            }
        };
    if ok {
        return Ok(());
    }
    let why = "a gap is 0 to 1, counts are at least 1, slack, threshold and gain are finite and not negative";
    Err(Rejection::Invalid {
        field: "rebalance",
        why: why.into(),
    })
}

/// The plan of a job on this room, by its profiles and what was learned live.
pub(super) fn plan_for(d: &Durable, job: &Job, room: &Room) -> Result<Plan, Rejection> {
    let profiles = profiles_of(d, &job.tenant, &job.spec);
    let pinned = pinned(d, job);
    let inputs = inputs_of(job, &profiles, &pinned);
    plan(&inputs, d.node(), room, job.plan.as_ref())
        .map(|(plan, _)| plan)
        .map_err(|r| refused(d, &r))
}

/// All that is known of a job. What its stages cost each other is as its factors were measured with; before that, as co-run
/// trials say. Its live efficiency of overlap is the watch's to tell.
pub fn inputs_of<'a>(
    job: &'a Job,
    profiles: &'a [Option<&'a Profile>],
    pinned: &'a [bool],
) -> Inputs<'a> {
    Inputs {
        scale: &job.scale,
        learned: &job.learned,
        profiles,
        pinned,
        kappa: (!job.kappa.is_empty()).then_some(&job.kappa[..]),
        caps: job.plan.as_ref().map_or(Caps::Reserve, |plan| plan.caps),
        ..Inputs::declared(&job.spec)
    }
}

/// The stages of a job whose GPU share can never change, and is in use: a new plan leaves it as it is.
pub(super) fn pinned(d: &Durable, job: &Job) -> Vec<bool> {
    let is_pinned = |slot: &Slot| {
        let lease = slot.lease.and_then(|id| d.leases().get(&id));
        lease.is_some_and(Lease::is_pinned)
    };
    let slots = |i| job.slots.get(i).into_iter().flatten();
    (0..job.spec.stages.len())
        .map(|i| slots(i).any(is_pinned))
        .collect()
}

/// The stored profiles of a job's stages, measured on this node's kind of GPU.
pub fn profiles_of<'a>(d: &'a Durable, tenant: &Name, spec: &JobSpec) -> Vec<Option<&'a Profile>> {
    let model = enforced(d).next().map(|g| g.model.clone());
    let none = Name::new("none").ok();
    let find = |s: &crate::job::StageSpec| {
        let stage = s
            .profile
            .clone()
            .or_else(|| Name::new(&format!("{}/{}", spec.name, s.name)).ok())?;
        let gpu = if s.sms.1 == Sms(0) {
            none.clone()
        } else {
            model.clone()
        }?;
        d.profiles().get(&ProfileKey {
            tenant: tenant.clone(),
            stage,
            gpu,
        })
    };
    spec.stages.iter().map(find).collect()
}

/// What an allocator's shortage is of.
pub(super) const fn resource_of(s: &Shortage) -> Resource {
    use crate::allocate::Resource as Short;
    match s.resource {
        Short::Cores => Resource::Cores,
        Short::Sms => Resource::Sms(s.gpu),
        Short::Memory => Resource::Memory(s.gpu),
        Short::Gpus => Resource::Gpus,
    }
}

fn refused(d: &Durable, refusal: &Refusal) -> Rejection {
    match refusal.shortage() {
        Some(s) => {
            let resource = resource_of(s);
            let has = match resource {
                Resource::Cores => d.node().leasable_cores().len().into(),
                _ => s.available,
            };
            Rejection::Never {
                resource,
                asked: s.needed,
                has,
            }
        }
        None => Rejection::Invalid {
            field: match refusal {
                Refusal::Idle(_) => "stages",
                _ => "spec",
            },
            why: refusal.to_string(),
        },
    }
}

pub(super) fn update(
    d: &Durable,
    v: &mut Volatile,
    caller: &Caller,
    name: &Name,
    rules: Option<&RebalanceSpec>,
    policy: Option<Policy>,
    replan: bool,
) -> Result<Decision, Rejection> {
    let job = named(d, caller, name)?;
    let mut events = Vec::new();
    let mut changed = job.clone();
    if rules.is_some() || policy.is_some() {
        let rebalance = rules.unwrap_or(&job.spec.rebalance).clone();
        check_rules(&rebalance)?;
        let policy = policy.unwrap_or(job.spec.policy);
        changed.spec.policy = policy;
        events.push(Event::JobUpdated {
            id: job.id,
            rebalance,
            policy,
        });
    }
    if replan && job.phase == JobPhase::Admitted {
        let new = plan_for(d, &changed, &room_beside_queue(d, v, job))?;
        if job.plan.as_ref() != Some(&new) {
            v.rulings.remove(&job.id);
            events.push(Event::JobReplanned {
                id: job.id,
                plan: new,
                reason: "asked for by its owner".into(),
            });
        }
    }
    Ok(Decision {
        events,
        reply: Answer::Reply(Reply::Job(job.id)),
    })
}

fn named<'a>(d: &'a Durable, caller: &Caller, name: &Name) -> Result<&'a Job, Rejection> {
    d.job_seen_by(caller, name)
        .ok_or_else(|| Rejection::NotFound(format!("job {name}")))
}

/// The job ends at once: its name is free, and what was kept for it. What a worker uses stays the worker's for a
/// grace: from the commit on it is told to give it back (`converge::directive`), and `decide::time` takes what is
/// left. A lease that nobody uses yet ends here.
pub(super) fn cancel(d: &Durable, caller: &Caller, name: &Name) -> Result<Decision, Rejection> {
    let job = named(d, caller, name)?;
    let (mut events, mut told) = (Vec::new(), Vec::new());
    for lease in d.leases_of(job.id) {
        match &lease.phase {
            Phase::Queued | Phase::Pending => events.push(ended(lease, End::Revoked, None)),
            phase if phase.is_usable() => told.push(lease.id),
            _ => {} // on its way out already
        }
    }
    events.push(Event::JobEnded { id: job.id });
    Ok(Decision {
        events,
        reply: Answer::Reply(Reply::Cancelled { job: job.id, told }),
    })
}

/// A worker's report joins its job's balance; if the balance wants a look, the job is judged.
pub(super) fn report(
    d: &Durable,
    v: &mut Volatile,
    now: Time,
    caller: &Caller,
    (id, fence): (LeaseId, Fence),
    report: &Report,
) -> Result<Decision, Rejection> {
    let lease = find_fenced(d, caller, id, fence)?;
    let Ask::Stage(member) = lease.ask else {
        let why = "this lease is of no job, so nobody balances it; acquire with a job and a stage";
        return Err(Rejection::Invalid {
            field: "report",
            why: why.into(),
        });
    };
    let (Some(job), Some(watch)) = (d.jobs().get(&member.job), v.watches.get_mut(&member.job))
    else {
        return Ok(Decision::done());
    };
    let report = Report {
        stage: member.stage,
        worker: member.worker,
        at: now,
        ..report.clone()
    };
    watch.ingest(&report).map_err(|e| Rejection::Invalid {
        field: "report",
        why: e.to_string(),
    })?;
    note_restart(v, lease, member, &report);
    let (Some(plan), Some(watch)) = (&job.plan, v.watches.get_mut(&job.id)) else {
        return Ok(Decision::done());
    };
    let free = free_beside(d, plan);
    let context = JobContext {
        spec: &job.spec,
        plan,
        settled: settled(d, job),
        free,
    };
    let Some(verdict) = watch.poll(&context) else {
        return Ok(Decision::done());
    };
    let restarts = watch.restart_costs();
    let judged = judged(d, v, job, plan, &verdict, &restarts);
    let (events, stayed) = ruled(job, &judged);
    v.rulings.insert(
        job.id,
        Ruling {
            free,
            stayed,
            detail: judged.sentence(),
        },
    );
    Ok(Decision::of(events))
}

/// The first work after a restart ends it: from the commit of the new share to here the worker stood still, or was
/// about to.
fn note_restart(v: &mut Volatile, lease: &Lease, member: Member, report: &Report) {
    if report.busy.iter().any(|b| b.units > 0.0)
        && let Some(took) = v.works(lease, report.at)
        && let Some(watch) = v.watches.get_mut(&member.job)
    {
        watch.restarted(member.stage, took);
    }
}

/// Whether the job's shares move, by its profiles, what was learned live, and what its restarts took.
fn judged(
    d: &Durable,
    v: &mut Volatile,
    job: &Job,
    plan: &Plan,
    verdict: &Verdict,
    restarts: &[Option<Millis>],
) -> Judgement {
    let profiles = profiles_of(d, &job.tenant, &job.spec);
    let room = room_beside_queue(d, v, job);
    let pinned = pinned(d, job);
    let (live, eta) = match v.watches.get(&job.id) {
        Some(watch) => (watch.kappa(), watch.eta()),
        None => Default::default(),
    };
    let inputs = Inputs {
        eta,
        ..inputs_of(job, &profiles, &pinned)
    };
    let costs = rebalance::Costs {
        restarts,
        // Not seen: what is reported during a move belongs to no split and is thrown away.
        drain: None,
    };
    rebalance::judge(&Case {
        inputs,
        plan,
        node: d.node(),
        room: &room,
        verdict,
        costs,
        live: &live,
    })
}

/// A judgement as events, and the reason if the shares stay.
fn ruled(job: &Job, judged: &Judgement) -> (Vec<Event>, Option<StayReason>) {
    let id = job.id;
    let mut events = Vec::new();
    if let Some(r) = judged
        .refit
        .as_ref()
        .filter(|r| r.scale != job.scale || r.learned != job.learned || r.kappa != job.kappa)
    {
        events.push(Event::JobRefitted {
            id,
            scale: r.scale.clone(),
            learned: r.learned.clone(),
            kappa: r.kappa.clone(),
            outlook: judged.outlook.clone(),
        });
    }
    match &judged.decision {
        Ruled::Move(m) => {
            events.push(Event::JobReplanned {
                id,
                plan: m.plan.clone(),
                reason: judged.sentence(),
            });
            (events, None)
        }
        Ruled::Stay { reason, detail } => {
            events.push(Event::JobStayed {
                id,
                reason: detail.clone(),
            });
            (events, Some(*reason))
        }
    }
}

/// No resize of the job is under way: every worker has what the plan says.
pub fn settled(d: &Durable, job: &Job) -> bool {
    let Some(plan) = &job.plan else { return false };
    slots(job).all(|(m, slot)| {
        let wanted = plan
            .stages
            .get(usize::from(m.stage.0))
            .and_then(|s| s.workers.get(m.worker.0 as usize));
        match slot.lease.and_then(|id| d.leases().get(&id)) {
            Some(l) => l.held == l.target && Some(&l.target) == wanted,
            None => Some(&slot.unclaimed) == wanted,
        }
    })
}
