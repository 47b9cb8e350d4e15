//! Reads the configuration: the file, then the variables over it; refuses what is not a key and names the nearest.
//!
//! What values are sensible is in `check`. Called by `main`, and by tests with a text and variables of their own.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::check::Problem;
use super::{Config, DEFAULT_PATH};

/// Variables with this prefix override keys: `EVENKEEL__LEASES__TTL_MS=10000` sets `leases.ttl_ms`.
pub const ENV_PREFIX: &str = "EVENKEEL__";
/// A larger file is no configuration.
const FILE_MAX: u64 = 1 << 20;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("cannot read the configuration {}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too large.
    #[error("the configuration {} has {bytes} bytes, more than the {FILE_MAX} that are allowed", .path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// What is in it.
    #[error("{}", Lines(.0))]
    Invalid(Vec<Problem>),
}

/// One problem a line.
struct Lines<'a>(&'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let end = if i + 1 < self.0.len() { "\n" } else { "" };
            write!(f, "{problem}{end}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Reads the file (the default one if it exists and none is named) and this process's variables, and checks it.
    ///
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it, all at once.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let text = match path {
            Some(path) => Some((path.to_owned(), read(path)?)),
            None if Path::new(DEFAULT_PATH).exists() => {
                Some((DEFAULT_PATH.into(), read(Path::new(DEFAULT_PATH))?))
            }
            None => None,
        };
        let (origin, text) = text.map_or((String::new(), String::new()), |(path, text)| {
            (path.display().to_string(), text)
        });
        // A variable that is not UTF-8 cannot have one of our names with a value that we understand.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()));
        Self::from_text(&origin, &text, variables)
    }

    /// The same from a text; `origin` names it in messages.
    ///
    /// # Errors
    /// With everything that is wrong, all at once.
    pub fn from_text(
        origin: &str,
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let schema = schema();
        let at = |message: &str, span: Option<std::ops::Range<usize>>| {
            Problem::in_file(origin, text, span.map(|s| s.start), message)
        };
        let document = DeTable::parse(text)
            .map_err(|e| ConfigError::Invalid(vec![at(e.message(), e.span())]))?;
        let mut unknown = Vec::new();
        find_unknown(document.get_ref(), &schema, "", &mut |span, message| {
            unknown.push(at(&message, Some(span)));
        });
        if !unknown.is_empty() {
            return Err(ConfigError::Invalid(unknown));
        }
        // Once with positions for messages, once as values that variables can go over.
        let config: Self = toml::from_str(text)
            .map_err(|e| ConfigError::Invalid(vec![at(e.message(), e.span())]))?;
        let table: Table = toml::from_str(text)
            .map_err(|e| ConfigError::Invalid(vec![at(e.message(), e.span())]))?;
        // Sorted: the same variables give the same messages in the same order.
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        let config = override_with(config, table, &variables, &schema)?;
        let problems = config.check();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_MAX {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
            bytes,
        });
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Every key with its default. Tables that are empty here take keys of the user's.
fn schema() -> Table {
    Table::try_from(Config::default()).unwrap_or_default()
}

/// All keys as dotted paths.
pub(super) fn known_keys() -> Vec<String> {
    let mut keys = Vec::new();
    collect(&schema(), "", &mut keys);
    keys
}

fn collect(table: &Table, prefix: &str, keys: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                collect(inner, &format!("{prefix}{key}."), keys);
            }
            _ => keys.push(format!("{prefix}{key}")),
        }
    }
}

fn find_unknown(
    table: &DeTable<'_>,
    schema: &Table,
    prefix: &str,
    report: &mut dyn FnMut(std::ops::Range<usize>, String),
) {
    for (key, value) in table.iter() {
        let name = key.get_ref().as_ref();
        match (schema.get(name), value.get_ref()) {
            (None, _) => report(key.span(), unknown_key(prefix, name, schema)),
            (Some(Value::Table(inner)), DeValue::Table(given)) if !inner.is_empty() => {
                find_unknown(given, inner, &format!("{prefix}{name}."), report);
            }
            (Some(Value::Table(inner)), _) if !inner.is_empty() => {
                let keys = names(inner);
                report(
                    Spanned::span(value),
                    format!("`{prefix}{name}` is a table with the keys {keys}"),
                );
            }
            // Values are serde's to judge.
            _ => {}
        }
    }
}

