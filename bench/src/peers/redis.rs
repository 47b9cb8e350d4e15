//! Redis, with `appendfsync always` where grants are measured: one script checks and takes the pool's counters and sets the lease's key with its
//! life; another gives them back. Over its Unix socket, with commands that are written and read straight: the client
//! is as light as one can be.
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{
    BYTES, CORES, Client, Held, POOL_BYTES, POOL_CORES, POOL_SMS, Peer, Renewer, SMS, Started, TTL,
    serving,
};
use crate::server::{Recipe, Server, find, folder, version};

/// Takes a core, SMs and bytes if there are as many; answers the lease's number, or 0.
const GRANT: &str = r"
local free = redis.call('HMGET', KEYS[1], 'cores', 'sms', 'bytes')
if tonumber(free[1]) < tonumber(ARGV[1]) or tonumber(free[2]) < tonumber(ARGV[2])
    or tonumber(free[3]) < tonumber(ARGV[3]) then
    return 0
end
redis.call('HINCRBY', KEYS[1], 'cores', -ARGV[1])
redis.call('HINCRBY', KEYS[1], 'sms', -ARGV[2])
redis.call('HINCRBY', KEYS[1], 'bytes', -ARGV[3])
local id = redis.call('HINCRBY', KEYS[1], 'last', 1)
redis.call('SET', 'lease:' .. id, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3], 'PX', ARGV[4])
return id
";
/// Gives back what the lease holds; answers whether there was one.
const RELEASE: &str = r"
local held = redis.call('GETDEL', KEYS[2])
if not held then
    return 0
end
local cores, sms, bytes = string.match(held, '(%d+) (%d+) (%d+)')
redis.call('HINCRBY', KEYS[1], 'cores', cores)
redis.call('HINCRBY', KEYS[1], 'sms', sms)
redis.call('HINCRBY', KEYS[1], 'bytes', bytes)
return 1
";
const POOL: &str = "pool";

struct Redis {
    server: Server,
    socket: PathBuf,
}

/// `appendfsync`: when its log is synced.
pub(super) async fn start(appendfsync: &str, base: &Path) -> anyhow::Result<Started> {
    let Some(program) = find("redis-server") else {
        return Ok(Started::Skipped(
            "Redis is not installed (scripts/peers.sh)".into(),
        ));
    };
    let dir = folder(base, "redis")?;
    let socket = dir.path().join("redis.sock");
    let folder = dir.path().display().to_string();
    let path = socket.display().to_string();
    let args = [
        ("port", "0"),
        ("unixsocket", path.as_str()),
        ("dir", folder.as_str()),
        ("appendonly", "yes"),
        ("appendfsync", appendfsync),
        // Snapshots beside the log are another durability; they would only cost it.
        ("save", ""),
        ("daemonize", "no"),
        ("maxclients", "4000"),
    ];
    let version = version(&program);
    let recipe = Recipe {
        program,
        args: args
            .iter()
            .flat_map(|(k, v)| [format!("--{k}"), (*v).to_owned()])
            .collect(),
        user: None,
    };
    let mut server = Server::start(dir, recipe)?;
    serving(&mut server, || fill(&socket)).await?;
    let redis = Redis { server, socket };
    Ok(Started::Up(Box::new(redis), version))
}

/// Writes the full pool.
async fn fill(socket: &Path) -> anyhow::Result<()> {
    let mut wire = Wire::connect(socket).await?;
    let (cores, sms, bytes) = (POOL_CORES, POOL_SMS, POOL_BYTES);
    let full = [cores, sms, bytes].map(|n| n.to_string());
    let [cores, sms, bytes] = &full;
    wire.ask(&["HSET", POOL, "cores", cores, "sms", sms, "bytes", bytes])
        .await?;
    Ok(())
}

/// A connection: commands out, answers in. Redis's protocol (RESP2), as far as it is needed: commands are arrays of
/// strings, answers here are numbers, short strings and errors.
struct Wire {
    out: OwnedWriteHalf,
    answers: BufReader<OwnedReadHalf>,
    bytes: Vec<u8>,
    line: String,
}

