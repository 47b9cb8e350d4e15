//! PostgreSQL: a row per pool whose CHECKs keep its counters above zero, and a row per lease. A grant takes the first
//! pool with room that nobody has locked (SKIP LOCKED), as its job queues do; a release gives back. Each is one
//! statement and one durable transaction. Over its Unix socket.
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use nix::unistd::{Gid, Uid, User};
use tokio::task::JoinHandle;
use tokio_postgres::{Config, NoTls, Statement};

use super::{
    BYTES, CORES, Client, Held, POOL_BYTES, POOL_CORES, POOL_SMS, Peer, Renewer, SMS, Started, TTL,
    serving,
};
use crate::server::{Recipe, START_LIMIT, Server, find, folder, version};

const USER: &str = "bench";
/// Connections: 256 clients, 100 that renew, and some to look.
const CONNECTIONS: &str = "500";

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS pool (
        id bigint PRIMARY KEY,
        cores bigint NOT NULL CHECK (cores >= 0),
        sms bigint NOT NULL CHECK (sms >= 0),
        bytes bigint NOT NULL CHECK (bytes >= 0)
    ) WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS lease (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        pool bigint NOT NULL REFERENCES pool,
        cores bigint NOT NULL,
        sms bigint NOT NULL,
        bytes bigint NOT NULL,
        expires timestamptz NOT NULL
    );";
/// `$5`: the pool to start with, so that clients do not all try the same row first.
const GRANT: &str = "
    WITH room AS (
        SELECT id FROM pool WHERE cores >= $1 AND sms >= $2 AND bytes >= $3
        ORDER BY (id - $5 + 1024) % 1024 LIMIT 1 FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE pool SET cores = pool.cores - $1, sms = pool.sms - $2, bytes = pool.bytes - $3
        FROM room WHERE pool.id = room.id RETURNING pool.id
    )
    INSERT INTO lease (pool, cores, sms, bytes, expires)
    SELECT id, $1, $2, $3, now() + $4 * interval '1 millisecond' FROM taken RETURNING id, pool";
/// The same on one row: whoever comes later waits for its lock.
const GRANT_ONE: &str = "
    WITH taken AS (
        UPDATE pool SET cores = cores - $1, sms = sms - $2, bytes = bytes - $3 WHERE id = $5 RETURNING id
    )
    INSERT INTO lease (pool, cores, sms, bytes, expires)
    SELECT id, $1, $2, $3, now() + $4 * interval '1 millisecond' FROM taken RETURNING id, pool";
const RELEASE: &str = "
    WITH gone AS (DELETE FROM lease WHERE id = $1 RETURNING pool, cores, sms, bytes)
    UPDATE pool SET cores = pool.cores + gone.cores, sms = pool.sms + gone.sms, bytes = pool.bytes + gone.bytes
    FROM gone WHERE pool.id = gone.pool";
const RENEW: &str =
    "UPDATE lease SET expires = now() + $2 * interval '1 millisecond' WHERE id = ANY ($1)";

struct Postgres {
    server: Server,
    socket_dir: PathBuf,
    pools: usize,
}

/// PostgreSQL refuses to run as root: then it runs as its own user, or as nobody.
fn user() -> anyhow::Result<Option<(Uid, Gid)>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some((user.uid, user.gid)));
        }
    }
    bail!("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")
}

pub(super) async fn start(pools: usize, base: &Path) -> anyhow::Result<Started> {
    let (Some(program), Some(initdb)) = (find("postgres"), find("initdb")) else {
        return Ok(Started::Skipped(
            "PostgreSQL is not installed (scripts/peers.sh)".into(),
        ));
    };
    let dir = folder(base, "postgres")?;
    let user = user()?;
    if let Some((uid, gid)) = user {
        nix::unistd::chown(dir.path(), Some(uid), Some(gid))?;
    }
    let data = dir.path().join("data").display().to_string();
    let init = [
        "-D",
        &data,
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
    ];
    let init = Recipe {
        program: initdb,
        args: init.map(str::to_owned).to_vec(),
        user,
    };
    let made = init.command().current_dir(dir.path()).output()?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "initdb failed: {}", said.trim());
    let socket_dir = dir.path().to_owned();
    let settings = [
        ("listen_addresses", String::new()),
        ("unix_socket_directories", socket_dir.display().to_string()),
        ("max_connections", CONNECTIONS.to_owned()),
        ("synchronous_commit", "on".to_owned()),
        ("fsync", "on".to_owned()),
        ("shared_buffers", "256MB".to_owned()),
    ];
    let mut args = vec!["-D".to_owned(), data];
    for (key, value) in settings {
        args.extend(["-c".to_owned(), format!("{key}={value}")]);
    }
    let version = version(&program);
    let recipe = Recipe {
        program,
        args,
        user,
    };
    let mut server = Server::start(dir, recipe)?;
    serving(&mut server, || fill(&socket_dir, pools)).await?;
    let postgres = Postgres {
        server,
        socket_dir,
        pools,
    };
    Ok(Started::Up(Box::new(postgres), version))
}

