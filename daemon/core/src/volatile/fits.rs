//! What planning a job said, so that it is not planned again and again for the same room. Depends on the state only:
//! a job that did not fit here does not fit here until its profiles or the hardware change.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::allocate::Room;
use crate::event::Event;
use crate::id::{JobId, Name};
use crate::state::Durable;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Fits {
    /// The room that a waiting job was last tried on, in vain.
    in_vain: BTreeMap<JobId, Room>,
    /// The room and the jobs with which a waiting job was last to share it, in vain.
    shared_in_vain: BTreeMap<JobId, (Room, Vec<JobId>)>,
    /// Whether a job would fit on all that is available, with nobody else there.
    possible: BTreeMap<JobId, bool>,
    /// The same on what its tenant's cap left when it was last asked.
    possible_on: BTreeMap<JobId, (Room, bool)>,
}

impl Fits {
    /// Whether this job was tried on this room, in vain.
    pub fn was_in_vain(&self, job: JobId, room: &Room) -> bool {
        self.in_vain.get(&job) == Some(room)
    }
    /// This job does not fit there.
    pub fn in_vain(&mut self, job: JobId, room: Room) {
        self.in_vain.insert(job, room);
    }
    /// Whether this job was to share this room with these, in vain.
    pub fn was_shared_in_vain(&self, job: JobId, room: &Room, with: &[JobId]) -> bool {
        let known = self.shared_in_vain.get(&job);
        known.is_some_and(|(r, w)| r == room && w == with)
    }
    /// Not everybody's least fits there.
    pub fn shared_in_vain(&mut self, job: JobId, room: Room, with: Vec<JobId>) {
        self.shared_in_vain.insert(job, (room, with));
    }
    /// Whether the job would fit on all that is available: as known, else as `ask` says.
    pub fn possible(&mut self, job: JobId, ask: impl FnOnce() -> bool) -> bool {
        *self.possible.entry(job).or_insert_with(ask)
    }

    /// Whether the job would fit on this room: as known of the same room, else as `ask` says.
    pub fn possible_on(&mut self, job: JobId, room: &Room, ask: impl FnOnce() -> bool) -> bool {
        if let Some((known, fits)) = self.possible_on.get(&job)
            && known == room
        {
            return *fits;
        }
        let fits = ask();
        self.possible_on.insert(job, (room.clone(), fits));
        fits
    }

    /// What an event makes untrue is forgotten. The event has been applied.
    pub fn note(&mut self, d: &Durable, event: &Event) {
        match event {
            Event::NodeInstalled { .. } | Event::UnavailableChanged { .. } => self.clear(),
            Event::TrialReported { key, .. } => self.measured(d, &key.tenant),
            Event::ProfileImported { profile } => self.measured(d, &profile.key.tenant),
            Event::JobAdmitted { id, .. }
            | Event::JobUpdated { id, .. }
            | Event::JobRefitted { id, .. }
            | Event::JobParked { id }
            | Event::JobEnded { id } => {
                self.in_vain.remove(id);
                self.shared_in_vain.remove(id);
                self.possible.remove(id);
                self.possible_on.remove(id);
            }
            _ => {}
        }
    }
    fn measured(&mut self, d: &Durable, tenant: &Name) {
        let others = |id: &JobId| d.jobs().get(id).is_some_and(|j| j.tenant != *tenant);
        self.in_vain.retain(|id, _| others(id));
        self.shared_in_vain.clear(); // of those that share, anybody's may have been measured
        self.possible.retain(|id, _| others(id));
        self.possible_on.retain(|id, _| others(id));
    }
    /// Nothing is known: what was learned may be of a state that was taken back.
    pub fn clear(&mut self) {
        self.in_vain.clear();
        self.shared_in_vain.clear();
        self.possible.clear();
        self.possible_on.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Profile, ProfileKey};
    use crate::node::{Node, PoolKind, Unavailable};

    fn state() -> Durable {
        let node = Node {
            kind: PoolKind::Local,
            cores: Default::default(),
            reserved_cores: Default::default(),
            gpus: Default::default(),
        };
        Durable::new(node)
    }

    #[test]
    fn a_job_is_planned_once_for_a_room_until_what_it_depends_on_changes() {
        let d = state();
        let (job, room) = (JobId(1), Room::default());
        let more = Room {
            cores: [3].into_iter().collect(),
            ..Room::default()
        };
        let planned = |fits: &mut Fits| {
            let mut asked = false;
            assert!(fits.possible(job, || {
                asked = true;
                true
            }));
            asked || !fits.was_in_vain(job, &room)
        };
        let mut fits = Fits::default();
        assert!(planned(&mut fits));
        fits.in_vain(job, room.clone());
        assert!(!planned(&mut fits), "known");
        assert!(!fits.was_in_vain(job, &more), "another room");
        let name = |s: &str| Name::new(s).unwrap();
        let key = ProfileKey {
            tenant: name("alice"),
            stage: name("j/s"),
            gpu: name("none"),
        };
        let profile = Profile {
            key,
            points: Default::default(),
        };
        let unavailable = Unavailable::default();
        for event in [
            Event::ProfileImported { profile }, // the job is unknown here: it might be alice's
            Event::UnavailableChanged { unavailable },
            Event::JobAdmitted {
                id: job,
                plan: crate::job::Plan {
                    stages: Default::default(),
                    gpus: Default::default(),
                    t_r: Default::default(),
                    t_train: Default::default(),
                    theta: Default::default(),
                    binding: Default::default(),
                    by: name("even"),
                    why: Default::default(),
                    caps: Default::default(),
                },
                promised: false,
            },
        ] {
            fits.in_vain(job, room.clone());
            assert!(!planned(&mut fits));
            fits.note(&d, &Event::NodeDrained { draining: false });
            assert!(!planned(&mut fits), "that changes nothing");
            fits.note(&d, &event);
            assert!(planned(&mut fits), "{}", event.kind());
        }
    }
}
