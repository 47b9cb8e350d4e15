//! `evenkeel demo`: the whole loop on an emulated GPU. Placeholder until its first code lands.
use clap::Args;

use crate::fail::Failure;

/// What `evenkeel demo` may be told.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Print one JSON object with the measured figures instead of the live table.
    #[arg(long)]
    pub json: bool,
    /// Fixes the environments, the noise and the drift.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long to run, without the build.
    #[arg(long, default_value_t = 100)]
    pub seconds: u64,
    /// Which allocator: waterfill or ebrl.
    #[arg(long, default_value = "waterfill")]
    pub policy: String,
    /// Also measure the best static split and unmanaged sharing (up to 5 minutes).
    #[arg(long)]
    pub full: bool,
}

/// Runs the demo.
pub(crate) async fn run(_args: DemoArgs) -> Result<(), Failure> {
    Err(Failure::new("the demo is not part of this build yet"))
}
