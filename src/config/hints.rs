//! Remedies for keys from other programs and for keys in the wrong section. Called by `reader` for unknown keys, and
//! by `compile`.

use crate::config::closest::find_closest;
use crate::config::examples::{AUTH_EXAMPLE, CERTIFICATES_EXAMPLE, FORWARD_AUTH_EXAMPLE};
use crate::config::schema;
use crate::config::schema::Schema;
use crate::config::tree::{Node, TableEntry, Value};

/// How to attach a limit to a route, for users who put one into the other.
pub const LIMIT_HELP: &str = "a limit has its own section and a name that routes list:\n\n[[route]]\nlimits = [\"per-ip\"]\n\n[limit.per-ip]\nrate = \"10/s\"";

/// Names of options in other programs (nginx, HAProxy, Caddy, Traefik, Envoy, Kong), each with the name here. If a
/// section has several of our options, the first line wins.
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
    ("gzip", "compress"),
    ("brotli", "compress"),
    ("zstd", "compress"),
    ("encode", "compress"),
    ("compression", "compress"),
    ("gzip_types", "compress"),
    ("auth_basic", "auth"),
    ("auth_basic_user_file", "auth"),
    ("basic_auth", "auth"),
    ("basicauth", "auth"),
    ("basicAuth", "auth"),
    ("auth_request", "auth"),
    ("forward_auth", "auth"),
    ("forwardAuth", "auth"),
    ("error_page", "error_pages"),
    ("proxy_intercept_errors", "intercept"),
    ("strict_transport_security", "hsts"),
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
    // Listeners and the top level.
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

/// Kinds of sections with names (`[limit.NAME]`), and kinds that are lists (`[[route]]`).
const NAMED: [&str; 3] = ["upstream", "set", "limit"];
const LISTS: [&str; 2] = ["route", "listener"];
/// Maximum number of sections listed for a misplaced key.
const PLACES_MAX: usize = 3;

/// Returns the remedy for a key that `schema` does not have.
pub fn describe_unknown_key(schema: &Schema, entry: &TableEntry) -> String {
    let key = entry.key.as_str();
    if schema.name == schema::ROUTE.name && key == "limit" && holds_tables(&entry.node) {
        return LIMIT_HELP.to_owned();
    }
    if schema.name == schema::LISTENER_TLS.name && matches!(key, "cert" | "key" | "certificate" | "certificate_key") {
        return CERTIFICATES_EXAMPLE.to_owned();
    }
    let is_own = |own: &str| schema.keys().any(|known| known == own);
    if let Some((_, own)) = ALIASES.iter().find(|(other, own)| *other == key && is_own(own)) {
        if *own == "limits" {
            return LIMIT_HELP.to_owned();
        }
        if *own == "auth" {
            let is_forwarded = matches!(key, "auth_request" | "forward_auth" | "forwardAuth");
            return if is_forwarded { FORWARD_AUTH_EXAMPLE } else { AUTH_EXAMPLE }.to_owned();
        }
        return format!("it is called `{own}` here");
    }
    let homes = sections_with_key(schema, key);
    // A key of another program counts as a misspelling of ours only if it differs by one edit.
    let typo = schema.keys().find(|known| strsim::damerau_levenshtein(key, known) == 1);
    let near = || find_by_words(key, schema.keys()).or_else(|| find_closest(key, schema.keys()));
    if let Some(near) = typo.or_else(|| near().filter(|_| homes.is_empty())) {
        return format!("did you mean `{near}`?");
    }
    let of_limit = homes.iter().any(|home| *home == section_title(schema::LIMIT.name));
    let named = match of_limit && schema.name == schema::ROUTE.name {
        true => ", and the route names the limit: limits = [\"NAME\"]",
        false => "",
    };
    match homes.is_empty() {
        true => format!("the keys here are {}", schema.keys().collect::<Vec<_>>().join(", ")),
        false => format!("`{key}` belongs to {}{named}", homes.join(" or ")),
    }
}

/// Returns the sections that have `key`, as they are written; nested tables only if no other section has it.
fn sections_with_key(schema: &Schema, key: &str) -> Vec<String> {
    let having = |other: &&&Schema| other.name != schema.name && other.keys().any(|known| known == key);
    let (inner, outer): (Vec<&Schema>, Vec<&Schema>) =
        schema::ALL.iter().filter(having).partition(|other| other.name.contains('.'));
    // At the top level, the name is that of a section, which is seldom meant.
    let is_section = outer.iter().all(|other| other.name == schema::ROOT.name);
    let homes = if is_section && !inner.is_empty() { inner } else { outer };
    homes.into_iter().take(PLACES_MAX).map(|other| section_title(other.name)).collect()
}

/// Returns whether a value is a table or a list that contains one.
pub fn holds_tables(node: &Node) -> bool {
    match &node.value {
        Value::Table(_) => true,
        Value::Array(items) => items.iter().any(|item| matches!(item.value, Value::Table(_))),
        _ => false,
    }
}

/// Returns how a section is written.
fn section_title(name: &str) -> String {
    match name.rsplit_once('.') {
        _ if name == schema::ROOT.name => "the top level".to_owned(),
        Some((of, key)) => format!("`{key}` of {}", section_title(of)),
        None if NAMED.contains(&name) => format!("[{name}.NAME]"),
        None if LISTS.contains(&name) => format!("[[{name}]]"),
        None => format!("[{name}]"),
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
