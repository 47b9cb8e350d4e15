//! `evenkeel cert`: a small CA for those who have none, and the certificates of a daemon and of its clients.
//!
//! Works on files only: no daemon is asked. How certificates are made is in `authority`.
mod authority;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use self::authority::{Authority, Holder, Made, Subject};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Years of a CA: as long as a server lives.
const CA_DAYS: u32 = 3_650;

/// Days of a daemon's certificate: a year.
const DAEMON_DAYS: u32 = 365;
/// Days of a client's.
const CLIENT_DAYS: u32 = 30;

/// Between a tenant and a job in a file's name. No name in a certificate may hold it, or the job `b` of tenant `a` and a
/// tenant `a-job-b` would have the same files.
const JOB_OF: &str = "+job-";

/// Make certificates for gRPC over TCP
///
/// A CA in a folder, the daemon's certificate, and one for each tenant or job that comes over the network. Keep ca.key
/// where nobody else reads it: who has it can be any tenant.
#[derive(Args, Debug)]
pub(crate) struct CertArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a CA and the daemon's certificate
    Init(InitArgs),
    /// Make a certificate for a tenant or one of its jobs, or a new one for the daemon
    Issue(IssueArgs),
}

#[derive(Args, Debug)]
struct InitArgs {
    /// The folder; it is made, and must not hold a CA
    dir: PathBuf,
    /// A name or address by which clients reach the daemon (several times for several)
    #[arg(long = "host", value_name = "NAME", required = true)]
    hosts: Vec<String>,
    /// The SPIFFE trust domain (tls.trust_domain of the daemon)
    #[arg(long, default_value = "evenkeel", value_parser = trust_domain)]
    trust_domain: String,
    /// How long the daemon's certificate is good
    #[arg(long, default_value_t = DAEMON_DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(CA_DAYS)))]
    days: u32,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["tenant", "hosts"]))]
struct IssueArgs {
    /// The CA's folder
    dir: PathBuf,
    /// The tenant that it is for
    #[arg(long, value_parser = segment)]
    tenant: Option<String>,
    /// Limit its holder to this job of the tenant
    #[arg(long, requires = "tenant", value_parser = segment)]
    job: Option<String>,
    /// A new certificate for the daemon, reached by this name or address (several times for several)
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// How long it is good: 30 days for a tenant (short is safe, since there is no list of those that were taken back), 365
    /// for the daemon
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(CA_DAYS)))]
    days: Option<u32>,
    /// Where to, without `.pem` and `.key`: by default a name after whom it is for, in the CA's folder. Only a certificate
    /// for the same is replaced
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
}

/// A segment of a SPIFFE ID's path.
fn segment(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let is_one = !text.is_empty() && text.chars().all(plain) && !matches!(text, "." | "..");
    if is_one && text.len() <= 128 {
        return Ok(text.to_owned());
    }
    Err(
        "a name in a certificate has letters, digits, `.`, `-` and `_` (SPIFFE ID, section 2.2), 128 at most; for \
         another tenant, list the certificate in the daemon's [tenants.certificates]"
            .into(),
    )
}

fn trust_domain(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
    if !text.is_empty() && text.len() <= 255 && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("a trust domain has lower-case letters, digits, `.`, `-` and `_`".into())
}

/// What was made, for programs.
#[derive(Serialize)]
struct Files<'a> {
    certificate: &'a Path,
    key: &'a Path,
    ca: &'a Path,
    /// When it ends, in seconds since 1970.
    ends: i64,
    uri: Option<&'a str>,
}

pub(crate) fn run(globals: &Globals, args: CertArgs) -> Result<(), Failure> {
    match args.what {
        What::Init(args) => init(globals, &args),
        What::Issue(args) => issue(globals, &args),
    }
}

