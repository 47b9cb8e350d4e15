//! What values are sensible, and what to say when one is not. Types and unknown keys are `load`'s.

use std::fmt;
use std::net::SocketAddr;

use evenkeel_core::id::Name;
use evenkeel_core::node::PoolKind;
use evenkeel_core::unit::Bytes;
use evenkeel_gpu::GpuSpec;
use evenkeel_gpu::limits::MAX_GPUS;
use hyper::Uri;

use super::{Config, GpuSource, Reserve};
use crate::api::identity;
use crate::traces;

/// Cores of a synthetic pool: more than any server has, little enough for a set of them.
const SYNTHETIC_CORES_MAX: u32 = 65_536;
/// GPUs of a synthetic pool.
const SYNTHETIC_GPUS_MAX: u16 = 1_024;
/// SMs of a GPU: several times what any has.
const SMS_MAX: u32 = 10_000;
/// A Unix socket's path must fit into `sockaddr_un`.
const SOCKET_PATH_MAX: usize = 107;

/// Something wrong in the configuration: where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    place: String,
    message: String,
}

impl Problem {
    /// In a file, at a byte offset.
    pub(super) fn in_file(origin: &str, text: &str, at: Option<usize>, message: &str) -> Self {
        let place = match at {
            None => origin.to_owned(),
            Some(at) => {
                let before = text.get(..at).unwrap_or(text);
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
                format!("{origin}:{line}:{column}")
            }
        };
        Self {
            place,
            message: message.trim_end().to_owned(),
        }
    }

