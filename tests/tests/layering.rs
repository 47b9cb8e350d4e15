//! The layering test: who may use whom, inside the core and the daemon (here) and between the crates
//! (`layering/crates.rs`).
//!
//! It enforces the import table of ARCHITECTURE.md, kept as data at the top of both files. How it
//! reads Rust is `layering/paths.rs`. It says nothing of style (`tidy.rs`).

#[path = "layering/crates.rs"]
mod crates;
#[path = "layering/paths.rs"]
mod paths;
#[path = "tidy/tree.rs"]
mod tree;

use std::collections::BTreeSet;

use paths::{Token, module_of, references, tokens, without_tests};
use tree::{Source, Violation, assert_none, check, files};

// ---- What is asked: change it here. ----

/// Names that the core must not say outside its tests.
const CORE_NEVER: &[(&str, &str)] = &[
    (
        "std",
        "the core is no_std: a clock, a file or a thread must be a parameter",
    ),
    (
        "HashMap",
        "iteration order must be the same on every run: BTreeMap",
    ),
    (
        "HashSet",
        "iteration order must be the same on every run: BTreeSet",
    ),
    (
        "hashbrown",
        "iteration order must be the same on every run: BTreeMap",
    ),
];

/// The core's house, from the ground up: a file uses only floors below its own, or its own folder.
const FLOORS: &[&[&str]] = &[
    &["unit", "id", "cpuset"],
    &["curve", "node", "grant"],
    &["job"],
    &["lease", "clock", "pool", "settings", "allocate"],
    &["balance", "caps", "trials"],
    &["command", "event"],
    &["state"],
    &["volatile"],
    &["decide", "converge", "invariant"],
    &["step"],
];

/// A part of the daemon, and the modules of the daemon that it must not name.
const DAEMON_NEVER: &[(&str, &[&str])] = &[
    ("api", &["ledger", "backend"]),
    ("controller", &["api", "backend"]),
    ("ledger", &["api", "backend"]),
    ("backend", &["api", "ledger"]),
    ("reconcile", &["api", "ledger"]),
    ("sample", &["api", "ledger"]),
    ("traces", &["api", "ledger", "backend"]),
];
/// Crates that only one part of the daemon may name, and why.
const DAEMON_ONLY: &[(&str, &[&str], &str)] = &[
    ("sqlx", &["ledger"], "all SQL is in one place"),
    ("libsqlite3_sys", &["ledger"], "all SQL is in one place"),
    (
        "evenkeel_proto",
        &["api"],
        "wire types are parsed once, at the edge",
    ),
    // OpenTelemetry's messages are in a module of that name.
    (
        "tonic",
        &["api", "traces"],
        "wire types are parsed once, at the edge",
    ),
    ("axum", &["api"], "wire types are parsed once, at the edge"),
    (
        "opentelemetry_proto",
        &["traces"],
        "traces are made in one place, from the trail",
    ),
];

const CORE: &str = "daemon/core/src/";
const DAEMON: &str = "daemon/src/";

// ---- The tests over the tree. ----

#[test]
fn core_is_no_std() {
    let files = files();
    let lib = files
        .iter()
        .find(|file| file.path == format!("{CORE}lib.rs"))
        .unwrap();
    assert!(
        lib.text.lines().any(|line| line == "#![no_std]"),
        "{} is not no_std",
        lib.path
    );
    let parts = parts(&files, CORE);
    assert!(!parts.is_empty());
    assert_none(&names_never(&parts));
}

#[test]
fn core_floors_are_kept() {
    let files = files();
    assert_none(&floors(&parts(&files, CORE)));
}

#[test]
fn daemon_parts_keep_apart() {
    let files = files();
    let parts = parts(&files, DAEMON);
    assert!(!parts.is_empty());
    assert_none(&daemon_never(&parts));
    assert_none(&daemon_only(&parts));
}

// ---- The checkers. ----

/// One file of a crate, without what only tests compile.
struct Part {
    path: String,
    module: Vec<String>,
    tokens: Vec<Token>,
}

impl Part {
    /// The part of the crate that this file belongs to; none for the root, which wires them all.
    fn top(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }
}

/// The files under `folder`, without those that only tests compile.
fn parts(files: &[Source], folder: &str) -> Vec<Part> {
    let mut tests_only: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut parts = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let Some(inside) = file.path.strip_prefix(folder) else {
            continue;
        };
        let module = module_of(inside);
        let (tokens, modules) = without_tests(&tokens(&file.text));
        for name in modules {
            tests_only.insert(module.iter().cloned().chain([name]).collect());
        }
        parts.push(Part {
            path: file.path.clone(),
            module,
            tokens,
        });
    }
    parts.retain(|part| {
        !tests_only
            .iter()
            .any(|module| part.module.starts_with(module))
    });
    parts
}

/// A path that begins with a type was re-exported by the root, and hides where it lives.
fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

fn names_never(parts: &[Part]) -> Vec<Violation> {
    let mut found = Vec::new();
    for part in parts {
        for token in &part.tokens {
            let banned = CORE_NEVER.iter().find(|(name, _)| *name == token.text);
            if let Some((name, reason)) = banned {
                found.push(Violation::new(
                    &part.path,
                    token.line,
                    format!("`{name}`: {reason}"),
                ));
            }
        }
    }
    found
}

