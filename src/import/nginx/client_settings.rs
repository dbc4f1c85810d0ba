//! Translates settings of client connections: trusted proxies, timeouts and sizes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::import::error::Result;
use crate::import::model::ImportedConfig;
use crate::import::nginx::headers::GatewayFacts;
use crate::import::nginx::limits::keys::find_variables;
use crate::import::nginx::scope::Scope;
use crate::import::nginx::sizes::{parse_size, translate_size};
use crate::import::nginx::upstreams::translate_time;
use crate::import::syntax::Directive;
use crate::import::text::{format_array, format_duration};
use crate::received_headers::may_name_client;
use crate::text::quote;

/// The bounds of `max_header_bytes`.
const HEADER_BYTES_MIN: u64 = 32 << 10;
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Lists `set_real_ip_from`. nginx also accepts it in servers and locations; Sluicegate has one list for the whole gateway.
pub fn list_trusted(http: &[Directive]) -> impl Iterator<Item = &Directive> {
    let in_server = |directive: &'_ Directive| directive.name == "server";
    let inner = http.iter().filter(move |directive| in_server(directive)).flat_map(|server| server.inner());
    http.iter().chain(inner).filter(|directive| directive.name == "set_real_ip_from")
}

/// Finds a directive that changes the client's address for a single location.
fn find_in_location(block: &Directive) -> Option<&Directive> {
    block.inner().iter().filter(|at| at.name == "location").find_map(|location| {
        let is_address = |at: &&Directive| at.name == "set_real_ip_from" || at.name.starts_with("real_ip_");
        location.inner().iter().find(is_address).or_else(|| find_in_location(location))
    })
}

/// Finds a server that trusts other proxies than the first one does. A list of a server replaces that of `http`.
fn find_other_trust(http: &[Directive]) -> Option<&Directive> {
    let trusted_in = |block: &[Directive]| -> BTreeSet<String> {
        let trusted = block.iter().filter(|at| at.name == "set_real_ip_from");
        trusted.map(|directive| directive.arg(0).to_owned()).collect()
    };
    let inherited = trusted_in(http);
    let mut servers = http.iter().filter(|at| at.name == "server").map(|server| {
        let own = trusted_in(server.inner());
        (server, if own.is_empty() { inherited.clone() } else { own })
    });
    let (_, first) = servers.next()?;
    servers.find(|(_, trusted)| *trusted != first).map(|(server, _)| server)
}

/// Lists the headers in which nginx looks for the client. Without `real_ip_header`, it is `X-Real-IP`.
fn list_address_headers(http: &[Directive], scope: &Scope) -> Vec<(Option<Directive>, String)> {
    let around = scope.get("real_ip_header");
    let mut headers: Vec<(Option<Directive>, String)> = Vec::new();
    for server in http.iter().filter(|at| at.name == "server") {
        let own: Vec<&Directive> = server.inner().iter().filter(|at| at.name == "real_ip_header").collect();
        let directives = if own.is_empty() { vec![around.unwrap_or(server)] } else { own };
        for directive in directives {
            let name = match directive.name.as_str() {
                "server" => "x-real-ip".to_owned(),
                _ => directive.arg(0).to_ascii_lowercase(),
            };
            if headers.iter().all(|(_, known)| *known != name) {
                headers.push((Some(directive.clone()), name));
            }
        }
    }
    headers
}

/// Adds a comment if the gateway cannot know clients as nginx does: by a header that it cannot read, by several headers,
/// or by trusted proxies of a part of the config only. Returns its number.
pub fn find_unread_client(http: &[Directive], scope: &Scope, out: &mut ImportedConfig) -> Option<usize> {
    if let Some(directive) = http.iter().filter(|at| at.name == "server").find_map(find_in_location) {
        let why = "Sluicegate finds the client before the route, so a location cannot change how, and routes that \
                   depend on its address are closed";
        return Some(out.remarks.add(directive, why));
    }
    list_trusted(http).next()?;
    if let Some(server) = find_other_trust(http) {
        let why = "Sluicegate trusts the same proxies for all servers, and servers of this config trust others, so \
                   routes that depend on the client's address are closed";
        return Some(out.remarks.add(server, why));
    }
    let mut servers = http.iter().filter(|at| at.name == "server");
    let first = servers.next().map(|server| is_recursive(server, scope));
    if let Some(server) = servers.find(|server| Some(is_recursive(server, scope)) != first) {
        let why = "Sluicegate finds the client in the same way for all servers, and `real_ip_recursive` of this config is \
                   not the same for all, so routes that depend on the client's address are closed";
        return Some(out.remarks.add(server, why));
    }
    let headers = list_address_headers(http, scope);
    let is_read = |name: &str| name == "proxy_protocol" || may_name_client(name);
    let (directive, why) = match headers.as_slice() {
        [(_, name)] if is_read(name) => return None,
        [(directive, _)] => (directive, "Sluicegate cannot read the client's address from this header"),
        [_, (directive, _), ..] => (directive, "Sluicegate reads the client's address from one header for all servers"),
        [] => return None,
    };
    let why = format!("{why}, so routes that depend on it are closed");
    directive.as_ref().map(|directive| out.remarks.add(directive, &why))
}

