//! Workers with their clients: they ask, wait, attach, renew, apply directives, report, release; and do wrong in the
//! ways that their seed allows.
use std::collections::BTreeMap;

use evenkeel_core::command::{Acquire, Caller, Command, Rejection, Reply};
use evenkeel_core::converge::{Directive, Order};
use evenkeel_core::grant::{GpuShare, Member, Vector};
use evenkeel_core::id::{Fence, Generation, GpuId, LeaseId, Name};
use evenkeel_core::lease::{Holder, Lease, Phase};

use super::job;
use super::rng::Rng;
use super::shell::{Said, Who};
pub use super::turn::{Call, Turn, What};
use super::wish;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    Asking,
    Waiting,
    Attaching,
    Running,
    Releasing,
    /// Runs on and renews nothing.
    Vanished,
}

#[derive(Clone, Debug)]
struct Open {
    token: u64,
    command: Command,
    at: u64,
    tries: u32,
}

/// One worker with its client.
#[derive(Debug)]
pub struct Agent {
    me: usize,
    tenant: Name,
    /// The job and place that it works for.
    place: Option<(usize, Member)>,
    rng: Rng,
    doing: Doing,
    open: Option<Open>,
    wish: Option<Acquire>,
    holder: Option<Holder>,
    lease: Option<LeaseId>,
    fence: Fence,
    applied: Generation,
    env: BTreeMap<GpuId, GpuShare>,
    cores: u32,
    ttl: u64,
    until: u64,
    steps: u64,
    deaf: bool,
    lies: bool,
    requests: u64,
    /// Answers to calls before this one are about another lease, or an older fence.
    born: u64,
    /// Renewals that it makes in haste.
    haste: u32,
    renewed_at: u64,
}

impl Agent {
    /// An agent that has asked for nothing yet.
    pub fn new(me: usize, tenant: Name, place: Option<(usize, Member)>, rng: Rng) -> Self {
        Self {
            me,
            tenant,
            place,
            rng,
            doing: Doing::Idle,
            open: None,
            wish: None,
            holder: None,
            lease: None,
            fence: Fence(0),
            applied: Generation(0),
            env: BTreeMap::new(),
            cores: 0,
            ttl: 5_000,
            until: 0,
            steps: 0,
            deaf: false,
            lies: false,
            requests: 0,
            born: 0,
            haste: 0,
            renewed_at: 0,
        }
    }
    /// Whether it has nothing and wants nothing.
    pub fn is_idle(&self) -> bool {
        self.doing == Doing::Idle
    }
    /// Works for this job from now on.
    pub const fn assign(&mut self, place: Option<(usize, Member)>) {
        self.place = place;
    }
    fn caller(&self) -> Caller {
        Caller::user(self.tenant.clone())
    }
    fn send(&mut self, turn: &mut Turn<'_>, command: Command) {
        let token = turn.token();
        turn.out.push(Call {
            who: Who::Agent(self.me),
            token,
            what: What::Command(command.clone()),
        });
        self.open = Some(Open {
            token,
            command,
            at: turn.now,
            tries: 0,
        });
    }
    fn tell(&self, turn: &mut Turn<'_>, what: What) {
        let token = turn.token();
        turn.out.push(Call {
            who: Who::Agent(self.me),
            token,
            what,
        });
    }
    fn renew(&mut self, turn: &mut Turn<'_>) {
        self.renewed_at = turn.now;
        if let Some(id) = self.lease {
            self.tell(turn, What::Renew(self.caller(), id, self.fence));
        }
    }

    /// Its turn. Returns in how many milliseconds it wants the next one.
    pub fn act(&mut self, turn: &mut Turn<'_>) -> u64 {
        let beat = (self.ttl / 4).max(100);
        if let Some(holder) = &self.holder {
            match turn.hw.tree_mut(holder) {
                None => {
                    self.reset();
                    return self.rng.range(50, 2_000);
                }
                Some(tree) if tree.stopped => {
                    tree.stopped = !self.rng.chance(50);
                    return beat;
                }
                Some(_) => {}
            }
        }
        match self.doing {
            Doing::Idle => return self.idle(turn),
            Doing::Asking | Doing::Releasing => self.again(turn),
            Doing::Attaching => {
                self.renew(turn);
                self.again(turn);
            }
            Doing::Waiting => self.wait(turn),
            Doing::Running => {
                if let Some(after) = self.tardy(turn) {
                    return after;
                }
                self.run(turn);
            }
            Doing::Vanished => {
                // Nobody hears of it until the daemon ends it.
                if turn.calm && self.rng.chance(200) {
                    self.exit(turn);
                }
                return beat * 2;
            }
        }
        if self.doing == Doing::Running || self.doing == Doing::Waiting {
            beat + self.rng.below(beat / 4 + 1)
        } else {
            self.rng.range(50, 400)
        }
    }

