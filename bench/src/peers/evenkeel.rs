//! Evenkeel itself, through each of its doors; the same with the ledger switched off; and the wire alone.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use evenkeel_client::{ClientConfig, Credentials};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use super::{BYTES, CORES, Client, Held, Peer, Renewer, SMS, Started, TTL, serving};
use crate::server::{Recipe, Server, folder, free_port, version};

/// How clients get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// The kernel says who calls.
    Unix,
    /// Whoever reaches the port.
    Tcp,
    /// Both sides show certificates.
    Tls,
}

/// Where a daemon listens.
#[derive(Clone, Debug)]
enum Address {
    Unix(PathBuf),
    Tcp(u16),
    Tls(u16, Credentials),
}

impl Address {
    async fn connect(&self) -> anyhow::Result<Channel> {
        let uri = match self {
            Self::Tls(port, credentials) => {
                let address = format!("https://127.0.0.1:{port}").parse()?;
                let config = ClientConfig::new(address).credentials(Some(credentials.clone()));
                let client = evenkeel_client::Client::connect(config).await?;
                return Ok(client.channel());
            }
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp(port) => format!("http://127.0.0.1:{port}"),
        };
        let endpoint = Endpoint::from_shared(uri.clone())?.tcp_nodelay(true);
        let connected = endpoint.connect().await;
        connected.with_context(|| format!("cannot connect to {uri}"))
    }
}

/// The tables for the listener with mutual TLS, and the address of its clients: certificates of a CA for this run.
fn tls(dir: &Path, port: u16) -> anyhow::Result<(String, Address)> {
    let pki = dir.join("pki");
    let cert = |line: &[&str]| -> anyhow::Result<()> {
        let out = Command::new(beside("evenkeel")?)
            .arg("cert")
            .arg(line[0])
            .arg(&pki)
            .args(&line[1..])
            .output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(
            out.status.success(),
            "evenkeel cert {}: {said}",
            line.join(" ")
        );
        Ok(())
    };
    cert(&["init", "--host", "127.0.0.1"])?;
    cert(&["issue", "--tenant", "bench"])?;
    let file = |name: &str| pki.join(name);
    let tables = format!(
        "tcp = \"127.0.0.1:{port}\"\n[tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n",
        file("evenkeeld.pem"),
        file("evenkeeld.key"),
        file("ca.pem")
    );
    let credentials = Credentials {
        certificate: file("tenant-bench.pem"),
        key: file("tenant-bench.key"),
        ca: file("ca.pem"),
    };
    Ok((tables, Address::Tls(port, credentials)))
}

/// A pool of the same size as the peers' counters, in the ledger only: the machine's own cores are few. `accept` measures
/// on it, too.
pub const POOL: &str = r#"
[node]
pool = "synthetic"
[synthetic]
cores = 16384
gpus = 16
sms = 8192
memory = "16TiB"
granularity = 1
[limits]
leases = 100000
"#;

/// Frames that wait to be written.
const FRAMES: usize = 8;

/// A program of ours, beside this one.
fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let path = me.with_file_name(name);
    ensure!(
        path.exists(),
        "{} is not there; build it with `make build`",
        path.display()
    );
    Ok(path)
}

struct Evenkeel {
    server: Server,
    address: Address,
}

pub(super) async fn start(door: Door, base: &Path) -> anyhow::Result<Started> {
    let dir = folder(base, "evenkeel")?;
    let port = free_port()?;
    let (listen, address) = match door {
        Door::Unix => (String::new(), Address::Unix(socket(dir.path()))),
        Door::Tcp => (
            format!("tcp = \"127.0.0.1:{port}\"\ninsecure_tcp = true\n"),
            Address::Tcp(port),
        ),
        Door::Tls => tls(dir.path(), port)?,
    };
    let config = configure(dir.path(), &listen)?;
    let recipe = Recipe {
        program: beside("evenkeeld")?,
        args: vec!["--config".into(), config],
        user: None,
    };
    let version = version(&recipe.program);
    up(Server::start(dir, recipe)?, address, version).await
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("evenkeeld.sock")
}

/// Writes the configuration; where it is.
fn configure(dir: &Path, listen: &str) -> anyhow::Result<String> {
    let config = dir.join("evenkeeld.toml");
    let ledger = dir.join("ledger").join("ledger.db");
    let socket = socket(dir);
    let text = format!(
        "{POOL}[log]\nlevel = \"warn\"\n[ledger]\npath = {ledger:?}\n[listen]\nsocket = {socket:?}\nrest = \"\"\n{listen}"
    );
    fs::write(&config, text)?;
    Ok(config.display().to_string())
}

