//! The daemon's configuration: what may be set, its defaults, and what each key means.
//!
//! Not here: reading files and variables (`load`), what is a sensible value (`check`). `main` loads it once; it does
//! not change while the daemon runs. `config/evenkeeld.toml` documents every key; a test compares it with this file.

mod check;
mod defaults;
mod doors;
mod load;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::id::Name;
use evenkeel_core::node::{GpuMode, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::Millis;
use serde::{Deserialize, Serialize};

pub use check::Problem;
pub use doors::{CapConfig, Role, Tenant, TenantsConfig, TlsConfig, Token};
pub use load::{ConfigError, ENV_PREFIX};
pub use size::Size;

/// Where clients look for the daemon unless told otherwise (the client library has the same default).
pub const DEFAULT_SOCKET: &str = "/run/evenkeel/evenkeeld.sock";
/// The configuration file that is read when none is named, if it exists.
pub const DEFAULT_PATH: &str = "/etc/evenkeel/evenkeeld.toml";

/// All settings. Every key has a default; unknown keys are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The server and its pool.
    pub node: NodeConfig,
    /// The pool where `node.pool = "synthetic"`.
    pub synthetic: SyntheticConfig,
    /// Where leases and jobs are stored.
    pub ledger: LedgerConfig,
    /// Where clients reach the daemon.
    pub listen: ListenConfig,
    /// Mutual TLS, for `listen.tcp`.
    pub tls: TlsConfig,
    /// Where refusals at the doors are written down.
    pub audit: AuditConfig,
    /// Whose requests are whose.
    pub tenants: TenantsConfig,
    /// Times and rules of leases.
    pub leases: LeasesConfig,
    /// GPUs.
    pub gpu: GpuConfig,
    /// How many of what.
    pub limits: LimitsConfig,
    /// What is logged.
    pub log: LogConfig,
    /// Leases' lives as traces.
    pub traces: TracesConfig,
}

/// The server and its pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// The node's name in answers; empty: the host's name.
    pub name: String,
    /// Hardware that is enforced, or amounts that exist in the ledger only.
    pub pool: PoolKind,
    /// Cores kept for the system and the daemon.
    pub reserve_cores: Reserve,
    /// What one leasable core is.
    pub smt: Smt,
}

/// How many cores are kept for the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reserve {
    /// One core; none on a machine with fewer than four.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// So many.
    Cores(u32),
}

/// The word `auto`.
mod auto {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str("auto")
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<(), D::Error> {
        if String::deserialize(d)? == "auto" {
            Ok(())
        } else {
            Err(D::Error::custom("neither \"auto\" nor a number"))
        }
    }
}

/// What one leasable core is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Smt {
    /// A physical core with all its hardware threads.
    #[default]
    Cores,
    /// A hardware thread.
    Threads,
}

/// A pool that exists in the ledger only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Cores.
    pub cores: u32,
    /// GPUs.
    pub gpus: u16,
    /// SMs of each GPU.
    pub sms: u32,
    /// Memory of each GPU.
    pub memory: Size,
    /// SMs can be given out in multiples of this.
    pub granularity: u32,
}

/// Where leases and jobs are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// The database. Beside it lie its lock, its ballast and its backups.
    pub path: PathBuf,
    /// Space that is kept so that a full disk does not stop releases and expiries.
    pub ballast_mib: u64,
    /// Below so much free space nothing is granted.
    pub min_free_mib: u64,
    /// Events older than this are dropped from the audit trail.
    pub audit_days: u32,
}

/// Where clients reach the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// The Unix socket: gRPC; the peer's user decides the tenant.
    pub socket: PathBuf,
    /// The socket's permissions, in octal.
    pub socket_mode: String,
    /// Address for gRPC over TCP; empty: none.
    pub tcp: String,
    /// Allows plain TCP: whoever reaches the port is believed.
    pub insecure_tcp: bool,
    /// The tenant of whoever comes over plain TCP.
    pub tcp_tenant: Name,
    /// Address for REST and metrics, on loopback; empty: none.
    pub rest: String,
    /// Allows admins to cancel, drain and revoke over REST.
    pub rest_writes: bool,
}

/// Where refusals at the doors are written down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The file, one JSON object a line; empty: `audit.jsonl` beside the ledger.
    pub path: PathBuf,
}

