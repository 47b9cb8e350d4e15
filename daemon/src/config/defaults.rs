//! The defaults of every key. Their reasons are in `config/evenkeeld.toml`, which a test keeps equal to this.

use std::collections::BTreeMap;

use evenkeel_core::id::Name;
use evenkeel_core::node::{GpuMode, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::Bytes;

use super::{
    DEFAULT_SOCKET, EmulatedConfig, GpuConfig, GpuSource, LeasesConfig, LedgerConfig, LimitsConfig,
    ListenConfig, LogConfig, LogFormat, NodeConfig, Reserve, Size, Smt, SyntheticConfig, TlsConfig,
    TracesConfig,
};

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            pool: PoolKind::Local,
            reserve_cores: Reserve::Auto,
            smt: Smt::Cores,
        }
    }
}

impl Default for SyntheticConfig {
    fn default() -> Self {
        Self {
            cores: 64,
            gpus: 8,
            sms: 132,
            memory: Size(Bytes::gib(80)),
            granularity: 2,
        }
    }
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            sample: 1.0,
        }
    }
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            path: "/var/lib/evenkeel/ledger.db".into(),
            ballast_mib: 64,
            min_free_mib: 256,
            audit_days: 30,
        }
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            socket_mode: "0666".into(),
            tcp: String::new(),
            insecure_tcp: false,
            tcp_tenant: Name::new("remote").unwrap_or_else(|_| Name::unknown()),
            rest: "127.0.0.1:7420".into(),
            rest_writes: false,
        }
    }
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificate: "".into(),
            key: "".into(),
            client_ca: "".into(),
            trust_domain: "evenkeel".into(),
        }
    }
}

impl Default for LeasesConfig {
    fn default() -> Self {
        let core = Settings::default();
        Self {
            ttl_ms: core.ttl.0,
            grace_ms: core.grace.0,
            release_grace_ms: core.release_grace.0,
            quarantine_kill_ms: core.quarantine_kill.0,
            kill_after_term_ms: core.kill_after_term.0,
            park_after_ms: core.park_after.0,
            drain_ms: core.drain.0,
            worker_stall_ms: core.worker_stall.0,
            remember_for_ms: core.remember_for.0,
            remember_ends: core.remember_ends,
            stall_ms: core.stall.0,
            unrenewed_ttls: core.unrenewed_ttls,
            reconcile_ms: 200,
        }
    }
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            backend: GpuSource::None,
            mode: GpuMode::Enforce,
            modes: BTreeMap::new(),
            reserved_memory: Size(Bytes::mib(512)),
            emulated: EmulatedConfig::default(),
        }
    }
}

impl Default for EmulatedConfig {
    fn default() -> Self {
        Self {
            dir: "/run/evenkeel/gpu".into(),
            model: "h100".into(),
            count: 1,
            sms: 0,
            start: true,
            program: String::new(),
            multiuser: false,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let core = Settings::default();
        Self {
            leases: core.leases_max,
            queue: core.queue_max,
            jobs: core.jobs_max,
            tenant_leases: core.tenant_leases_max,
            tenant_queue: core.tenant_queue_max,
            tenant_jobs: core.tenant_jobs_max,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}
