//! Sections `[upstream.NAME]`, and upstreams that routes write as URLs. Called by `compile`.
//!
//! Output: compiled upstreams. `tls` compiles how servers are reached, `health` active checks, `caps` limits of
//! concurrency, `breaker` circuit breakers. This file compiles servers, load balancing, retries and ejection.
//!
//! To add a load balancer, add its name to the words of `balance` here and its code in `upstream::balance`.

pub(crate) mod breaker;
pub(crate) mod caps;
pub(crate) mod health;
pub(crate) mod tls;

use std::collections::HashMap;

use crate::config::compile::context::LimitContext;
use crate::config::compile::limits::compile_key_option;
use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::compile::to_millis;
use crate::config::compile::upstreams::breaker::compile_breaker;
use crate::config::compile::upstreams::caps::{compile_adaptive, compile_caps, compile_server_caps};
use crate::config::compile::upstreams::health::compile_health;
use crate::config::compile::upstreams::tls::{SystemRoots, TransportOptions};
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section, find_choice};
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::{ServerSettings, origin, schema};
use crate::limiting::key::Key;
use crate::upstream::caps::ServerCaps;
use crate::upstream::eject::EjectRule;
use crate::upstream::retry_budget::{RetryOn, RetryRule};
use crate::upstream::{Balance, Origin, Server, Upstream};

pub struct Upstreams<'r> {
    pub list: Vec<Upstream>,
    /// Index into `list`.
    pub names: Definitions<usize>,
    /// Upstreams written as URLs; equal lists share one.
    anonymous: HashMap<Vec<Server>, usize>,
    /// How their servers are reached.
    pub transport: TransportOptions<'r>,
}

pub fn compile_upstreams<'r>(
    named: Vec<NamedSection>,
    (roots, server): (&'r SystemRoots, &ServerSettings),
    context: &LimitContext,
) -> Upstreams<'r> {
    let mut upstreams = Upstreams {
        list: Vec::new(),
        names: Definitions::new(schema::upstream::TABLE.name),
        anonymous: HashMap::new(),
        transport: TransportOptions::for_urls(roots, server.response_head_bounds()),
    };
    for NamedSection { name, place, section } in named {
        let balance = section.get(&schema::upstream::BALANCE);
        let transport = TransportOptions::from_section(&section, &upstreams.transport);
        let servers = match section.node(&schema::upstream::SERVERS) {
            Some(node) => compile_server_list(&section, &schema::upstream::SERVERS, node, &transport),
            None => section
                .report_missing(format!("{} has no servers", section.title), "add servers = [\"http://HOST:PORT\"]"),
        };
        let max_idle = section.get(&schema::upstream::MAX_IDLE);
        let eject = section.read_section(&schema::upstream::EJECT).map(compile_eject);
        let breaker = compile_breaker(&section);
        let health = section.read_section(&schema::upstream::HEALTH).map(compile_health);
        let retry = section.read_section(&schema::upstream::RETRY).map(compile_retry);
        let hash_on = compile_hash_on(&section, balance, context);
        let spread_above = read_spread_above(&section, balance);
        let slow_start_ms = to_millis(section.get(&schema::upstream::SLOW_START));
        let proxy_protocol = section.get(&schema::upstream::PROXY_PROTOCOL);
        let is_adaptive = section.node(&schema::upstream::ADAPTIVE).is_some();
        let adaptive = section.read_section(&schema::upstream::ADAPTIVE).and_then(compile_adaptive);
        let caps = compile_caps(&section, servers.as_deref(), is_adaptive);
        let resolve_every_ms = to_millis(section.get(&schema::upstream::RESOLVE_EVERY));
        if servers.is_some() {
            transport.report_unused(&section);
        }
        section.report_unread_keys();
        let index = servers.map(|servers| {
            let plain = Upstream::new(name, servers, balance);
            upstreams.list.push(Upstream {
                max_idle,
                eject,
                breaker,
                health,
                retry,
                hash_on,
                spread_above: spread_above.unwrap_or(plain.spread_above),
                slow_start_ms,
                proxy_protocol,
                caps,
                adaptive,
                resolve_every_ms,
                ..plain
            });
            upstreams.list.len() - 1
        });
        upstreams.names.insert(name, place, index);
    }
    upstreams
}

impl Upstreams<'_> {
    /// Returns the upstream of a list of URLs in a route.
    pub fn intern_url_list(&mut self, servers: Vec<Server>) -> usize {
        if let Some(index) = self.anonymous.get(&servers) {
            return *index;
        }
        let label = |server: &Server| match server.weight {
            1 => server.origin.to_string(),
            weight => format!("{}*{weight}", server.origin),
        };
        let name = servers.iter().map(label).collect::<Vec<_>>().join(",");
        self.list.push(Upstream::new(&name, servers.clone(), Balance::P2c));
        self.anonymous.insert(servers, self.list.len() - 1);
        self.list.len() - 1
    }
}

fn compile_eject(section: Section) -> EjectRule {
    let rule = EjectRule {
        consecutive_errors: section.get(&schema::upstream::eject::CONSECUTIVE_ERRORS),
        error_rate: section.get(&schema::upstream::eject::ERROR_RATE),
        every_ms: to_millis(section.get(&schema::upstream::eject::EVERY)),
        for_ms: to_millis(section.get(&schema::upstream::eject::FOR)),
        max: section.get(&schema::upstream::eject::MAX),
    };
    section.report_unread_keys();
    rule
}