/// The daemon's parts without what makes them durable: this program itself, in a process of its own.
pub(super) async fn start_off(base: &Path) -> anyhow::Result<Started> {
    let dir = folder(base, "off")?;
    let config = configure(dir.path(), "")?;
    let address = Address::Unix(socket(dir.path()));
    itself(dir, "off", config, address).await
}

/// The wire with nothing behind it: likewise.
pub(super) async fn start_bare(base: &Path) -> anyhow::Result<Started> {
    let dir = folder(base, "bare")?;
    let socket = dir.path().join("bare.sock");
    let path = socket.display().to_string();
    itself(dir, "bare", path, Address::Unix(socket)).await
}

async fn itself(
    dir: tempfile::TempDir,
    role: &str,
    argument: String,
    address: Address,
) -> anyhow::Result<Started> {
    let recipe = Recipe {
        program: beside("bench-leases")?,
        args: vec![role.to_owned(), argument],
        user: None,
    };
    let version = format!("{} ({role})", version(&recipe.program));
    up(Server::start(dir, recipe)?, address, version).await
}

async fn up(mut server: Server, address: Address, version: String) -> anyhow::Result<Started> {
    serving(&mut server, || address.connect()).await?;
    Ok(Started::Up(Box::new(Evenkeel { server, address }), version))
}

#[tonic::async_trait]
impl Peer for Evenkeel {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
    async fn client(&self, _number: usize) -> anyhow::Result<Box<dyn Client>> {
        let channel = self.address.connect().await?;
        Ok(Box::new(Leases(LeaseServiceClient::new(channel))))
    }
    async fn renewer(&self) -> anyhow::Result<Box<dyn Renewer>> {
        let mut client = LeaseServiceClient::new(self.address.connect().await?);
        let (frames, outgoing) = mpsc::channel(FRAMES);
        let answers = client.session(ReceiverStream::new(outgoing)).await?;
        let answers = answers.into_inner();
        Ok(Box::new(Session { frames, answers }))
    }
    async fn present(&self, leases: &[Held]) -> anyhow::Result<usize> {
        let mut client = LeaseServiceClient::new(self.address.connect().await?);
        let mut live = std::collections::BTreeSet::new();
        let mut page = pb::ListLeasesRequest::default();
        loop {
            let answer = client.list_leases(page.clone()).await?.into_inner();
            live.extend(answer.leases.iter().map(|l| (l.id, l.fence)));
            match answer.next_after_id {
                0 => break,
                next => page.after_id = next,
            }
        }
        let present = |l: &&Held| live.contains(&(l.id, l.key));
        Ok(leases.iter().filter(present).count())
    }
}

struct Leases(LeaseServiceClient<Channel>);

#[tonic::async_trait]
impl Client for Leases {
    async fn grant(&mut self) -> anyhow::Result<Held> {
        let share = pb::GpuRequest {
            gpu: None,
            sms: SMS,
            percent: 0,
            memory_bytes: BYTES,
        };
        let request = pb::AcquireLeaseRequest {
            request_id: Uuid::now_v7().to_string(),
            cores: CORES,
            gpus: vec![share],
            ttl_ms: u64::try_from(TTL.as_millis())?,
            unenforced: true,
            ..Default::default()
        };
        let answer = self.0.acquire_lease(request).await?.into_inner();
        let lease = answer.lease.context("no lease in the answer")?;
        Ok(Held {
            id: lease.id,
            key: lease.fence,
        })
    }
    async fn release(&mut self, lease: Held) -> anyhow::Result<()> {
        let request = pb::ReleaseLeaseRequest {
            lease_id: lease.id,
            fence: lease.key,
        };
        self.0.release_lease(request).await?;
        Ok(())
    }
}

struct Session {
    frames: mpsc::Sender<pb::SessionRequest>,
    answers: tonic::Streaming<pb::SessionResponse>,
}

#[tonic::async_trait]
impl Renewer for Session {
    async fn send(&mut self, leases: &[Held]) -> anyhow::Result<()> {
        let lease = |l: &Held| pb::LeaseRef {
            lease_id: l.id,
            fence: l.key,
        };
        let frame = pb::SessionRequest {
            renew: leases.iter().map(lease).collect(),
            ..Default::default()
        };
        let sent = self.frames.send(frame).await;
        sent.context("the daemon closed the stream")
    }
    async fn answered(&mut self) -> anyhow::Result<u64> {
        loop {
            let answer = self.answers.message().await?;
            let answer = answer.context("the daemon ended the stream")?;
            // Others are directives only.
            if !answer.renewals.is_empty() {
                let renewed = |r: &&pb::RenewResult| r.status() == pb::RenewStatus::Renewed;
                return Ok(answer.renewals.iter().filter(renewed).count() as u64);
            }
        }
    }
}
