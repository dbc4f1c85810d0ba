//! Remedies for what people write who know another program, or put a key in the wrong place. Called
//! by `reader` for keys that a table does not have, and by `compile`.

use super::schema::{self, Schema};
use super::tree::{Node, TableEntry, Value};

/// How a limit gets to a route, for those who put the one into the other.
pub const LIMIT_HELP: &str = "a limit has a section and a name of its own, by which routes call it:\n\n[[route]]\nlimits = [\"per-ip\"]\n\n[limit.per-ip]\nrate = \"10/s\"";

/// What a key is called elsewhere (in nginx, HAProxy, Caddy, Traefik, Envoy, Kong), and here. Where a table has several of
/// our keys, the first line counts.
const ALIASES: &[(&str, &str)] = &[
    // Limits.
    ("timezone", "zone"),
    ("time_zone", "zone"),
    ("tz", "zone"),
    ("requests", "rate"),
    ("quota", "rate"),
    ("average", "rate"),
    ("capacity", "burst"),
    ("key_by", "key"),
    ("limit_by", "key"),
    ("by", "key"),
    ("cache_size", "max_keys"),
    // Routes.
    ("proxy_pass", "upstream"),
    ("reverse_proxy", "upstream"),
    ("backend", "upstream"),
    ("target", "upstream"),
    ("service", "upstream"),
    ("to", "upstream"),
    ("location", "path"),
    ("paths", "path"),
    ("domain", "host"),
    ("hosts", "host"),
    ("server_name", "host"),
    ("rate_limit", "limits"),
    ("ratelimit", "limits"),
    ("limit_req", "limits"),
    ("middlewares", "limits"),
    ("plugins", "limits"),
    ("rate_limit", "limit"),
    ("ratelimit", "limit"),
    ("limit_conn", "max_in_flight"),
    ("client_max_body_size", "max_body"),
    ("max_request_body_bytes", "max_body"),
    ("maxRequestBodyBytes", "max_body"),
    ("request_body_limit", "max_body"),
    ("body_limit", "max_body"),
    ("proxy_set_header", "request_headers"),
    ("header_up", "request_headers"),
    ("add_header", "response_headers"),
    ("header_down", "response_headers"),
    ("strip_path", "rewrite"),
    ("strip_prefix", "rewrite"),
    ("preserve_host", "rewrite"),
    // Timeouts.
    ("timeout", "response_timeout"),
    ("read_timeout", "response_timeout"),
    ("proxy_read_timeout", "response_timeout"),
    ("response_header_timeout", "response_timeout"),
    ("dial_timeout", "connect_timeout"),
    ("proxy_connect_timeout", "connect_timeout"),
    ("client_body_timeout", "body_timeout"),
    ("client_header_timeout", "header_timeout"),
    ("read_header_timeout", "header_timeout"),
    ("idle_timeout", "keepalive_timeout"),
    // Upstreams.
    ("backends", "servers"),
    ("targets", "servers"),
    ("server", "servers"),
    ("lb_policy", "balance"),
    ("load_balancing", "balance"),
    ("algorithm", "balance"),
    ("least_conn", "balance"),
    ("ip_hash", "balance"),
    ("sticky", "balance"),
    ("max_fails", "eject"),
    ("fail_timeout", "eject"),
    ("outlier_detection", "eject"),
    ("max_conns", "max_connections"),
    ("keepalive", "max_idle"),
    ("health_check", "health"),
    ("health_uri", "health"),
    ("healthcheck", "health"),
    ("retries", "retry"),
    // Listeners and the whole.
    ("port", "https_port"),
    ("port", "listen"),
    ("bind", "listen"),
    ("address", "listen"),
    ("port", "address"),
    ("bind", "address"),
    ("listen", "address"),
    ("ssl_certificate", "tls"),
    ("ssl_certificate_key", "tls"),
    ("worker_processes", "workers"),
    ("threads", "workers"),
    ("nbthread", "workers"),
    ("maxconn", "max_connections"),
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
    let is_own = |own: &str| schema.keys().any(|known| known == own);
    if let Some((_, own)) = ALIASES.iter().find(|(other, own)| *other == key && is_own(own)) {
        if *own == "limits" {
            return LIMIT_HELP.to_owned();
        }
        return format!("it is called `{own}` here");
    }
    let homes = homes(schema, key);
    // A word that is a key elsewhere is a misspelling of one here only if hardly anything is wrong with it.
    let typo = schema.keys().find(|known| strsim::damerau_levenshtein(key, known) == 1);
    let near = || longer_or_shorter(key, schema.keys()).or_else(|| closest(key, schema.keys()));
    if let Some(near) = typo.or_else(|| near().filter(|_| homes.is_empty())) {
        return format!("did you mean `{near}`?");
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

/// The candidate that has the most words in common with `word`, where one of the two begins with the other:
/// `max_body` for `max_body_size`.
fn longer_or_shorter<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let begins = |long: &str, short: &str| {
        short.contains('_') && long.strip_prefix(short).is_some_and(|rest| rest.starts_with('_'))
    };
    candidates
        .filter(|candidate| begins(word, candidate) || begins(candidate, word))
        .max_by_key(|candidate| candidate.len().min(word.len()))
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
