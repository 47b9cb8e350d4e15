//! The daemon under attack, and how those around it are started and looked at.
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::attacker::{Attack, Did};
use super::victim::Suffered;
use crate::daemon::Daemon;

/// Users without a name: attackers, one who only fills the seats (else the other attackers would be shut out by it),
/// and the victim.
const ATTACKER: u32 = 65_534;
const SITTER: u32 = 65_532;
const VICTIM: u32 = 65_533;

/// A pool that exists in the ledger only, and has room for a flood of grants.
const POOL: &str = r#"
[node]
pool = "synthetic"
[synthetic]
cores = 16384
gpus = 16
sms = 8192
memory = "16TiB"
granularity = 8
[limits]
leases = 100000
"#;

/// A daemon with all its doors open.
pub(super) struct Ground {
    daemon: Daemon,
    pub(super) tcp: SocketAddr,
    pub(super) rest: SocketAddr,
    /// This program, where other users can start it.
    copy: PathBuf,
    _dir: tempfile::TempDir,
}

/// What the daemon uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub(super) rss_mib: u64,
    /// The most that it ever was, by the kernel's own count: looks may miss it.
    pub(super) peak_mib: u64,
    pub(super) files: u64,
}

/// An address that was free a moment ago.
fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Ground {
    pub(super) async fn open() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        // Other users cannot read the folder that this program was built in.
        let copy = dir.path().join("accept");
        fs::copy(std::env::current_exe()?, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        let (tcp, rest) = (free()?, free()?);
        let (of_tcp, of_rest) = (tcp.to_string(), rest.to_string());
        let env = [
            ("EVENKEEL__LISTEN__TCP", Path::new(&of_tcp)),
            ("EVENKEEL__LISTEN__INSECURE_TCP", Path::new("true")),
            ("EVENKEEL__LISTEN__TCP_TENANT", Path::new("anybody")),
            ("EVENKEEL__LISTEN__REST", Path::new(&of_rest)),
        ];
        let daemon = Daemon::in_folder_with(dir.path(), POOL, &env).await?;
        Ok(Self {
            daemon,
            tcp,
            rest,
            copy,
            _dir: dir,
        })
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.daemon.socket()
    }

    /// A process of this program, of another user where that is possible.
    fn process(&self, user: u32) -> Command {
        let mut command = Command::new(&self.copy);
        if nix::unistd::geteuid().is_root() {
            command.uid(user).gid(user);
        }
        command
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    pub(super) fn attacker(&self, attack: Attack, seconds: u64) -> anyhow::Result<Child> {
        let user = match attack {
            Attack::Idle => SITTER,
            _ => ATTACKER,
        };
        let mut command = self.process(user);
        command
            .args(["attacker", "--attack", attack.name()])
            .args(["--seconds", &seconds.to_string()])
            .arg("--socket")
            .arg(self.socket())
            .args([
                "--tcp",
                &self.tcp.to_string(),
                "--rest",
                &self.rest.to_string(),
            ]);
        command.spawn().context("cannot start an attacker")
    }

    /// The victim, once it holds its leases.
    pub(super) fn victim(&self) -> anyhow::Result<Victim> {
        let mut command = self.process(VICTIM);
        command.arg("victim").arg("--socket").arg(self.socket());
        let mut child = command.spawn().context("cannot start the victim")?;
        let said = child.stdout.take().context("the victim says nothing")?;
        let mut victim = Victim {
            child,
            said: BufReader::new(said),
        };
        let word = victim.line()?;
        ensure!(word.trim() == "ready", "the victim said {word:?}");
        Ok(victim)
    }

    /// What the daemon uses now.
    pub(super) fn looks(&self) -> anyhow::Result<Use> {
        look(self.daemon.pid()?)
    }

    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.daemon.pid()
    }

    /// Lines of the log that should not be there.
    pub(super) fn alarms(&self) -> Vec<String> {
        let log = fs::read_to_string(self.daemon.dir.join("daemon.log")).unwrap_or_default();
        let bad = |line: &&str| line.contains("ALARM") || line.contains("panicked");
        log.lines().filter(bad).map(str::to_owned).collect()
    }

    /// Bytes of the log: a flood that fills the disk harms, too.
    pub(super) fn log_bytes(&self) -> u64 {
        fs::metadata(self.daemon.dir.join("daemon.log")).map_or(0, |m| m.len())
    }
}

/// What a process uses, by the kernel's word.
pub(super) fn look(pid: u32) -> anyhow::Result<Use> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.with_context(|| format!("no {name} in the status: has the daemon ended?"))
    };
    Ok(Use {
        rss_mib: field("VmRSS:")? >> 10,
        peak_mib: field("VmHWM:")? >> 10,
        files: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
    })
}

/// The victim, at work.
pub(super) struct Victim {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Victim {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line)
    }

    /// Ends it, and asks what it went through.
    pub(super) fn suffered(mut self) -> anyhow::Result<Suffered> {
        drop(self.child.stdin.take());
        let told = self.line()?;
        serde_json::from_str(&told).with_context(|| format!("the victim said {told:?}"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Attackers, who are gone when they are not needed any more.
pub(super) struct Attackers(Vec<(Attack, Child)>);

impl Attackers {
    pub(super) fn start(ground: &Ground, attacks: &[Attack], seconds: u64) -> anyhow::Result<Self> {
        let mut all = Self(Vec::new());
        for attack in attacks {
            all.0.push((*attack, ground.attacker(*attack, seconds)?));
        }
        Ok(all)
    }

    /// Waits for their end; what each did.
    pub(super) fn did(mut self) -> anyhow::Result<Vec<(Attack, Did)>> {
        let mut all = Vec::new();
        for (attack, child) in std::mem::take(&mut self.0) {
            let out = child.wait_with_output()?;
            let told = String::from_utf8_lossy(&out.stdout).into_owned();
            let did = serde_json::from_str(&told)
                .with_context(|| format!("the attacker `{}` said {told:?}", attack.name()))?;
            all.push((attack, did));
        }
        Ok(all)
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line to standard error: this takes minutes.
pub(super) fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "accept: {what}");
}
