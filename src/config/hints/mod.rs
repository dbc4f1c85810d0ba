//! Remedies for keys from other programs and for keys in the wrong section. Called by `reader` for unknown keys, and
//! by `compile`. `foreign_names` has the names of other programs that are no other name of one option here, and
//! `foreign_words` the values.

mod foreign_names;
pub(crate) mod foreign_words;

use crate::config::closest::find_closest;
use crate::config::examples::{CERTIFICATES_EXAMPLE, FORWARD_AUTH_EXAMPLE, TOKEN_AUTH_EXAMPLE};
use crate::config::hints::foreign_words::fold_name;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{self, Schema, listener, route};
use crate::config::tree::{Node, TableEntry, Value};

/// How to attach a limit to a route, for users who put one into the other.
pub const LIMIT_HELP: &str = "a limit has its own section and a name that routes list:\n\n[[route]]\nlimits = [\"per-ip\"]\n\n[limit.per-ip]\nrate = \"10/s\"";

/// Names of `auth` in other programs if another server decides.
const FORWARD_AUTH: [&str; 3] = ["auth_request", "forward_auth", "forwardAuth"];
/// Names of `auth` in other programs if clients send tokens.
const TOKEN_AUTH: [&str; 6] =
    ["auth_jwt", "auth_jwt_key_file", "auth_jwt_key_request", "jwt_authn", "jwks_uri", "remote_jwks"];
/// Maximum number of sections listed for a misplaced key.
const PLACES_MAX: usize = 3;

/// Returns the remedy for a key that `schema` does not have.
pub fn describe_unknown_key(schema: &Schema, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    if schema.name == route::TABLE.name && key == schema::limit::TABLE.name && holds_tables(&entry.node) {
        return LIMIT_HELP.to_owned();
    }
    if schema.name == listener::tls::TABLE.name && matches!(key, "cert" | "key" | "certificate" | "certificate_key") {
        return CERTIFICATES_EXAMPLE.to_owned();
    }
    if let Some(foreign) = foreign_names::describe_foreign_key(schema, key) {
        return foreign;
    }
    let folded = fold_name(key);
    let is_alias = |option: &&ConfigOption| option.aliases.iter().any(|alias| fold_name(alias) == folded);
    if let Some(option) = schema.options.iter().find(is_alias) {
        return match option.name {
            name if name == route::LIMITS.name => LIMIT_HELP.to_owned(),
            name if name == route::AUTH.name && is_in(&FORWARD_AUTH, &folded) => FORWARD_AUTH_EXAMPLE.to_owned(),
            name if name == route::AUTH.name && is_in(&TOKEN_AUTH, &folded) => TOKEN_AUTH_EXAMPLE.to_owned(),
            name if [route::AUTH.name, route::CORS.name].contains(&name) => option.example.to_owned(),
            name => format!("it is called `{name}` here"),
        };
    }
    let homes = sections_with_key(schema, key);
    // A key of another program counts as a misspelling of ours only if it differs by one edit.
    let typo = schema.keys().find(|known| strsim::damerau_levenshtein(key, known) == 1);
    let near = || find_by_words(key, schema.keys()).or_else(|| find_closest(key, schema.keys()));
    if let Some(near) = typo.or_else(|| near().filter(|_| homes.is_empty())) {
        return format!("did you mean `{near}`?");
    }
    let of_limit = homes.iter().any(|home| *home == section_title(schema::limit::TABLE.name));
    let remark = match of_limit && schema.name == route::TABLE.name {
        true => ", and the route names the limit: limits = [\"NAME\"]",
        false => "",
    };
    match homes.is_empty() {
        true => format!("the keys here are {}", schema.keys().collect::<Vec<_>>().join(", ")),
        false => format!("`{key}` belongs to {}{remark}", homes.join(" or ")),
    }
}

/// Returns whether a list has a name, however it is written. `folded`: the name as [`fold_name`] returns it.
fn is_in(names: &[&str], folded: &str) -> bool {
    names.iter().any(|name| fold_name(name) == folded)
}

/// Returns the sections that have `key`, as they are written; nested tables only if no other section has it.
fn sections_with_key(schema: &Schema, key: &str) -> Vec<String> {
    let having = |other: &&&Schema| other.name != schema.name && other.keys().any(|known| known == key);
    let (inner, outer): (Vec<&Schema>, Vec<&Schema>) =
        schema::ALL.iter().filter(having).partition(|other| other.name.contains('.'));
    // At the top level, the name is that of a section, which is seldom meant.
    let is_section = outer.iter().all(|other| other.name == schema::root::TABLE.name);
    let homes = if is_section && !inner.is_empty() { inner } else { outer };
    homes.into_iter().take(PLACES_MAX).map(|other| section_title(other.name)).collect()
}

/// Returns whether a value is a table or a list that contains one.
fn holds_tables(node: &Node) -> bool {
    match &node.value {
        Value::Table(_) => true,
        Value::Array(items) => items.iter().any(|item| matches!(item.value, Value::Table(_))),
        _ => false,
    }
}

/// Returns how a section is written.
fn section_title(name: &str) -> String {
    match name.rsplit_once('.') {
        _ if name == schema::root::TABLE.name => "the top level".to_owned(),
        Some((of, key)) => format!("`{key}` of {}", section_title(of)),
        None => schema::ALL.iter().find(|schema| schema.name == name).map_or(name, |schema| schema.title).to_owned(),
    }
}

/// Returns the candidate that shares the most words with `word`, if one of the two starts with the other: `max_body`
/// for `max_body_size`.
fn find_by_words<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let begins = |long: &str, short: &str| {
        short.contains('_') && long.strip_prefix(short).is_some_and(|rest| rest.starts_with('_'))
    };
    candidates
        .filter(|candidate| begins(word, candidate) || begins(candidate, word))
        .max_by_key(|candidate| candidate.len().min(word.len()))
}
