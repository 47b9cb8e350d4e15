//! Layering between crates: which of ours each may name, and what the core may link.
//!
//! A module of `layering.rs`. It asks cargo, never the source.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::tree::{Violation, assert_none, check, root};

// ---- What is asked: change it here. ----

/// Each crate, and which of our crates it may name: for its code, its tests and its build script.
const CRATES: &[(&str, &[&str])] = &[
    ("evenkeel-core", &[]),
    ("evenkeel-proto", &[]),
    ("evenkeel-gpu", &[]),
    (
        "evenkeeld",
        &["evenkeel-core", "evenkeel-proto", "evenkeel-gpu"],
    ),
    ("evenkeel-client", &["evenkeel-proto", "evenkeel-gpu"]),
    (
        "evenkeel-rollout",
        &["evenkeel-client", "evenkeel-proto", "evenkeel-gpu"],
    ),
    (
        "evenkeel-cli",
        // The core: for planning offline.
        &[
            "evenkeel-rollout",
            "evenkeel-client",
            "evenkeel-proto",
            "evenkeel-gpu",
            "evenkeel-core",
        ],
    ),
];
/// Crates that exist to look at all the others.
const OBSERVERS: &[&str] = &["evenkeel-tests", "evenkeel-bench"];

/// All that the core may link, without default features.
const CORE_LINKS: &[&str] = &["serde", "thiserror", "libm"];
/// What those bring with them: nothing that could reach a clock, a file or a thread at run time.
const CORE_BRINGS: &[&str] = &[
    "serde_core",
    "serde_derive",
    "thiserror-impl",
    // The derive macros' own tools; they run in the compiler only.
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

// ---- The tests over the tree. ----

#[test]
fn crates_use_only_what_the_table_allows() {
    let edges = workspace_edges().unwrap();
    assert!(
        edges.len() > CRATES.len(),
        "only {} dependencies found",
        edges.len()
    );
    assert_none(&crate_edges(&edges));
}

#[test]
fn core_links_three_crates_without_their_defaults() {
    let edges = workspace_edges().unwrap();
    assert_none(&core_links(&edges));
}

#[test]
fn core_brings_nothing_that_touches_the_system() {
    let listed = cargo(&[
        "tree",
        "--offline",
        "--package=evenkeel-core",
        "--edges=normal",
        "--prefix=none",
        "--format={lib}|{p}",
    ])
    .unwrap();
    let names: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split('|').nth(1)?.split(' ').next())
        .collect();
    assert!(names.contains("evenkeel-core"), "{listed}");
    assert_none(&core_brings(&names));
}

// ---- The checkers. ----

/// One line of a manifest's dependency tables.
#[derive(Clone)]
struct Edge {
    from: String,
    to: String,
    /// `normal`, `dev` or `build`.
    kind: String,
    uses_defaults: bool,
}

/// What the members' manifests declare, as cargo reads them.
fn workspace_edges() -> anyhow::Result<Vec<Edge>> {
    let args = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let metadata: Metadata = serde_json::from_str(&cargo(&args)?)?;
    let mut edges = Vec::new();
    for package in metadata.packages {
        for dependency in package.dependencies {
            edges.push(Edge {
                from: package.name.clone(),
                to: dependency.name,
                kind: dependency.kind.unwrap_or_else(|| "normal".to_owned()),
                uses_defaults: dependency.uses_default_features,
            });
        }
    }
    Ok(edges)
}

/// The part of `cargo metadata` that is read here.
#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(serde::Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    uses_default_features: bool,
}

/// What cargo prints; offline, since whoever runs this test has just built it.
fn cargo(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(args)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "cargo {}: {errors}",
        args.join(" ")
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn manifest(name: &str) -> String {
    format!("Cargo.toml of {name}")
}

fn crate_edges(edges: &[Edge]) -> Vec<Violation> {
    let table: BTreeMap<&str, &[&str]> = CRATES.iter().copied().collect();
    let ours = |name: &str| table.contains_key(name) || OBSERVERS.contains(&name);
    let mut found = Vec::new();
    for edge in edges
        .iter()
        .filter(|edge| !OBSERVERS.contains(&edge.from.as_str()))
    {
        let Some(allowed) = table.get(edge.from.as_str()) else {
            found.push(Violation::new(
                &manifest(&edge.from),
                0,
                "is not in the import table",
            ));
            continue;
        };
        if ours(&edge.to) && !allowed.contains(&edge.to.as_str()) {
            let what = format!("must not use {} ({})", edge.to, edge.kind);
            found.push(Violation::new(&manifest(&edge.from), 0, what));
        }
    }
    found
}

fn core_links(edges: &[Edge]) -> Vec<Violation> {
    let mut found = Vec::new();
    let linked = edges
        .iter()
        .filter(|edge| edge.from == "evenkeel-core" && edge.kind != "dev");
    for edge in linked {
        if !CORE_LINKS.contains(&edge.to.as_str()) {
            let what = format!("must not link {} ({})", edge.to, edge.kind);
            found.push(Violation::new(&manifest(&edge.from), 0, what));
        } else if edge.uses_defaults && edge.to != "libm" {
            let what = format!(
                "must take {} without its default features: they are std",
                edge.to
            );
            found.push(Violation::new(&manifest(&edge.from), 0, what));
        }
    }
    found
}

fn core_brings(names: &BTreeSet<&str>) -> Vec<Violation> {
    names
        .iter()
        .filter(|name| **name != "evenkeel-core")
        .filter(|name| !CORE_LINKS.contains(name) && !CORE_BRINGS.contains(name))
        .map(|name| Violation::new(&manifest("evenkeel-core"), 0, format!("brings {name}")))
        .collect()
}

// ---- The checkers find what they are for. ----

fn edge(from: &str, to: &str, kind: &str) -> Edge {
    Edge {
        from: from.to_owned(),
        to: to.to_owned(),
        kind: kind.to_owned(),
        uses_defaults: false,
    }
}

#[test]
fn a_forbidden_dependency_is_found() {
    let edges = |from, to, kind| crate_edges(&[edge(from, to, kind)]);
    check(&edges("evenkeel-cli", "evenkeel-rollout", "normal"), &[]);
    check(
        &edges("evenkeel-client", "evenkeel-rollout", "normal"),
        &["evenkeel-rollout (normal)"],
    );
    check(
        &edges("evenkeel-proto", "evenkeel-core", "build"),
        &["evenkeel-core (build)"],
    );
    check(
        &edges("evenkeel-client", "evenkeeld", "dev"),
        &["must not use evenkeeld (dev)"],
    );
    check(
        &edges("evenkeel-gpu", "evenkeel-proto", "normal"),
        &["of evenkeel-gpu"],
    );
    check(
        &edges("evenkeel-new", "serde", "normal"),
        &["is not in the import table"],
    );
    check(&edges("evenkeel-tests", "evenkeeld", "normal"), &[]);
}

#[test]
fn a_core_that_links_more_is_found() {
    let links = |to, kind| core_links(&[edge("evenkeel-core", to, kind)]);
    check(&links("serde", "normal"), &[]);
    check(&links("proptest", "dev"), &[]);
    check(&links("tokio", "normal"), &["must not link tokio (normal)"]);
    let defaults = Edge {
        uses_defaults: true,
        ..edge("evenkeel-core", "serde", "normal")
    };
    check(&core_links(&[defaults]), &["without its default features"]);
    check(
        &core_brings(&BTreeSet::from(["evenkeel-core", "serde", "syn", "mio"])),
        &["brings mio"],
    );
}