fn floors(parts: &[Part]) -> Vec<Violation> {
    let floor = |module: &str| FLOORS.iter().position(|floor| floor.contains(&module));
    let mut found = Vec::new();
    for part in parts {
        let Some(own) = part.top() else { continue };
        let Some(own_floor) = floor(own) else {
            let what = format!("`{own}` is on no floor of the core's house (layering.rs, FLOORS)");
            found.push(Violation::new(&part.path, 0, what));
            continue;
        };
        for reference in references(&part.tokens, &part.module) {
            let Some(used) = reference.path.first().map(String::as_str) else {
                continue;
            };
            let what = match floor(used) {
                _ if used == own => continue,
                Some(used_floor) if used_floor < own_floor => continue,
                Some(_) => format!("`{own}` must not use `{used}`: it is not on a floor below"),
                None if is_type(used) => format!("`{used}`: name the module that it lives in"),
                None => format!("`{used}` is on no floor of the core's house"),
            };
            found.push(Violation::new(&part.path, reference.line, what));
        }
    }
    found
}

fn daemon_never(parts: &[Part]) -> Vec<Violation> {
    let mut found = Vec::new();
    for part in parts {
        let Some(own) = part.top() else { continue };
        let never = DAEMON_NEVER
            .iter()
            .find(|(name, _)| *name == own)
            .map_or(&[][..], |row| row.1);
        for reference in references(&part.tokens, &part.module) {
            let Some(used) = reference.path.first() else {
                continue;
            };
            let what = if never.contains(&used.as_str()) {
                format!("`{own}` must not name `{used}`")
            } else if is_type(used) {
                format!("`{used}`: name the module that it lives in")
            } else {
                continue;
            };
            found.push(Violation::new(&part.path, reference.line, what));
        }
    }
    found
}

fn daemon_only(parts: &[Part]) -> Vec<Violation> {
    let mut found = Vec::new();
    for part in parts {
        let own = part.top().unwrap_or("the root");
        for token in &part.tokens {
            let row = DAEMON_ONLY
                .iter()
                .find(|(name, places, _)| *name == token.text && !places.contains(&own));
            if let Some((name, places, reason)) = row {
                let places = places.join("` and `");
                let what = format!("`{own}` must not name `{name}`, only `{places}`: {reason}");
                found.push(Violation::new(&part.path, token.line, what));
            }
        }
    }
    found
}

// ---- The checkers find what they are for. ----

fn planted(folder: &str, files: &[(&str, &str)]) -> Vec<Part> {
    let sources: Vec<Source> = files
        .iter()
        .map(|(path, text)| Source {
            path: format!("{folder}{path}"),
            text: (*text).to_owned(),
        })
        .collect();
    parts(&sources, folder)
}

#[test]
fn a_clock_in_the_core_is_found() {
    let names = |text| names_never(&planted(CORE, &[("state.rs", text)]));
    check(&names("use alloc::collections::BTreeMap;"), &[]);
    check(&names("\nuse std::time::Instant;"), &["state.rs:2: `std`"]);
    check(&names("extern crate std;"), &["`std`"]);
    check(
        &names("type M = HashMap<u8, u8>;"),
        &["`HashMap`: iteration order"],
    );
    check(
        &names("// HashMap and std\n#[cfg(test)] mod tests { extern crate std; }"),
        &[],
    );
}

#[test]
fn a_step_upstairs_is_found() {
    let house = |path, text| floors(&planted(CORE, &[(path, text)]));
    check(
        &house(
            "decide/lease.rs",
            "use crate::state::State; use super::job;",
        ),
        &[],
    );
    check(
        &house(
            "balance/window.rs",
            "use super::detect; use crate::{curve::Curve, unit};",
        ),
        &[],
    );
    check(
        &house("lease.rs", "use crate::state::State;"),
        &["`lease` must not use `state`"],
    );
    check(
        &house("event.rs", "use super::command;"),
        &["`event` must not use `command`"],
    );
    check(
        &house("job.rs", "use crate::{unit, id, step};"),
        &["`job` must not use `step`"],
    );
    check(
        &house("step.rs", "use crate::Sms;"),
        &["`Sms`: name the module"],
    );
    check(&house("attic.rs", ""), &["`attic` is on no floor"]);
    check(&house("lib.rs", "pub use crate::step::step;"), &[]);
    let tests = [
        ("job.rs", "#[cfg(test)] mod tests;"),
        ("job/tests.rs", "use crate::step;"),
    ];
    check(&floors(&planted(CORE, &tests)), &[]);
}

#[test]
fn a_short_cut_in_the_daemon_is_found() {
    let never = |path, text| daemon_never(&planted(DAEMON, &[(path, text)]));
    check(&never("api/grpc.rs", "use crate::handle::Handle;"), &[]);
    check(
        &never("api/grpc.rs", "use crate::ledger::Ledger;"),
        &["`api` must not name `ledger`"],
    );
    check(
        &never("api/rest.rs", "use super::super::{backend};"),
        &["`api` must not name `backend`"],
    );
    check(
        &never("controller.rs", "fn f(b: &crate::backend::Mps) {}"),
        &["name `backend`"],
    );
    check(
        &never("reconcile/mod.rs", "use crate::{config, ledger};"),
        &["name `ledger`"],
    );
    check(
        &never("api/grpc.rs", "use crate::Ledger;"),
        &["`Ledger`: name the module"],
    );
    check(&never("main.rs", "use crate::{api, ledger, backend};"), &[]);

    let only = |path, text| daemon_only(&planted(DAEMON, &[(path, text)]));
    check(&only("ledger/rows.rs", "use sqlx::Row;"), &[]);
    check(
        &only("controller.rs", "use sqlx::Row;"),
        &["only `ledger`: all SQL"],
    );
    check(
        &only("main.rs", "use sqlx::Row;"),
        &["`the root` must not name `sqlx`"],
    );
    check(
        &only("handle.rs", "use evenkeel_proto::v1::Lease;"),
        &["only `api`"],
    );
}
