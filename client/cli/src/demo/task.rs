//! The reaching task: an arm of two links with motors in its joints, a post in its way, and a point to be reached
//! with its tip. An episode ends on success or after some chunks. Physics by rapier; the same seed and actions give
//! the same episode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_rollout::{Environment, Outcome};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rapier3d::prelude::*;

/// Joints, and values of one action: how far each joint's target moves, −1 to 1.
pub(crate) const JOINTS: usize = 2;
/// Values of an observation: sine and cosine of both angles, both speeds, the goal, the tip, the way to the goal.
pub(crate) const OBSERVATION: usize = 12;
/// Where the goal is in an observation.
pub(crate) const GOAL: usize = 6;
/// Where the tip is in an observation.
pub(crate) const TIP: usize = 8;
/// Where the way from tip to goal is in an observation.
pub(crate) const WAY: usize = 10;

/// Seconds of one environment step; the substeps divide it.
const PERIOD_S: f32 = 0.02;
const LINK: f32 = 0.5;
/// Radians that an action of 1 moves a joint's target.
const REACH_PER_STEP: f32 = 0.15;
/// The furthest that a joint turns.
const TURN_MAX: f32 = 2.6;
/// Distance at which the goal is reached.
const NEAR: f32 = 0.08;
/// Environment steps after which an episode is given up: twelve chunks.
const STEPS_MAX: u32 = 96;
/// The post: in the way of an outstretched arm that turns too far.
const POST: [f32; 2] = [-0.55, 0.5];
const POST_RADIUS: f32 = 0.1;
/// The motors' spring and damper, per unit of a link's own inertia. The first joint carries both links, some sixteen
/// times that: strong enough for it to settle within twenty steps, and damped enough for the second not to swing.
const STIFFNESS: f32 = 20_000.0;
const DAMPING: f32 = 2_000.0;

/// One arm.
pub(crate) struct Reach {
    substeps: Arc<AtomicU32>,
    world: PhysicsWorld,
    links: [RigidBodyHandle; JOINTS],
    joints: [ImpulseJointHandle; JOINTS],
    targets: [f32; JOINTS],
    goal: [f32; 2],
    steps: u32,
}

impl Reach {
    /// An arm whose physics is divided into as many substeps as `substeps` says at each step.
    pub(crate) fn new(substeps: Arc<AtomicU32>) -> Self {
        let (world, links, joints) = build([0.0; JOINTS]);
        Self {
            substeps,
            world,
            links,
            joints,
            targets: [0.0; JOINTS],
            goal: [LINK, LINK],
            steps: 0,
        }
    }

    /// The angle of the first joint, and that of the second against the first.
    fn angles(&self) -> [f32; JOINTS] {
        let heading = |link: RigidBodyHandle| {
            let x = self.world.bodies[link].rotation() * Vector::X;
            x.y.atan2(x.x)
        };
        let (first, second) = (heading(self.links[0]), heading(self.links[1]));
        let turn = second - first;
        [first, turn.sin().atan2(turn.cos())]
    }

    fn speeds(&self) -> [f32; JOINTS] {
        let speed = |link: RigidBodyHandle| self.world.bodies[link].angvel().z;
        let (first, second) = (speed(self.links[0]), speed(self.links[1]));
        [first, second - first]
    }

    fn tip(&self) -> [f32; 2] {
        let tip = *self.world.bodies[self.links[1]].position() * Vector::new(LINK / 2.0, 0.0, 0.0);
        [tip.x, tip.y]
    }

    fn distance(&self) -> f32 {
        let tip = self.tip();
        (tip[0] - self.goal[0]).hypot(tip[1] - self.goal[1])
    }
}

impl Environment for Reach {
    fn reset(&mut self, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Away from the post and from the joints' limits; the goal within the arm's reach of 2 × LINK.
        let start = [rng.random_range(-1.5..1.5), rng.random_range(-1.3..1.3)];
        // A new world, not the old one with its bodies moved: caches of the solver would outlive the episode.
        (self.world, self.links, self.joints) = build(start);
        self.targets = start;
        let (radius, angle) = (
            rng.random_range(0.4_f32..0.95),
            rng.random_range(-2.0_f32..2.0),
        );
        self.goal = [radius * angle.cos(), radius * angle.sin()];
        self.steps = 0;
    }

    fn observe(&self, into: &mut Vec<f32>) {
        let [first, second] = self.angles();
        let (speeds, tip) = (self.speeds(), self.tip());
        into.extend([first.sin(), first.cos(), second.sin(), second.cos()]);
        into.extend(speeds.map(|speed| speed / 5.0));
        into.extend(self.goal);
        into.extend(tip);
        into.extend([self.goal[0] - tip[0], self.goal[1] - tip[1]]);
    }

    fn step(&mut self, action: &[f32]) -> Outcome {
        for ((target, joint), value) in self.targets.iter_mut().zip(self.joints).zip(action) {
            let moved = *target + REACH_PER_STEP * value.clamp(-1.0, 1.0);
            *target = moved.clamp(-TURN_MAX, TURN_MAX);
            if let Some(joint) = self.world.impulse_joints.get_mut(joint, false) {
                joint
                    .data
                    .set_motor_position(JointAxis::AngX, *target, STIFFNESS, DAMPING);
            }
        }
        let substeps = self.substeps.load(Ordering::Relaxed).max(1);
        self.world.integration_parameters.dt = PERIOD_S / substeps as f32;
        for _ in 0..substeps {
            self.world.step();
        }
        self.steps += 1;
        let distance = self.distance();
        let success = distance < NEAR;
        Outcome {
            reward: -distance,
            done: success || self.steps >= STEPS_MAX,
            success,
        }
    }
}