/// Translates the settings of client connections to `[server]`.
pub fn translate_client_settings(
    http: &[Directive],
    scope: &Scope,
    facts: &GatewayFacts,
    out: &mut ImportedConfig,
) -> Result<()> {
    let mut networks: Vec<String> = Vec::new();
    for directive in list_trusted(http) {
        let text = directive.arg(0);
        let network = text.parse::<IpNet>().map(|net| net.to_string());
        match network.or_else(|_| text.parse().map(|ip: IpAddr| ip.to_string())) {
            Ok(text) if !networks.contains(&text) => networks.push(text),
            Ok(_) => {}
            Err(_) => drop(out.remarks.add(directive, "not an address or a network, so it is not trusted")),
        }
    }
    if !networks.is_empty() {
        out.server.push(format!("trusted_proxies = {}", format_array(&networks)));
        let headers = list_address_headers(http, scope);
        // Without recursion, nginx uses the last address, even if it belongs to a trusted proxy.
        let is_recursive = http.iter().any(|at| at.name == "server" && is_recursive(at, scope));
        if !is_recursive && headers.iter().any(|(_, name)| name == "x-forwarded-for") {
            out.server.push("max_forwarded_hops = 1".to_owned());
        }
        if let [(_, name)] = headers.as_slice()
            && !matches!(name.as_str(), "x-forwarded-for" | "proxy_protocol")
            && may_name_client(name)
        {
            out.server.push(format!("client_address = {}", quote(name)));
        }
    }
    out.server.push(format!("forwarded_headers = {}", format_array(&facts.forwarded)));
    for (theirs, ours) in [("client_header_timeout", "header_timeout"), ("keepalive_timeout", "keepalive_timeout")] {
        if let Some(directive) = scope.get(theirs) {
            let time = translate_time(directive, |why| {
                out.remarks.add(directive, why);
            });
            out.server.extend(time.map(|ms| format!("{ours} = \"{ms}ms\"")));
        }
    }
    // nginx waits longer than the gateway by default.
    out.server.extend(["connect_timeout", "body_timeout"].map(|name| format!("{name} = {}", format_duration(60_000))));
    translate_header_buffers(http, out);
    translate_underscores(http, scope, out);
    out.server.push(match scope.get("client_max_body_size") {
        Some(directive) => format!("max_body = {}", translate_size(directive)?),
        None => "max_body = \"1MiB\"".to_owned(),
    });
    Ok(())
}

fn is_recursive(server: &Directive, scope: &Scope) -> bool {
    let own = server.inner().iter().find(|directive| directive.name == "real_ip_recursive");
    own.map_or_else(|| scope.is_on("real_ip_recursive"), |directive| directive.arg(0) == "on")
}

/// Translates `underscores_in_headers on`. In nginx, `$http_x_key` then reads `X-Key` and `X_Key`.
fn translate_underscores(http: &[Directive], scope: &Scope, out: &mut ImportedConfig) {
    let servers: Vec<&Directive> = http.iter().filter(|at| at.name == "server").collect();
    let settings: Vec<Option<&Directive>> = servers
        .iter()
        .map(|server| {
            let own = server.inner().iter().find(|at| at.name == "underscores_in_headers");
            own.or_else(|| scope.get("underscores_in_headers")).filter(|at| at.arg(0) == "on")
        })
        .collect();
    let Some(directive) = settings.iter().flatten().next() else { return };
    let why = if !settings.iter().all(Option::is_some) {
        "the gateway has one setting for all servers, and these differ; such headers are removed"
    } else if http.iter().any(reads_dashed_header) {
        "such headers are removed, as variables such as `$http_x_key` would read `X_Key`, too, and conditions and keys do not"
    } else {
        out.server.push("underscore_headers = \"keep\"".to_owned());
        return;
    };
    out.remarks.add(directive, why);
}

/// Returns whether a directive, or one inside of it, reads a header whose name may have an underscore in place of a dash.
fn reads_dashed_header(directive: &Directive) -> bool {
    let is_dashed = |name: &String| name.strip_prefix("http_").is_some_and(|name| name.contains('_'));
    let texts = directive.args.iter().chain([&directive.name]);
    texts.flat_map(|text| find_variables(text)).any(|name| is_dashed(&name))
        || directive.inner().iter().any(reads_dashed_header)
}

/// Translates `large_client_header_buffers`: the largest of all servers.
fn translate_header_buffers(http: &[Directive], out: &mut ImportedConfig) {
    let in_server = http.iter().filter(|at| at.name == "server").flat_map(Directive::inner);
    let mut most = 0;
    for directive in http.iter().chain(in_server).filter(|at| at.name == "large_client_header_buffers") {
        let number = directive.arg(0).parse::<u64>().ok();
        match number.zip(parse_size(directive.arg(1))).and_then(|(number, size)| number.checked_mul(size)) {
            Some(bytes @ 1..=HEADER_BYTES_MAX) => most = most.max(bytes),
            Some(bytes) if bytes > 0 => {
                most = HEADER_BYTES_MAX;
                out.remarks.add(directive, "a request head has at most 1 MiB");
            }
            _ => drop(out.remarks.add(directive, "not a number and a size")),
        }
    }
    if most > 0 {
        out.server.push(format!("max_header_bytes = {}", most.max(HEADER_BYTES_MIN)));
    }
}
