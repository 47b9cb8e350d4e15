//! One kernel: what it declares, and how long it takes on a number of SMs that nobody else uses. Roofline with wave
//! quantisation; no sharing (that is `share`).

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_KERNEL_WORK, MAX_REPEAT, MAX_WIDTH_BLOCKS};
use crate::spec::GpuSpec;

/// The same kernel, launched `repeat` times in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelGroup {
    /// Floating-point operations of one launch, on the tensor cores.
    pub flops: u64,
    /// Bytes that one launch moves between the SMs and the device memory.
    pub bytes: u64,
    /// Blocks of one launch: how wide it is. Beyond `width_blocks / blocks_per_sm` SMs it gains nothing.
    pub width_blocks: u32,
    /// Launches, one after the other.
    pub repeat: u32,
}

impl KernelGroup {
    /// What is wrong with it, in words; `None` if nothing is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.width_blocks == 0 || self.width_blocks > MAX_WIDTH_BLOCKS {
            Some("width_blocks must be from 1 to 2147483647")
        } else if self.repeat == 0 || self.repeat > MAX_REPEAT {
            Some("repeat must be from 1 to 1000000")
        } else if self.flops > MAX_KERNEL_WORK || self.bytes > MAX_KERNEL_WORK {
            Some("flops and bytes of one kernel must be at most 1e18")
        } else {
            None
        }
    }
}

/// One launch of a kernel by a client with a given number of SMs, alone on the GPU. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Launch {
    /// SMs that it uses: `min(cap, ceil(width / blocks_per_sm))`.
    pub(crate) sms: u32,
    /// Time on the SMs, without the launch overhead: `max(compute, memory)`.
    pub(crate) time_ns: f64,
    /// From the start of one launch to the start of the next: overhead + time.
    pub(crate) period_ns: f64,
    /// Bytes of one launch.
    pub(crate) bytes: f64,
}

impl Launch {
    /// The roofline on at most `cap` SMs; `None` for a cap of 0, on which nothing ever runs.
    pub(crate) fn alone(spec: &GpuSpec, cap: u32, kernel: &KernelGroup) -> Option<Self> {
        if cap == 0 {
            return None;
        }
        let width = kernel.width_blocks;
        let per_sm = spec.blocks_per_sm;
        let sms = cap.min(width.div_ceil(per_sm));
        let waves = width.div_ceil(sms.saturating_mul(per_sm));

        // One SM delivers peak / SMs, shared by the blocks that it holds; the last wave takes as long as a full one.
        let block_rate = spec.flops_per_s as f64 / f64::from(spec.sms) / f64::from(per_sm);
        let block_flops = kernel.flops as f64 / f64::from(width);
        let compute_ns = f64::from(waves) * block_flops / block_rate * 1e9;

        let reach = f64::from(sms) * spec.sm_bandwidth_bytes_per_s as f64;
        let bandwidth = reach.min(spec.memory_bandwidth_bytes_per_s as f64);
        let memory_ns = kernel.bytes as f64 / bandwidth * 1e9;

        let time_ns = compute_ns.max(memory_ns);
        // At least 1 ns, so that no launch is free and every rate is finite.
        let period_ns = (spec.launch_overhead_ns as f64 + time_ns).max(1.0);
        Some(Self {
            sms,
            time_ns,
            period_ns,
            bytes: kernel.bytes as f64,
        })
    }
}

/// Nanoseconds that a submission takes for a client with `sms` SMs that is alone on the GPU: each group
/// `ceil(repeat × (launch overhead + max(compute, memory)))`. `u64::MAX` for 0 SMs.
///
/// Equals what [`Model`](super::Model) answers in that case, to the nanosecond.
pub fn solo_time_ns(spec: &GpuSpec, sms: u32, groups: &[KernelGroup]) -> u64 {
    let group_ns = |kernel: &KernelGroup| match Launch::alone(spec, sms, kernel) {
        Some(launch) => whole_ns(f64::from(kernel.repeat) * launch.period_ns),
        None => u64::MAX,
    };
    groups.iter().map(group_ns).fold(0, u64::saturating_add)
}

/// A duration in whole nanoseconds, rounded up but for a thousandth of a nanosecond of floating-point residue.
pub(crate) fn whole_ns(ns: f64) -> u64 {
    // `as` saturates, and a NaN cannot arise: all inputs are finite and divisors positive.
    (ns - 1e-3).ceil() as u64
}