fn init(globals: &Globals, args: &InitArgs) -> Result<(), Failure> {
    let dir = absolute(&args.dir)?;
    let ca = dir.join("ca");
    if pem(&ca).exists() || key(&ca).exists() {
        return Err(
            Failure::usage(format!("{} holds a CA already", dir.display()))
                .hint("Use it with `evenkeel cert issue`, or give another folder."),
        );
    }
    let authority = Authority::new(&args.trust_domain, CA_DAYS)?;
    let server = authority.issue(&Subject::Daemon { hosts: &args.hosts }, args.days)?;
    fs::create_dir_all(&dir).doing(format!("make the folder {}", dir.display()))?;
    save(&ca, &authority.made())?;
    let daemon = dir.join("evenkeeld");
    save(&daemon, &server)?;
    if globals.json() {
        out::json(&files(&daemon, &dir, &server, None));
        return Ok(());
    }
    let mut tls = format!(
        "[tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n",
        pem(&daemon),
        key(&daemon),
        pem(&ca)
    );
    if args.trust_domain != "evenkeel" {
        tls += &format!("trust_domain = {:?}\n", args.trust_domain);
    }
    out::text(format_args!(
        "Made a CA and the daemon's certificate, {}.\n\nFor evenkeeld.toml (the daemon's user has to be able \
         to read these files):\n\n[listen]\ntcp = \"0.0.0.0:7421\"\n\n{tls}\nFor each tenant or job: evenkeel cert issue {} \
         --tenant TENANT [--job JOB]\nKeep {} to yourself: who has it can be any tenant.",
        authority.until(&server),
        dir.display(),
        key(&ca).display()
    ));
    Ok(())
}

fn issue(globals: &Globals, args: &IssueArgs) -> Result<(), Failure> {
    let dir = absolute(&args.dir)?;
    let ca = dir.join("ca");
    let authority = Authority::load(&pem(&ca), &key(&ca))?;
    let subject = match &args.tenant {
        Some(tenant) => Subject::Client {
            tenant,
            job: args.job.as_deref(),
        },
        None => Subject::Daemon { hosts: &args.hosts },
    };
    let days = match subject {
        Subject::Client { .. } => CLIENT_DAYS,
        Subject::Daemon { .. } => DAEMON_DAYS,
    };
    let made = authority.issue(&subject, args.days.unwrap_or(days))?;
    let stem = match (&args.out, &args.tenant, &args.job) {
        (Some(out), ..) => absolute(out)?,
        (None, Some(tenant), None) => dir.join(format!("tenant-{tenant}")),
        (None, Some(tenant), Some(job)) => dir.join(format!("tenant-{tenant}{JOB_OF}{job}")),
        (None, None, _) => dir.join("evenkeeld"),
    };
    let uri = authority.uri(&subject);
    may_replace(&stem, &uri.clone().map_or(Holder::Daemon, Holder::Client))?;
    save(&stem, &made)?;
    if globals.json() {
        out::json(&files(&stem, &dir, &made, uri.as_deref()));
        return Ok(());
    }
    let (certificate, private) = (pem(&stem), key(&stem));
    out::text(match uri {
        Some(uri) => format!(
            "Made a certificate for {uri}, {}. Its holder sets:\n\nexport \
             EVENKEEL_SOCKET=https://HOST:7421\nexport EVENKEEL_TLS_CERT={}\nexport EVENKEEL_TLS_KEY={}\nexport \
             EVENKEEL_TLS_CA={}",
            authority.until(&made),
            certificate.display(),
            private.display(),
            pem(&ca).display()
        ),
        None => format!(
            "Made {} and its key for {}, and no other name, {}. A daemon whose [tls] names them takes them up by itself.",
            certificate.display(),
            args.hosts.join(", "),
            authority.until(&made)
        ),
    });
    Ok(())
}

