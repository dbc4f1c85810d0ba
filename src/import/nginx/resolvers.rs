//! Translates `resolver`.
//!
//! nginx asks these servers for the hostnames that it learns with a request (`proxy_pass http://$app`), and for those of
//! `resolve` in an `upstream`. It looks up all other hostnames once, at its start, with the servers of the system. The
//! gateway has one list of servers for all hostnames.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::import::model::ImportedConfig;
use crate::import::syntax::Directive;
use crate::import::text::format_array;

/// The server of Docker networks. `/etc/resolv.conf` of each container in one names it.
const DOCKER: &str = "127.0.0.11";
/// Maximum length of `resolver` in `[server]`.
const RESOLVERS_MAX: usize = 8;

/// How nginx looks up the hostnames of a config.
#[derive(Clone, Copy, Default)]
pub struct HostnameUse {
    /// Some go to the servers of `resolver`.
    with_resolver: bool,
    /// Some go to the servers of the system.
    with_system: bool,
}

impl HostnameUse {
    /// Finds out how the servers of these directives are looked up. The values of variables must not have been put in.
    pub fn find_use(directives: &[Directive]) -> HostnameUse {
        let mut found = HostnameUse::default();
        let mut upstreams = BTreeSet::new();
        walk(directives, &mut |directive| {
            if directive.name == "upstream" {
                upstreams.insert(directive.arg(0).to_ascii_lowercase());
            }
        });
        walk(directives, &mut |directive| match directive.name.as_str() {
            "upstream" => {
                for server in directive.inner().iter().filter(|server| server.name == "server") {
                    let resolves = server.args.iter().any(|arg| arg == "resolve");
                    found.add_host(find_host(server.arg(0)), resolves, &upstreams);
                }
            }
            "proxy_pass" | "grpc_pass" => {
                let url = directive.arg(0);
                let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
                let authority = authority.split('/').next().unwrap_or_default();
                found.add_host(find_host(authority), authority.contains('$'), &upstreams);
            }
            _ => {}
        });
        found
    }

    fn add_host(&mut self, host: &str, with_resolver: bool, upstreams: &BTreeSet<String>) {
        if with_resolver {
            self.with_resolver = true;
        } else if host.parse::<IpAddr>().is_err()
            && !matches!(host, "" | "unix" | "localhost")
            && !upstreams.contains(&host.to_ascii_lowercase())
        {
            self.with_system = true;
        }
    }
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
fn find_host(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

fn walk<'a>(directives: &'a [Directive], visit: &mut dyn FnMut(&'a Directive)) {
    for directive in directives {
        visit(directive);
        walk(directive.inner(), visit);
    }
}

/// Translates the `resolver` directives of all blocks to the one of `[server]`.
pub fn translate_resolvers(http: &[Directive], hostnames: HostnameUse, out: &mut ImportedConfig) {
    if !hostnames.with_resolver {
        return;
    }
    let mut found: Vec<(&Directive, Vec<&str>)> = Vec::new();
    walk(http, &mut |directive| {
        if directive.name == "resolver" {
            let servers = directive.args.iter().map(String::as_str).filter(|arg| !arg.contains('='));
            found.push((directive, servers.collect()));
        }
    });
    let Some((first, servers)) = found.first() else { return };
    let why = if let Some((other, _)) = found.iter().find(|(_, others)| others != servers) {
        out.remarks.add(other, "the gateway has one list of DNS servers; write it as `resolver` of [server]");
        return;
    } else if servers == &[DOCKER] {
        return;
    } else if servers.len() > RESOLVERS_MAX || servers.iter().any(|server| !is_address(&trim_address(server))) {
        "the DNS servers have no addresses here; write `resolver` of [server]"
    } else {
        let servers: Vec<String> = servers.iter().map(|server| trim_address(server)).collect();
        out.server.push(format!("resolver = {}", format_array(&servers)));
        if !hostnames.with_system {
            return;
        }
        "the gateway asks these servers for all hostnames; nginx asks them only for those in variables and with `resolve`"
    };
    out.remarks.add(first, why);
}

/// Returns an address without the brackets of an IPv6 address that has no port.
fn trim_address(text: &str) -> String {
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text).to_owned()
}

/// Returns true for an IP address, with or without a port.
fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok()
}
