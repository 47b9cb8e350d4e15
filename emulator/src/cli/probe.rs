//! `evenkeel-gpu probe`: a client that is always busy, and what it got by the wall clock.
//!
//! Its kernels have one block for each SM slot of its share and no bytes, so what the share allows needs no model:
//! the GPU's peak × SMs of the share / SMs of the GPU.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use evenkeel_gpu::{Client, ClientError, ContextOptions, GpuSpec, KernelGroup, socket_path};
use serde::Serialize;

#[derive(Args)]
pub(crate) struct ProbeArguments {
    /// Directory of the device's sockets. Without it, socket, share and memory limit come from the environment, as for
    /// any worker: EVENKEEL_GPU_SOCKET, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Which of its GPUs.
    #[arg(long, default_value_t = 0, requires = "dir")]
    index: usize,
    /// The share to ask for, in percent; the GPU's default if absent.
    #[arg(long, requires = "dir")]
    percentage: Option<u32>,
    /// Milliseconds of one list of kernels on that share.
    #[arg(long, default_value_t = 20)]
    list_ms: u32,
    /// Lists under way at a time.
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Seconds to be busy.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Allocate this much device memory first.
    #[arg(long, default_value_t = 0)]
    alloc_mib: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a busy client got.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Got {
    pub(crate) emulated: bool,
    pub(crate) sms_effective: u32,
    pub(crate) list_ms: u32,
    pub(crate) depth: usize,
    pub(crate) lists: u64,
    pub(crate) wall_s: f64,
    pub(crate) allowed_flops_per_s: f64,
    pub(crate) measured_flops_per_s: f64,
    /// measured / allowed − 1, in percent.
    pub(crate) error_percent: f64,
}

impl ProbeArguments {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = match &self.dir {
            Some(dir) => {
                let role = "probe".to_owned();
                let options = ContextOptions {
                    role,
                    percentage: self.percentage,
                    memory_limit: None,
                };
                Client::connect(&socket_path(dir, self.index), &options)?
            }
            None => Client::connect_from_env("probe")?,
        };
        client.alloc(self.alloc_mib.saturating_mul(1 << 20))?;
        let seconds = Duration::try_from_secs_f64(self.seconds)?;
        let got = measure(&client, self.list_ms, self.depth, seconds)?;
        if self.json {
            println!("{}", serde_json::to_string(&got)?);
        } else {
            println!(
                "emulated {}: {} SMs allow {:.1} TFLOP/s; {} lists of {} ms in {:.2} s gave {:.1} ({:+.2} %)",
                client.spec().name,
                got.sms_effective,
                got.allowed_flops_per_s / 1e12,
                got.lists,
                got.list_ms,
                got.wall_s,
                got.measured_flops_per_s / 1e12,
                got.error_percent
            );
        }
        Ok(())
    }
}

pub(crate) fn connect(path: &Path, role: &str, percentage: u32) -> Result<Client, ClientError> {
    let options = ContextOptions {
        role: role.to_owned(),
        percentage: Some(percentage),
        memory_limit: None,
    };
    Client::connect(path, &options)
}

/// `ms` kernels of one millisecond each, one full wave on `sms` SMs.
pub(crate) fn compute_list(spec: &GpuSpec, sms: u32, ms: u32) -> KernelGroup {
    let flops = u128::from(spec.flops_per_s) * u128::from(sms) / u128::from(spec.sms) / 1000;
    KernelGroup {
        flops: flops as u64,
        bytes: 0,
        width_blocks: sms * spec.blocks_per_sm,
        repeat: ms.max(1),
    }
}

/// Keeps `depth` lists under way while `go_on` (told how many there were) says so; the wall clock runs from the first submission to the last completion.
pub(crate) fn keep_busy(
    client: &Client,
    list: &[KernelGroup],
    depth: usize,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<(u64, Duration), ClientError> {
    let start = Instant::now();
    let mut tickets = VecDeque::new();
    let mut lists = 0;
    loop {
        while tickets.len() < depth.max(1) && go_on(lists) {
            tickets.push_back(client.submit(list)?);
            lists += 1;
        }
        let Some(ticket) = tickets.pop_front() else {
            break;
        };
        client.wait(ticket)?;
    }
    Ok((lists, start.elapsed()))
}

pub(crate) fn measure(
    client: &Client,
    list_ms: u32,
    depth: usize,
    seconds: Duration,
) -> Result<Got, ClientError> {
    let spec = client.spec();
    let sms = client.sms_at_creation();
    let list = compute_list(spec, sms, list_ms);
    let until = Instant::now() + seconds;
    let (lists, wall) = keep_busy(client, &[list], depth, |_| Instant::now() < until)?;
    let allowed = spec.flops_per_s as f64 * f64::from(sms) / f64::from(spec.sms);
    let flops = lists as f64 * f64::from(list.repeat) * list.flops as f64;
    let measured = flops / wall.as_secs_f64();
    Ok(Got {
        emulated: true,
        sms_effective: sms,
        list_ms,
        depth,
        lists,
        wall_s: wall.as_secs_f64(),
        allowed_flops_per_s: allowed,
        measured_flops_per_s: measured,
        error_percent: (measured / allowed - 1.0) * 100.0,
    })
}