    fn idle(&mut self, turn: &mut Turn<'_>) -> u64 {
        if turn.calm && self.place.is_none() {
            return 5_000;
        }
        let member = match self.place {
            None => None,
            Some((driver, member)) => match turn.models.get(driver).and_then(Option::as_ref) {
                Some(model) if model.live && model.id == member.job => Some(member),
                _ => return self.rng.range(300, 1_500),
            },
        };
        self.requests += 1;
        let wish = wish::acquire(
            &mut self.rng,
            turn.swarm,
            &self.tenant,
            member,
            (self.me as u64, self.requests),
        );
        self.ttl = wish.ttl.0.clamp(500, 60_000);
        self.deaf = turn.chance(&mut self.rng, turn.swarm.worker.deaf);
        self.lies = turn.chance(&mut self.rng, turn.swarm.worker.lie);
        self.send(turn, Command::Acquire(Box::new(wish.clone())));
        self.wish = Some(wish);
        self.doing = Doing::Asking;
        self.rng.range(50, 400)
    }

    /// Sends again what was not answered in time; gives up after some tries.
    fn again(&mut self, turn: &mut Turn<'_>) {
        let Some(open) = &mut self.open else {
            return self.reset();
        };
        let patience = 300 + 2 * turn.swarm.latency + self.ttl / 20;
        if turn.now < open.at + patience {
            return;
        }
        open.at = turn.now;
        open.tries += 1;
        if open.tries > 8 && !turn.calm {
            return self.vanish(turn);
        }
        let what = What::Command(open.command.clone());
        turn.out.push(Call {
            who: Who::Agent(self.me),
            token: open.token,
            what,
        });
    }

    fn wait(&mut self, turn: &mut Turn<'_>) {
        self.renew(turn);
        let tired = turn.now > self.until || turn.chance(&mut self.rng, 10);
        if tired && let Some(id) = self.lease {
            turn.given_up.push(id);
            if self.rng.chance(500) {
                self.tell(turn, What::Command(Command::Abandon { lease: id }));
                return self.reset();
            }
            let command = Command::Release {
                caller: self.caller(),
                lease: id,
                fence: self.fence,
            };
            self.send(turn, command);
            self.doing = Doing::Releasing;
        } else if let Some(wish) = self.wish.clone() {
            self.send(turn, Command::Acquire(Box::new(wish)));
        }
    }

    /// Silent for a TTL and the grace, give or take; then some renewals in a row.
    fn tardy(&mut self, turn: &mut Turn<'_>) -> Option<u64> {
        if self.haste > 0 {
            self.haste -= 1;
            self.renew(turn);
            return Some(self.rng.range(1, 15));
        }
        let late = turn.chance(&mut self.rng, turn.swarm.worker.late);
        let over = self.renewed_at + self.ttl + turn.swarm.settings.grace.0 + self.rng.below(20);
        late.then(|| {
            self.haste = 8;
            over.saturating_sub(turn.now)
        })
    }

    fn run(&mut self, turn: &mut Turn<'_>) {
        let w = turn.swarm.worker;
        let Some(id) = self.lease else {
            return self.reset();
        };
        if let Some(holder) = self.holder.clone() {
            if turn.chance(&mut self.rng, w.die) {
                turn.hw.kill(&holder);
                return;
            }
            if turn.chance(&mut self.rng, w.hang)
                && let Some(tree) = turn.hw.tree_mut(&holder)
            {
                tree.stopped = true;
                return;
            }
            self.open_contexts(turn, &holder);
            if turn.chance(&mut self.rng, w.widen) {
                widen(turn, &holder);
            }
        }
        if turn.chance(&mut self.rng, w.vanish) {
            return self.vanish(turn);
        }
        self.renew(turn);
        if let Some((driver, member)) = self.place
            && let Some(model) = turn.models.get(driver).and_then(Option::as_ref)
            && model.id == member.job
        {
            self.steps += 1;
            let share = (self.cores, self.env.values().map(|s| s.guarantee.0).sum());
            let report = Box::new(job::report(model, member, self.steps, share));
            let command = Command::Report {
                caller: self.caller(),
                lease: id,
                fence: self.fence,
                report,
            };
            self.tell(turn, What::Command(command));
        }
        if turn.now > self.until {
            self.release(turn);
        }
    }

