//! What the API needs to know, and how it follows from the daemon's configuration.
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::unit::Millis;

use super::rate::{RateLimit, RateLimits};
use super::serve::{Connections, TlsFiles};
use super::tenants::Tenants;
use crate::audit::Audit;
use crate::config::TenantsConfig;

/// Where each emulated GPU listens; real ones are absent.
pub type GpuSockets = BTreeMap<GpuId, PathBuf>;
/// Says what is wrong with the node, for a person; empty: nothing.
pub type Troubles = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Who may come over TCP.
#[derive(Clone, Debug)]
pub enum Tcp {
    /// Whoever reaches the port, as this tenant.
    Plain(Name),
    /// Whoever has a certificate.
    Tls(TlsFiles),
}

/// See the module's text.
#[derive(Clone)]
pub struct Config {
    /// Path of the Unix socket, absolute. Workers are told this path.
    pub socket: PathBuf,
    /// Its permissions.
    pub socket_mode: u32,
    /// gRPC over TCP; none: no such listener.
    pub tcp: Option<(SocketAddr, Tcp)>,
    /// REST and metrics, on loopback; none: no such listener.
    pub rest: Option<SocketAddr>,
    /// Whether admins may change anything there.
    pub rest_writes: bool,
    /// Whose requests are whose.
    pub tenants: Tenants,
    /// How often each tenant may call.
    pub rates: RateLimits,
    /// Where refusals are written down.
    pub audit: Audit,
    /// The node's name in answers.
    pub node_name: String,
    /// Life of a lease without a renewal, where the request does not say.
    pub default_ttl: Millis,
    /// Sockets of emulated GPUs.
    pub gpu_sockets: GpuSockets,
    /// What is wrong just now.
    pub troubles: Troubles,
    /// How many may be connected.
    pub connections: Connections,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("socket", &self.socket)
            .field("tcp", &self.tcp)
            .field("rest", &self.rest)
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// From the daemon's configuration, which has been checked.
    pub fn new(config: &crate::config::Config, gpu_sockets: GpuSockets, audit: Audit) -> Self {
        let listen = &config.listen;
        let own_uid = nix::unistd::geteuid().as_raw();
        let over_tcp = if listen.insecure_tcp {
            Tcp::Plain(listen.tcp_tenant.clone())
        } else {
            Tcp::Tls(TlsFiles {
                certificate: config.tls.certificate.clone(),
                key: config.tls.key.clone(),
                client_ca: config.tls.client_ca.clone(),
                trust_domain: config.tls.trust_domain.clone(),
            })
        };
        Self {
            socket: std::path::absolute(&listen.socket).unwrap_or_else(|_| listen.socket.clone()),
            socket_mode: config.socket_mode(),
            tcp: listen.tcp.parse().ok().map(|address| (address, over_tcp)),
            rest: listen.rest.parse().ok(),
            rest_writes: listen.rest_writes,
            tenants: Tenants::new(&config.tenants, own_uid),
            rates: rates(&config.tenants),
            audit,
            node_name: config.node_name(),
            default_ttl: config.settings().ttl,
            gpu_sockets,
            troubles: Arc::new(Vec::new),
            connections: Connections::default(),
        }
    }
}

/// The rates among the caps.
fn rates(tenants: &TenantsConfig) -> RateLimits {
    let mut rates = RateLimits::default();
    for (name, cap) in &tenants.caps {
        let limit = cap.requests_per_s.and_then(|n| RateLimit::new(n, 0));
        match name.as_str() {
            TenantsConfig::OTHERS => rates.others = limit,
            _ => drop(rates.named.insert(name.clone(), limit)),
        }
    }
    rates
}
