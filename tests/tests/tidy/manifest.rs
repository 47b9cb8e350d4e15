//! What tidy asks of the workspace's manifests: one version, edition, lint set for all.
//!
//! Called by `tidy.rs`. Who may depend on whom is `layering.rs`.

use std::collections::BTreeSet;

use crate::tree::{Source, Violation};

/// Keys that every member takes from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

/// Every manifest below the root is a member, or is left out by name.
pub(crate) fn membership(workspace: &str, manifests: &[&Source]) -> Vec<Violation> {
    let table = match parse("Cargo.toml", workspace) {
        Ok(table) => table,
        Err(violations) => return violations,
    };
    let named: BTreeSet<&str> = ["members", "exclude"]
        .iter()
        .filter_map(|key| table.get("workspace")?.get(key)?.as_array())
        .flatten()
        .filter_map(toml::Value::as_str)
        .collect();
    let folder = |path: &str| path.trim_end_matches("/Cargo.toml").to_owned();
    manifests
        .iter()
        .filter(|manifest| !named.contains(folder(&manifest.path).as_str()))
        .map(|manifest| Violation::new(&manifest.path, 0, "is not a member of the workspace"))
        .collect()
}

/// A member takes its version, edition, lints and the versions of its dependencies from the workspace.
pub(crate) fn inheritance(path: &str, text: &str) -> Vec<Violation> {
    let table = match parse(path, text) {
        Ok(table) => table,
        Err(violations) => return violations,
    };
    let inherits = |value: Option<&toml::Value>| {
        value
            .and_then(|value| value.get("workspace"))
            .and_then(toml::Value::as_bool)
            == Some(true)
    };
    let mut found = Vec::new();
    for key in INHERITED {
        if !inherits(table.get("package").and_then(|package| package.get(key))) {
            found.push(Violation::new(
                path,
                0,
                format!("`{key}.workspace = true` is missing"),
            ));
        }
    }
    if !inherits(table.get("lints")) {
        found.push(Violation::new(
            path,
            0,
            "`[lints] workspace = true` is missing",
        ));
    }
    for (name, dependency) in dependencies(&table) {
        if !inherits(Some(dependency)) {
            let what = format!("`{name}`: its version belongs into the workspace's Cargo.toml");
            found.push(Violation::new(path, 0, what));
        }
    }
    found
}

/// All dependency tables of a manifest, those behind `[target.…]` too.
fn dependencies(manifest: &toml::Table) -> Vec<(&String, &toml::Value)> {
    const TABLES: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets
        .into_iter()
        .flatten()
        .filter_map(|(_, target)| target.as_table());
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| TABLES.iter().filter_map(|key| table.get(*key)?.as_table()))
        .flatten()
        .collect()
}

fn parse(path: &str, text: &str) -> Result<toml::Table, Vec<Violation>> {
    text.parse()
        .map_err(|error| vec![Violation::new(path, 0, format!("not TOML: {error}"))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::check;

    #[test]
    fn a_member_with_its_own_mind_is_found() {
        let inherited: String = INHERITED
            .iter()
            .map(|key| format!("{key}.workspace = true\n"))
            .collect();
        let good = format!(
            "[package]\nname = \"a\"\n{inherited}[dependencies]\nb.workspace = true\n\
         c = {{ workspace = true, features = [\"d\"] }}\n[lints]\nworkspace = true\n"
        );
        check(&inheritance("a/Cargo.toml", &good), &[]);
        let version = good.replacen("version.workspace = true", "version = \"1.0.0\"", 1);
        check(
            &inheritance("a/Cargo.toml", &version),
            &["version.workspace"],
        );
        let lints = good.replace("[lints]", "[other]");
        check(&inheritance("a/Cargo.toml", &lints), &["[lints]"]);
        let own = format!("{good}[target.'cfg(unix)'.dev-dependencies]\nlibc = \"0.2\"\n");
        check(&inheritance("a/Cargo.toml", &own), &["`libc`"]);

        let stray = Source {
            path: "z/Cargo.toml".to_owned(),
            text: String::new(),
        };
        check(
            &membership("[workspace]\nmembers = [\"a\"]", &[&stray]),
            &["z/Cargo.toml"],
        );
        check(
            &membership("[workspace]\nmembers = [\"a\", \"z\"]", &[&stray]),
            &[],
        );
    }
}