fn names(table: &Table) -> String {
    let quoted: Vec<String> = table.keys().map(|key| format!("`{key}`")).collect();
    quoted.join(", ")
}

/// Says what could have been meant: the nearest key of the same table, else of any.
fn unknown_key(prefix: &str, name: &str, siblings: &Table) -> String {
    let here = siblings.keys().map(|key| format!("{prefix}{key}"));
    let full = format!("{prefix}{name}");
    let meant = nearest(name, here).or_else(|| nearest(name, known_keys().into_iter()));
    match meant {
        Some(key) => format!("unknown key `{full}`: did you mean `{key}`?"),
        None => format!("unknown key `{full}`: known here are {}", names(siblings)),
    }
}

/// The key whose last part is nearest to `name`, if it is near enough to be meant. A forgotten unit (`ttl` for
/// `ttl_ms`) counts as one mistake.
fn nearest(name: &str, keys: impl Iterator<Item = String>) -> Option<String> {
    let name = name.to_lowercase();
    let far = |key: &str| {
        let last = key.rsplit('.').next().unwrap_or_default();
        let whole = strsim::damerau_levenshtein(&name, last);
        let stem = last.rsplit_once('_').map(|(stem, _unit)| stem);
        let stem = stem.map(|stem| 1 + strsim::damerau_levenshtein(&name, stem));
        stem.map_or(whole, |stem| stem.min(whole))
    };
    keys.map(|key| (far(&key), key))
        .filter(|(far, _)| *far <= 1 + name.len() / 4)
        .min()
        .map(|(_, key)| key)
}

/// Sets variables over the file's values, one after the other, so that a message can name the one that is wrong.
fn override_with(
    mut config: Config,
    mut table: Table,
    variables: &BTreeMap<String, String>,
    schema: &Table,
) -> Result<Config, ConfigError> {
    let mut problems = Vec::new();
    for (variable, text) in variables {
        let Some(name) = variable.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let path: Vec<String> = name.split("__").map(str::to_lowercase).collect();
        if let Err(message) = known(&path, schema) {
            problems.push(Problem::in_variable(variable, &message));
            continue;
        }
        let mut why = None;
        let taken = candidates(text).into_iter().find_map(|value| {
            let mut next = table.clone();
            set(&mut next, &path, value)?;
            match Config::deserialize(next.clone()) {
                Ok(config) => Some((next, config)),
                Err(e) => {
                    why = Some(e.message().to_owned());
                    None
                }
            }
        });
        match (taken, why) {
            (Some((next, read)), _) => (table, config) = (next, read),
            (None, why) => {
                let why = why.unwrap_or_else(|| "it is no table".into());
                let message = format!("`{}` cannot be `{text}`: {why}", path.join("."));
                problems.push(Problem::in_variable(variable, &message));
            }
        }
    }
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(ConfigError::Invalid(problems))
    }
}

/// Whether a path leads to a key, or into a table that takes keys of the user's.
fn known(path: &[String], schema: &Table) -> Result<(), String> {
    let mut here = schema;
    for (depth, part) in path.iter().enumerate() {
        let prefix: String = path[..depth].iter().map(|p| format!("{p}.")).collect();
        match here.get(part) {
            None => return Err(unknown_key(&prefix, part, here)),
            Some(Value::Table(inner)) if inner.is_empty() => return Ok(()),
            Some(Value::Table(inner)) => here = inner,
            Some(_) if depth + 1 == path.len() => return Ok(()),
            Some(_) => return Err(format!("`{prefix}{part}` is a value, not a table")),
        }
    }
    Err(format!(
        "`{}` is a table; set one of {}",
        path.join("."),
        names(here)
    ))
}

/// What a variable's text can mean: a TOML value, or itself.
fn candidates(text: &str) -> Vec<Value> {
    let parsed = toml::from_str::<Table>(&format!("v = {text}"));
    let parsed = parsed.ok().and_then(|mut table| table.remove("v"));
    parsed
        .into_iter()
        .chain([Value::String(text.to_owned())])
        .collect()
}

fn set(table: &mut Table, path: &[String], value: Value) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let mut here = table;
    for part in parents {
        let next = here
            .entry(part.clone())
            .or_insert_with(|| Value::Table(Table::new()));
        here = next.as_table_mut()?;
    }
    here.insert(last.clone(), value);
    Some(())
}
