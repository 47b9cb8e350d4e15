//! `evenkeel token`: makes a token for REST, and the line by which the daemon knows it. The daemon stores the token's
//! SHA-256 only.
use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use rand::TryRngCore as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};

use crate::args::Globals;
use crate::fail::Failure;
use crate::out;

/// Bytes of a token: nobody guesses 256 bits.
const BYTES: usize = 32;

/// Make a token for REST, and the line of the daemon's configuration for it
#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// The tenant that it is for
    #[arg(long, value_parser = name)]
    tenant: String,
    /// What its bearer may do
    #[arg(long, value_enum, default_value_t)]
    role: Role,
    /// Limit it to this job
    #[arg(long, value_parser = name)]
    job: Option<String>,
    /// Limit it to connections of this user of the daemon's machine
    #[arg(long)]
    uid: Option<u32>,
    /// How long it is good; 0: until its line is taken out
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(..=36_500))]
    days: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Sees and changes its tenant's
    #[default]
    User,
    /// Sees and changes everyone's
    Admin,
}

fn name(text: &str) -> Result<String, String> {
    match evenkeel_core::id::Name::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(bad) => Err(bad.to_string()),
    }
}

pub(crate) fn run(globals: &Globals, args: &TokenArgs) -> Result<(), Failure> {
    let mut bytes = [0; BYTES];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|e| Failure::new(format!("cannot get randomness from the system: {e}")))?;
    let token = hex(&bytes);
    let digest = hex(&Sha256::digest(token.as_bytes()));
    let line = format!("{digest} = {}", value(args, OffsetDateTime::now_utc()));
    if globals.json() {
        out::json(&json!({ "token": token, "line": line }));
        return Ok(());
    }
    out::note("the token, shown this once; send it as `Authorization: Bearer TOKEN`:");
    out::text(token);
    out::note(format_args!(
        "for evenkeeld.toml; the daemon reads it when it starts:\n\n[tenants.tokens]\n{line}"
    ));
    Ok(())
}

/// What the daemon is to know of the token.
fn value(args: &TokenArgs, now: OffsetDateTime) -> String {
    let mut parts = vec![format!("tenant = {:?}", args.tenant)];
    if args.role == Role::Admin {
        parts.push("role = \"admin\"".into());
    }
    parts.extend(args.job.as_ref().map(|job| format!("job = {job:?}")));
    parts.extend(args.uid.map(|uid| format!("uid = {uid}")));
    if args.days > 0 {
        let end = now + Duration::days(args.days.into());
        let date = end.date();
        parts.push(format!(
            "expires = {:04}-{:02}-{:02}T{:02}:{:02}:00Z",
            date.year(),
            u8::from(date.month()),
            date.day(),
            end.hour(),
            end.minute()
        ));
    }
    format!("{{ {} }}", parts.join(", "))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes it
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_asked() {
        let args = TokenArgs {
            tenant: "arms".into(),
            role: Role::User,
            job: None,
            uid: None,
            days: 0,
        };
        let now = OffsetDateTime::from_unix_timestamp(1_801_353_600).unwrap();
        assert_eq!(value(&args, now), "{ tenant = \"arms\" }");
        let args = TokenArgs {
            role: Role::Admin,
            job: Some("pick".into()),
            uid: Some(7),
            days: 1,
            ..args
        };
        assert_eq!(
            value(&args, now),
            "{ tenant = \"arms\", role = \"admin\", job = \"pick\", uid = 7, expires = 2027-02-01T00:00:00Z }"
        );
        assert_eq!(hex(&[0, 255, 16]), "00ff10");
    }
}
