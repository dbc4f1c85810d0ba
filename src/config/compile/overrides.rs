//! `overrides` of a limit: budgets of single keys, compiled as the limit itself with other
//! numbers. Called by `limit`; live ones are read the same way.

use std::sync::Arc;

use super::rule;
use crate::config::reader::{At, Section};
use crate::config::report::{Diagnostic, Place};
use crate::config::schema;
use crate::config::source::Sources;
use crate::config::substitute::Text;
use crate::config::tree::{Entry, Node, Table as Tree, Value};
use crate::limit::algo::Rule;
use crate::limit::key::Key;
use crate::limit::overrides::{Budget, Overrides, Table};

const HELP: &str = "write { key = [\"VALUE\"], rate = \"100/s\" }; the rate may be 0 or \"unlimited\", too";
/// More entries are refused; the live ones have the same bound.
pub const ENTRIES_MAX: usize = 10_000;

pub fn overrides(
    section: &Section,
    algorithm: Option<&'static str>,
    rule: Option<&Rule>,
    key: Option<&Key>,
) -> Option<Overrides> {
    let node = section.node("overrides");
    let (Some(algorithm), Some(_), Some(key)) = (algorithm, rule, key) else { return None };
    let mut base = section.own_table().clone();
    // Copied for each entry.
    base.entries.retain(|entry| !matches!(entry.key.as_str(), "overrides" | "when" | "key"));
    let base = Arc::new(base);
    let mut table = Table::default();
    if let Some(node) = node {
        let Value::Array(items) = &node.value else {
            return section.wrong_type("overrides", "a list of tables", node);
        };
        if items.len() > ENTRIES_MAX {
            let what = format!("{} entries", items.len());
            return section.fault("overrides", node, &what, &format!("there may be {ENTRIES_MAX}"));
        }
        let mut whole = true;
        for item in items {
            whole &= entry(section, algorithm, &base, key, item, &mut table).is_some();
        }
        if !whole {
            return None;
        }
    }
    Some(Overrides::new(table, Arc::new(move |value| live(algorithm, &base, value))))
}

fn entry(section: &Section, algorithm: &str, base: &Tree, key: &Key, item: &Node, table: &mut Table) -> Option<()> {
    let Value::Table(tree) = &item.value else {
        return section.wrong_type("overrides", "a list of tables", item);
    };
    let title = format!("`overrides` of {}", section.title);
    let own = Section::new(section.sources, &schema::OVERRIDE, title, tree);
    let values = match own.node("key") {
        Some(_) => own.strings("key", |text| Ok(text.to_owned())),
        None => own.absent(format!("{} has an entry without a key", own.title), HELP),
    };
    // Named by the entry; what it does not name is the limit's own.
    let changed: Vec<&Entry> = ["rate", "burst"].into_iter().filter_map(|name| own.entry(name)).collect();
    own.unknown();
    if changed.is_empty() {
        return section.fault("overrides", item, "the entry changes nothing", HELP);
    }
    let values = key_values(&own, key, values?, item)?;
    let budget = budget(section.sources, &own.title, algorithm, base, changed.into_iter().cloned().collect())?;
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.as_deref()).collect();
    match table.insert(&values, budget) {
        true => Some(()),
        false => {
            let what = "the same key has an entry already, or `*` stands in more than 16 different places";
            section.fault("overrides", item, what, "remove one of the entries")
        }
    }
}

/// One value for each part of the key; `None` is the star.
fn key_values(own: &Section, key: &Key, written: Vec<At<String>>, item: &Node) -> Option<Vec<Option<Vec<u8>>>> {
    if written.len() != key.0.len() {
        let what = format!("it has {} values, the key of the limit has {} parts", written.len(), key.0.len());
        let node = own.node("key").unwrap_or(item);
        return own.fault("key", node, &what, "write one for each part, in their order; \"*\" is any value");
    }
    let mut values = Vec::with_capacity(written.len());
    for (part, At { place, value }) in key.0.iter().zip(written) {
        values.push(match value.as_str() {
            "*" => None,
            _ => match part.canonical(value.into_bytes()) {
                Ok(value) => Some(value),
                Err(what) => {
                    return own.fault_at("key", place, &what, "write a value that this part of the key can have");
                }
            },
        });
    }
    Some(values)
}