/// The arm at these angles, on a fixed base, with the post.
fn build(
    angles: [f32; JOINTS],
) -> (
    PhysicsWorld,
    [RigidBodyHandle; JOINTS],
    [ImpulseJointHandle; JOINTS],
) {
    let mut world = PhysicsWorld {
        gravity: Vector::Z * -9.81,
        ..PhysicsWorld::default()
    };
    let base = world.insert_body(RigidBodyBuilder::fixed());
    let post = RigidBodyBuilder::fixed().translation(Vector::new(POST[0], POST[1], 0.0));
    world.insert(post, ColliderBuilder::ball(POST_RADIUS));
    let elbow = [LINK * angles[0].cos(), LINK * angles[0].sin()];
    let mut link = |from: [f32; 2], heading: f32| {
        let middle = [
            from[0] + LINK / 2.0 * heading.cos(),
            from[1] + LINK / 2.0 * heading.sin(),
        ];
        let body = RigidBodyBuilder::dynamic()
            .translation(Vector::new(middle[0], middle[1], 0.0))
            .rotation(Vector::new(0.0, 0.0, heading))
            .can_sleep(false);
        let shape = ColliderBuilder::capsule_x(LINK / 2.0 - 0.03, 0.03).density(500.0);
        world.insert(body, shape).0
    };
    let links = [
        link([0.0, 0.0], angles[0]),
        link(elbow, angles[0] + angles[1]),
    ];
    let mut hinge = |from: RigidBodyHandle, to: RigidBodyHandle, anchor: f32, angle: f32| {
        let joint = RevoluteJointBuilder::new(Vector::Z)
            .local_anchor1(Vector::new(anchor, 0.0, 0.0))
            .local_anchor2(Vector::new(-LINK / 2.0, 0.0, 0.0))
            .contacts_enabled(false)
            .motor_position(angle, STIFFNESS, DAMPING);
        world.impulse_joints.insert(from, to, joint, true)
    };
    let joints = [
        hinge(base, links[0], 0.0, angles[0]),
        hinge(links[0], links[1], LINK / 2.0, angles[1]),
    ];
    (world, links, joints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(substeps: u32) -> Reach {
        Reach::new(Arc::new(AtomicU32::new(substeps)))
    }

    fn observed(arm: &Reach) -> Vec<f32> {
        let mut values = Vec::new();
        arm.observe(&mut values);
        assert_eq!(values.len(), OBSERVATION);
        values
    }

    #[test]
    fn the_same_seed_and_actions_give_the_same_episode() {
        let episode = |arm: &mut Reach, seed| {
            arm.reset(seed);
            let mut seen = observed(arm);
            for step in 0..30 {
                arm.step(&[(step as f32).sin(), (step as f32 * 0.7).cos()]);
                seen.extend(observed(arm));
            }
            seen
        };
        let mut used = arm(4);
        let first = episode(&mut used, 11);
        let other = episode(&mut used, 12);
        assert_ne!(first, other);
        assert_eq!(episode(&mut used, 11), first, "whatever went before");
        assert_eq!(episode(&mut arm(4), 11), first, "whichever arm");
    }

    #[test]
    fn joints_go_where_their_motors_want() {
        let mut arm = arm(8);
        arm.reset(5);
        let before = arm.angles();
        for _ in 0..4 {
            arm.step(&[1.0, -1.0]);
        }
        for _ in 0..30 {
            arm.step(&[0.0, 0.0]);
        }
        let after = arm.angles();
        assert!(
            (after[0] - before[0] - 0.6).abs() < 0.05,
            "{before:?} {after:?}"
        );
        assert!(
            (after[1] - before[1] + 0.6).abs() < 0.05,
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn an_episode_ends_on_success_or_is_given_up() {
        let mut arm = arm(2);
        arm.reset(3);
        arm.goal = arm.tip();
        let outcome = arm.step(&[0.0, 0.0]);
        assert!(outcome.success && outcome.done, "{outcome:?}");
        arm.reset(3);
        arm.goal = [9.0, 9.0];
        let steps = (1..).find(|_| arm.step(&[0.0, 0.0]).done).unwrap();
        assert_eq!(steps, STEPS_MAX);
    }

    #[test]
    fn the_post_is_in_the_way() {
        let turned = |elbow: f32| {
            let mut arm = arm(8);
            (arm.world, arm.links, arm.joints) = build([2.0, elbow]);
            arm.targets = [2.0, elbow];
            for _ in 0..60 {
                arm.step(&[1.0, 0.0]);
            }
            arm.angles()[0]
        };
        let (bent, outstretched) = (turned(-2.0), turned(0.0));
        assert!(
            (bent - TURN_MAX).abs() < 0.1,
            "{bent}: nothing is in its way"
        );
        assert!(
            outstretched < TURN_MAX - 0.15,
            "{outstretched}: the post stops it"
        );
    }
}
