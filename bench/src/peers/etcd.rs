//! etcd: a lease of its own for each grant, and one transaction that compares the pool's counters with what was read
//! (by their revision), writes them less what is taken, and puts the lease's key.
use std::collections::VecDeque;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use super::{
    BYTES, CORES, Client, Held, POOL_BYTES, POOL_CORES, POOL_SMS, Peer, Renewer, SMS, Started, TTL,
    serving,
};
use crate::etcd as pb;
use crate::server::{Recipe, Server, find, folder, free_port, version};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;

/// etcd's keep-alive has no number for "gone": the answer's TTL is zero then.
const GONE: i64 = 0;
/// Requests that wait to be written to a stream.
const WAITING: usize = 64;

struct Etcd {
    server: Server,
    uri: String,
    pools: usize,
}

/// With so many pools; clients take them in turns.
pub(super) async fn start(pools: usize, base: &Path) -> anyhow::Result<Started> {
    let Some(program) = find("etcd") else {
        return Ok(Started::Skipped(
            "etcd is not installed (scripts/peers.sh)".into(),
        ));
    };
    let dir = folder(base, "etcd")?;
    let uri = format!("http://127.0.0.1:{}", free_port()?);
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let data = dir.path().join("data").display().to_string();
    let args = [
        ("name", "bench"),
        ("data-dir", &data),
        ("listen-client-urls", &uri),
        ("advertise-client-urls", &uri),
        ("listen-peer-urls", &peer),
        ("initial-advertise-peer-urls", &peer),
        ("initial-cluster", &format!("bench={peer}")),
        ("log-level", "error"),
    ];
    let version = version(&program);
    let recipe = Recipe {
        program,
        args: args.iter().map(|(k, v)| format!("--{k}={v}")).collect(),
        user: None,
    };
    let mut server = Server::start(dir, recipe)?;
    serving(&mut server, || fill(&uri, pools)).await?;
    let etcd = Etcd { server, uri, pools };
    Ok(Started::Up(Box::new(etcd), version))
}

async fn connect(uri: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(uri.to_owned())?.tcp_nodelay(true);
    Ok(endpoint.connect().await?)
}

/// The counters of a pool, as its value holds them.
#[derive(Clone, Copy)]
struct Counters {
    cores: u64,
    sms: u64,
    bytes: u64,
}

impl Counters {
    const FULL: Self = Self {
        cores: POOL_CORES,
        sms: POOL_SMS,
        bytes: POOL_BYTES,
    };
    fn write(self) -> Vec<u8> {
        format!("{} {} {}", self.cores, self.sms, self.bytes).into_bytes()
    }
    fn read(value: &[u8]) -> anyhow::Result<Self> {
        let text = std::str::from_utf8(value)?;
        let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [cores, sms, bytes] = numbers[..] else {
            bail!("the pool's counters are `{text}`");
        };
        Ok(Self { cores, sms, bytes })
    }
    fn less(self) -> anyhow::Result<Self> {
        let less = || {
            Some(Self {
                cores: self.cores.checked_sub(CORES.into())?,
                sms: self.sms.checked_sub(SMS.into())?,
                bytes: self.bytes.checked_sub(BYTES)?,
            })
        };
        less().context("the pool is empty")
    }
    fn more(self) -> Self {
        Self {
            cores: self.cores + u64::from(CORES),
            sms: self.sms + u64::from(SMS),
            bytes: self.bytes + BYTES,
        }
    }
}

fn pool_key(pool: u64) -> Vec<u8> {
    format!("pool/{pool}").into_bytes()
}

fn lease_key(id: u64) -> Vec<u8> {
    format!("lease/{id:016x}").into_bytes()
}

const fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(request),
    }
}

fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key, value, lease };
    op(pb::request_op::Request::RequestPut(put))
}

/// Writes full pools; also the first sign that it serves.
async fn fill(uri: &str, pools: usize) -> anyhow::Result<()> {
    let mut kv = KvClient::new(connect(uri).await?);
    for pool in 0..pools as u64 {
        let success = vec![put(pool_key(pool), Counters::FULL.write(), 0)];
        let txn = pb::TxnRequest {
            success,
            ..Default::default()
        };
        kv.txn(txn).await?;
    }
    Ok(())
}

