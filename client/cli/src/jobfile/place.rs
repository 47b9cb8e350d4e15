//! Where a key of a TOML text is: for complaints about what a value means, which come when the text is read already.
//! Found in the parsed text, so that tables written inline, quoted keys and comments are no matter.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The place of a key such as `stages[1].min_cores`: its name, else the amount that says both the least and the most,
/// else what it belongs to. None: nothing of it is there, or the text is no TOML.
pub(crate) fn of(text: &str, path: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut here = table.get_ref();
    let mut steps = path.split('.').filter(|step| !step.is_empty()).peekable();
    while let Some(step) = steps.next() {
        let (name, index) = indexed(step);
        let Some((key, value)) = entry(here, name) else {
            return found;
        };
        found = Some(key.span());
        let value = match (index, value.get_ref()) {
            (None, _) => value,
            (Some(index), DeValue::Array(all)) => {
                let Some(value) = all.get(index) else {
                    return found;
                };
                found = Some(value.span());
                value
            }
            (Some(_), _) => return found,
        };
        match value.get_ref() {
            DeValue::Table(inside) if steps.peek().is_some() => here = inside,
            _ => return found,
        }
    }
    found
}

/// `stages[1]` is `stages` and 1.
fn indexed(step: &str) -> (&str, Option<usize>) {
    match step.strip_suffix(']').and_then(|s| s.split_once('[')) {
        Some((name, index)) => (name, index.parse().ok()),
        None => (step, None),
    }
}

fn entry<'t, 'i>(
    table: &'t DeTable<'i>,
    name: &str,
) -> Option<(
    &'t Spanned<std::borrow::Cow<'i, str>>,
    &'t Spanned<DeValue<'i>>,
)> {
    let short = name.trim_start_matches("min_").trim_start_matches("max_");
    let called = |name: &str| table.iter().find(|(key, _)| *key.get_ref() == name);
    called(name).or_else(|| called(short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn keys_are_found_in_their_own_table() {
        let text = "name = 'j'\n[rebalance]\ngap = 2\n[[stages]]\nname = 'a'\n[stages.bench]\ncores = [1]\n\
                    [[stages]]\nname = 'b'\n  cores = 9 # workers = 3\n\"workers\"=0\n";
        let inline = "stages = [{ name = 'a' }, { name = 'b',\n workers = 5 }]";
        for (text, path, expect) in [
            (text, "name", Some("j:1:1")),
            (text, "rebalance.gap", Some("j:3:1")),
            (text, "rebalance.windows", Some("j:2:2")),
            (text, "rebalance", Some("j:2:2")),
            (text, "unit", None),
            (text, "stages", Some("j:4:3")),
            (text, "stages[0].max_cores", Some("j:4:1")),
            (text, "stages[0].bench.cores", Some("j:7:1")),
            (text, "stages[1].max_cores", Some("j:10:3")),
            (text, "stages[1].workers", Some("j:11:1")),
            (text, "stages[1].batches", Some("j:8:1")),
            (text, "stages[2].name", Some("j:4:3")),
            (inline, "stages[1].workers", Some("j:2:2")),
            (inline, "stages[1].cores", Some("j:1:27")),
            ("a = ", "a", None),
        ] {
            let found = of(text, path).map(|at| files::place("j", text, &at));
            assert_eq!(found.as_deref(), expect, "{path}");
        }
    }
}
