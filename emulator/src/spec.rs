//! What a GPU is, as far as the model needs it: SMs, memory, bandwidth, peak, granularity. The presets' figures and
//! where each comes from are here. No behaviour beyond the rounding rules of MPS percentages.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Nanoseconds between two kernels of one graph. A graph of short kernels on a V100 took 3.4 µs a kernel whose own
/// time was 2.9 µs (NVIDIA developer blog, A. Gray, "Getting Started with CUDA Graphs", 2019).
const GRAPH_LAUNCH_OVERHEAD_NS: u64 = 500;

/// An SM draws at most this many times its even part of the memory bandwidth, so half of the SMs saturate the memory.
/// An assumption of this model, in the range that streaming microbenchmarks on A100 and H100 show; not NVIDIA's figure.
const SM_BANDWIDTH_OVERSUBSCRIPTION: u64 = 2;

/// The figures of one GPU. Serialises as a flat table (`name = "h100"`, `sms = 132`, …); unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// What it is called; an emulated device prefixes it with "emulated".
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Device memory in bytes, as `nvidia-smi` reports the total.
    pub memory_bytes: u64,
    /// Peak bandwidth of the device memory, bytes per second.
    pub memory_bandwidth_bytes_per_s: u64,
    /// The most that one SM can draw from the device memory, bytes per second.
    pub sm_bandwidth_bytes_per_s: u64,
    /// Peak of the dense FP16/BF16 tensor cores of the whole GPU, FLOP per second.
    pub flops_per_s: u64,
    /// The step in SMs at which a percentage takes effect, and the smallest share. 2 from Volta on: SMs are given out
    /// by the TPC, a pair of SMs (NVIDIA MPS documentation: the limit is "rounded down to the nearest hardware
    /// supported" one; CUPTI's green-context record: resources are allocated at the TPC level).
    pub sm_granularity: u32,
    /// Nanoseconds of overhead in front of each kernel.
    pub launch_overhead_ns: u64,
    /// Blocks that one SM runs at a time. 1 in the presets: a 256×128 GEMM tile fills an SM (NVIDIA, "Matrix
    /// Multiplication Background", wave quantization: an A100 runs 108 such tiles at a time).
    pub blocks_per_sm: u32,
}

/// A specification that describes no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GPU specification `{name}`: `{field}` is {value}, but must be {must}")]
pub struct SpecError {
    name: String,
    field: &'static str,
    value: u64,
    must: String,
}

impl GpuSpec {
    /// The names that [`GpuSpec::preset`] knows.
    pub const PRESETS: [&'static str; 4] = ["a100", "a100-80gb", "h100", "h200"];

    /// A preset by name (any case), or `None`.
    pub fn preset(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "a100" | "a100-40gb" => Some(Self::a100()),
            "a100-80gb" => Some(Self::a100_80gb()),
            "h100" => Some(Self::h100()),
            "h200" => Some(Self::h200()),
            _ => None,
        }
    }

    /// A100 SXM4 40 GB: 108 SMs, 312 TFLOP/s, 1,555 GB/s (NVIDIA A100 datasheet and GA100 whitepaper).
    pub fn a100() -> Self {
        Self::build(
            "a100",
            108,
            40_960 * MIB,
            1_555_000_000_000,
            312_000_000_000_000,
        )
    }

    /// A100 SXM4 80 GB: 108 SMs, 312 TFLOP/s, 2,039 GB/s (NVIDIA A100 datasheet).
    pub fn a100_80gb() -> Self {
        Self::build(
            "a100-80gb",
            108,
            81_920 * MIB,
            2_039_000_000_000,
            312_000_000_000_000,
        )
    }

    /// H100 SXM5 80 GB: 132 SMs, 989.4 TFLOP/s dense, 3.35 TB/s (NVIDIA H100 datasheet: half of the sparse figure).
    pub fn h100() -> Self {
        Self::build(
            "h100",
            132,
            81_559 * MIB,
            3_350_000_000_000,
            989_400_000_000_000,
        )
    }

    /// H200 SXM 141 GB: the H100's compute with 4.8 TB/s (NVIDIA H200 datasheet).
    pub fn h200() -> Self {
        Self::build(
            "h200",
            132,
            143_771 * MIB,
            4_800_000_000_000,
            989_400_000_000_000,
        )
    }

    fn build(name: &str, sms: u32, memory: u64, bandwidth: u64, flops: u64) -> Self {
        Self {
            name: name.to_owned(),
            sms,
            memory_bytes: memory,
            memory_bandwidth_bytes_per_s: bandwidth,
            sm_bandwidth_bytes_per_s: SM_BANDWIDTH_OVERSUBSCRIPTION * bandwidth / u64::from(sms),
            flops_per_s: flops,
            sm_granularity: 2,
            launch_overhead_ns: GRAPH_LAUNCH_OVERHEAD_NS,
            blocks_per_sm: 1,
        }
    }

    /// The same GPU with another number of SMs: what one SM does stays, so the peak follows; memory stays as it is.
    pub fn with_sms(self, sms: u32) -> Self {
        let peak = u128::from(self.flops_per_s) * u128::from(sms) / u128::from(self.sms.max(1));
        Self {
            flops_per_s: u64::try_from(peak).unwrap_or(u64::MAX),
            sms,
            ..self
        }
    }

