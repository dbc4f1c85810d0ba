//! Remedies for what people write who know another program, or put a key in the wrong place. Called
//! by `reader` for keys that a table does not have, and by `compile`.

use super::schema::{self, Schema};
use super::tree::{Node, TableEntry, Value};

/// How a limit gets to a route, for those who put the one into the other.
pub const LIMIT_HELP: &str = "a limit has a section and a name of its own, by which routes call it:\n\n[[route]]\nlimits = [\"per-ip\"]\n\n[limit.per-ip]\nrate = \"10/s\"";

/// What a key is called elsewhere, and here.
const ALIASES: &[(&str, &str)] = &[
    ("timezone", "zone"),
    ("time_zone", "zone"),
    ("tz", "zone"),
    ("requests", "rate"),
    ("quota", "rate"),
    ("capacity", "burst"),
    ("key_by", "key"),
    ("by", "key"),
    ("cache_size", "max_keys"),
    ("proxy_pass", "upstream"),
    ("backend", "upstream"),
    ("target", "upstream"),
    ("backends", "servers"),
    ("targets", "servers"),
    ("location", "path"),
    ("domain", "host"),
    ("server_name", "host"),
    ("client_max_body_size", "max_body"),
    ("port", "listen"),
    ("bind", "listen"),
    ("address", "listen"),
    ("port", "address"),
    ("bind", "address"),
    ("listen", "address"),
    ("real_ip_from", "trusted_proxies"),
    ("set_real_ip_from", "trusted_proxies"),
];

/// Sections that have names, and those that are lists.
const NAMED: [&str; 3] = ["upstream", "set", "limit"];
const LISTS: [&str; 2] = ["route", "listener"];
/// Further places of a key are not told.
const PLACES_MAX: usize = 3;

/// What to do about a key that `schema` does not have.
pub fn unknown_key(schema: &Schema, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    if schema.name == schema::ROUTE.name && key == "limit" && holds_tables(&entry.node) {
        return LIMIT_HELP.to_owned();
    }
    let homes = homes(schema, key);
    // A word that is a key elsewhere is a misspelling of one here only if hardly anything is wrong with it.
    let near = closest(key, schema.keys());
    if let Some(near) = near.filter(|near| homes.is_empty() || strsim::damerau_levenshtein(key, near) == 1) {
        return format!("did you mean `{near}`?");
    }
    let alias = ALIASES.iter().find(|(other, own)| *other == key && schema.keys().any(|known| known == *own));
    if let Some((_, own)) = alias {
        return format!("it is called `{own}` here");
    }
    let of_limit = homes.iter().any(|home| *home == title(schema::LIMIT.name));
    let named = match of_limit && schema.name == schema::ROUTE.name {
        true => ", and the route names the limit: limits = [\"NAME\"]",
        false => "",
    };
    match homes.is_empty() {
        true => format!("the keys here are {}", schema.keys().collect::<Vec<_>>().join(", ")),
        false => format!("`{key}` belongs in {}{named}", homes.join(" or ")),
    }
}

/// The sections that have `key`, as they are written; tables inside of them only if nothing else has it.
fn homes(schema: &Schema, key: &str) -> Vec<String> {
    let having = |other: &&&Schema| other.name != schema.name && other.keys().any(|known| known == key);
    let (inner, outer): (Vec<&Schema>, Vec<&Schema>) =
        schema::ALL.iter().filter(having).partition(|other| other.name.contains('.'));
    // A name of the top level is a section, and seldom meant.
    let is_section = outer.iter().all(|other| other.name == schema::ROOT.name);
    let homes = if is_section && !inner.is_empty() { inner } else { outer };
    homes.into_iter().take(PLACES_MAX).map(|other| title(other.name)).collect()
}

/// Whether a value is a table, or a list with one.
pub fn holds_tables(node: &Node) -> bool {
    match &node.value {
        Value::Table(_) => true,
        Value::Array(items) => items.iter().any(|item| matches!(item.value, Value::Table(_))),
        _ => false,
    }
}

/// How a section is written.
fn title(name: &str) -> String {
    match name.rsplit_once('.') {
        _ if name == schema::ROOT.name => "the top level".to_owned(),
        _ if name == schema::HEADER_EDIT.name => "`request_headers` or `response_headers` of [[route]]".to_owned(),
        Some((of, key)) => format!("`{key}` of {}", title(of)),
        None if NAMED.contains(&name) => format!("[{name}.NAME]"),
        None if LISTS.contains(&name) => format!("[[{name}]]"),
        None => format!("[{name}]"),
    }
}

/// The candidate that `word` is probably a misspelling of.
pub fn closest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    // Names are short; comparing a long text with each would take quadratic time.
    if word.len() > 128 {
        return None;
    }
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
