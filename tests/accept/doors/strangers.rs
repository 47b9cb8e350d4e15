//! Line 5: who is refused, what they learn, and what is written down. With the real daemon, the real command line, and
//! a process of another user.
mod calls;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_client::{Address, Client, ClientConfig, Credentials, LeaseRequest};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC, program};
use crate::row::Row;

/// Nobody: a user that no map lists.
const OTHER_USER: u32 = 65_534;
/// No lease has this number.
const NO_LEASE: u64 = 999_999_999;
/// A line of the audit comes within this time; it is written by a thread of its own.
const SOON: Duration = Duration::from_secs(5);
/// What the answers to every stranger have to be.
const ASKED: &str = "refused, the same whether the lease exists or not, an audit line each";

pub(crate) async fn measure(_run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut house = House::open().await?;
    let cases: [(&str, anyhow::Result<String>); 10] = [
        ("no certificate", house.over_tls("", "no certificates")),
        (
            "a certificate of another CA",
            house.over_tls("foreign", "UnknownIssuer"),
        ),
        (
            "an expired certificate",
            house.over_tls("expired", "expired"),
        ),
        (
            "a certificate with two SANs",
            house.over_tls("two", "has 2 URIs"),
        ),
        (
            "another tenant's lease id, by certificate",
            house.over_tls("bob", "NOT_FOUND"),
        ),
        (
            "a certificate of another job, and a lease of the same tenant",
            house.over_tls("alice-job", "NOT_FOUND"),
        ),
        (
            "another tenant's lease id, by token",
            house.by_token("bob", "404", "NOT_FOUND"),
        ),
        (
            "a token that has ended, replayed",
            house.by_token("ended", "401", "has ended"),
        ),
        (
            "a token of another user, replayed",
            house.by_token("of another", "401", "limited to another user"),
        ),
        (
            "a uid without a tenant, the map being exclusive",
            house.by_uid(),
        ),
    ];
    let mut rows: Vec<Row> = cases
        .into_iter()
        .map(|(what, found)| Row::judged(what, ASKED, found.map(|text| (text, true))))
        .collect();
    for (what, who) in [
        ("every call with another tenant's lease id", "bob"),
        ("every call with a lease of another job", "alice-job"),
    ] {
        let told = house.every_call(who).await;
        let asked =
            "refused, the same whether the lease exists or not, audit lines; the lease lives";
        rows.push(Row::judged(what, asked, told.map(|text| (text, true))));
    }
    let taken_back = house.after_taking_back().await;
    rows.push(Row::judged(
        "a token whose line was taken out, replayed",
        ASKED,
        taken_back.map(|text| (text, true)),
    ));
    Ok(rows)
}

/// A daemon with a lease of alice's in it, and everybody who comes.
struct House {
    dir: tempfile::TempDir,
    daemon: Daemon,
    tcp: SocketAddr,
    rest: SocketAddr,
    lease: u64,
    fence: u64,
}

/// A port that was free a moment ago.
fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