async fn connect(socket_dir: &Path) -> anyhow::Result<tokio_postgres::Client> {
    let mut config = Config::new();
    config.host_path(socket_dir).user(USER).dbname("postgres");
    let (client, connection) = config.connect(NoTls).await?;
    // It ends with its client; what breaks it, the client's next call says.
    tokio::spawn(connection);
    Ok(client)
}

async fn fill(socket_dir: &Path, pools: usize) -> anyhow::Result<()> {
    let client = connect(socket_dir).await?;
    client.batch_execute(SCHEMA).await?;
    let full = format!(
        "INSERT INTO pool SELECT id, {POOL_CORES}, {POOL_SMS}, {POOL_BYTES} FROM generate_series(0, {}) AS id \
         ON CONFLICT DO NOTHING",
        pools - 1
    );
    client.batch_execute(&full).await?;
    Ok(())
}

#[tonic::async_trait]
impl Peer for Postgres {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
    async fn client(&self, number: usize) -> anyhow::Result<Box<dyn Client>> {
        let client = connect(&self.socket_dir).await?;
        let grant = if self.pools == 1 { GRANT_ONE } else { GRANT };
        Ok(Box::new(Leases {
            grant: client.prepare(grant).await?,
            release: client.prepare(RELEASE).await?,
            client,
            pool: i64::try_from(number % self.pools)?,
            retries: 0,
        }))
    }
    async fn renewer(&self) -> anyhow::Result<Box<dyn Renewer>> {
        let client = Arc::new(connect(&self.socket_dir).await?);
        Ok(Box::new(Updates {
            renew: client.prepare(RENEW).await?,
            client,
            sent: VecDeque::new(),
        }))
    }
    async fn present(&self, leases: &[Held]) -> anyhow::Result<usize> {
        let client = connect(&self.socket_dir).await?;
        let query = "SELECT count(*) FROM lease WHERE id = ANY ($1)";
        let row = client.query_one(query, &[&ids(leases)]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?)?)
    }
}

/// Identities of PostgreSQL are signed; those given out here are small.
fn ids(leases: &[Held]) -> Vec<i64> {
    leases.iter().map(|l| l.id.cast_signed()).collect()
}

struct Leases {
    client: tokio_postgres::Client,
    grant: Statement,
    release: Statement,
    pool: i64,
    retries: u64,
}

#[tonic::async_trait]
impl Client for Leases {
    async fn grant(&mut self) -> anyhow::Result<Held> {
        let (cores, sms) = (i64::from(CORES), i64::from(SMS));
        let bytes = BYTES.cast_signed();
        let ttl_ms = TTL.as_secs_f64() * 1e3;
        let start = Instant::now();
        loop {
            let row = self
                .client
                .query_opt(&self.grant, &[&cores, &sms, &bytes, &ttl_ms, &self.pool])
                .await?;
            if let Some(row) = row {
                return Ok(Held {
                    id: row.try_get::<_, i64>(0)?.cast_unsigned(),
                    key: row.try_get::<_, i64>(1)?.cast_unsigned(),
                });
            }
            // All pools were locked at that moment.
            ensure!(start.elapsed() < START_LIMIT, "no pool has room");
            self.retries += 1;
        }
    }
    async fn release(&mut self, lease: Held) -> anyhow::Result<()> {
        let id = lease.id.cast_signed();
        let changed = self.client.execute(&self.release, &[&id]).await;
        ensure!(changed.context("release")? == 1, "the lease was gone");
        Ok(())
    }
    fn retries(&self) -> u64 {
        self.retries
    }
}

struct Updates {
    client: Arc<tokio_postgres::Client>,
    renew: Statement,
    sent: VecDeque<JoinHandle<Result<u64, tokio_postgres::Error>>>,
}

#[tonic::async_trait]
impl Renewer for Updates {
    async fn send(&mut self, leases: &[Held]) -> anyhow::Result<()> {
        let ttl_ms = TTL.as_secs_f64() * 1e3;
        let (client, renew, ids) = (self.client.clone(), self.renew.clone(), ids(leases));
        // The library sends when it is polled; polled side by side, its statements are pipelined.
        let under_way = async move { client.execute(&renew, &[&ids, &ttl_ms]).await };
        self.sent.push_back(tokio::spawn(under_way));
        Ok(())
    }
    async fn answered(&mut self) -> anyhow::Result<u64> {
        let oldest = self.sent.pop_front().context("nothing is under way")?;
        Ok(oldest.await??)
    }
}