/// Times and rules of leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesConfig {
    /// Life without a renewal, where the request does not say.
    pub ttl_ms: u64,
    /// Time past the deadline in which a renewal still saves a lease.
    pub grace_ms: u64,
    /// Time in which a cancelled job's workers may give their leases back.
    pub release_grace_ms: u64,
    /// Time in quarantine before the tree is told to end.
    pub quarantine_kill_ms: u64,
    /// Time between telling the tree to end and ending it.
    pub kill_after_term_ms: u64,
    /// An admitted job without a live lease for so long gives its quotas back.
    pub park_after_ms: u64,
    /// A lease that was given back and is still in use after so long is told as a trouble.
    pub drain_ms: u64,
    /// A worker that has reported progress and then nothing for so long is told as a trouble.
    pub worker_stall_ms: u64,
    /// Answers of ended requests are remembered for so long after their end, or after the daemon's last start.
    pub remember_for_ms: u64,
    /// And so many of each tenant at most.
    pub remember_ends: u32,
    /// A wake-up later than this is the daemon's own stall; deadlines move by it.
    pub stall_ms: u64,
    /// A lease that nobody renews over restarts of the daemon lives so many TTLs.
    pub unrenewed_ttls: u64,
    /// How often reality is compared with what should be.
    pub reconcile_ms: u64,
}

/// Who provides the GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSource {
    /// Nobody: cores only.
    #[default]
    None,
    /// A device process, no hardware.
    Emulated,
}

/// GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuConfig {
    /// Who provides them.
    pub backend: GpuSource,
    /// How far the daemon goes on each GPU.
    pub mode: GpuMode,
    /// Exceptions, by the GPU's number.
    pub modes: BTreeMap<String, GpuMode>,
    /// Memory of each GPU that is not leased: contexts and the system need it.
    pub reserved_memory: Size,
    /// GPUs that are not there.
    pub emulated: EmulatedConfig,
}

/// GPUs that are not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedConfig {
    /// The device's directory, with its sockets.
    pub dir: PathBuf,
    /// What they are: a preset of `evenkeel-gpu`.
    pub model: String,
    /// How many.
    pub count: u16,
    /// Another number of SMs than the preset's; 0: the preset's.
    pub sms: u32,
    /// Starts the device if nobody serves the directory. It outlives the daemon.
    pub start: bool,
    /// The program that serves it; empty: `evenkeel-gpu` beside the daemon, else from PATH.
    pub program: String,
    /// Lets processes of other users create contexts.
    pub multiuser: bool,
}

/// How many of what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Live leases, the queue among them.
    pub leases: u32,
    /// Requests in the queue.
    pub queue: u32,
    /// Live jobs.
    pub jobs: u32,
    /// Live leases of one tenant.
    pub tenant_leases: u32,
    /// Requests of one tenant in the queue.
    pub tenant_queue: u32,
    /// Live jobs of one tenant.
    pub tenant_jobs: u32,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,evenkeeld::backend=debug`.
    pub level: String,
    /// For people or for machines.
    pub format: LogFormat,
}

/// Leases' lives as OpenTelemetry traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector that takes OTLP over gRPC, such as `http://127.0.0.1:4317`; empty: no traces.
    pub endpoint: String,
    /// The share of leases that is traced, 0 to 1.
    pub sample: f64,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// The part that decisions depend on.
    pub fn settings(&self) -> Settings {
        let (leases, limits) = (&self.leases, &self.limits);
        Settings {
            ttl: Millis(leases.ttl_ms),
            grace: Millis(leases.grace_ms),
            release_grace: Millis(leases.release_grace_ms),
            quarantine_kill: Millis(leases.quarantine_kill_ms),
            kill_after_term: Millis(leases.kill_after_term_ms),
            park_after: Millis(leases.park_after_ms),
            drain: Millis(leases.drain_ms),
            worker_stall: Millis(leases.worker_stall_ms),
            remember_for: Millis(leases.remember_for_ms),
            remember_ends: leases.remember_ends,
            stall: Millis(leases.stall_ms),
            unrenewed_ttls: leases.unrenewed_ttls,
            leases_max: limits.leases,
            queue_max: limits.queue,
            jobs_max: limits.jobs,
            tenant_leases_max: limits.tenant_leases,
            tenant_queue_max: limits.tenant_queue,
            tenant_jobs_max: limits.tenant_jobs,
        }
    }

    /// The node's name: as set, else the host's.
    pub fn node_name(&self) -> String {
        if !self.node.name.is_empty() {
            return self.node.name.clone();
        }
        match std::fs::read_to_string("/proc/sys/kernel/hostname") {
            Ok(name) if !name.trim().is_empty() => name.trim().to_owned(),
            _ => "localhost".into(),
        }
    }

    /// The permissions of the Unix socket; `check` has seen that they can be read.
    pub fn socket_mode(&self) -> u32 {
        check::octal(&self.listen.socket_mode).unwrap_or(0o600)
    }

    /// How far the daemon goes on a GPU.
    pub fn gpu_mode(&self, index: u16) -> GpuMode {
        let exception = self.gpu.modes.get(&index.to_string());
        exception.copied().unwrap_or(self.gpu.mode)
    }

    /// Where refusals at the doors are written down.
    pub fn audit_path(&self) -> PathBuf {
        if !self.audit.path.as_os_str().is_empty() {
            return self.audit.path.clone();
        }
        self.ledger.path.with_file_name("audit.jsonl")
    }
}
