//! An admin's words, and what the scanners find: drains, revocations, vouching for the dead; hardware that comes and
//! goes, and neighbours.
use evenkeel_core::command::{Caller, Command};
use evenkeel_core::id::{LeaseId, Name};
use evenkeel_core::lease::{Lease, Phase};
use evenkeel_core::node::{Node, Unavailable};
use evenkeel_core::unit::{Bytes, Sms};

use super::agent::{Call, What};
use super::shell::{Ticket, Who};
use super::{Happening, World, swarm};

impl World {
    fn ask_as_admin(&mut self, command: Command) {
        self.tokens += 1;
        let token = self.tokens;
        self.at(
            1,
            Happening::Arrive(Call {
                who: Who::Admin,
                token,
                what: What::Command(command),
            }),
        );
    }

    /// An admin says something.
    pub(super) fn admin(&mut self) {
        let tenant = Name::new("root").unwrap_or_else(|_| Name::unknown());
        let admin = Caller::admin(tenant);
        let live: Vec<&Lease> = self.truth.fold.leases().values().collect();
        let some =
            (!live.is_empty()).then(|| live[self.chance.below(live.len() as u64) as usize].id);
        let dead = |l: &&&Lease| {
            let holder = l.phase.holder();
            matches!(l.phase, Phase::Quarantined { .. } | Phase::Draining(_))
                && holder.is_some_and(|h| self.hw.tree(h).is_none() && self.hw.left_of(h) == 0)
        };
        let dead: Option<LeaseId> = live.iter().find(dead).map(|l| l.id);
        match self.chance.below(4) {
            0 => {
                let draining = !self.truth.fold.draining();
                self.ask_as_admin(Command::Drain {
                    caller: admin.clone(),
                    draining,
                });
                if draining {
                    // It does not stay so for long.
                    let (after, token) = (self.chance.range(1_000, 20_000), 0);
                    let what = What::Command(Command::Drain {
                        caller: admin,
                        draining: false,
                    });
                    self.at(
                        after,
                        Happening::Arrive(Call {
                            who: Who::Admin,
                            token,
                            what,
                        }),
                    );
                }
            }
            1 => {
                if let Some(lease) = some {
                    self.ask_as_admin(Command::Revoke {
                        caller: admin,
                        lease,
                    });
                }
            }
            2 => {
                if let Some(lease) = dead {
                    let reason = "looked myself".into();
                    self.ask_as_admin(Command::Clear {
                        caller: admin,
                        lease,
                        reason,
                    });
                }
            }
            _ => {
                // Nothing that could be cleared: refused.
                let queued = |l: &&&Lease| l.phase == Phase::Queued && !l.enforced;
                if let Some(lease) = live.iter().find(queued).map(|l| l.id) {
                    let reason = "a guess".into();
                    self.ask_as_admin(Command::Clear {
                        caller: admin,
                        lease,
                        reason,
                    });
                }
            }
        }
        self.trace.line(self.now, format_args!("the admin speaks"));
        self.again(Happening::Admin);
    }

    /// Grants go on.
    pub(super) fn undrain(&mut self) {
        let tenant = Name::new("root").unwrap_or_else(|_| Name::unknown());
        let caller = Caller::admin(tenant);
        self.ask_as_admin(Command::Drain {
            caller,
            draining: false,
        });
    }
    /// Every job is cancelled.
    pub(super) fn cancel_all(&mut self) {
        let names: Vec<_> = self
            .truth
            .fold
            .jobs()
            .values()
            .map(|j| (j.tenant.clone(), j.spec.name.clone()))
            .collect();
        for (tenant, job) in names {
            self.ask_as_admin(Command::Cancel {
                caller: Caller::admin(tenant),
                job,
            });
        }
    }
    /// The scanners report this hardware, with nothing unavailable.
    pub(super) fn scan(&mut self, node: Node) {
        self.discover(node, Unavailable::default());
    }
    fn discover(&mut self, node: Node, unavailable: Unavailable) {
        let (node, unavailable) = (Box::new(node), Box::new(unavailable));
        let command = Command::Discovered { node, unavailable };
        self.shell.inbox.push_back(Ticket {
            who: Who::Admin,
            token: 0,
            command,
        });
        let epoch = self.shell.epoch;
        self.at(0, Happening::Wake { epoch });
    }

    /// Something is lost, or comes back.
    pub(super) fn change(&mut self) {
        let mut node = self.node.clone();
        let mut lost = Unavailable::default();
        match self.chance.below(6) {
            0 | 1 => {
                for core in node.leasable_cores().iter() {
                    if self.chance.chance(250) {
                        lost.cores.insert(core);
                    }
                }
            }
            2 | 3 => {
                for gpu in &node.gpus {
                    if self.chance.chance(500) {
                        let sms = Sms(self.chance.range(0, gpu.sms.0.into()) as u32);
                        lost.gpus
                            .insert(gpu.id, (sms, Bytes::gib(self.chance.range(0, 10))));
                    }
                }
            }
            4 => {
                if node.gpus.len() > 1 || self.chance.chance(300) {
                    node.gpus.pop();
                }
                let keep = self.chance.range(3, node.cores.len() as u64) as usize;
                node.cores = node.cores[..keep.min(node.cores.len())].into();
            }
            _ => {}
        }
        self.trace.line(
            self.now,
            format_args!("the hardware changes: {lost:?}, {} GPUs", node.gpus.len()),
        );
        if self.shell.is_up() {
            self.discover(node, lost);
        }
        self.again(Happening::Change);
    }
    /// A device hangs for a while.
    pub(super) fn silence(&mut self) {
        let gpus = self.node.gpus.len() as u64;
        if gpus > 0 {
            let gpu = self.node.gpus[self.chance.below(gpus) as usize].id;
            self.hw.silence(gpu);
            let after = self.chance.range(500, 40_000);
            self.at(after, Happening::Answer(gpu));
            self.counts.add("fault", "a device hangs");
            self.trace
                .line(self.now, format_args!("{gpu} hangs for {after} ms"));
        }
        self.again(Happening::Silence);
    }
    /// A tenant of this world.
    pub(super) fn any_tenant(&mut self) -> Name {
        swarm::tenant(self.chance.below(self.swarm.tenants + 1))
    }
}
