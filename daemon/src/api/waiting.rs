//! What a job waits for, in a sentence: what is short, by how much and who has it, or who comes first. What of that is
//! another tenant's is not told. Called by `grpc::plans`, when a person asks.

use evenkeel_core::allocate::{self, Refusal, Room};
use evenkeel_core::command::{Caller, Rejection};
use evenkeel_core::curve::Profile;
use evenkeel_core::decide::job::{inputs_of, profiles_of};
use evenkeel_core::decide::queue::{Waits, free_for, waits_for};
use evenkeel_core::id::JobId;
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_core::node::Node;
use evenkeel_core::state::Waiter;
use evenkeel_core::step::State;
use tonic::Status;

use super::context::Context;
use super::error;
use super::turns::{Turn, aside};

/// The sentence; none if the job does not wait.
pub(super) async fn sentence(
    ctx: &Context,
    caller: &Caller,
    id: JobId,
    turn: Turn,
) -> Result<Option<String>, Status> {
    let attempt = ctx.read(caller, move |state, _| Attempt::of(state, id));
    let Some(attempt) = attempt.await? else {
        return Ok(None);
    };
    // A plan may take its time, and everybody waits for the state.
    let refusal = aside(turn, move || attempt.refusal()).await?;
    let who = caller.clone();
    let told = ctx.read(caller, move |state, _| {
        let job = waiting(state, id)?;
        let waits = waits_for(&state.durable, job, refusal.as_ref());
        Some(in_words(state, job, waits, &who))
    });
    told.await
}

/// A job that waits, if it still does.
fn waiting(state: &State, id: JobId) -> Option<&Job> {
    let job = state.durable.jobs().get(&id);
    job.filter(|j| matches!(j.phase, JobPhase::Queued | JobPhase::Parked))
}

/// All that a plan on what is free depends on.
struct Attempt {
    job: Job,
    node: Node,
    room: Room,
    profiles: Vec<Option<Profile>>,
}

impl Attempt {
    fn of(state: &State, id: JobId) -> Option<Self> {
        let d = &state.durable;
        let job = waiting(state, id)?;
        let profiles = profiles_of(d, &job.tenant, &job.spec);
        Some(Self {
            node: d.node().clone(),
            room: free_for(d, &state.volatile, job),
            profiles: profiles
                .into_iter()
                .map(Option::<&Profile>::cloned)
                .collect(),
            job: job.clone(),
        })
    }

    /// Why there is no plan; none if there is one.
    fn refusal(self) -> Option<Refusal> {
        let profiles: Vec<Option<&Profile>> = self.profiles.iter().map(Option::as_ref).collect();
        let inputs = inputs_of(&self.job, &profiles, &[]);
        let previous = self.job.plan.as_ref();
        allocate::plan(&inputs, &self.node, &self.room, previous).err()
    }
}

fn in_words(state: &State, job: &Job, waits: Waits, caller: &Caller) -> String {
    match waits {
        Waits::Drained => "It waits for the node, which is being drained and grants nothing new.".into(),
        Waits::Room(Rejection::Invalid { why, .. }) => format!("It waits for room: {why}."),
        Waits::Room(rejection) => {
            format!("It waits for room: {}.", error::told(rejection, caller))
        }
        Waits::Turn(who) => format!(
            "It waits for its turn: {} came first and waits for what it needs, too.",
            named(state, who, caller)
        ),
        Waits::Nothing if job.phase == JobPhase::Parked => {
            "Nobody used it for long, so its shares were given up; there is room, and its next worker brings it back."
                .into()
        }
        Waits::Nothing => "There is room for it now: it is about to begin.".into(),
    }
}

/// Somebody in the queue, as far as the caller may know.
fn named(state: &State, who: Waiter, caller: &Caller) -> String {
    let d = &state.durable;
    let (seen, name) = match who {
        Waiter::Job(id) => {
            let job = d.jobs().get(&id);
            let seen = job.map(|j| caller.sees(&j.tenant, Some(&j.spec.name)));
            let name = job.map_or_else(|| id.to_string(), |j| format!("job {}", j.spec.name));
            (seen, name)
        }
        Waiter::Lease(id) => {
            let lease = d.leases().get(&id);
            (lease.map(|l| d.is_seen_by(l, caller)), id.to_string())
        }
    };
    if seen.unwrap_or(caller.admin) {
        name
    } else {
        "somebody else".to_owned()
    }
}
