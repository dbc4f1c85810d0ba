//! Translates the headers that a location sets, adds and removes, in requests to servers and in responses to clients.

use std::collections::HashSet;

use crate::import::model::{ImportedConfig, ResponseLines, RouteBody};
use crate::import::nginx::scope::Scope;
use crate::import::nginx::upstreams::PassTarget;
use crate::import::syntax::Directive;
use crate::import::text::{format_list, format_pairs};
use crate::import::unseen::explain_unseen;
use crate::text::quote_literal;

/// Headers that `forwarded_headers` adds. A route that does not set one of them removes it.
const FORWARDED: [&str; 6] =
    ["x-forwarded-for", "x-real-ip", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-request-id"];

/// Headers of servers that nginx removes unless `proxy_pass_header` names them. It also replaces `Date`, which the
/// gateway keeps.
const HIDDEN: [&str; 7] = [
    "server",
    "x-pad",
    "x-accel-expires",
    "x-accel-redirect",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
];

/// Headers of the connection and of message framing, which a config cannot set.
const OWN: [&str; 10] = [
    "host",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "expect",
];

/// The facts, besides the request, on which the values of variables depend.
#[derive(Default)]
pub struct GatewayFacts {
    /// `$scheme`, if all listeners have the same.
    pub scheme: Option<&'static str>,
    /// The ports of all listeners.
    pub ports: Vec<u16>,
    /// Some proxies are trusted.
    pub has_trusted: bool,
    /// The comment on a `real_ip_header` that the gateway does not read, so that it does not know its clients.
    pub unread_client: Option<usize>,
    /// The headers of [`FORWARDED`] that any route sets.
    pub forwarded: Vec<&'static str>,
}

impl GatewayFacts {
    /// Returns whether all listeners have port 80 or 443, which clients do not name in `Host`.
    pub fn has_default_ports(&self) -> bool {
        self.ports.iter().all(|port| matches!(port, 80 | 443))
    }

    /// Returns the value of a variable that is the same for all requests.
    fn constant(&self, value: &str, server_name: Option<&str>) -> Option<String> {
        match (value, self.ports.as_slice()) {
            ("$scheme", _) => self.scheme.map(str::to_owned),
            ("$server_port", [port]) => Some(port.to_string()),
            ("$server_name", _) => server_name.map(str::to_owned),
            _ => None,
        }
    }
}

/// Lists the headers of `forwarded_headers` that any directive of these blocks sets.
pub fn list_forwarded(directives: &[&Directive]) -> Vec<&'static str> {
    let mut names: HashSet<&str> = HashSet::new();
    let mut rest: Vec<&Directive> = directives.to_vec();
    while let Some(directive) = rest.pop() {
        rest.extend(directive.inner());
        if matches!(directive.name.as_str(), "proxy_set_header" | "grpc_set_header") && directive.arg(1).contains('$') {
            names.extend(FORWARDED.iter().find(|name| directive.arg(0).eq_ignore_ascii_case(name)));
        }
    }
    FORWARDED.into_iter().filter(|name| names.contains(name)).collect()
}

