//! The environment of a CUDA process under MPS, read when a context is created. The variables and their syntax are
//! NVIDIA's (MPS documentation, "Appendix: Environment Variables"), but for the one that names the socket.

use std::env;
use std::path::PathBuf;

/// The socket of the emulated GPU: what CUDA_VISIBLE_DEVICES is to a real one. One socket, one visible GPU.
pub const ENV_SOCKET: &str = "EVENKEEL_GPU_SOCKET";

/// The share of the SMs in percent.
pub const ENV_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// The limit of the device memory.
pub const ENV_MEMORY_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// What a context asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// What it calls itself in the client list.
    pub role: String,
    /// The share of the SMs in percent, 1 to 100; `None` for the GPU's default.
    pub percentage: Option<u32>,
    /// The limit of its device memory in bytes; `None` for all of it.
    pub memory_limit: Option<u64>,
}

/// A variable that is missing or unreadable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// Not set.
    #[error(
        "{0} is not set: run under `evenkeel run`, or set it to a socket of `evenkeel-gpu serve`"
    )]
    Missing(&'static str),
    /// Not UTF-8.
    #[error("{0} is not valid UTF-8")]
    Encoding(&'static str),
    /// Not a percentage.
    #[error("{ENV_PERCENTAGE}=`{0}`: it must be a whole number from 1 to 100")]
    Percentage(String),
    /// Not a memory limit.
    #[error(
        "{ENV_MEMORY_LIMIT}=`{0}`: it must look like `0=10G` or `0=10G,1=512MB` (whole numbers; G, GB, M or MB)"
    )]
    MemoryLimit(String),
}

impl ContextOptions {
    /// The options of a process with this environment, at this moment.
    ///
    /// # Errors
    /// Names the variable that is unreadable and what it should look like. (MPS falls back in silence to no limit;
    /// that would be a share that nobody granted.)
    pub fn from_env(role: &str) -> Result<Self, EnvError> {
        let percentage = read(ENV_PERCENTAGE)?
            .map(|text| parse_percentage(&text))
            .transpose()?;
        // The one visible GPU has the ordinal 0, as under an MPS server that was given one.
        let memory_limit = match read(ENV_MEMORY_LIMIT)? {
            Some(text) => parse_memory_limit(&text, 0)?,
            None => None,
        };
        Ok(Self {
            role: role.to_owned(),
            percentage,
            memory_limit,
        })
    }
}

pub(super) fn socket_from_env() -> Result<PathBuf, EnvError> {
    match env::var_os(ENV_SOCKET) {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err(EnvError::Missing(ENV_SOCKET)),
    }
}

fn read(variable: &'static str) -> Result<Option<String>, EnvError> {
    match env::var(variable) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(EnvError::Encoding(variable)),
    }
}

/// A percentage as MPS reads it.
///
/// # Errors
/// When it is not a whole number from 1 to 100.
pub fn parse_percentage(text: &str) -> Result<u32, EnvError> {
    let refuse = || EnvError::Percentage(text.to_owned());
    let percentage = digits(text.trim()).ok_or_else(refuse)?;
    u32::try_from(percentage)
        .ok()
        .filter(|percentage| (1..=100).contains(percentage))
        .ok_or_else(refuse)
}

/// The limit of one device, by ordinal, in `0=1G,1=512MB`: in bytes, G and M being powers of 1024; `None` if the list
/// does not name it. Devices named by UUID are other devices. The last entry of a device wins, as in MPS.
///
/// # Errors
/// When any entry is unreadable, also another device's.
pub fn parse_memory_limit(text: &str, ordinal: u32) -> Result<Option<u64>, EnvError> {
    let mut limit = None;
    for entry in text.split(',') {
        let (device, bytes) =
            parse_entry(entry.trim()).ok_or_else(|| EnvError::MemoryLimit(text.to_owned()))?;
        if device == Some(u64::from(ordinal)) {
            limit = Some(bytes);
        }
    }
    Ok(limit)
}

/// The device's ordinal (`None`: a UUID) and the bytes.
fn parse_entry(entry: &str) -> Option<(Option<u64>, u64)> {
    let (device, amount) = entry.split_once('=')?;
    let device = device.trim();
    let device = if device.starts_with("GPU-") || device.starts_with("MIG-") {
        None
    } else {
        Some(digits(device)?)
    };
    let amount = amount.trim();
    let number = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &amount[number.len()..] {
        "G" | "GB" => 1 << 30,
        "M" | "MB" => 1 << 20,
        _ => return None,
    };
    Some((device, digits(number)?.checked_mul(unit)?))
}

/// A number of digits only: `u64::from_str` would take a sign, too.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        let check = |text: &str, expect: Option<u32>| {
            assert_eq!(parse_percentage(text).ok(), expect, "`{text}`")
        };
        check("1", Some(1));
        check(" 100 ", Some(100));
        for wrong in [
            "0",
            "101",
            "-5",
            "+5",
            "12.5",
            "50%",
            "",
            "99999999999999999999",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn memory_limits() {
        const G: u64 = 1 << 30;
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(parse_memory_limit(text, 0), Ok(expect), "`{text}`")
        };
        check("0=10G", Some(10 * G));
        check("0=1G,1=512MB", Some(G));
        check("1=512MB, 0=2048M", Some(2 * G));
        check("0=1G,0=2GB", Some(2 * G));
        check("1=1G", None);
        check("GPU-1f2e3d=3G", None);
        for wrong in [
            "",
            "10G",
            "0=",
            "0=G",
            "0=10",
            "0=10K",
            "0=1.5G",
            "0=-1G",
            "x=1G",
            "0=1G,",
            "0=18446744073709551615G",
        ] {
            assert!(parse_memory_limit(wrong, 0).is_err(), "`{wrong}`");
        }
    }
}