/// The limit's rule with the numbers of `changed` laid over its own.
fn budget(sources: &Sources, title: &str, algorithm: &str, base: &Tree, changed: Vec<Entry>) -> Option<Budget> {
    if let Some(rate) = changed.iter().find(|entry| entry.key == "rate") {
        let budget = match &rate.node.value {
            Value::Integer(0) => Some(Budget::Blocked),
            Value::String(text) if text.value.trim() == "0" => Some(Budget::Blocked),
            Value::String(text) if text.value.trim() == "unlimited" => Some(Budget::Unlimited),
            _ => None,
        };
        if budget.is_some() {
            return budget;
        }
    }
    let mut tree = base.clone();
    tree.entries.retain(|entry| !changed.iter().any(|new| new.key == entry.key));
    if let Some(burst) = changed.iter().find(|entry| entry.key == "burst" && !rule::takes(algorithm, &entry.key)) {
        let message = format!("`burst` in {title}: {algorithm} has no such parameter");
        sources.mistake(Diagnostic::new(burst.place, message).help("name another `rate`"));
        return None;
    }
    tree.entries.extend(changed);
    let section = Section::new(sources, &schema::LIMIT, title, &tree);
    rule::rule(&section, algorithm).map(|rule| Budget::Rule(Arc::new(rule)))
}

/// A budget of the form `rate=100/s;burst=5`.
fn live(algorithm: &str, base: &Tree, value: &str) -> Result<Budget, String> {
    let sources = Sources::default();
    let file = sources.add("override".to_owned(), std::path::PathBuf::new(), value.to_owned());
    let place = Place { file, start: 0, end: value.len() };
    let mut changed: Vec<Entry> = Vec::new();
    for pair in value.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not NAME=VALUE"))?;
        let (name, text) = (name.trim(), text.trim());
        if !schema::OVERRIDE.keys.contains(&name) || name == "key" || changed.iter().any(|entry| entry.key == name) {
            return Err(format!("`{name}` cannot stand here, or stands here twice"));
        }
        let value = match text.parse::<i64>() {
            Ok(value) => Value::Integer(value),
            Err(_) => Value::String(Text { value: text.to_owned(), secret: false }),
        };
        changed.push(Entry { key: name.to_owned(), place, node: Node { place, value } });
    }
    if changed.is_empty() {
        return Err("it changes nothing; write rate=100/s".to_owned());
    }
    // The places of the limit are those of other sources.
    let mut base = base.clone();
    for entry in &mut base.entries {
        (entry.place, entry.node.place) = (place, place);
    }
    base.place = place;
    match budget(&sources, "the override", algorithm, &base, changed) {
        Some(budget) if !sources.has_mistakes() => Ok(budget),
        _ => {
            let report = sources.into_report().json();
            Err(report[0]["message"].as_str().unwrap_or("it is not valid").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    fn overrides(limit: &str) -> (Overrides, Key) {
        let text = format!("[[route]]\nupstream = \"echo:\"\n[limit.x]\n{limit}");
        let config = from_text("test", &text).unwrap_or_else(|report| panic!("{report}"));
        let limit = Arc::into_inner(config.limits.into_iter().next().unwrap()).unwrap();
        (limit.overrides, limit.key)
    }

    #[test]
    fn live_values_are_read_like_the_limit() {
        let (overrides, key) = overrides("rate = \"10/s\"\nburst = 20\nkey = \"header:x\"");
        let set = |value: &str| overrides.set_live(&key, &[(b"a".to_vec(), value.as_bytes().to_vec())].into());
        for value in ["rate=100/day", "burst=5", " rate = 1/s ; burst = 7; ", "rate=0", "rate=unlimited"] {
            assert_eq!(set(value), Ok(()), "{value}");
        }
        for (value, mistake) in [
            ("", "a: it changes nothing; write rate=100/s"),
            ("rate", "a: `rate` is not NAME=VALUE"),
            ("rate=5/fortnight", "a: `rate` in the override: unknown unit `fortnight`"),
            ("burst=99999999999999999", "a: `burst` in the override: it must be from 1 to 4503599627370496"),
            ("debt=5", "a: `debt` cannot stand here, or stands here twice"),
            ("key=x", "a: `key` cannot stand here, or stands here twice"),
            ("rate=1/s;rate=2/s", "a: `rate` cannot stand here, or stands here twice"),
        ] {
            assert_eq!(set(value), Err(mistake.to_owned()), "{value}");
        }
    }
}
