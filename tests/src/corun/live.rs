//! A triple in operation: its pipeline reports busy intervals as workers do, the production watch and judge read them.
use evenkeel_core::allocate::{Inputs, Room, plan};
use evenkeel_core::balance::{Busy, Free, JobContext, Report, StepReport, Watch};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, Profile};
use evenkeel_core::decide::rebalance::{Case, Costs, Decision, judge};
use evenkeel_core::id::{GpuId, StageId, WorkerId};
use evenkeel_core::job::{JobSpec, Plan, SmMode};
use evenkeel_core::node::Node;
use evenkeel_core::unit::{Bytes, Sms, Time};
use evenkeel_rollout::pipeline::{self, Observer, Part, Split, run_observed};

use super::made::{CORES, Triple};

/// A managed job.
pub(super) struct Keeper {
    triple: Triple,
    spec: JobSpec,
    node: Node,
    room: Room,
    profiles: Vec<Profile>,
    /// The split in force.
    pub(super) plan: Plan,
    watch: Watch,
    scale: Vec<f64>,
    learned: Vec<Vec<Point>>,
    kappa: Option<Vec<Vec<f64>>>,
    /// When the run under way began, in milliseconds.
    began_ms: u64,
}

/// Intervals of a part that wait for the next report.
#[derive(Default)]
struct Heard {
    busy: [Vec<pipeline::Busy>; 3],
    reports: Vec<Report>,
    lanes: [u32; 3],
    began_ms: u64,
}

impl Observer for Heard {
    fn busy(&mut self, busy: pipeline::Busy) {
        self.busy[busy.part as usize].push(busy);
    }
    fn step(&mut self, n: u64, end_ns: u64, consumed: f64) {
        // Sent at the next whole millisecond of the daemon's clock.
        let at_ms = end_ns.div_ceil(1_000_000);
        for i in 0..3 {
            let ago = |ns: u64| (at_ms * 1_000).saturating_sub(ns / 1_000);
            let busy = self.busy[i].drain(..).map(|b| Busy {
                lane: b.lane,
                start_us_ago: ago(b.start_ns),
                dur_us: b.end_ns / 1_000 - b.start_ns / 1_000,
                units: b.units,
                batch: 1,
            });
            let step = StepReport {
                n,
                consumed,
                discarded: 0.0,
            };
            self.reports.push(Report {
                stage: StageId(i as u8),
                worker: WorkerId(0),
                at: Time(self.began_ms + at_ms),
                lanes: self.lanes[i],
                busy: busy.collect(),
                steps: if i == Part::Training as usize {
                    vec![step]
                } else {
                    Vec::new()
                },
            });
        }
    }
}

/// The plan as the pipeline's split: a stage uses what it can reach.
pub(super) fn split_of(plan: &Plan) -> Split {
    Split {
        generate_sms: plan.stages[1].cap.0,
        train_sms: plan.stages[2].cap.0,
        cores: plan.stages[0].cores,
    }
}

impl Keeper {
    /// Plans by these profiles.
    pub(super) fn new(
        triple: &Triple,
        sm_mode: SmMode,
        profiles: Vec<Profile>,
    ) -> anyhow::Result<Self> {
        let (spec, node) = (triple.job(sm_mode), triple.node());
        let sms = Sms(triple.spec.gpu.sms);
        let room = Room {
            cores: CpuSet::range(0, CORES - 1),
            gpus: [(GpuId(0), (sms, Bytes::gib(40)))].into(),
        };
        let known: Vec<_> = profiles.iter().map(Some).collect();
        let inputs = Inputs {
            profiles: &known,
            ..Inputs::declared(&spec)
        };
        let (plan, _) = plan(&inputs, &node, &room, None)?;
        Ok(Self {
            watch: Watch::new(&spec, Time(0)),
            triple: triple.clone(),
            spec,
            node,
            room,
            plan,
            scale: vec![1.0; 3],
            learned: vec![Vec::new(); 3],
            kappa: None,
            began_ms: 0,
            profiles,
        })
    }

    /// Its shares stay as they are, whatever is measured.
    pub(super) const fn freeze(&mut self) {
        self.spec.rebalance.enabled = false;
    }

    /// Runs so many iterations of the split in force, or until it moves, and says whether it did.
    pub(super) fn run(&mut self, steps: u64) -> anyhow::Result<bool> {
        let split = split_of(&self.plan);
        let mut heard = Heard {
            lanes: [split.cores, 1, 1],
            began_ms: self.began_ms,
            ..Heard::default()
        };
        run_observed(&self.triple.spec, split, 0, steps, &mut heard)?;
        for stage in 0..3 {
            self.watch.forget(StageId(stage), WorkerId(0));
        }
        self.began_ms = heard.reports.last().map_or(0, |r| r.at.0) + 1_000;
        for report in heard.reports {
            let closes = !report.steps.is_empty();
            self.watch.ingest(&report)?;
            if closes && self.poll() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn poll(&mut self) -> bool {
        let ctx = JobContext {
            spec: &self.spec,
            plan: &self.plan,
            settled: true,
            free: Free::default(),
        };
        let Some(verdict) = self.watch.poll(&ctx) else {
            return false;
        };
        let known: Vec<_> = self.profiles.iter().map(Some).collect();
        let live = self.watch.kappa();
        let kappa = self.kappa.clone();
        let inputs = Inputs {
            profiles: &known,
            scale: &self.scale,
            learned: &self.learned,
            kappa: kappa.as_deref(),
            eta: self.watch.eta(),
            caps: self.plan.caps,
            ..Inputs::declared(&self.spec)
        };
        let judgement = judge(&Case {
            inputs,
            plan: &self.plan,
            node: &self.node,
            room: &self.room,
            verdict: &verdict,
            costs: Costs::default(),
            live: &live,
        });
        let sentence = judgement.sentence();
        if let Some(refit) = &judgement.refit {
            self.scale.clone_from(&refit.scale);
            self.learned.clone_from(&refit.learned);
            self.kappa = Some(refit.kappa.clone()).filter(|k| !k.is_empty());
        }
        match judgement.decision {
            Decision::Move(moved) => {
                let windows = self.spec.rebalance.cooldown_windows;
                self.watch.moved(windows, sentence);
                self.plan = moved.plan;
                true
            }
            Decision::Stay { reason, detail } => {
                if let Some(outlook) = &judgement.outlook {
                    self.plan.expect(outlook);
                }
                self.watch.stayed(Free::default(), reason, detail);
                false
            }
        }
    }

    /// What generation loses beside training, and training beside generation, as of the last refit.
    pub(super) fn kappa(&self) -> Option<[f64; 2]> {
        let kappa = self.kappa.as_ref()?;
        Some([kappa[1][2], kappa[2][1]])
    }
}