/// How the gateway's own value of a header compares with that of nginx.
enum OwnValue {
    Same,
    Differs(&'static str),
    None,
}

/// Compares the value of a header that `forwarded_headers` adds. Behind a trusted proxy, the gateway keeps the header of
/// that proxy, while nginx replaces it.
fn compare_forwarded(name: &str, value: &str, facts: &GatewayFacts) -> OwnValue {
    const OTHER_HEADER: &str =
        "write the proxies in front of this gateway to trusted_proxies; only their header is read";
    const KEPT: &str = "the header of a trusted proxy is kept";
    const CHAIN: &str =
        "behind a trusted proxy, the server gets the address of that proxy at the end, not that of the client";
    match (name, value) {
        // The client's address from the header of a trusted proxy.
        ("x-real-ip", "$remote_addr") => OwnValue::Same,
        ("x-forwarded-for", "$proxy_add_x_forwarded_for") if facts.has_trusted => OwnValue::Differs(CHAIN),
        ("x-forwarded-host", "$http_host" | "$host")
        | ("x-forwarded-proto", "$scheme")
        | ("x-request-id", "$request_id")
            if facts.has_trusted =>
        {
            OwnValue::Differs(KEPT)
        }
        // Servers would mistake addresses that clients choose for the address of the client.
        ("x-forwarded-for", "$remote_addr") | ("x-real-ip", "$realip_remote_addr") if facts.has_trusted => {
            OwnValue::None
        }
        ("x-forwarded-for", "$remote_addr" | "$proxy_add_x_forwarded_for") => OwnValue::Same,
        ("x-real-ip", "$realip_remote_addr") | ("x-request-id", "$request_id") => OwnValue::Same,
        ("x-forwarded-proto", "$scheme") | ("x-forwarded-host", "$http_host") => OwnValue::Same,
        // Clients name no port in `Host` if all ports are those of the scheme.
        ("x-forwarded-host", "$host") if facts.has_default_ports() => OwnValue::Same,
        ("x-forwarded-host", "$host" | "$host:$server_port") => {
            OwnValue::Differs("the server gets the client's host with its port")
        }
        ("x-forwarded-port", "$server_port") => OwnValue::Differs("the server gets the port that the client used"),
        (_, value) if value.starts_with("$http_") => OwnValue::Differs(OTHER_HEADER),
        _ => OwnValue::None,
    }
}

/// Translates the headers of requests that a location sets and removes, and the `Host` of its server. `server_name`:
/// the first name of the server.
pub fn translate_request_headers(
    scope: &Scope,
    target: &PassTarget,
    facts: &GatewayFacts,
    server_name: Option<&str>,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) -> Option<String> {
    let mut host = None;
    let (mut set, mut remove): (Vec<(String, String)>, Vec<String>) = (Vec::new(), Vec::new());
    let mut forwards = HashSet::new();
    let mut upgrades = false;
    let list = if target.is_grpc { "grpc_set_header" } else { "proxy_set_header" };
    let sent_names = list_sent(scope.list(list), out, body);
    for directive in scope.list(list) {
        let (name, value) = (directive.arg(0).to_ascii_lowercase(), directive.arg(1));
        if value.is_empty() && sent_names.contains(&name) {
            continue;
        }
        let placeholder = find_placeholder(directive, scope, facts).map(|(placeholder, differs)| {
            differs.into_iter().for_each(|why| body.add_remark(out.remarks.add(directive, why)));
            placeholder.to_owned()
        });
        let constant = placeholder.or_else(|| facts.constant(value, server_name).filter(|value| is_plain(value)));
        let same = format!("$http_{}", name.replace('-', "_"));
        match (name.as_str(), value) {
            ("host", _) => host = Some(*directive),
            ("upgrade", value) => upgrades |= !value.is_empty(),
            ("connection" | "te" | "keep-alive" | "expect", _) | ("content-length" | "transfer-encoding", "") => {}
            (name, "") if is_header(name) => remove.push(name.to_owned()),
            (name, _) if FORWARDED.contains(&name) && !is_value(value) => {
                let own = compare_forwarded(name, value, facts);
                match (own, constant) {
                    (OwnValue::Same, _) => drop(forwards.insert(name.to_owned())),
                    (_, Some(constant)) => set.push((name.to_owned(), constant)),
                    (OwnValue::Differs(why), None) => {
                        forwards.insert(name.to_owned());
                        body.add_remark(out.remarks.add(directive, why));
                    }
                    (OwnValue::None, None) => {
                        remove.push(name.to_owned());
                        body.add_remark(out.remarks.add(directive, UNAVAILABLE));
                    }
                }
            }
            // The header of the client stays, unless the gateway removes it.
            (name, value) if value == same => note_unseen(directive, name, out, body),
            (name, value) if is_header(name) && is_plain(value) => set.push((name.to_owned(), value.to_owned())),
            (name, _) if is_header(name) && constant.is_some() => {
                set.extend(constant.map(|constant| (name.to_owned(), constant)));
            }
            (name, _) => {
                // Without a value of the gateway, the client must not choose one.
                if is_header(name) {
                    remove.push(name.to_owned());
                }
                body.add_remark(out.remarks.add(directive, &explain_unavailable(value)));
            }
        }
    }
    let unset: Vec<&str> = facts.forwarded.iter().copied().filter(|name| !forwards.contains(*name)).collect();
    note_lost_forwarded(facts, &unset, remove.iter().chain(set.iter().map(|(name, _)| name)), out, body);
    remove.extend(unset.into_iter().map(str::to_owned));
    remove.retain(|name| !set.iter().any(|(own, _)| own == name));
    remove.sort();
    remove.dedup();
    let mut earlier = HashSet::new();
    set.retain(|(name, _)| earlier.insert(name.clone()));
    body.lines.extend(format_request_headers(&set, &remove));
    if !upgrades && !target.is_grpc {
        body.lines.push("upgrades = []".to_owned());
    }
    translate_host(host, target, server_name, out, body)
}

/// Formats `request_headers`. Returns `None` if nothing changes.
fn format_request_headers(set: &[(String, String)], remove: &[String]) -> Option<String> {
    let set = (!set.is_empty()).then(|| format!("set = {}", format_pairs(set)));
    let remove = (!remove.is_empty()).then(|| format!("remove = {}", format_list(remove)));
    let parts: Vec<String> = set.into_iter().chain(remove).collect();
    (!parts.is_empty()).then(|| format!("request_headers = {{ {} }}", parts.join(", ")))
}

/// Adds a comment if the gateway removes or rewrites a header of the client that nginx forwards.
fn note_unseen(directive: &Directive, name: &str, out: &mut ImportedConfig, body: &mut RouteBody) {
    if let Some(why) = explain_unseen(name) {
        body.add_remark(out.remarks.add(directive, &why));
    }
}

/// Adds a comment if a route removes a forwarding header only because other routes set it: nginx forwards that of a
/// trusted proxy. `unset`: the forwarding headers that the route does not set. `own`: the headers that it changes itself.
fn note_lost_forwarded<'h>(
    facts: &GatewayFacts,
    unset: &[&str],
    own: impl Iterator<Item = &'h String>,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) {
    let own: Vec<&String> = own.collect();
    let lost = unset.iter().find(|name| !own.iter().any(|own| own == *name));
    if let Some(name) = lost.filter(|_| facts.has_trusted) {
        let text = format!("{}: {name} of a trusted proxy is removed here, as other locations set it", body.origin);
        body.add_remark(out.remarks.add_text(text));
    }
}

