//! The script's commands about leases and jobs.
use evenkeel_core::balance::{Busy, Report, StepReport};
use evenkeel_core::command::{Acquire, Command, Reply};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::{Ask, GpuAsk, Member, Resize, SmAsk};
use evenkeel_core::id::{BodyHash, Fence, GpuId, Name, RequestId, StageId, WorkerId};
use evenkeel_core::job::{Detector, JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};

use super::words::Words;
use super::{Client, Mistake, Script, caller, target_of};

fn name(s: &str) -> Result<Name, Mistake> {
    Name::new(s).map_err(|e| Mistake(e.to_string()))
}

impl Script {
    pub(super) fn acquire(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let who = words.next()?;
        let tenant = words.text("tenant").unwrap_or_else(|| "alice".into());
        self.requests += 1;
        let ask = match words.text("job") {
            None => Self::amounts(words)?,
            Some(job) => {
                let (_, id) = self
                    .jobs
                    .get(&job)
                    .ok_or_else(|| Mistake(format!("no job {job}")))?;
                Ask::Stage(Member {
                    job: *id,
                    stage: StageId(words.number("stage")?.unwrap_or(0) as u8),
                    worker: WorkerId(words.number("worker")?.unwrap_or(0) as u32),
                })
            }
        };
        let acquire = Acquire {
            tenant: name(&tenant)?,
            request: RequestId(self.requests),
            body: BodyHash(1),
            ask,
            enforced: true,
            resize: words.flag("live").then_some(Resize::Live),
            processes: words.number("processes")?.map(|n| n as u32),
            ttl: Millis(words.millis("ttl")?.unwrap_or(30_000)),
            wait: words.flag("wait"),
            priority: words.number("priority")?.unwrap_or(0) as i32,
        };
        let command = Command::Acquire(Box::new(acquire));
        let client = Client {
            tenant,
            acquire: Some(command.clone()),
            ..Client::default()
        };
        self.clients.insert(who.clone(), client);
        self.granted(&who, command)
    }
    fn amounts(words: &mut Words) -> Result<Ask, Mistake> {
        let cores = words.number("cores")?.unwrap_or(0) as u32;
        let sms = match words.text("sms") {
            None => {
                return Ok(Ask::Alone {
                    cores,
                    gpus: vec![],
                });
            }
            Some(s) => match s.strip_suffix('%') {
                Some(p) => SmAsk::Percent(p.parse().unwrap_or(0)),
                None => SmAsk::Count(Sms(s.parse().unwrap_or(0))),
            },
        };
        let gpu = words.number("gpu")?.map(|n| GpuId(n as u16));
        let memory = Bytes::gib(words.number("gib")?.unwrap_or(1));
        Ok(Ask::Alone {
            cores,
            gpus: vec![GpuAsk { gpu, sms, memory }],
        })
    }
    /// The same request again, with the same id; `other` with another body.
    pub(super) fn again(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let who = words.next()?;
        let mut command = self.client(&who)?.acquire.clone();
        if let (Some(Command::Acquire(a)), true) = (&mut command, words.flag("other")) {
            a.body = BodyHash(2);
        }
        let command = command.ok_or_else(|| Mistake("nothing was asked".into()))?;
        self.granted(&who, command)
    }
    fn granted(&mut self, who: &str, command: Command) -> Result<(), Mistake> {
        let answer = self.ask(command)?;
        let client = self.clients.entry(who.to_owned()).or_default();
        match answer {
            Some(Ok(Reply::Lease(l))) => (client.lease, client.fence) = (Some(l.id), l.fence),
            Some(Ok(Reply::Waiting(id))) => (client.lease, client.fence) = (Some(id), Fence(1)),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn attach(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let who = words.next()?;
        let client = self.client(&who)?.clone();
        let lease = client
            .lease
            .ok_or_else(|| Mistake(format!("{who} has no lease")))?;
        let holder = client.holder.clone().unwrap_or_else(|| self.hw.spawn(1000));
        let fence = words.number("fence")?.map_or(client.fence, Fence);
        let caller = caller(&client.tenant, false);
        if let Some(c) = self.clients.get_mut(&who) {
            c.holder = Some(holder.clone());
        }
        let answer = self.ask(Command::Attach {
            caller,
            lease,
            fence,
            holder,
        })?;
        if let (Some(Ok(Reply::Lease(l))), Some(c)) = (answer, self.clients.get_mut(&who)) {
            (c.fence, c.env) = (l.fence, target_of(&l).gpus);
        }
        Ok(())
    }
    /// Its process creates its GPU contexts, with what is in its environment.
    pub(super) fn open(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let client = self.client(&words.next()?)?.clone();
        if let Some(holder) = &client.holder {
            for (gpu, share) in client.env {
                self.hw.open(holder, gpu, share);
            }
        }
        Ok(())
    }
    /// Its contexts take so many SMs for themselves; or, without a number, what they were given.
    pub(super) fn widen(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let client = self.client(&words.next()?)?.clone();
        let wide = words.number("sms")?.map(|n| Sms(n as u32));
        let tree = client.holder.as_ref().and_then(|h| self.hw.tree_mut(h));
        for c in tree.into_iter().flat_map(|t| &mut t.contexts) {
            c.wide = wide;
        }
        Ok(())
    }
    pub(super) fn renew(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let client = self.client(&words.next()?)?.clone();
        let fence = words.number("fence")?.map_or(client.fence, Fence);
        let lease = client
            .lease
            .ok_or_else(|| Mistake("it has no lease".into()))?;
        let caller = caller(&client.tenant, false);
        use crate::world::shell::Said;
        match self.shell.renew(&caller, lease, fence, self.now) {
            Some(Said::Renewed(_)) => {
                self.truth
                    .renewed(lease, fence, self.now)
                    .map_err(super::violated)?;
                self.say("renewed");
            }
            Some(_) => self.say("refused"),
            None => self.say("closing"),
        }
        Ok(())
    }
    /// The worker applies its target: in place, or, with `restart`, in a new process under the same root.
    pub(super) fn acknowledge(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let who = words.next()?;
        let client = self.client(&who)?.clone();
        let id = client
            .lease
            .ok_or_else(|| Mistake("it has no lease".into()))?;
        let lease = self.truth.fold.leases().get(&id).cloned();
        let lease = lease.ok_or_else(|| Mistake("its lease is over".into()))?;
        let target = target_of(&lease);
        if !words.flag("lie")
            && let Some(tree) = client.holder.as_ref().and_then(|h| self.hw.tree_mut(h))
        {
            tree.contexts.retain(|c| target.gpus.contains_key(&c.gpu));
            for c in &mut tree.contexts {
                c.share = target.gpus.get(&c.gpu).copied().unwrap_or_default();
            }
            if let Some(c) = self.clients.get_mut(&who) {
                c.env.clone_from(&target.gpus);
            }
        }
        self.ask(Command::Acknowledge {
            caller: caller(&client.tenant, false),
            lease: id,
            fence: client.fence,
            generation: lease.generation,
            effective: target,
        })
        .map(drop)
    }
    /// `release`, `revoke`, `clear`: whose, by whom, with which fence.
    pub(super) fn end(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let client = self.client(&words.next()?)?.clone();
        let lease = client
            .lease
            .ok_or_else(|| Mistake("it has no lease".into()))?;
        let fence = words.number("fence")?.map_or(client.fence, Fence);
        let by = words.text("by").unwrap_or_else(|| client.tenant.clone());
        let caller = caller(&by, by == "root");
        let command = match words.first() {
            "release" => Command::Release {
                caller,
                lease,
                fence,
            },
            "revoke" => Command::Revoke { caller, lease },
            _ => Command::Clear {
                caller,
                lease,
                reason: "looked".into(),
            },
        };
        self.ask(command).map(drop)
    }
    pub(super) fn kill(&mut self, words: &mut Words) -> Result<(), Mistake> {
        if let Some(holder) = &self.client(&words.next()?)?.clone().holder {
            self.hw.kill(holder);
        }
        Ok(())
    }

    /// A job of a generation and a training stage, one worker each.
    pub(super) fn submit(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let job = words.next()?;
        let tenant = words.text("tenant").unwrap_or_else(|| "alice".into());
        self.requests += 1;
        let most = words.number("cores")?.unwrap_or(4) as u32;
        let sms = Sms(words.number("sms")?.unwrap_or(64) as u32);
        let mut least = |key| Ok(Sms(words.number(key)?.unwrap_or(4) as u32));
        let (gen_least, train_least) = (least("gen_least")?, least("train_least")?);
        let stage = |n: &str, role, cores, sms: (Sms, Sms), memory| {
            Ok(StageSpec {
                name: name(n)?,
                role,
                workers: 1,
                processes: 1,
                cores,
                sms,
                memory,
                batches: vec![],
                synchronous: false,
                resize: Resize::Live,
                profile: None,
            })
        };
        let stages = vec![
            stage(
                "gen",
                Role::Generation,
                (1, most),
                (gen_least, sms),
                Bytes::gib(4),
            )?,
            stage(
                "train",
                Role::Training,
                (1, most),
                (train_least, sms),
                Bytes::gib(4),
            )?,
        ];
        let spec = JobSpec {
            name: name(&job)?,
            unit: name("step")?,
            priority: words.number("priority")?.unwrap_or(0) as i32,
            weight: 1.0,
            gpus: vec![],
            gpu_count: 1,
            groups: 2,
            policy: Policy::Waterfill,
            sm_mode: SmMode::Reserve,
            rebalance: RebalanceSpec {
                detector: Detector::Streak {
                    gap: 0.15,
                    windows: 3,
                },
                cooldown_windows: 1,
                refit_windows: 1,
                restart_cost: Millis(1_000),
                ..RebalanceSpec::default()
            },
            stages,
        };
        let command = Command::Submit {
            caller: caller(&tenant, false),
            request: RequestId(self.requests),
            body: BodyHash(1),
            spec: Box::new(spec),
        };
        if let Some(Ok(Reply::Job(id))) = self.ask(command)? {
            self.jobs.insert(job, (tenant, id));
        }
        Ok(())
    }
    /// What a calibration measured of both stages: so many units per second for each SM, up to 128.
    pub(super) fn profile(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let job = words.next()?;
        for stage in ["gen", "train"] {
            let per_sm = words.number(stage)?.unwrap_or(1) as f64;
            let point = |n: u32| Point {
                cores: 1,
                sms: Sms(4 * n),
                batch: 1,
                replicas: 1,
                rate: Rate::clamped(per_sm * f64::from(4 * n)),
                memory: Bytes(0),
                weight: 1.0,
            };
            let key = ProfileKey {
                tenant: name("alice")?,
                stage: name(&format!("{job}/{stage}"))?,
                gpu: name("EMU")?,
            };
            let profile = Box::new(Profile {
                key,
                points: (1..=32).map(point).collect(),
            });
            self.ask(Command::Import { profile })?;
        }
        Ok(())
    }
    pub(super) fn about_job(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let job = words.next()?;
        let tenant = self.jobs.get(&job).map_or("alice", |(t, _)| t).to_owned();
        let (caller, job) = (caller(&tenant, false), name(&job)?);
        let command = match words.first() {
            "cancel" => Command::Cancel { caller, job },
            _ => Command::Update {
                caller,
                job,
                rebalance: None,
                policy: None,
                replan: true,
            },
        };
        self.ask(command).map(drop)
    }
    /// A worker's rate, in units per second while busy, in `windows` windows; a trainer ends a step in each.
    pub(super) fn report(&mut self, words: &mut Words) -> Result<(), Mistake> {
        let client = self.client(&words.next()?)?.clone();
        let rate = words.number("rate")?.unwrap_or(1) as f64;
        let step = words.number("step")?;
        let lease = client
            .lease
            .ok_or_else(|| Mistake("it has no lease".into()))?;
        let busy = Busy {
            lane: 0,
            start_us_ago: 100_000,
            dur_us: 100_000,
            units: rate / 10.0,
            batch: 1,
        };
        let steps = step
            .map(|n| StepReport {
                n,
                consumed: 1.0,
                discarded: 0.0,
            })
            .into_iter()
            .collect();
        let report = Box::new(Report {
            lanes: 1,
            busy: vec![busy],
            steps,
            ..Report::default()
        });
        let caller = caller(&client.tenant, false);
        self.ask(Command::Report {
            caller,
            lease,
            fence: client.fence,
            report,
        })
        .map(drop)
    }
}
