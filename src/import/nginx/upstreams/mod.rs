//! Translates `upstream` blocks and the servers that `proxy_pass` names.
//!
//! Input: `upstream` blocks, and the `proxy_*` directives in effect at a location. Output: upstreams with their
//! servers, and the rewrite of a route. `passes` translates `proxy_pass` of a location, and `tls` how servers are
//! verified.
//!
//! To translate another parameter of servers, add it where `server` is read.

pub mod passes;
mod tls;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use indexmap::IndexMap;

use crate::import::model::ImportedConfig;
use crate::import::nginx::limits::keys::{Variables, find_variables, translate_key};
use crate::import::nginx::review::review_block;
use crate::import::nginx::scope::Scope;
use crate::import::nginx::upstreams::tls::format_tls;
use crate::import::syntax::{Directive, shorten};
use crate::import::text::{format_array, format_duration};
use crate::text::quote_literal;

const WEIGHT_MAX: u16 = 1000;
const IN_FLIGHT_MAX: u32 = 10_000_000;
/// The largest `consecutive_errors`.
const FAILS_MAX: u32 = 10_000;
/// The addresses of a hostname that nginx tries for one request. It tries all, and the gateway none twice.
const ADDRESSES: usize = ATTEMPTS_MAX;
/// The largest `attempts` of `retry`.
const ATTEMPTS_MAX: usize = 10;
/// `max_fails` and `fail_timeout` in ms of a server without them.
const DEFAULT_EJECTION: (u32, u64) = (1, 10_000);

/// The `upstream` blocks by name.
pub type UpstreamBlocks<'a> = HashMap<&'a str, &'a Directive>;

/// The parsed argument of `proxy_pass`.
pub struct PassTarget {
    pub upstream: String,
    /// The path after the authority. Without one, nginx forwards the request's path unchanged.
    pub path: Option<String>,
    /// The directive had variables: nginx sends this path for every request, and without a query.
    pub is_fixed: bool,
    /// The value of `$proxy_host`.
    pub proxy_host: String,
    /// The argument names an `upstream` block.
    pub is_block: bool,
    pub is_grpc: bool,
}

/// Defines the upstream of a `proxy_pass` or `grpc_pass`. The error says why Sluicegate lacks such an upstream.
pub fn define_target(
    at: &Directive,
    blocks: &UpstreamBlocks,
    scope: &Scope,
    out: &mut ImportedConfig,
) -> Result<PassTarget, String> {
    let text = at.arg(0);
    let default = if at.name == "grpc_pass" { "grpc://" } else { "" };
    let text = if text.contains("://") { text.to_owned() } else { format!("{default}{text}") };
    let Some((scheme, rest)) = text.split_once("://") else { return Err("it is not a URL".to_owned()) };
    let ours = match scheme {
        "http" => "http",
        "https" | "grpcs" => "https",
        "grpc" => "h2c",
        _ => return Err(format!("`{scheme}://` is not available")),
    };
    // A target with variables and a path gets that path for every request.
    let rest = if at.is_expanded { rest.strip_suffix("$request_uri").unwrap_or(rest) } else { rest };
    if !find_variables(rest).is_empty() {
        return Err("a server cannot depend on variables; write one route for each server".to_owned());
    }
    let (authority, path) = match rest.strip_prefix("unix:") {
        Some(socket) => match socket.split_once(':') {
            Some((socket, path)) => (format!("unix:{socket}"), Some(path.to_owned())),
            None => (format!("unix:{socket}"), None),
        },
        None => match rest.find('/') {
            Some(slash) => (rest[..slash].to_owned(), Some(rest[slash..].to_owned())),
            None => (rest.to_owned(), None),
        },
    };
    let block = blocks.iter().find(|(name, _)| name.eq_ignore_ascii_case(&authority)).map(|(_, block)| *block);
    let own = if ours == "http" { authority.clone() } else { format!("{authority}-{ours}") };
    let module = if at.name == "grpc_pass" { "grpc" } else { "proxy" };
    let tls = match ours {
        "https" => format_tls(module, block.map(|_| authority.as_str()), scope, out)?,
        _ => None,
    };
    let url = |address: &str| format_server_url(ours, address).ok_or_else(|| format!("`{address}` is not a server"));
    let mut lines = match block {
        Some(block) => translate_block(block, url, scope, out)?,
        None => {
            let url = url(&authority)?;
            let mut lines = vec![format!("servers = {}", quote_literal(&url))];
            if has_name(&url) {
                lines.push(format_retry(ADDRESSES, scope, out));
                lines.push(format_ejection(DEFAULT_EJECTION));
            }
            lines
        }
    };
    if scheme == "grpcs" {
        lines.push("protocol = \"http2\"".to_owned());
    }
    lines.extend(tls);
    let has_maximum = lines.iter().any(|line| line.contains("max_in_flight"));
    let (upstream, is_split) = out.define_upstream(&own, lines);
    if is_split && has_maximum {
        let why = "locations with other `proxy_next_upstream` or TLS settings have upstreams of their own, and each counts \
                   `max_conns` by itself";
        out.remarks.add(at, why);
    }
    let default_port = if ours == "https" { ":443" } else { ":80" };
    let proxy_host = authority.strip_suffix(default_port).unwrap_or(&authority).to_owned();
    let is_grpc = at.name == "grpc_pass";
    let is_fixed = at.is_expanded && path.is_some();
    Ok(PassTarget { upstream, path, is_fixed, proxy_host, is_block: block.is_some(), is_grpc })
}

