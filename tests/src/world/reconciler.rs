//! The reconciler's part of the world: it looks, does what the core says, looks again and reports. Its steps may get
//! lost, and its looks may see nothing; it never invents what it sees. What a sight is told as is the production code.
use std::collections::BTreeMap;

use evenkeel_core::command::{Command, Observation};
use evenkeel_core::converge::{Step, Target, Want, steps};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::event::Event;
use evenkeel_core::invariant::Violation;
use evenkeel_core::lease::Cause;
use evenkeeld::reconcile::observation;

use super::planted::Planted;
use super::shell::{Ticket, Who};
use super::{Happening, Kind, World, reality};

impl World {
    /// The reconciler looks at every tree that it has to take care of.
    pub(super) fn look(&mut self, epoch: u32) -> Result<Kind, Violation> {
        if !self.shell.is_up() || epoch != self.shell.epoch {
            return Ok(Kind::Nothing);
        }
        let now = self.clock();
        let targets: Vec<Target> = self.shell.targets(now).to_vec();
        let gpus = || self.node.gpus.iter().map(|g| g.id);
        let observed = targets
            .iter()
            .map(|t| (t.lease, self.hw.sight(&t.holder, gpus()).tree()));
        let observed: BTreeMap<_, _> = observed.collect();
        let Some(state) = self.shell.state() else {
            return Ok(Kind::Nothing);
        };
        let todo = steps(state.durable.node(), &targets, &observed);
        let of = |t: &Target, s: &Step| match s {
            Step::Bind { lease, .. }
            | Step::TerminateClient { lease, .. }
            | Step::Terminate { lease, .. }
            | Step::Kill { lease, .. } => *lease == t.lease,
        };
        self.looked = targets
            .into_iter()
            .map(|t| {
                let mine = todo.iter().filter(|s| of(&t, s)).cloned().collect();
                (t, mine)
            })
            .collect();
        let after = self.chance.range(1, 60);
        let nothing = self.looked.is_empty();
        self.at(after, Happening::Apply { epoch });
        Ok(if nothing {
            Kind::Nothing
        } else {
            Kind::Happened
        })
    }

    /// It does what has to be done, looks again, and reports what it sees.
    pub(super) fn apply(&mut self, epoch: u32) -> Result<Kind, Violation> {
        if !self.shell.is_up() || epoch != self.shell.epoch {
            return Ok(Kind::Nothing);
        }
        let looked = std::mem::take(&mut self.looked);
        let nothing = looked.is_empty();
        for (target, todo) in looked {
            for step in &todo {
                if self.calm || !self.chance.chance(self.swarm.bind_fails) {
                    self.hw.apply(step);
                    self.trace.line(self.now, format_args!("{step:?}"));
                }
            }
            let seen = self.observe(&target);
            let command = Command::Observe(Box::new(seen));
            self.shell.inbox.push_back(Ticket {
                who: Who::Reconciler,
                token: 0,
                command,
            });
        }
        reality::reality_is_counted(&self.truth.fold, &self.hw)?;
        let after = self.chance.range(100, 900);
        self.at(after, Happening::Look { epoch });
        self.at(0, Happening::Wake { epoch });
        Ok(if nothing {
            Kind::Nothing
        } else {
            Kind::Happened
        })
    }

    fn observe(&mut self, target: &Target) -> Observation {
        let blind = |w: &mut Self| !w.calm && w.chance.chance(w.swarm.blind);
        let (no_cores, no_gpus) = (blind(self), blind(self));
        let gpus = self.node.gpus.iter().map(|g| g.id).filter(|_| !no_gpus);
        let mut sight = self.hw.sight(&target.holder, gpus);
        if no_cores {
            (sight.cpus, sight.spread) = (None, CpuSet::new());
        }
        let mut target = target.clone();
        if self.swarm.planted == Some(Planted::GoneWithoutTheGpu) {
            target.gpus.clear();
        }
        // The books are those of the newest commit, as they were when the targets were published.
        let mut seen = observation(self.truth.fold.node(), &target, &sight, &CpuSet::new());
        if self.swarm.planted == Some(Planted::GrowBeforeShrink) {
            self.believe(&target, &mut seen);
        }
        seen
    }
    /// Takes what was ordered for done (a planted fault).
    fn believe(&mut self, target: &Target, seen: &mut Observation) {
        if let Want::Bound(cpus) = &target.want {
            seen.cores = Some(self.cores_of(cpus));
        }
        for (gpu, seen) in &mut seen.gpus {
            seen.cap = seen
                .cap
                .min(target.caps.get(gpu).copied().unwrap_or_default());
            seen.memory = Default::default();
        }
        if let Some(state) = self.shell.state_mut() {
            state
                .volatile
                .acknowledged
                .insert(target.lease, target.generation);
        }
    }
    /// The cores any of whose CPUs a tree runs on.
    fn cores_of(&self, cpus: &CpuSet) -> CpuSet {
        let on = self.node.cores.iter().filter(|c| !c.cpus.is_disjoint(cpus));
        on.map(|c| c.id).collect()
    }

    pub(super) fn forge_proof(&mut self, events: &[Event]) {
        for event in events {
            if let Event::LeaseQuarantined {
                id,
                fence,
                cause: Cause::Expired,
            } = event
            {
                let seen = Observation {
                    lease: *id,
                    fence: *fence,
                    generation: Default::default(),
                    gone: true,
                    cores: None,
                    gpus: BTreeMap::new(),
                };
                let command = Command::Observe(Box::new(seen));
                self.shell.inbox.push_back(Ticket {
                    who: Who::Reconciler,
                    token: 0,
                    command,
                });
            }
        }
    }
}