/// Lists the names of headers with a value. A header that is set twice gets a comment.
fn list_sent(directives: &[&Directive], out: &mut ImportedConfig, body: &mut RouteBody) -> HashSet<String> {
    let mut names = HashSet::new();
    for directive in directives.iter().filter(|directive| !directive.arg(1).is_empty()) {
        if !names.insert(directive.arg(0).to_ascii_lowercase()) {
            body.add_remark(out.remarks.add(directive, "nginx sends this header twice, Sluicegate once"));
        }
    }
    names
}

const UNAVAILABLE: &str = "the value is not available, so the server does not get this header, from the client neither";

/// Translates the `Host` that the server gets to a part of `rewrite`.
fn translate_host(
    host: Option<&Directive>,
    target: &PassTarget,
    server_name: Option<&str>,
    out: &mut ImportedConfig,
    body: &mut RouteBody,
) -> Option<String> {
    let set_host = |host: &str| Some(format!("host = {}", quote_literal(host)));
    let is_host =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:[]".contains(c));
    match host.map(|directive| (directive, directive.arg(1))) {
        None | Some((_, "$proxy_host")) => match target.is_block {
            true if is_host(&target.proxy_host) => set_host(&target.proxy_host),
            _ => Some("upstream_host = true".to_owned()),
        },
        Some((_, "$http_host")) => None,
        Some((_, "$host")) => set_host("{host}"),
        Some((_, "$server_name")) if server_name.is_some_and(is_host) => set_host(server_name?),
        Some((_, text)) if is_host(text) => set_host(text),
        Some((directive, _)) => {
            body.add_remark(out.remarks.add(directive, "the server gets the client's Host instead"));
            None
        }
    }
}

/// Translates the headers of responses that a block adds. nginx adds them to its own responses, too.
pub fn translate_added_headers(scope: &Scope, out: &mut ImportedConfig, body: &mut RouteBody) {
    for directive in scope.list("add_header") {
        let (name, value) = (directive.arg(0).to_ascii_lowercase(), directive.arg(1).trim());
        let always = directive.arg(2) == "always";
        let replaces = matches!(name.as_str(), "etag" | "last-modified");
        let lines = &mut body.response;
        match (always, replaces) {
            _ if !is_header(&name) || !is_plain(value) || replaces && !always => {
                body.add_remark(out.remarks.add(directive, "this header is not added: the value is not available"));
            }
            (_, true) => {
                // nginx replaces these headers; the last value counts, and an empty one removes.
                lines.set.retain(|(own, _)| *own != name);
                lines.remove.retain(|own| *own != name);
                match value.is_empty() {
                    true => lines.remove.push(name),
                    false => lines.set.push((name, value.to_owned())),
                }
            }
            // nginx adds no empty header.
            _ if value.is_empty() => {}
            (true, false) => lines.add.push((name, value.to_owned())),
            (false, false) => lines.add_on_success.push((name, value.to_owned())),
        }
    }
}