    /// In a variable.
    pub(super) fn in_variable(variable: &str, message: &str) -> Self {
        Self {
            place: variable.to_owned(),
            message: message.trim_end().to_owned(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Octal permissions such as `0666`.
pub(super) fn octal(text: &str) -> Option<u32> {
    let mode = u32::from_str_radix(text, 8).ok()?;
    (mode <= 0o777).then_some(mode)
}

/// Collects what is wrong.
struct Check(Vec<Problem>);

impl Check {
    fn unless(&mut self, right: bool, key: &str, message: impl FnOnce() -> String) {
        if !right {
            self.0.push(Problem {
                place: key.to_owned(),
                message: message(),
            });
        }
    }

    fn range(&mut self, key: &str, value: u64, low: u64, high: u64) {
        self.unless((low..=high).contains(&value), key, || {
            format!("{value} is out of range: it must be from {low} to {high}")
        });
    }
}

impl Config {
    /// Everything that is wrong with the values.
    pub fn check(&self) -> Vec<Problem> {
        let mut check = Check(Vec::new());
        self.check_pool(&mut check);
        self.check_listeners(&mut check);
        self.check_leases(&mut check);
        self.check_gpus(&mut check);
        let ledger = &self.ledger;
        check.unless(!ledger.path.as_os_str().is_empty(), "ledger.path", || {
            "empty: give the path of the database's file".into()
        });
        check.range("ledger.ballast_mib", ledger.ballast_mib, 1, 65_536);
        check.range("ledger.min_free_mib", ledger.min_free_mib, 0, 65_536);
        check.range("ledger.audit_days", ledger.audit_days.into(), 1, 36_500);
        self.check_tenants(&mut check);
        self.check_traces(&mut check);
        let level = tracing_subscriber::EnvFilter::try_new(&self.log.level);
        check.unless(level.is_ok(), "log.level", || {
            format!(
                "`{}` is no level: write error, warn, info, debug or trace, or directives such as \
                 info,evenkeeld::backend=debug",
                self.log.level
            )
        });
        check.0
    }

    fn check_pool(&self, check: &mut Check) {
        let name = &self.node.name;
        check.unless(
            name.is_empty() || Name::new(name).is_ok(),
            "node.name",
            || format!("`{name}` is not a name: 1 to 128 bytes, without spaces"),
        );
        if let Reserve::Cores(n) = self.node.reserve_cores {
            check.range("node.reserve_cores", n.into(), 0, 1_024);
        }
        if self.node.pool == PoolKind::Local {
            return;
        }
        let pool = &self.synthetic;
        check.range(
            "synthetic.cores",
            pool.cores.into(),
            1,
            SYNTHETIC_CORES_MAX.into(),
        );
        check.range(
            "synthetic.gpus",
            pool.gpus.into(),
            0,
            SYNTHETIC_GPUS_MAX.into(),
        );
        check.range("synthetic.sms", pool.sms.into(), 1, SMS_MAX.into());
        check.range(
            "synthetic.granularity",
            pool.granularity.into(),
            1,
            pool.sms.max(1).into(),
        );
        check.unless(pool.memory.0 > Bytes(0), "synthetic.memory", || {
            "a GPU has some memory, such as \"80GiB\"".into()
        });
        check.unless(self.gpu.backend == GpuSource::None, "gpu.backend", || {
            "a synthetic pool has GPUs of its own (synthetic.gpus): set it to \"none\"".into()
        });
    }

    fn check_listeners(&self, check: &mut Check) {
        let listen = &self.listen;
        let socket = listen.socket.as_os_str();
        check.unless(
            !socket.is_empty() && socket.len() <= SOCKET_PATH_MAX,
            "listen.socket",
            || {
                format!(
                    "a socket's path has 1 to {SOCKET_PATH_MAX} bytes; this one has {}",
                    socket.len()
                )
            },
        );
        check.unless(
            octal(&listen.socket_mode).is_some(),
            "listen.socket_mode",
            || {
                format!(
                    "`{}` is no permission: write octal digits, such as \"0660\"",
                    listen.socket_mode
                )
            },
        );
        let address = |check: &mut Check, key: &str, text: &str| -> Option<SocketAddr> {
            if text.is_empty() {
                return None;
            }
            let parsed = text.parse().ok();
            check.unless(parsed.is_some(), key, || {
                format!(
                    "`{text}` is no address: write one such as \"127.0.0.1:7420\", or \"\" for none"
                )
            });
            parsed
        };
        let tcp = address(check, "listen.tcp", &listen.tcp);
        let tls = &self.tls;
        check.unless(
            tcp.is_none() || listen.insecure_tcp || tls.is_set(),
            "listen.tcp",
            || {
                "plain TCP believes whoever reaches the port: set the files of [tls] (`evenkeel cert init` makes \
                 them), or listen.insecure_tcp = true if plain TCP is meant, or leave listen.tcp empty"
                    .into()
            },
        );
        check.unless(
            !(tls.is_set() && listen.insecure_tcp),
            "listen.insecure_tcp",
            || "true, and [tls] is set: it is one or the other".into(),
        );
        self.check_tls(check);
        let rest = address(check, "listen.rest", &listen.rest);
        check.unless(
            rest.is_none_or(|rest| rest.ip().is_loopback()),
            "listen.rest",
            || {
                format!(
                    "`{}` is not on loopback: tokens and answers would cross the network in the clear, so REST \
                     listens on 127.0.0.1 or [::1] only",
                    listen.rest
                )
            },
        );
    }

    fn check_tls(&self, check: &mut Check) {
        let tls = &self.tls;
        if !tls.is_set() {
            return;
        }
        for (key, path) in [
            ("tls.certificate", &tls.certificate),
            ("tls.key", &tls.key),
            ("tls.client_ca", &tls.client_ca),
        ] {
            check.unless(!path.as_os_str().is_empty(), key, || {
                "empty, and the others of [tls] are set: all three files are needed".into()
            });
        }
        check.unless(!self.listen.tcp.is_empty(), "listen.tcp", || {
            "empty, and [tls] is set: give the address to listen on, such as \"0.0.0.0:7421\""
                .into()
        });
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
        let domain = &tls.trust_domain;
        check.unless(
            !domain.is_empty() && domain.len() <= 255 && domain.chars().all(plain),
            "tls.trust_domain",
            || {
                format!(
                    "`{domain}` is no SPIFFE trust domain: lower-case letters, digits, `.`, `-` and `_`"
                )
            },
        );
    }

    fn check_tenants(&self, check: &mut Check) {
        let tenants = &self.tenants;
        for uid in tenants.uids.keys() {
            let key = format!("tenants.uids.{uid}");
            // Written in one way only: a user is in the map once.
            let is_one = uid.parse::<u32>().is_ok_and(|n| n.to_string() == *uid);
            check.unless(is_one, &key, || {
                format!("`{uid}` is not a numeric user id, such as 1000")
            });
        }
        for uri in tenants.certificates.keys() {
            let key = format!("tenants.certificates.{uri:?}");
            let named = identity::check(uri, &self.tls.trust_domain);
            check.unless(named.is_ok(), &key, || {
                let why = named.map_or_else(|why| why.to_string(), |()| String::new());
                format!("is no SPIFFE ID that a certificate can have here: {why}")
            });
        }
        for (name, cap) in &tenants.caps {
            let key = format!("tenants.caps.{name}.requests_per_s");
            check.unless(cap.requests_per_s != Some(0), &key, || {
                "0 would be no limit: leave it out for that, or give at least 1".into()
            });
        }
        for (digest, token) in &tenants.tokens {
            let key = format!("tenants.tokens.{digest}");
            let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            check.unless(digest.len() == 64 && digest.chars().all(hex), &key, || {
                "is no SHA-256 in 64 lower-case hexadecimal digits; `evenkeel token` makes a token and its line".into()
            });
            check.unless(
                token.expires.is_none() || token.ends_at().is_some(),
                &key,
                || {
                    "expires needs a date, a time and an offset, such as 2027-01-31T00:00:00Z"
                        .into()
                },
            );
        }
    }

    fn check_traces(&self, check: &mut Check) {
        let traces = &self.traces;
        check.unless(
            (0.0..=1.0).contains(&traces.sample),
            "traces.sample",
            || format!("{} is no share: it must be from 0 to 1", traces.sample),
        );
        if traces.endpoint.is_empty() {
            return;
        }
        check.unless(
            traces::CAN_SEND,
            "traces.endpoint",
            || {
                "this build cannot send traces; build it with `--features otel`, or leave the endpoint empty"
                    .into()
            },
        );
        let uri = traces.endpoint.parse::<Uri>().ok();
        let is_plain = uri.is_some_and(|uri| {
            let text = &traces.endpoint;
            uri.scheme_str() == Some("http")
                && uri.host().is_some_and(|host| !host.is_empty())
                && uri.port_u16().is_some_and(|port| port > 0)
                && uri.path() == "/"
                && !text.contains(['?', '#', '@'])
        });
        check.unless(is_plain, "traces.endpoint", || {
            format!(
                "`{}` is no collector's address: write one such as http://127.0.0.1:4317 (OTLP over gRPC; to go over \
                 a network with TLS, run a collector here that forwards)",
                traces.endpoint
            )
        });
    }

    fn check_leases(&self, check: &mut Check) {
        const HOUR: u64 = 3_600_000;
        let leases = &self.leases;
        check.range("leases.ttl_ms", leases.ttl_ms, 1_000, HOUR);
        check.range("leases.grace_ms", leases.grace_ms, 0, HOUR);
        for (key, value) in [
            ("leases.release_grace_ms", leases.release_grace_ms),
            ("leases.quarantine_kill_ms", leases.quarantine_kill_ms),
            ("leases.kill_after_term_ms", leases.kill_after_term_ms),
        ] {
            check.range(key, value, 0, 24 * HOUR);
        }
        check.range(
            "leases.park_after_ms",
            leases.park_after_ms,
            1_000,
            168 * HOUR,
        );
        for (key, value) in [
            ("leases.drain_ms", leases.drain_ms),
            ("leases.worker_stall_ms", leases.worker_stall_ms),
        ] {
            check.range(key, value, 1_000, 168 * HOUR);
        }
        check.range(
            "leases.remember_for_ms",
            leases.remember_for_ms,
            HOUR,
            168 * HOUR,
        );
        check.range(
            "leases.remember_ends",
            leases.remember_ends.into(),
            1_000,
            10_000_000,
        );
        check.range(
            "leases.stall_ms",
            leases.stall_ms,
            100,
            leases.ttl_ms.max(100),
        );
        check.range("leases.unrenewed_ttls", leases.unrenewed_ttls, 1, 1_000);
        check.range("leases.reconcile_ms", leases.reconcile_ms, 20, 10_000);
        let limits = &self.limits;
        check.range("limits.leases", limits.leases.into(), 1, 10_000_000);
        check.range("limits.queue", limits.queue.into(), 0, limits.leases.into());
        check.range("limits.jobs", limits.jobs.into(), 1, 1_000_000);
        check.range(
            "limits.tenant_leases",
            limits.tenant_leases.into(),
            1,
            10_000_000,
        );
        check.range(
            "limits.tenant_queue",
            limits.tenant_queue.into(),
            0,
            10_000_000,
        );
        check.range(
            "limits.tenant_jobs",
            limits.tenant_jobs.into(),
            1,
            1_000_000,
        );
    }

    fn check_gpus(&self, check: &mut Check) {
        let (gpu, emulated) = (&self.gpu, &self.gpu.emulated);
        for index in gpu.modes.keys() {
            let key = format!("gpu.modes.{index}");
            check.unless(index.parse::<u16>().is_ok(), &key, || {
                format!("`{index}` is not a GPU's number, such as 0")
            });
        }
        if gpu.backend != GpuSource::Emulated {
            return;
        }
        let spec = GpuSpec::preset(&emulated.model);
        check.unless(spec.is_some(), "gpu.emulated.model", || {
            format!(
                "no preset `{}`: there are {}",
                emulated.model,
                GpuSpec::PRESETS.join(", ")
            )
        });
        check.range(
            "gpu.emulated.count",
            emulated.count.into(),
            1,
            MAX_GPUS as u64,
        );
        check.range("gpu.emulated.sms", emulated.sms.into(), 0, SMS_MAX.into());
        check.unless(
            !emulated.dir.as_os_str().is_empty(),
            "gpu.emulated.dir",
            || "empty: give the directory of the device's sockets".into(),
        );
        if let Some(spec) = spec {
            let memory = Bytes(spec.memory_bytes);
            check.unless(
                gpu.reserved_memory.0 < memory,
                "gpu.reserved_memory",
                || format!("{} leaves nothing of a GPU's {memory}", gpu.reserved_memory),
            );
        }
    }
}
