//! The tidy test: what the house style asks of every file, checked on every run.
//!
//! It knows nothing of what the code does, and nothing of who may use whom (`layering.rs`). Every
//! checker is a function from a text to a list of violations, and is itself tested on planted ones.

#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/manifest.rs"]
mod manifest;
#[path = "tidy/text.rs"]
mod text;
#[path = "tidy/tree.rs"]
mod tree;

use links::links;
use manifest::{inheritance, membership};
use text::{
    LIMITED, LINES_WARN, extension, left_behind, length, machine_paths, opening, whitespace,
};
use tree::{Source, Violation, assert_none, check, files, root};

/// The commands that the README promises a newcomer.
const README_COMMANDS: &[&str] = &["make demo", "make test"];

fn check_all(check: impl Fn(&Source) -> Vec<Violation>) {
    let violations: Vec<Violation> = files().iter().flat_map(check).collect();
    assert_none(&violations);
}

#[test]
fn every_file_opens_by_saying_what_it_is() {
    check_all(|file| opening(&file.path, &file.text));
}

#[test]
fn no_file_is_too_long() {
    for file in files() {
        let lines = file.text.lines().count();
        if LIMITED.contains(&extension(&file.path)) && lines > LINES_WARN {
            println!("{}: {lines} lines; more than one idea?", file.path);
        }
    }
    check_all(|file| length(&file.path, &file.text));
}

#[test]
fn lines_are_clean() {
    check_all(|file| whitespace(&file.path, &file.text));
}

#[test]
fn nothing_is_left_behind() {
    check_all(|file| left_behind(&file.path, &file.text));
}

#[test]
fn no_path_belongs_to_one_machine() {
    check_all(|file| machine_paths(&file.path, &file.text));
}

#[test]
fn markdown_links_lead_somewhere() {
    let root = root();
    check_all(|file| links(&file.path, &file.text, &|target| root.join(target).exists()));
}

#[test]
fn members_inherit_from_the_workspace() {
    let files = files();
    let Some(workspace) = files.iter().find(|file| file.path == "Cargo.toml") else {
        panic!("no Cargo.toml at the root");
    };
    let manifests: Vec<&Source> = files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .collect();
    assert!(!manifests.is_empty(), "no member was checked");
    let mut violations = membership(&workspace.text, &manifests);
    for manifest in manifests {
        violations.extend(inheritance(&manifest.path, &manifest.text));
    }
    assert_none(&violations);
}

#[test]
fn changelog_has_a_place_for_what_is_new() {
    check_all(|file| match file.path.as_str() {
        "CHANGELOG.md" => changelog(&file.path, &file.text),
        _ => Vec::new(),
    });
    assert!(root().join("CHANGELOG.md").exists());
}

#[test]
fn readme_and_makefile_agree() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    assert_none(&commands(&read("README.md"), &read("Makefile")));
}

#[test]
fn migrations_are_numbered_without_gaps() {
    let names: Vec<String> = files()
        .into_iter()
        .filter_map(|file| file.path.strip_prefix("migrations/").map(str::to_owned))
        .filter(|name| extension(name) == "sql")
        .collect();
    assert_none(&numbering(&names));
}

fn changelog(path: &str, text: &str) -> Vec<Violation> {
    if text
        .lines()
        .any(|line| line == "## [Unreleased]" || line == "## Unreleased")
    {
        return Vec::new();
    }
    vec![Violation::new(path, 0, "has no `## [Unreleased]` section")]
}

fn commands(readme: &str, makefile: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for command in README_COMMANDS {
        if !readme.contains(command) {
            found.push(Violation::new(
                "README.md",
                0,
                format!("does not name `{command}`"),
            ));
        }
        let target = format!("{}:", command.trim_start_matches("make "));
        if !makefile.lines().any(|line| line.starts_with(&target)) {
            found.push(Violation::new(
                "Makefile",
                0,
                format!("has no target `{target}`"),
            ));
        }
    }
    found
}

/// `0001_name.sql`, `0002_…`: each number once, from 1, in four digits.
fn numbering(names: &[String]) -> Vec<Violation> {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    (1..)
        .zip(sorted)
        .filter(|(number, name)| !name.starts_with(&format!("{number:04}_")))
        .map(|(number, name)| {
            Violation::new(
                &format!("migrations/{name}"),
                0,
                format!("should be {number:04}_…"),
            )
        })
        .collect()
}

#[test]
fn promises_that_nothing_keeps_are_found() {
    check(
        &changelog("CHANGELOG.md", "# Changelog\n\n## [0.1.0]\n"),
        &["Unreleased"],
    );
    check(&changelog("CHANGELOG.md", "## [Unreleased]\n"), &[]);
    check(
        &commands("`make demo` and `make test`", "demo: deps\ntest:\n"),
        &[],
    );
    check(&commands("`make demo`", "demo:\ntest:\n"), &["make test"]);
    check(
        &commands("`make demo` and `make test`", "demo:\n"),
        &["`test:`"],
    );
}

#[test]
fn a_gap_between_migrations_is_found() {
    let names = |list: &[&str]| {
        list.iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    check(&numbering(&names(&["0002_b.sql", "0001_a.sql"])), &[]);
    check(
        &numbering(&names(&["0001_a.sql", "0003_b.sql"])),
        &["should be 0002_"],
    );
    check(
        &numbering(&names(&["0001_a.sql", "0001_b.sql"])),
        &["0001_b.sql: should be 0002_"],
    );
    check(&numbering(&names(&["1_a.sql"])), &["should be 0001_"]);
}
