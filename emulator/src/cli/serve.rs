//! `evenkeel-gpu serve`: which GPUs, where.

use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use evenkeel_gpu::GpuSpec;
use evenkeel_gpu::device::{DeviceConfig, serve};

#[derive(Args)]
pub(crate) struct Serve {
    /// Directory for the sockets gpu0.sock, gpu1.sock, …; created if it does not exist.
    #[arg(long)]
    dir: PathBuf,
    /// The GPU to emulate: a100, a100-80gb, h100 or h200.
    #[arg(long, default_value = "h100", conflicts_with = "spec")]
    gpu: String,
    /// A TOML file with the GPU's figures instead of a preset.
    #[arg(long)]
    spec: Option<PathBuf>,
    /// How many of them.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Give the GPU this many SMs; each does what it does on the preset.
    #[arg(long)]
    sms: Option<u32>,
    /// Let processes of other users create contexts, too.
    #[arg(long)]
    multiuser: bool,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut spec = match &self.spec {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                toml::from_str(&text)
                    .with_context(|| format!("{} does not describe a GPU", path.display()))?
            }
            None => match GpuSpec::preset(&self.gpu) {
                Some(spec) => spec,
                None => bail!(
                    "no preset `{}`: there are {}",
                    self.gpu,
                    GpuSpec::PRESETS.join(", ")
                ),
            },
        };
        if let Some(sms) = self.sms {
            spec = spec.with_sms(sms);
        }
        // Checked before `count` copies of it are made.
        spec.validate()?;
        let gpus = vec![spec.clone(); self.count.min(evenkeel_gpu::limits::MAX_GPUS + 1)];
        let config = DeviceConfig {
            dir: self.dir.clone(),
            gpus,
            multiuser: self.multiuser,
        };
        serve(config, || {
            tracing::info!(count = self.count, gpu = %spec.name, sms = spec.sms, "serving EMULATED GPUs: none is real");
            // Whoever waits for this line may have closed its end by now; the device serves all the same.
            let _ =
                writeln!(stdout(), "ready {}", self.dir.display()).and_then(|()| stdout().flush());
        })?;
        Ok(())
    }
}