    /// Checks that the figures describe a GPU.
    ///
    /// # Errors
    /// Names the first field that is out of range, its value and what it must be.
    pub fn validate(&self) -> Result<(), SpecError> {
        let fields = [
            ("sms", u64::from(self.sms), 1, 10_000),
            ("memory_bytes", self.memory_bytes, 1, u64::MAX),
            (
                "memory_bandwidth_bytes_per_s",
                self.memory_bandwidth_bytes_per_s,
                1,
                u64::MAX,
            ),
            (
                "sm_bandwidth_bytes_per_s",
                self.sm_bandwidth_bytes_per_s,
                1,
                u64::MAX,
            ),
            ("flops_per_s", self.flops_per_s, 1, u64::MAX),
            (
                "sm_granularity",
                u64::from(self.sm_granularity),
                1,
                u64::from(self.sms),
            ),
            (
                "launch_overhead_ns",
                self.launch_overhead_ns,
                0,
                1_000_000_000,
            ),
            ("blocks_per_sm", u64::from(self.blocks_per_sm), 1, 64),
        ];
        for (field, value, low, high) in fields {
            if value < low || value > high {
                let must = if high == u64::MAX {
                    format!("at least {low}")
                } else {
                    format!("between {low} and {high}")
                };
                return Err(SpecError {
                    name: self.name.clone(),
                    field,
                    value,
                    must,
                });
            }
        }
        Ok(())
    }

    /// The SMs that a percentage gives: `floor(percentage × sms / 100)`, rounded down to the granularity, at least
    /// one granule. A percentage of 0 counts as 1 and one above 100 as 100; callers refuse them beforehand.
    pub fn effective_sms(&self, percentage: u32) -> u32 {
        let percentage = u64::from(percentage.clamp(1, 100));
        // At most `sms`, so it fits.
        let asked = (percentage * u64::from(self.sms) / 100) as u32;
        let granules = asked / self.sm_granularity;
        granules.max(1) * self.sm_granularity
    }

    /// The SM counts that some percentage from 1 to 100 reaches, ascending, each once.
    pub fn enforceable_sms(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = (1..=100)
            .map(|percentage| self.effective_sms(percentage))
            .collect();
        counts.dedup();
        counts
    }

    /// The smallest percentage whose effective count is at least `sms`; `None` if none is.
    pub fn percentage_for(&self, sms: u32) -> Option<u32> {
        (1..=100).find(|&percentage| self.effective_sms(percentage) >= sms)
    }

    /// The smallest enforceable count of at least `sms`; `None` if `sms` is more than 100 % gives.
    pub fn enforceable_at_least(&self, sms: u32) -> Option<u32> {
        self.percentage_for(sms)
            .map(|percentage| self.effective_sms(percentage))
    }

    /// What a request by SM count gets: rounded *up* to the granularity (as `cuCtxCreate` with an SM-count affinity
    /// and green contexts do), 0 for 0. `None` if it is more than the GPU has.
    pub fn granted_sms(&self, sms: u32) -> Option<u32> {
        if sms > self.sms {
            return None;
        }
        Some(
            sms.div_ceil(self.sm_granularity)
                .saturating_mul(self.sm_granularity)
                .min(self.sms),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_rounds_down_to_whole_tpcs() {
        let check = |spec: &GpuSpec, percentage: u32, expect: u32| {
            assert_eq!(
                spec.effective_sms(percentage),
                expect,
                "{percentage} % of {}",
                spec.name
            );
        };
        let h100 = GpuSpec::h100();
        check(&h100, 100, 132);
        check(&h100, 25, 32); // 33 of 132, one TPC is two SMs
        check(&h100, 50, 66);
        check(&h100, 1, 2); // 1.32 would be none: at least one granule
        check(&h100, 2, 2);
        check(&h100, 4, 4);
        let a100 = GpuSpec::a100();
        check(&a100, 30, 32); // 32.4
        check(&a100, 75, 80); // 81
    }

    #[test]
    fn percentage_for_is_the_smallest_that_suffices() {
        for spec in GpuSpec::PRESETS
            .iter()
            .filter_map(|name| GpuSpec::preset(name))
        {
            for sms in 1..=spec.sms {
                let percentage = spec.percentage_for(sms).expect("100 % gives every SM");
                assert!(spec.effective_sms(percentage) >= sms);
                assert!(percentage == 1 || spec.effective_sms(percentage - 1) < sms);
            }
            assert_eq!(spec.percentage_for(spec.sms + 1), None);
        }
    }

    #[test]
    fn enforceable_counts_ascend_in_granules() {
        let h100 = GpuSpec::h100();
        let counts = h100.enforceable_sms();
        assert_eq!(counts.first(), Some(&2));
        assert_eq!(counts.last(), Some(&132));
        assert!(counts.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(counts.iter().all(|sms| sms % h100.sm_granularity == 0));
        assert_eq!(
            counts.len(),
            66,
            "an H100 has 66 TPCs and each count of them is within 1 % of some percentage"
        );
    }

    #[test]
    fn a_count_rounds_up() {
        let h100 = GpuSpec::h100();
        assert_eq!(h100.granted_sms(0), Some(0));
        assert_eq!(h100.granted_sms(33), Some(34));
        assert_eq!(h100.granted_sms(132), Some(132));
        assert_eq!(h100.granted_sms(133), None);
    }

    #[test]
    fn a_wrong_field_is_named() {
        let spec = GpuSpec {
            sm_granularity: 0,
            ..GpuSpec::h100()
        };
        let message = spec.validate().expect_err("granularity 0").to_string();
        assert!(
            message.contains("sm_granularity") && message.contains("between 1 and 132"),
            "{message}"
        );
    }

    #[test]
    fn a_specification_survives_serialisation_and_refuses_unknown_keys() {
        let spec = GpuSpec::a100_80gb();
        let text = serde_json::to_string(&spec).expect("serialises");
        assert_eq!(
            serde_json::from_str::<GpuSpec>(&text).expect("parses"),
            spec
        );
        let extended = text.replacen('{', "{\"tpcs\":54,", 1);
        assert!(serde_json::from_str::<GpuSpec>(&extended).is_err());
    }
}