fn files<'a>(stem: &'a Path, dir: &Path, made: &Made, uri: Option<&'a str>) -> impl Serialize + 'a {
    serde_json::json!(Files {
        certificate: &pem(stem),
        key: &key(stem),
        ca: &pem(&dir.join("ca")),
        ends: made.ends,
        uri,
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).doing(format!("use the path {}", path.display()))
}

fn pem(stem: &Path) -> PathBuf {
    with_end(stem, ".pem")
}

fn key(stem: &Path) -> PathBuf {
    with_end(stem, ".key")
}

/// Not `with_extension`: a tenant's name may hold a dot.
fn with_end(stem: &Path, end: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Writes a certificate and its key. Each appears whole, the key first: who reads both meanwhile sees two that do not
/// go together for a moment, never half of one.
fn save(stem: &Path, made: &Made) -> Result<(), Failure> {
    for (path, text, mode) in [
        (key(stem), &made.key, 0o600),
        (pem(stem), &made.certificate, 0o644),
    ] {
        replace(&path, text, mode).doing(format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Refuses what is another's: a certificate for somebody else, a CA's, a key without a certificate that says whose it is.
fn may_replace(stem: &Path, holder: &Holder) -> Result<(), Failure> {
    let (certificate, private) = (pem(stem), key(stem));
    let refused = |path: &Path, what: String| {
        let text = format!("{} {what}, and is not replaced", path.display());
        Err(Failure::usage(text).hint("Name another file with --out, or move it away."))
    };
    match fs::read_to_string(&certificate) {
        Ok(text) => match Holder::of(&text) {
            Some(found) if found == *holder => Ok(()),
            Some(found) => refused(&certificate, format!("is a certificate for {found}")),
            None => refused(&certificate, "is no certificate".into()),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => match private.symlink_metadata() {
            Ok(_) => refused(&private, "has no certificate beside it".into()),
            Err(_) => Ok(()),
        },
        Err(e) => refused(&certificate, format!("cannot be read ({e})")),
    }
}

/// What is replaced keeps its owner, its group and its rights: the daemon's user has to be able to read a key that root
/// renews.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = with_end(path, ".new");
    let _ = fs::remove_file(&new); // left by a command that was killed
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
    if let Ok(old) = path.metadata() {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        globals: Globals,
        #[command(flatten)]
        cert: CertArgs,
    }

    /// `evenkeel cert` with these words.
    fn cert(words: &[&str]) -> Result<(), Failure> {
        let line = Line::try_parse_from([&["cert"], words].concat()).unwrap();
        run(&line.globals, line.cert)
    }

    fn holder(stem: &Path) -> Holder {
        Holder::of(&fs::read_to_string(pem(stem)).unwrap()).unwrap()
    }

    #[test]
    fn no_certificate_takes_the_place_of_anothers() {
        let folder = tempfile::tempdir().unwrap();
        let pki = folder.path().join("pki");
        let dir = pki.to_str().unwrap();
        cert(&["init", dir, "--host", "gpu1"]).unwrap();
        cert(&["issue", dir, "--tenant", "a-job-b"]).unwrap();
        cert(&["issue", dir, "--tenant", "a", "--job", "b"]).unwrap();
        let job = Holder::Client("spiffe://evenkeel/tenant/a/job/b".into());
        let tenant = Holder::Client("spiffe://evenkeel/tenant/a-job-b".into());
        assert_eq!(holder(&pki.join("tenant-a+job-b")), job);
        assert_eq!(holder(&pki.join("tenant-a-job-b")), tenant);
        // Again for the same, and a daemon's for other hosts.
        cert(&["issue", dir, "--tenant", "a", "--job", "b"]).unwrap();
        cert(&["issue", dir, "--host", "gpu2"]).unwrap();

        fs::write(pki.join("lone.key"), "a key").unwrap();
        fs::write(pki.join("notes.pem"), "notes").unwrap();
        let before = fs::read(pki.join("ca.key")).unwrap();
        let around = pki.join("../pki/ca");
        for out in ["ca", "evenkeeld", "tenant-a-job-b", "lone", "notes"] {
            let out = pki.join(out);
            let refused = cert(&[
                "issue",
                dir,
                "--tenant",
                "c",
                "--out",
                out.to_str().unwrap(),
            ]);
            assert!(refused.is_err(), "{}", out.display());
        }
        let around = around.to_str().unwrap();
        assert!(cert(&["issue", dir, "--tenant", "c", "--out", around]).is_err());
        assert_eq!(fs::read(pki.join("ca.key")).unwrap(), before);
        assert_eq!(fs::read(pki.join("lone.key")).unwrap(), b"a key");
    }

    #[test]
    fn what_is_replaced_keeps_its_owner_and_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.key");
        replace(&path, "old", 0o600).unwrap();
        let rights = || path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(rights(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // Only root can give files away.
        let owner = if path.metadata().unwrap().uid() == 0 {
            fchown(fs::File::open(&path).unwrap(), Some(65_533), Some(65_533)).unwrap();
            65_533
        } else {
            path.metadata().unwrap().uid()
        };
        replace(&path, "new", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!((rights(), path.metadata().unwrap().uid()), (0o640, owner));
    }
}