impl House {
    async fn open() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let pki = dir.path().join("pki");
        make_certificates(&pki)?;
        let (tcp, rest) = (free()?, free()?);
        let daemon = start(
            dir.path(),
            tcp,
            rest,
            &tokens(&["alice", "bob", "ended", "of another"]),
        )
        .await?;
        let mut house = Self {
            dir,
            daemon,
            tcp,
            rest,
            lease: 0,
            fence: 0,
        };
        (house.lease, house.fence) = house.acquire().await?;
        let own = house.cli("alice", &["leases", "show", &house.lease.to_string()])?;
        ensure!(own.0, "alice does not see her own lease: {}", own.1);
        Ok(house)
    }

    fn pki(&self, name: &str, end: &str) -> PathBuf {
        self.dir.path().join("pki").join(format!("{name}.{end}"))
    }

    /// Over TLS, with this certificate.
    fn client(&self, who: &str) -> anyhow::Result<Client> {
        let address: Address = format!("https://{}", self.tcp).parse()?;
        let credentials = Credentials {
            certificate: self.pki(who, "pem"),
            key: self.pki(who, "key"),
            ca: self.pki("ca", "pem"),
        };
        Ok(Client::new(
            ClientConfig::new(address).credentials(Some(credentials)),
        )?)
    }

    /// A lease of alice's, and its fence.
    async fn acquire(&self) -> anyhow::Result<(u64, u64)> {
        let mut request = LeaseRequest::amounts(1, Vec::new());
        request.unenforced = true;
        let lease = self.client("alice")?.acquire(&request).await?;
        Ok((lease.id, lease.fence))
    }

    /// The command line over TLS with this certificate (empty: one for the daemon's door that is nobody's): whether it
    /// went well, and what it said.
    fn cli(&self, who: &str, line: &[&str]) -> anyhow::Result<(bool, String)> {
        let mut command = Command::new(program("evenkeel")?);
        command
            .args(line)
            .env("EVENKEEL_SOCKET", format!("https://{}", self.tcp))
            .env("EVENKEEL_TLS_CA", self.pki("ca", "pem"))
            .env("EVENKEEL_TLS_CERT", self.pki(who, "pem"))
            .env("EVENKEEL_TLS_KEY", self.pki(who, "key"));
        ran(&mut command)
    }

    /// Asks for alice's lease and for one that is not there; both are refused alike, and written down with this word.
    fn over_tls(&self, who: &str, word: &str) -> anyhow::Result<String> {
        let before = self.lines(word)?;
        let told = self.both(|id| {
            let (well, said) = match who {
                "" => self.without_certificate(id)?,
                _ => self.cli(who, &["leases", "show", &id.to_string()])?,
            };
            // The others are told by the daemon, in words that have to be the same.
            let at_the_door = ["", "foreign", "expired"].contains(&who);
            Ok((
                well,
                if at_the_door {
                    in_the_handshake(&said)?
                } else {
                    said
                },
            ))
        })?;
        self.written_down(word, before, &told)
    }

    /// The handshake alone, since the command line does not come without a certificate.
    fn without_certificate(&self, _id: u64) -> anyhow::Result<(bool, String)> {
        let mut roots = rustls::RootCertStore::empty();
        let ca = fs::read(self.pki("ca", "pem"))?;
        roots.add(CertificateDer::from_pem_slice(&ca)?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::IpAddress(self.tcp.ip().into());
        let mut session = rustls::ClientConnection::new(Arc::new(config), name)?;
        let mut socket = TcpStream::connect(self.tcp)?;
        let mut stream = rustls::Stream::new(&mut session, &mut socket);
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        match stream.read(&mut [0; 64]) {
            Ok(0) => Ok((false, "the connection was closed".into())),
            Ok(_) => Ok((true, "an answer".into())),
            Err(error) => Ok((false, error.to_string())),
        }
    }

    /// The same by a token, over REST.
    fn by_token(&self, who: &str, status: &str, word: &str) -> anyhow::Result<String> {
        let before = self.lines(word)?;
        let told = self.both(|id| {
            let answer = self.get(&format!("/v1/leases/{id}"), who)?;
            ensure!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "the answer is {:?}",
                answer.lines().next()
            );
            Ok((false, without_headers(&answer)))
        })?;
        self.written_down(word, before, &told)
    }

    fn get(&self, path: &str, token: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.rest)?;
        stream.set_read_timeout(Some(SOON))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            secret(token)
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The same by a user whom no map lists, over the Unix socket.
    fn by_uid(&self) -> anyhow::Result<String> {
        // The other user cannot read the folder that the programs were built in.
        let copy = self.dir.path().join("evenkeel");
        fs::copy(program("evenkeel")?, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        let before = self.lines("NO_TENANT")?;
        let told = self.both(|id| {
            let mut command = Command::new(&copy);
            command
                .args(["leases", "show", &id.to_string()])
                .env("EVENKEEL_SOCKET", self.daemon.socket())
                .uid(OTHER_USER)
                .gid(OTHER_USER)
                .current_dir("/");
            ran(&mut command).context("a process of another user; this line needs root")
        })?;
        ensure!(told.contains("has no tenant"), "told: {told}");
        self.written_down("NO_TENANT", before, &told)
    }

    /// Takes a token's line out of the map, and uses it again.
    async fn after_taking_back(&mut self) -> anyhow::Result<String> {
        let good = self.get(&format!("/v1/leases/{}", self.lease), "alice")?;
        ensure!(
            good.starts_with("HTTP/1.1 200"),
            "before: {:?}",
            good.lines().next()
        );
        self.daemon.stop().await?;
        self.daemon = start(self.dir.path(), self.tcp, self.rest, &tokens(&["bob"])).await?;
        self.by_token("alice", "401", "BAD_TOKEN")
    }

    /// What is told of alice's lease and of one that is not there: the same.
    fn both(&self, ask: impl Fn(u64) -> anyhow::Result<(bool, String)>) -> anyhow::Result<String> {
        let [there, not_there] = [self.lease, NO_LEASE].map(|id| {
            let (well, said) = ask(id)?;
            ensure!(!well, "it was let in, and told: {said}");
            Ok(without_id(&said, id))
        });
        let (there, not_there) = (there?, not_there?);
        ensure!(
            there == not_there,
            "of a lease that exists it is told {there:?}, of one that does not {not_there:?}"
        );
        Ok(there)
    }

    /// Lines of the audit that hold a word.
    fn lines(&self, word: &str) -> anyhow::Result<usize> {
        let path = self.dir.path().join("ledger").join("audit.jsonl");
        let text = fs::read_to_string(path).context("the audit")?;
        for line in text.lines() {
            let _: Value = serde_json::from_str(line).context("a line of the audit is not JSON")?;
        }
        Ok(text.lines().filter(|line| line.contains(word)).count())
    }

    /// Waits until the audit has so many lines that hold a word.
    fn lines_come(&self, word: &str, lines: usize) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let found = self.lines(word)?;
            if found >= lines {
                return Ok(());
            }
            ensure!(
                start.elapsed() < SOON,
                "{found} audit lines with {word}, not {lines}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn written_down(&self, word: &str, before: usize, told: &str) -> anyhow::Result<String> {
        self.lines_come(word, before + 2)
            .with_context(|| format!("told: {told}"))?;
        let first = told.lines().next().unwrap_or_default();
        let short: String = first.chars().take(120).collect();
        Ok(format!(
            "refused twice alike ({short}); 2 audit lines with {word}"
        ))
    }
}