/// Compiles `hash_on`, which requires `consistent_hash`.
fn compile_hash_on(section: &Section, balance: Balance, context: &LimitContext) -> Option<Key> {
    let node = section.node(&schema::upstream::HASH_ON);
    match (balance, node) {
        (Balance::ConsistentHash, Some(node)) => {
            match compile_key_option(section, &schema::upstream::HASH_ON, node, context)? {
                key if key.reads_body() => {
                    let what = "a server is chosen before the body is read";
                    section.report_fault(
                        schema::upstream::HASH_ON.name,
                        node,
                        what,
                        "use values of the request head, such as \"header:x-user\"",
                    )
                }
                key => Some(key),
            }
        }
        (Balance::ConsistentHash, None) => section.report_missing(
            format!("{} has no hash_on", section.title),
            "set the key, like hash_on = \"ip\" or [\"header:x-user\"]",
        ),
        (_, Some(node)) => {
            let what = "it is for balance = \"consistent_hash\" alone";
            section.report_fault(schema::upstream::HASH_ON.name, node, what, "add that, or remove hash_on")
        }
        (_, None) => None,
    }
}

/// Compiles `spread_above`, which requires `consistent_hash`.
fn read_spread_above(section: &Section, balance: Balance) -> Option<u32> {
    match (balance, section.node(&schema::upstream::SPREAD_ABOVE)) {
        (Balance::ConsistentHash, _) => section.read(&schema::upstream::SPREAD_ABOVE),
        (_, Some(node)) => {
            let what = "it is for balance = \"consistent_hash\" alone";
            section.report_fault(schema::upstream::SPREAD_ABOVE.name, node, what, "add that, or remove spread_above")
        }
        (_, None) => None,
    }
}

fn compile_retry(section: Section) -> RetryRule {
    let attempts = section.get(&schema::upstream::retry::ATTEMPTS);
    let budget = section.get(&schema::upstream::retry::BUDGET);
    let on = section.read_strings(&schema::upstream::retry::ON, |text| find_choice(text, RETRY_ON));
    let has = |cause| on.as_ref().is_some_and(|on| on.iter().any(|at| at.value == cause));
    let rule = RetryRule {
        attempts,
        budget,
        on: RetryOn {
            connect: on.is_none() || has(RetryCause::Connect),
            reset: on.is_none() || has(RetryCause::Reset),
            timeout: has(RetryCause::Timeout),
            statuses: [0, 1, 2].map(|place| has(RetryCause::Status(place))),
        },
    };
    section.report_unread_keys();
    rule
}

/// A word of `retry.on`.
#[derive(Clone, Copy, PartialEq)]
enum RetryCause {
    Connect,
    Reset,
    Timeout,
    /// Index among the retryable statuses.
    Status(usize),
}

const RETRY_ON: &[(&str, RetryCause)] = &[
    ("connect", RetryCause::Connect),
    ("reset", RetryCause::Reset),
    ("timeout", RetryCause::Timeout),
    ("502", RetryCause::Status(0)),
    ("503", RetryCause::Status(1)),
    ("504", RetryCause::Status(2)),
];

/// Reads a URL, or a list of URLs and `{ url, weight }` tables with optional caps.
pub fn compile_server_list(
    section: &Section,
    option: &ConfigOption,
    node: &Node,
    transport: &TransportOptions,
) -> Option<Vec<Server>> {
    let items = match &node.value {
        Value::Array(items) if items.is_empty() => {
            return section.report_fault(
                option.name,
                node,
                "the list is empty",
                "name a server, like \"http://127.0.0.1:3000\"",
            );
        }
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let servers: Vec<Option<At<Server>>> =
        items.iter().map(|item| compile_server(section, option, item, transport)).collect();
    let servers: Vec<At<Server>> = servers.into_iter().collect::<Option<_>>()?;
    let mut places = HashMap::new();
    let mut unique = true;
    for server in &servers {
        if let Some(first) = places.insert(&server.value.origin, server.place) {
            section.add_mistake(
                Diagnostic::new(server.place, format!("the server `{}` is listed twice", server.value.origin))
                    .with_related(first, "first listed here")
                    .with_help("give it a weight instead: { url = \"...\", weight = 2 }"),
            );
            unique = false;
        }
    }
    if servers.iter().all(|server| server.value.weight == 0) {
        let help = "a server of weight 0 gets no requests: give one of them at least 1";
        return section.report_fault(option.name, node, "no server has a weight above 0", help);
    }
    unique.then(|| servers.into_iter().map(|at| at.value).collect())
}

fn compile_server(
    section: &Section,
    option: &ConfigOption,
    item: &Node,
    transport: &TransportOptions,
) -> Option<At<Server>> {
    let place = item.place;
    let server_of = |text: &str| {
        let origin = origin::parse_origin(text, transport.protocol, || transport.tls_settings())?;
        Ok(Server {
            origin: Origin { head_bounds: transport.head_bounds, ..origin },
            weight: 1,
            caps: ServerCaps::default(),
        })
    };
    let Value::Table(table) = &item.value else {
        if !matches!(item.value, Value::String(_)) {
            return section.report_wrong_type(option.name, "a URL or { url, weight }", item);
        }
        return section.parse_node(option.name, item, server_of).map(|value| At { place, value });
    };
    let section = Section::new(section.sources, &schema::upstream::server::TABLE, format!("`{}`", option.name), table);
    let server = match section.node(&schema::upstream::server::URL) {
        Some(node) => section.parse_node(schema::upstream::server::URL.name, node, server_of),
        None => section.report_missing("a server without url", "write { url = \"http://HOST:PORT\", weight = 1 }"),
    };
    let weight = section.get(&schema::upstream::server::WEIGHT);
    let caps = compile_server_caps(&section);
    section.report_unread_keys();
    server.map(|server| At { place, value: Server { weight, caps, ..server } })
}