impl Wire {
    async fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.with_context(|| format!("cannot connect to {}", socket.display()))?;
        let (answers, out) = stream.into_split();
        Ok(Self {
            out,
            answers: BufReader::new(answers),
            bytes: Vec::new(),
            line: String::new(),
        })
    }
    /// Adds a command to what is sent next.
    fn add(&mut self, command: &[&str]) {
        self.bytes
            .extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for word in command {
            self.bytes
                .extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
    }
    /// Sends all that was added, in one message.
    async fn send(&mut self) -> anyhow::Result<()> {
        self.out.write_all(&self.bytes).await?;
        self.bytes.clear();
        Ok(())
    }
    async fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        let read = self.answers.read_line(&mut self.line).await?;
        ensure!(read > 0, "Redis closed the connection");
        self.line.truncate(self.line.trim_end().len());
        Ok(())
    }
    /// The next answer.
    async fn answer(&mut self) -> anyhow::Result<&str> {
        self.read_line().await?;
        if self.line.starts_with('$') {
            // The string itself follows; those that are asked for here hold no line break.
            self.read_line().await?;
            return Ok(&self.line);
        }
        match self.line.split_at_checked(1) {
            Some((":" | "+", rest)) => Ok(rest),
            _ => bail!("Redis answers `{}`", self.line),
        }
    }
    async fn ask(&mut self, command: &[&str]) -> anyhow::Result<String> {
        self.add(command);
        self.send().await?;
        Ok(self.answer().await?.to_owned())
    }
    async fn number(&mut self) -> anyhow::Result<u64> {
        let answer = self.answer().await?;
        let number = answer.parse();
        number.with_context(|| format!("Redis answers `{answer}` where a number is due"))
    }
}

fn lease_key(id: u64) -> String {
    format!("lease:{id}")
}

#[tonic::async_trait]
impl Peer for Redis {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }
    async fn client(&self, _number: usize) -> anyhow::Result<Box<dyn Client>> {
        let amounts = [u64::from(CORES), u64::from(SMS), BYTES];
        let mut wire = Wire::connect(&self.socket).await?;
        // Each client by itself: the server forgets scripts when it starts again.
        let grant = wire.ask(&["SCRIPT", "LOAD", GRANT]).await?;
        let release = wire.ask(&["SCRIPT", "LOAD", RELEASE]).await?;
        Ok(Box::new(Leases {
            wire,
            grant,
            release,
            amounts: amounts.map(|n| n.to_string()),
            ttl_ms: TTL.as_millis().to_string(),
        }))
    }
    async fn renewer(&self) -> anyhow::Result<Box<dyn Renewer>> {
        Ok(Box::new(Expiries {
            wire: Wire::connect(&self.socket).await?,
            ttl_ms: TTL.as_millis().to_string(),
            sent: VecDeque::new(),
        }))
    }
    async fn present(&self, leases: &[Held]) -> anyhow::Result<usize> {
        let mut wire = Wire::connect(&self.socket).await?;
        let mut present = 0;
        for lease in leases {
            wire.add(&["EXISTS", &lease_key(lease.id)]);
            wire.send().await?;
            present += usize::try_from(wire.number().await?)?;
        }
        Ok(present)
    }
}

struct Leases {
    wire: Wire,
    grant: String,
    release: String,
    amounts: [String; 3],
    ttl_ms: String,
}

#[tonic::async_trait]
impl Client for Leases {
    async fn grant(&mut self) -> anyhow::Result<Held> {
        let [cores, sms, bytes] = &self.amounts;
        let words = [
            "EVALSHA",
            &self.grant,
            "1",
            POOL,
            cores,
            sms,
            bytes,
            &self.ttl_ms,
        ];
        self.wire.add(&words);
        self.wire.send().await?;
        let id = self.wire.number().await?;
        ensure!(id > 0, "the pool is empty");
        Ok(Held { id, key: 0 })
    }
    async fn release(&mut self, lease: Held) -> anyhow::Result<()> {
        let words = ["EVALSHA", &self.release, "2", POOL, &lease_key(lease.id)];
        self.wire.add(&words);
        self.wire.send().await?;
        ensure!(self.wire.number().await? == 1, "the lease was gone");
        Ok(())
    }
}

struct Expiries {
    wire: Wire,
    ttl_ms: String,
    /// Leases of the messages that are under way.
    sent: VecDeque<usize>,
}

#[tonic::async_trait]
impl Renewer for Expiries {
    async fn send(&mut self, leases: &[Held]) -> anyhow::Result<()> {
        for lease in leases {
            self.wire
                .add(&["PEXPIRE", &lease_key(lease.id), &self.ttl_ms]);
        }
        self.sent.push_back(leases.len());
        self.wire.send().await
    }
    async fn answered(&mut self) -> anyhow::Result<u64> {
        let mut renewed = 0;
        for _ in 0..self.sent.pop_front().unwrap_or(0) {
            renewed += self.wire.number().await?;
        }
        Ok(renewed)
    }
}