/// Formats a server's address as a URL. Returns `None` if the address is not valid.
fn format_server_url(scheme: &str, address: &str) -> Option<String> {
    if let Some(socket) = address.strip_prefix("unix:") {
        return (socket.starts_with('/') && scheme == "http").then(|| format!("unix:{socket}"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    if address.is_empty() || !address.chars().all(fits) {
        return None;
    }
    Some(format!("{scheme}://{address}"))
}

/// Translates the directives of an `upstream` block to the lines of an upstream. The error says which value is wrong.
fn translate_block(
    block: &Directive,
    url: impl Fn(&str) -> Result<String, String>,
    scope: &Scope,
    out: &mut ImportedConfig,
) -> Result<Vec<String>, String> {
    let mut servers: IndexMap<String, ServerParameters> = IndexMap::new();
    let mut balance = "balance = \"round_robin\"".to_owned();
    let mut ejections: Vec<Option<(u32, u64)>> = Vec::new();
    for directive in block.inner() {
        match directive.name.as_str() {
            "server" => {
                let url = match directive.args.iter().find_map(|arg| arg.strip_prefix("service=")) {
                    Some(service) => format_service(&url(directive.arg(0))?, service)?,
                    None => url(&address_with_port(directive.arg(0)))?,
                };
                // Only the path of a socket has a case.
                let url = if url.starts_with("unix:") { url } else { url.to_ascii_lowercase() };
                let server = ServerParameters::parse(directive, out)?;
                if server.is_backup {
                    out.remarks.add(directive, "backup servers are not available, so this one is left out");
                    continue;
                }
                ejections.extend((!server.is_down).then(|| server.ejection()));
                // An upstream has each server once.
                match servers.get_mut(&url) {
                    Some(same) => {
                        same.merge(&server);
                        let why = "the upstream has this server twice, so it is one with the sum of their weights";
                        out.remarks.add(directive, why);
                    }
                    None => drop(servers.insert(url, server)),
                }
            }
            "least_conn" => balance = "balance = \"least_requests\"".to_owned(),
            "ip_hash" => balance = "balance = \"consistent_hash\"\nhash_on = \"ip/24/128\"".to_owned(),
            "random" => balance = "balance = \"p2c\"".to_owned(),
            "hash" => match translate_hash(directive.arg(0)) {
                Some((lines, remark)) => {
                    balance = lines;
                    if let Some(why) = remark {
                        out.remarks.add(directive, why);
                    }
                }
                None => {
                    out.remarks.add(directive, "Sluicegate cannot hash this value, so the upstream uses round robin");
                }
            },
            "include" => {
                return Err(format!("the file `{}` of its upstream does not exist", shorten(directive.arg(0))));
            }
            _ => drop(review_block(std::slice::from_ref(directive), "U", out)),
        }
    }
    if servers.is_empty() {
        return Err("the upstream has no servers".to_owned());
    }
    let written: Vec<String> = servers.iter().map(|(url, server)| server.format_server(url)).collect();
    let mut lines = vec![format!("servers = [{}]", written.join(", ")), balance];
    let has_names = servers.keys().any(|url| has_name(url));
    if servers.len() > 1 || has_names {
        let tried = if has_names { ADDRESSES } else { servers.len() };
        lines.push(format_retry(tried, scope, out));
        lines.extend(format_eject(&ejections, block, out));
    }
    Ok(lines)
}

/// Formats `eject`, which nginx has by default: the `max_fails` and `fail_timeout` of the servers, if they have any.
fn format_eject(ejections: &[Option<(u32, u64)>], block: &Directive, out: &mut ImportedConfig) -> Option<String> {
    let first = ejections.iter().copied().flatten().next();
    if ejections.iter().any(|other| *other != first) {
        let why = "its servers have different max_fails or fail_timeout: all have those of the first that has any";
        out.remarks.add(block, why);
    }
    if first.is_some_and(|(_, timeout)| timeout > TIME_MAX_MS) {
        out.remarks.add(block, CUT_TIME);
    }
    first.map(format_ejection)
}

/// Formats `eject` for `max_fails` and `fail_timeout` in ms.
fn format_ejection((fails, timeout): (u32, u64)) -> String {
    let (fails, timeout) = (fails.min(FAILS_MAX), format_duration(timeout.clamp(100, TIME_MAX_MS)));
    format!("eject = {{ consecutive_errors = {fails}, for = {timeout}, max = 1.0 }}")
}

/// Formats `server NAME service=SERVICE` as the notation of SRV records. A service without a dot is that of RFC 2782.
fn format_service(url: &str, service: &str) -> Result<String, String> {
    let Some((scheme, name)) = url.split_once("://").filter(|(_, name)| !name.contains([':', '['])) else {
        return Err("a server with `service` is a hostname without a port".to_owned());
    };
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if !service.split('.').all(is_label) {
        return Err(format!("`service={}` is not the name of a service", shorten(service)));
    }
    let notation = if scheme == "http" { "srv".to_owned() } else { format!("srv+{scheme}") };
    Ok(match service.contains('.') {
        true => format!("{notation}:{service}.{name}"),
        false => format!("{notation}:_{service}._tcp.{name}"),
    })
}

/// Returns whether all servers of an `upstream` block are down, so that nginx answers 502.
pub fn is_down(block: &Directive) -> bool {
    let servers = || block.inner().iter().filter(|directive| directive.name == "server");
    let is_out = |server: &Directive| server.args.iter().skip(1).any(|arg| arg == "down");
    servers().next().is_some() && servers().all(is_out)
}

/// Returns whether a server is a name or a service, which may have several addresses.
fn has_name(url: &str) -> bool {
    if url.starts_with("srv") {
        return true;
    }
    let authority = url.split_once("://").map_or("", |(_, authority)| authority);
    let is_address = authority.parse::<SocketAddr>().is_ok() || authority.parse::<IpAddr>().is_ok();
    !authority.is_empty() && !authority.starts_with('[') && !is_address
}

/// Adds nginx's default port to the address of a `server` without a port. In an `upstream` block it is 80, even for
/// HTTPS.
fn address_with_port(text: &str) -> String {
    let has_port = text.starts_with("unix:") || text.rsplit(']').next().is_some_and(|end| end.contains(':'));
    if has_port { text.to_owned() } else { format!("{text}:80") }
}

/// Translates the key of `hash` to the lines of a consistent hash, and what differs. Returns `None` if Sluicegate cannot
/// hash this key.
fn translate_hash(text: &str) -> Option<(String, Option<&'static str>)> {
    let found = translate_key(text, &Variables::default()).ok()?;
    let [only] = found.keys.as_slice() else { return None };
    let lines = only.format_lines();
    let key = lines.first().filter(|line| *line != "key = \"all\"")?;
    let on = key.replacen("key", "hash_on", 1);
    Some((format!("balance = \"consistent_hash\"\n{on}"), found.remark))
}

/// The parameters after the address of a `server`.
struct ServerParameters {
    weight: u16,
    is_down: bool,
    is_backup: bool,
    /// `max_conns`, if it is not 0.
    max_in_flight: Option<u32>,
    /// `max_fails`, in failed requests. 0 means that the server is never left out.
    fails: u32,
    /// `fail_timeout` in ms.
    timeout: u64,
}

impl ServerParameters {
    /// Parses the parameters of a `server`. Parameters that Sluicegate lacks become remarks.
    fn parse(directive: &Directive, out: &mut ImportedConfig) -> Result<ServerParameters, String> {
        let (fails, timeout) = DEFAULT_EJECTION;
        let mut server =
            ServerParameters { weight: 1, is_down: false, is_backup: false, max_in_flight: None, fails, timeout };
        for arg in directive.args.iter().skip(1) {
            match arg.split_once('=') {
                Some(("weight", text)) => match text.parse::<u16>() {
                    Ok(given @ 1..=WEIGHT_MAX) => server.weight = given,
                    _ => return Err(format!("the weight `{text}` is not from 1 to 1000")),
                },
                Some(("max_conns", most)) => match most.parse::<u32>() {
                    Ok(0) => {}
                    Ok(most @ 1..=IN_FLIGHT_MAX) => server.max_in_flight = Some(most),
                    _ => return Err(format!("max_conns={most} is not a number from 0 to 10000000")),
                },
                Some(("max_fails", most)) => {
                    server.fails = most.parse::<u32>().map_err(|_| format!("max_fails={most} is not a number"))?;
                }
                Some(("fail_timeout", time)) => {
                    server.timeout =
                        parse_duration_ms(time).ok_or_else(|| format!("fail_timeout={time} is not a time"))?;
                }
                _ if arg == "down" => server.is_down = true,
                _ if arg == "backup" => server.is_backup = true,
                Some(("service", _)) => {}
                _ if arg == "resolve" => {}
                _ => {
                    out.remarks.add(directive, &format!("`{}` is not available", shorten(arg)));
                }
            }
        }
        Ok(server)
    }

    /// Adds the share of another entry of the same server. One that is down has none.
    fn merge(&mut self, other: &ServerParameters) {
        if self.is_down {
            (self.weight, self.is_down, self.max_in_flight) = (other.weight, other.is_down, other.max_in_flight);
        } else if !other.is_down {
            self.weight = (self.weight + other.weight).min(WEIGHT_MAX);
            let most = self.max_in_flight.zip(other.max_in_flight);
            self.max_in_flight = most.map(|(own, more)| (own + more).min(IN_FLIGHT_MAX));
        }
    }

    /// Returns `max_fails` and `fail_timeout` in ms. `None` if the server is never left out.
    fn ejection(&self) -> Option<(u32, u64)> {
        (self.fails > 0 && self.timeout > 0).then_some((self.fails, self.timeout))
    }

    /// Formats the server as an inline table of `servers`.
    fn format_server(&self, url: &str) -> String {
        let mut parts = vec![format!("url = {}", quote_literal(url))];
        parts.extend(self.max_in_flight.map(|most| format!("max_in_flight = {most}")));
        match (self.is_down, self.weight) {
            (true, _) => parts.push("weight = 0".to_owned()),
            (false, 1) => {}
            (false, weight) => parts.push(format!("weight = {weight}")),
        }
        format!("{{ {} }}", parts.join(", "))
    }
}

/// Translates `proxy_next_upstream`. nginx tries each server once.
fn format_retry(servers: usize, scope: &Scope, out: &mut ImportedConfig) -> String {
    let mut on = Vec::new();
    let mut attempts = servers.clamp(2, ATTEMPTS_MAX);
    match scope.get("proxy_next_upstream") {
        None => on.extend(["connect", "reset", "timeout"]),
        Some(directive) => {
            for arg in &directive.args {
                match arg.as_str() {
                    "error" => on.extend(["connect", "reset"]),
                    "timeout" => on.push("timeout"),
                    "http_502" => on.push("502"),
                    "http_503" => on.push("503"),
                    "http_504" => on.push("504"),
                    "off" => attempts = 1,
                    _ => {
                        out.remarks.add(directive, &format!("`{}` is not available", shorten(arg)));
                    }
                }
            }
            if !on.contains(&"connect") {
                let why = "if a server does not accept the connection, Sluicegate tries another one; nginx answers 502";
                out.remarks.add(directive, why);
            }
        }
    }
    if on.is_empty() {
        on.push("connect");
    }
    format!("retry = {{ attempts = {attempts}, on = {} }}", format_array(&on))
}

/// The longest time of a config, and the remark about a longer one.
const TIME_MAX_MS: u64 = 86_400_000;
const CUT_TIME: &str = "Sluicegate waits for a day at most";

/// Translates the time of a directive to ms. `remark` gets what differs. Returns `None` if Sluicegate does not accept it.
pub fn translate_time(at: &Directive, mut remark: impl FnMut(&str)) -> Option<u64> {
    match parse_duration_ms(at.arg(0)) {
        Some(ms @ 1..=TIME_MAX_MS) => Some(ms),
        Some(ms) if ms > TIME_MAX_MS => {
            remark(CUT_TIME);
            Some(TIME_MAX_MS)
        }
        _ => {
            remark("Sluicegate does not accept this time");
            None
        }
    }
}

/// Parses a time of nginx to ms: `10s`, `1m30s`, or seconds without a unit.
fn parse_duration_ms(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let unit = match unit.trim() {
            "ms" => 1,
            "s" => 1000,
            "" if next.is_empty() => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = next;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_have_several_addresses() {
        for (url, expected) in [
            ("http://app", true),
            ("https://app.test:8443", true),
            ("http://10.0.0.1", false),
            ("http://10.0.0.1:80", false),
            ("http://[::1]", false),
            ("http://[::1]:80", false),
            ("unix:/run/app.sock", false),
        ] {
            assert_eq!(has_name(url), expected, "{url}");
        }
    }

    #[test]
    fn services_are_srv_records() {
        for (url, service, expected) in [
            ("http://app.internal", "http", Some("srv:_http._tcp.app.internal")),
            ("https://app.internal", "https", Some("srv+https:_https._tcp.app.internal")),
            ("h2c://app", "grpc", Some("srv+h2c:_grpc._tcp.app")),
            ("http://app.internal", "_http._tcp", Some("srv:_http._tcp.app.internal")),
            ("http://app.internal", "one.backend", Some("srv:one.backend.app.internal")),
            ("http://app.internal:80", "http", None),
            ("http://[::1]", "http", None),
            ("http://app", "", None),
            ("http://app", "a/b", None),
            ("unix:/run/app.sock", "http", None),
        ] {
            assert_eq!(format_service(url, service).ok().as_deref(), expected, "{url} {service}");
        }
    }

    #[test]
    fn times_of_nginx() {
        for (text, ms) in [
            ("30", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("100ms", Some(100)),
            ("1m30", Some(90_000)),
            ("1w", Some(604_800_000)),
            ("1M", Some(2_592_000_000)),
            ("1y", Some(31_536_000_000)),
            ("1h 30m", Some(5_400_000)),
            ("99999999999999999999", None),
            ("30 1s", None),
            ("1x", None),
            ("", Some(0)),
            ("s", None),
        ] {
            assert_eq!(parse_duration_ms(text), ms, "{text}");
        }
    }
}
