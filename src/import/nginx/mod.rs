//! Translates the directives of nginx configs.
//!
//! Input: the parsed directives of all files. Output: routes, limits, upstreams and listeners in an [`ImportedConfig`],
//! and a remark about each directive that is not translated.
//!
//! - `directives`: the table of all directives, with what the import does with each; `review`: comments by that table.
//! - `scope`: which directives a block inherits; `variables`: constants of `set`.
//! - `servers`: `server` blocks; `server_steps`, `server_redirects`: what precedes locations.
//! - `sites`: their listeners and names, and which servers others would reach.
//! - `nesting`: which requests a location inside of another one gets.
//! - `locations`: `location` blocks as routes; `conditions`: `if`, `limit_except`, and `rewrite` of a server; `redirects`: targets;
//!   `captures`: groups of regular expressions in targets and in paths of servers.
//! - `files`: `root`, `alias`, `index` and `try_files`.
//! - `headers`: headers of requests and responses; `upstreams`: `proxy_pass` and the servers behind it; `resolvers`: `resolver`.
//! - `access`: `allow` and `deny`; `passwords`: `auth_basic`; `pages`: `error_page`; `compression`: `gzip`; `logs`: `access_log`.
//! - `limits`: `limit_req` and `limit_conn` with their zones and keys, including `map` and `geo`.
//! - `client_settings`: trusted proxies, timeouts and sizes; `sizes`: sizes such as `8m`; `types`: types of responses.
//!
//! To add a directive, add its row to `directives`, and read it where its subject belongs, such as `locations`.

mod access;
mod captures;
mod client_settings;
mod compression;
mod conditions;
mod directives;
mod files;
mod headers;
mod limits;
mod locations;
mod logs;
mod nesting;
mod pages;
mod passwords;
mod redirects;
mod resolvers;
mod review;
mod scope;
mod server_redirects;
mod server_steps;
mod servers;
mod sites;
mod sizes;
mod types;
mod upstreams;
mod variables;

pub use captures::translate_captures;
pub use directives::write_table;
pub use limits::limit_in_flight;
pub use sizes::translate_size;

use std::collections::HashSet;

use crate::import::error::{ImportError, Result};
use crate::import::model::ImportedConfig;
use crate::import::nginx::client_settings::{find_unread_client, translate_client_settings};
use crate::import::nginx::headers::{GatewayFacts, list_forwarded};
use crate::import::nginx::limits::Zones;
use crate::import::nginx::limits::keys::Variables;
use crate::import::nginx::limits::maps::compose_maps;
use crate::import::nginx::logs::translate_access_log;
use crate::import::nginx::resolvers::{HostnameUse, translate_resolvers};
use crate::import::nginx::review::review_block;
use crate::import::nginx::scope::{Scope, is_of_request};
use crate::import::nginx::servers::ServerBlocks;
use crate::import::nginx::sites::listeners::read_listens;
use crate::import::nginx::upstreams::UpstreamBlocks;
use crate::import::nginx::variables::{list_changed_variables, lower_names, replace_constants};
use crate::import::syntax::Directive;

/// Translates the directives of all files.
pub fn translate_directives(mut directives: Vec<Directive>, out: &mut ImportedConfig) -> Result<()> {
    lower_names(&mut directives);
    let hostnames = HostnameUse::find_use(&directives);
    replace_constants(&mut directives);
    // Some files have the content of `http { }` without the block around it.
    let mut http: Vec<Directive> = Vec::new();
    for directive in directives {
        match directive.name.as_str() {
            "http" => {
                let block = directive.block.unwrap_or_default();
                review_block(&block, "H", out);
                http.extend(block);
            }
            "location" => {
                return Err(
                    directive.error("a `location` must stand in a `server`; import the file that includes this one")
                );
            }
            _ => {
                review_block(std::slice::from_ref(&directive), "MH", out);
                http.push(directive);
            }
        }
    }
    // A variable that has another value for some requests does not have the value in its `map`.
    let changed: HashSet<String> = list_changed_variables(&http).into_iter().map(str::to_ascii_lowercase).collect();
    compose_maps(&mut http, &changed);
    let servers: Vec<&Directive> = http.iter().filter(|directive| directive.name == "server").collect();
    if servers.is_empty() {
        let at = http.first().map(|directive| directive.error("there is no `server` block in these files"));
        return Err(at.unwrap_or_else(|| ImportError::new("the files", 0, "there is no `server` block in them")));
    }
    let scope = Scope::default().enter_block(&http);
    let facts = gather_facts(&http, &servers, &scope, out)?;
    out.has_default_ports = facts.has_default_ports();
    let blocks = http.iter().filter(|directive| matches!(directive.name.as_str(), "map" | "geo"));
    let is_constant = |name: &str| !changed.contains(&name.to_ascii_lowercase());
    let blocks: Vec<(&str, &Directive)> =
        blocks.filter_map(|at| Some((at.args.last()?.strip_prefix('$')?, at))).collect();
    if let Some((_, at)) = blocks.iter().find(|(name, _)| is_of_request(name)) {
        return Err(at.error("a variable of the request cannot get another value; give it another name"));
    }
    let variables = Variables {
        blocks: blocks.into_iter().filter(|(name, _)| is_constant(name)).collect(),
        has_one_scheme: facts.scheme.is_some(),
    };
    let upstreams: UpstreamBlocks = http
        .iter()
        .filter(|directive| directive.name == "upstream")
        .map(|directive| (directive.arg(0), directive))
        .collect();
    let mut zones = Zones::default();
    for directive in http.iter().filter(|at| matches!(at.name.as_str(), "limit_req_zone" | "limit_conn_zone")) {
        zones.define_zone(directive, &variables)?;
    }
    zones.find_uses(&http)?;
    translate_client_settings(&http, &scope, &facts, out)?;
    translate_resolvers(&http, hostnames, out);
    translate_access_log(&http, out);
    ServerBlocks::new(scope, upstreams, zones, (&facts, &variables), &servers, out).translate_servers(&servers)
}

/// Gathers what the values of variables depend on.
fn gather_facts(
    http: &[Directive],
    servers: &[&Directive],
    scope: &Scope,
    out: &mut ImportedConfig,
) -> Result<GatewayFacts> {
    let mut listens = Vec::new();
    for server in servers {
        listens.extend(read_listens(server, out)?);
    }
    let scheme = match (listens.iter().any(|listen| listen.tls), listens.iter().any(|listen| !listen.tls)) {
        (true, false) => Some("https"),
        (false, true) => Some("http"),
        _ => None,
    };
    let mut ports: Vec<u16> = listens
        .iter()
        .filter_map(|listen| listen.address.parse::<std::net::SocketAddr>().ok().map(|address| address.port()))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    Ok(GatewayFacts {
        scheme,
        ports,
        has_trusted: client_settings::list_trusted(http).next().is_some(),
        unread_client: find_unread_client(http, scope, out),
        forwarded: list_forwarded(&http.iter().collect::<Vec<_>>()),
    })
}
