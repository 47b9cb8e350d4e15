//! What an environment is to the runtime: something that can be reset, observed and stepped. How it is scheduled is
//! not its business, and must not change what it does.

/// One environment. It must answer the same to the same seed and actions, on whichever thread and core it runs.
pub trait Environment: Send + 'static {
    /// Starts a new episode.
    fn reset(&mut self, seed: u64);
    /// Appends the observation to `into`; always the same number of values.
    fn observe(&self, into: &mut Vec<f32>);
    /// Advances by one step.
    fn step(&mut self, action: &[f32]) -> Outcome;
}

/// What a step brought.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The step's reward.
    pub reward: f32,
    /// The episode is over: the environment is reset before its next chunk.
    pub done: bool,
    /// It ended because the task was done.
    pub success: bool,
}

/// The seed of an environment's episode: the same whatever the schedule (SplitMix64's finaliser).
pub(crate) fn episode_seed(seed: u64, env: usize, episode: u64) -> u64 {
    let mut z = seed
        .wrapping_add((env as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .wrapping_add(episode.wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