    /// A liar has contexts, so that a look can tell.
    fn open_all(&self, turn: &mut Turn<'_>) {
        let Some(holder) = &self.holder else { return };
        for (gpu, share) in &self.env {
            let has = turn
                .hw
                .tree(holder)
                .is_some_and(|t| t.contexts.iter().any(|c| c.gpu == *gpu));
            if !has && share.guarantee.0 > 0 {
                turn.hw.open(holder, *gpu, *share);
            }
        }
    }
    /// The process creates its contexts with what it has in its environment; not at once.
    fn open_contexts(&mut self, turn: &mut Turn<'_>, holder: &Holder) {
        for (gpu, share) in self.env.clone() {
            let has = turn
                .hw
                .tree(holder)
                .is_some_and(|t| t.contexts.iter().any(|c| c.gpu == gpu));
            if !has && share.guarantee.0 > 0 && self.rng.chance(600) {
                turn.hw.open(holder, gpu, share);
            }
        }
    }

    fn release(&mut self, turn: &mut Turn<'_>) {
        if let Some(id) = self.lease {
            if self.rng.chance(500) {
                self.close_contexts(turn);
            }
            let command = Command::Release {
                caller: self.caller(),
                lease: id,
                fence: self.fence,
            };
            self.send(turn, command);
            self.doing = Doing::Releasing;
        }
    }
    fn close_contexts(&mut self, turn: &mut Turn<'_>) {
        if let Some(tree) = self.holder.as_ref().and_then(|h| turn.hw.tree_mut(h)) {
            tree.contexts.clear();
        }
    }
    /// The process ends.
    fn exit(&mut self, turn: &mut Turn<'_>) {
        if let Some(holder) = &self.holder {
            turn.hw.kill(holder);
        }
        self.reset();
    }
    fn vanish(&mut self, turn: &mut Turn<'_>) {
        if self.doing == Doing::Waiting {
            turn.given_up.extend(self.lease);
        }
        if self.holder.is_some() {
            self.doing = Doing::Vanished;
        } else {
            self.reset();
        }
    }
    fn reset(&mut self) {
        (self.doing, self.open, self.wish) = (Doing::Idle, None, None);
        (self.holder, self.lease, self.steps) = (None, None, 0);
        self.env.clear();
    }

    /// An answer has arrived.
    pub fn hear(&mut self, turn: &mut Turn<'_>, token: u64, said: &Said) {
        let tree = self.holder.as_ref().map(|h| turn.hw.tree(h));
        if matches!(tree, Some(None)) || matches!(tree, Some(Some(t)) if t.stopped) {
            return;
        }
        match said {
            _ if token <= self.born => {}
            Said::Renewed(Some(directive)) if self.doing == Doing::Running => {
                self.obey(turn, directive);
            }
            Said::Refused if self.doing == Doing::Running => self.lost(turn),
            Said::Answer(answer) if self.open.as_ref().is_some_and(|o| o.token == token) => {
                match answer {
                    Ok(reply) => self.answered(turn, reply),
                    Err(rejection) => self.refused(turn, rejection),
                }
            }
            _ => {}
        }
    }

    fn answered(&mut self, turn: &mut Turn<'_>, reply: &Reply) {
        match (self.doing, reply) {
            (Doing::Asking | Doing::Waiting, Reply::Lease(lease)) => self.granted(turn, lease),
            (Doing::Asking, Reply::Waiting(id)) => {
                (self.lease, self.fence, self.doing) = (Some(*id), Fence(1), Doing::Waiting);
                self.until = turn.now + self.rng.range(1_000, 60_000);
                self.open = None;
            }
            (Doing::Attaching, Reply::Lease(lease)) => self.attached(turn, lease),
            (Doing::Releasing, _) => {
                self.close_contexts(turn);
                self.exit(turn);
            }
            _ => {}
        }
    }
    fn refused(&mut self, turn: &mut Turn<'_>, rejection: &Rejection) {
        match (self.doing, rejection) {
            (Doing::Attaching, _) => self.lost(turn),
            _ => self.exit(turn),
        }
    }