async fn start(
    dir: &Path,
    tcp: SocketAddr,
    rest: SocketAddr,
    tokens: &str,
) -> anyhow::Result<Daemon> {
    let pki = |name: &str| dir.join("pki").join(name);
    let tables = format!(
        "{SYNTHETIC}\n[tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n[tenants]\nexclusive = \
         true\n[tenants.certificates]\n\"spiffe://evenkeel/tenant/alice\" = {{ tenant = \"alice\" \
         }}\n\"spiffe://evenkeel/tenant/bob\" = {{ tenant = \"bob\" }}\n[tenants.tokens]\n{tokens}",
        pki("evenkeeld.pem"),
        pki("evenkeeld.key"),
        pki("ca.pem"),
    );
    // The harness's own `[listen]` has no TCP and no REST.
    let (tcp, rest) = (
        PathBuf::from(tcp.to_string()),
        PathBuf::from(rest.to_string()),
    );
    let env = [
        ("EVENKEEL__LISTEN__TCP", tcp.as_path()),
        ("EVENKEEL__LISTEN__REST", rest.as_path()),
    ];
    Daemon::in_folder_with(dir, &tables, &env).await
}

/// The secret of a token of the tests.
fn secret(name: &str) -> String {
    format!("secret of {name}").replace(' ', "-")
}

