//! Vectors of resources: cores by id, shares of GPUs.
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Highest CPU number that a list may hold; the kernel's own limit is 8,192.
const CPU_MAX: u32 = 65_535;

/// Core or CPU numbers, ascending and unique; written in the kernel's list format, such as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuList(Vec<u32>);

/// A text that is not a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a CPU list such as `0-3,8`")]
pub struct BadCpuList(String);

impl CpuList {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut list: Vec<u32> = numbers.into_iter().collect();
        list.sort_unstable();
        list.dedup();
        Self(list)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some((&first, _)) = rest.split_first() {
            let run = rest
                .iter()
                .zip(first..)
                .take_while(|(have, want)| *have == want)
                .count();
            let last = rest[run - 1];
            if run == 1 {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

impl FromStr for CpuList {
    type Err = BadCpuList;
    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.to_owned());
        let number = |s: &str| s.trim().parse::<u32>().ok().filter(|n| *n <= CPU_MAX);
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = number(first).ok_or_else(bad)?;
            let last = number(last).ok_or_else(bad)?;
            if last < first {
                return Err(bad());
            }
            numbers.extend(first..=last);
        }
        Ok(numbers.into_iter().collect())
    }
}

impl Serialize for CpuList {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A share of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// Place of the GPU on its node.
    pub gpu: u32,
    /// The device's own id.
    pub gpu_uuid: String,
    /// SMs that nobody else is promised.
    pub guarantee_sms: u32,
    /// The most SMs it may use; at least the guarantee.
    pub cap_sms: u32,
    /// The percentage that gives `cap_sms`: what `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` has to say.
    pub cap_percent: u32,
    /// GPU memory in bytes, over all processes of the worker.
    pub memory_bytes: u64,
    /// Where the emulated device listens; empty for a real GPU.
    pub emulated_socket: String,
}

/// Cores by id and a share of each GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Core ids; a core's id is its lowest CPU number.
    pub cores: CpuList,
    /// CPUs (hardware threads) of those cores: the affinity mask.
    pub cpus: CpuList,
    /// One entry for each GPU with a share.
    pub gpus: Vec<GpuShare>,
}

impl Vector {
    /// Whether the two differ in what a process can only take up when it starts: its GPU shares.
    pub fn same_gpus(&self, other: &Self) -> bool {
        self.gpus == other.gpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_and_write_in_the_kernels_format() {
        for (text, numbers, written) in [
            ("", vec![], ""),
            ("0", vec![0], "0"),
            ("0-3,8", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("8,1,0, 2", vec![0, 1, 2, 8], "0-2,8"),
            ("5,5", vec![5], "5"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.iter().collect::<Vec<_>>(), numbers, "{text}");
            assert_eq!(list.to_string(), written);
        }
        for text in [
            "3-1",
            "a",
            "1-",
            "-1",
            "1,,2",
            "99999999999",
            "0-4000000000",
        ] {
            assert!(text.parse::<CpuList>().is_err(), "{text} was read");
        }
    }
}