    fn granted(&mut self, turn: &mut Turn<'_>, lease: &Lease) {
        self.open = None;
        if matches!(lease.phase, Phase::Ended(_)) {
            return self.reset();
        }
        (self.lease, self.fence, self.born) = (Some(lease.id), lease.fence, *turn.tokens);
        self.until = turn.until(&mut self.rng, turn.swarm.patience);
        if !lease.enforced {
            (self.env, self.applied) = (lease.target.gpus.clone(), lease.generation);
            self.doing = Doing::Running;
            return;
        }
        if !turn.swarm.steady && turn.chance(&mut self.rng, 15) {
            return self.reset(); // its client ends before it attaches
        }
        let holder = turn.hw.spawn(1000 + self.me as u32);
        if let Some(tree) = turn.hw.tree_mut(&holder) {
            tree.stubborn = !turn.calm && self.rng.chance(turn.swarm.worker.stubborn);
            tree.stuck = !turn.calm && self.rng.chance(turn.swarm.worker.stuck);
        }
        self.holder = Some(holder);
        self.attach(turn);
    }
    fn attach(&mut self, turn: &mut Turn<'_>) {
        if let (Some(lease), Some(holder)) = (self.lease, self.holder.clone()) {
            let caller = self.caller();
            self.send(
                turn,
                Command::Attach {
                    caller,
                    lease,
                    fence: self.fence,
                    holder,
                },
            );
            self.doing = Doing::Attaching;
        }
    }
    fn attached(&mut self, turn: &mut Turn<'_>, lease: &Lease) {
        self.open = None;
        if !lease.phase.is_usable() {
            return self.lost(turn);
        }
        (self.fence, self.applied, self.born) = (lease.fence, lease.generation, *turn.tokens);
        self.env = lease.target.gpus.clone();
        self.cores = lease.target.cores.len();
        self.doing = Doing::Running;
    }
    /// The right is gone: a good worker ends, a bad one runs on.
    fn lost(&mut self, turn: &mut Turn<'_>) {
        if self.deaf && self.holder.is_some() && !turn.calm {
            self.doing = Doing::Vanished;
        } else {
            self.exit(turn);
        }
    }

    fn obey(&mut self, turn: &mut Turn<'_>, directive: &Directive) {
        if self.deaf && !turn.calm {
            return;
        }
        match &directive.order {
            // Given back, or simply gone.
            Order::Release if self.rng.chance(600) => self.release(turn),
            Order::Release => self.exit(turn),
            Order::Drain => {
                if self.rng.chance(300) {
                    self.release(turn);
                }
            }
            Order::Target {
                generation, target, ..
            }
            | Order::Restart {
                generation, target, ..
            } => {
                let restart = matches!(directive.order, Order::Restart { .. });
                if *generation > self.applied && (!self.lies || turn.calm) {
                    if restart {
                        self.close_contexts(turn);
                        return self.attach(turn);
                    }
                    self.apply(turn, target);
                    self.applied = *generation;
                } else if *generation > self.applied {
                    self.open_all(turn);
                }
                let effective = Vector {
                    cores: target.cores.clone(),
                    gpus: target.gpus.clone(),
                };
                let command = Command::Acknowledge {
                    caller: self.caller(),
                    lease: directive.lease,
                    fence: directive.fence,
                    generation: *generation,
                    effective,
                };
                self.tell(turn, What::Command(command));
            }
        }
    }
    /// Changes what its contexts may use, in place.
    fn apply(&mut self, turn: &mut Turn<'_>, target: &Vector) {
        self.env.clone_from(&target.gpus);
        self.cores = target.cores.len();
        if let Some(tree) = self.holder.as_ref().and_then(|h| turn.hw.tree_mut(h)) {
            tree.contexts.retain(|c| target.gpus.contains_key(&c.gpu));
            for c in &mut tree.contexts {
                c.share = target.gpus.get(&c.gpu).copied().unwrap_or_default();
                c.wide = None;
            }
        }
    }
}

/// Contexts take all that their GPU's backend could enforce.
fn widen(turn: &mut Turn<'_>, holder: &Holder) {
    let gpus = &turn.swarm.node.gpus;
    let tree = turn.hw.tree_mut(holder);
    for c in tree.into_iter().flat_map(|t| &mut t.contexts) {
        let gpu = gpus.iter().find(|g| g.id == c.gpu);
        c.wide = gpu.and_then(|g| g.enforceable.last().copied());
    }
}