#[tonic::async_trait]
impl Peer for Etcd {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
    async fn client(&self, number: usize) -> anyhow::Result<Box<dyn Client>> {
        let channel = connect(&self.uri).await?;
        Ok(Box::new(Leases {
            kv: KvClient::new(channel.clone()),
            leases: LeaseClient::new(channel),
            pool: (number % self.pools) as u64,
            seen: (0, Counters::FULL),
            retries: 0,
        }))
    }
    async fn renewer(&self) -> anyhow::Result<Box<dyn Renewer>> {
        let mut leases = LeaseClient::new(connect(&self.uri).await?);
        let (send, outgoing) = mpsc::channel(WAITING);
        // Its answer's headers come with the first answer, so the first request has to be on its way.
        send.send(pb::LeaseKeepAliveRequest { id: 0 }).await?;
        let answers = leases.lease_keep_alive(ReceiverStream::new(outgoing));
        let mut answers = answers.await?.into_inner();
        answers.message().await?;
        let sent = VecDeque::new();
        Ok(Box::new(KeepAlive {
            send,
            answers,
            sent,
        }))
    }
    async fn present(&self, leases: &[Held]) -> anyhow::Result<usize> {
        let mut kv = KvClient::new(connect(&self.uri).await?);
        let mut present = 0;
        for lease in leases {
            let range = pb::RangeRequest {
                key: lease_key(lease.id),
                keys_only: true,
                ..Default::default()
            };
            present += kv.range(range).await?.into_inner().kvs.len();
        }
        Ok(present)
    }
}

struct Leases {
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    pool: u64,
    /// The pool as it was last seen, and its revision then: most often it is so still, where nobody else writes.
    seen: (i64, Counters),
    retries: u64,
}

impl Leases {
    /// Writes the pool's counters anew, with something else in the same transaction, until nobody was faster.
    async fn swap(
        &mut self,
        pool: u64,
        new: impl Fn(Counters) -> anyhow::Result<Counters> + Send,
        with: pb::RequestOp,
    ) -> anyhow::Result<()> {
        let key = pool_key(pool);
        loop {
            let (revision, counters) = self.seen;
            let next = new(counters)?;
            let range = pb::RangeRequest {
                key: key.clone(),
                ..Default::default()
            };
            let txn = pb::TxnRequest {
                compare: vec![pb::Compare {
                    result: pb::compare::CompareResult::Equal.into(),
                    target: pb::compare::CompareTarget::Mod.into(),
                    key: key.clone(),
                    target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
                }],
                success: vec![put(key.clone(), next.write(), 0), with.clone()],
                failure: vec![op(pb::request_op::Request::RequestRange(range))],
            };
            let answer = self.kv.txn(txn).await?.into_inner();
            if answer.succeeded {
                self.seen = (answer.header.context("no header")?.revision, next);
                return Ok(());
            }
            self.retries += 1;
            let now = answer.responses.into_iter().next().and_then(|r| r.response);
            let Some(pb::response_op::Response::ResponseRange(now)) = now else {
                bail!("etcd's answer to a lost race has no range");
            };
            let now = now.kvs.into_iter().next().context("the pool is gone")?;
            self.seen = (now.mod_revision, Counters::read(&now.value)?);
        }
    }
}

#[tonic::async_trait]
impl Client for Leases {
    async fn grant(&mut self) -> anyhow::Result<Held> {
        let ask = pb::LeaseGrantRequest {
            ttl: i64::try_from(TTL.as_secs())?,
            id: 0,
        };
        let granted = self.leases.lease_grant(ask).await?.into_inner();
        ensure!(granted.error.is_empty(), "etcd: {}", granted.error);
        let id = u64::try_from(granted.id)?;
        let what = format!("{CORES} {SMS} {BYTES}").into_bytes();
        let with = put(lease_key(id), what, granted.id);
        self.swap(self.pool, Counters::less, with).await?;
        Ok(Held { id, key: self.pool })
    }
    async fn release(&mut self, lease: Held) -> anyhow::Result<()> {
        let delete = pb::DeleteRangeRequest {
            key: lease_key(lease.id),
        };
        let with = op(pb::request_op::Request::RequestDeleteRange(delete));
        self.swap(lease.key, |c| Ok(c.more()), with).await?;
        let id = i64::try_from(lease.id)?;
        self.leases
            .lease_revoke(pb::LeaseRevokeRequest { id })
            .await?;
        Ok(())
    }
    fn retries(&self) -> u64 {
        self.retries
    }
}

struct KeepAlive {
    send: mpsc::Sender<pb::LeaseKeepAliveRequest>,
    answers: tonic::Streaming<pb::LeaseKeepAliveResponse>,
    /// Leases of the messages that are under way.
    sent: VecDeque<usize>,
}

#[tonic::async_trait]
impl Renewer for KeepAlive {
    /// Its message holds one lease: they go out together, and are answered one by one.
    async fn send(&mut self, leases: &[Held]) -> anyhow::Result<()> {
        for lease in leases {
            let id = i64::try_from(lease.id)?;
            let sent = self.send.send(pb::LeaseKeepAliveRequest { id }).await;
            sent.context("etcd closed the stream")?;
        }
        self.sent.push_back(leases.len());
        Ok(())
    }
    async fn answered(&mut self) -> anyhow::Result<u64> {
        let mut renewed = 0;
        for _ in 0..self.sent.pop_front().unwrap_or(0) {
            let answer = self.answers.message().await?;
            let answer = answer.context("etcd ended the stream")?;
            renewed += u64::from(answer.ttl > GONE);
        }
        Ok(renewed)
    }
}