/// Translates the headers of servers that clients do not get.
pub fn translate_hidden_headers(scope: &Scope, is_grpc: bool, lines: &mut ResponseLines) {
    let (hide, pass) = match is_grpc {
        true => ("grpc_hide_header", "grpc_pass_header"),
        false => ("proxy_hide_header", "proxy_pass_header"),
    };
    let names = |list: &str| scope.list(list).iter().map(|directive| directive.arg(0).to_ascii_lowercase()).collect();
    let (hidden, passed): (Vec<String>, Vec<String>) = (names(hide), names(pass));
    let is_passed = |name: &str| passed.iter().any(|passed| passed == name);
    lines.remove.extend(HIDDEN.iter().filter(|name| !is_passed(name)).map(|name| (*name).to_owned()));
    lines.remove.extend(hidden.into_iter().filter(|name| is_header(name) && !is_passed(name)));
    lines.remove.retain(|name| !lines.set.iter().any(|(set, _)| set == name));
    let mut earlier = HashSet::new();
    lines.remove.retain(|name| earlier.insert(name.clone()));
}

/// Returns true for headers that a config can set.
fn is_header(name: &str) -> bool {
    !name.is_empty()
        && !OWN.contains(&name)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Returns true for values without variables that a config can have.
fn is_value(value: &str) -> bool {
    !value.contains('$') && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value
}

/// Returns whether a config can have a value of a header as it is: it has no variables, and nothing that looks like a
/// placeholder of this program or another one, such as `{user}` or `%REQ(x-user)%`.
fn is_plain(value: &str) -> bool {
    let begins = |rest: &str| rest.starts_with(|first: char| first.is_ascii_alphabetic()) && rest.contains('}');
    // `%D0%9F` is percent-encoded.
    let is_encoded = |rest: &str| rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    let is_word = |rest: &str| rest.starts_with(|first: char| first.is_ascii_uppercase()) && !is_encoded(rest);
    let has_words = value.matches('%').count() > 1 && value.split('%').skip(1).any(is_word);
    is_value(value) && !value.split('{').skip(1).any(begins) && !has_words
}

/// Returns the placeholder for a variable about the client or its request, with why its value differs. The headers of
/// [`FORWARDED`] have values of their own.
fn find_placeholder(
    directive: &Directive,
    scope: &Scope,
    facts: &GatewayFacts,
) -> Option<(&'static str, Option<&'static str>)> {
    const ENCODED: &str = "characters other than ASCII are percent-encoded, not escaped";
    const SAME_ID: &str = "the id of a trusted proxy is kept";
    let asks_certificate = scope.get("ssl_client_certificate").is_some();
    // Without passwords, nginx takes the name that the client states.
    let asks_password =
        scope.get("auth_basic").is_some_and(|at| at.arg(0) != "off") && scope.get("auth_basic_user_file").is_some();
    let is_forwarded = FORWARDED.iter().any(|name| directive.arg(0).eq_ignore_ascii_case(name));
    match directive.arg(1) {
        "$ssl_client_escaped_cert" if asks_certificate => Some(("{tls_cert_pem}", None)),
        "$ssl_client_s_dn" if asks_certificate => Some(("{tls_subject}", Some(ENCODED))),
        "$remote_user" if asks_password => Some(("{user}", None)),
        "$request_id" if !is_forwarded => Some(("{request_id}", Some(SAME_ID).filter(|_| facts.has_trusted))),
        "$remote_addr" if !is_forwarded => Some(("{client_ip}", None)),
        "$request_method" if !is_forwarded => Some(("{method}", None)),
        _ => None,
    }
}

/// Returns why the server does not get a header, and what to write instead.
fn explain_unavailable(value: &str) -> String {
    let name = value.trim_start_matches('$').trim_matches(['{', '}']);
    match name {
        name if name.starts_with("geoip") => format!(
            "{UNAVAILABLE}; for the country of the client, write [geo] file and {{country}} in `request_headers`"
        ),
        _ => UNAVAILABLE.to_owned(),
    }
}