/// The lines of these tokens in the daemon's map.
fn tokens(names: &[&str]) -> String {
    let line = |name: &&str| {
        let digest = sha256(&secret(name));
        let rest = match *name {
            "bob" => "tenant = \"bob\"".to_owned(),
            "ended" => "tenant = \"alice\", expires = 2020-01-01T00:00:00Z".to_owned(),
            "of another" => format!("tenant = \"alice\", uid = {OTHER_USER}"),
            _ => "tenant = \"alice\"".to_owned(),
        };
        format!("{digest} = {{ {rest} }}\n")
    };
    names.iter().map(line).collect()
}

fn sha256(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The CA of `evenkeel cert init`, and what comes to the door: alice, bob, a job of alice's, and who is refused.
fn make_certificates(pki: &Path) -> anyhow::Result<()> {
    let cert = |line: &[&str]| -> anyhow::Result<()> {
        let (well, said) = ran(Command::new(program("evenkeel")?).arg("cert").args(line))?;
        ensure!(well, "evenkeel cert {}: {said}", line.join(" "));
        Ok(())
    };
    let text = |path: &Path| path.display().to_string();
    let (own, foreign) = (text(pki), text(&pki.join("foreign-ca")));
    cert(&["init", &own, "--host", "127.0.0.1"])?;
    cert(&["init", &foreign, "--host", "127.0.0.1"])?;
    let out = |name: &str| text(&pki.join(name));
    cert(&["issue", &own, "--tenant", "alice", "--out", &out("alice")])?;
    cert(&["issue", &own, "--tenant", "bob", "--out", &out("bob")])?;
    cert(&[
        "issue",
        &own,
        "--tenant",
        "alice",
        "--job",
        "other",
        "--out",
        &out("alice-job"),
    ])?;
    cert(&[
        "issue",
        &foreign,
        "--tenant",
        "alice",
        "--out",
        &out("foreign"),
    ])?;
    // What `evenkeel cert` does not make, signed by its CA.
    let key = KeyPair::from_pem(&fs::read_to_string(pki.join("ca.key"))?)?;
    let ca = Issuer::from_ca_cert_pem(&fs::read_to_string(pki.join("ca.pem"))?, key)?;
    let alice = "spiffe://evenkeel/tenant/alice";
    for (name, uris, expired) in [
        ("expired", &[alice][..], true),
        ("two", &[alice, "spiffe://evenkeel/tenant/bob"], false),
    ] {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        for uri in uris {
            params
                .subject_alt_names
                .push(SanType::URI((*uri).try_into()?));
        }
        if expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate()?;
        fs::write(
            pki.join(format!("{name}.pem")),
            params.signed_by(&key, &ca)?.pem(),
        )?;
        fs::write(pki.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

/// Runs a command to its end: whether it went well, and what it said.
fn ran(command: &mut Command) -> anyhow::Result<(bool, String)> {
    let out = command.output()?;
    let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((out.status.success(), said.concat().trim().to_owned()))
}

fn without_headers(answer: &str) -> String {
    answer
        .split_once("\r\n\r\n")
        .map_or("", |(_, body)| body)
        .to_owned()
}

/// What is told, without which lease it is about.
fn without_id(said: &str, id: u64) -> String {
    let said = said.replace(&format!("lease {id}"), "lease N");
    said.replace(&format!("leases/{id}"), "leases/N")
}

/// Who is refused in the handshake has not said which lease it is about: how often the command tried, and in which words the
/// line broke, is not the daemon's answer.
fn in_the_handshake(said: &str) -> anyhow::Result<String> {
    let signs = [
        "refused this client's certificate",
        "did not answer:",
        "fatal alert",
        "closed",
    ];
    ensure!(
        signs.iter().any(|sign| said.contains(sign)),
        "it was not refused in the handshake: {said}"
    );
    Ok("refused in the handshake".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_of_the_lease_may_differ() {
        let there = without_id("lease 7 is not there, or is closed", 7);
        assert_eq!(there, without_id("lease 8 is not there, or is closed", 8));
        assert_ne!(there, without_id("lease 8 was closed", 8));
        assert!(in_the_handshake("received fatal alert: UnknownCA").is_ok());
        assert!(in_the_handshake("there is no lease 7").is_err());
    }
}
