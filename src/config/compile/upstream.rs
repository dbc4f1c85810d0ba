//! `[upstream.NAME]`, and the upstreams that routes write as URLs. Called by `compile`.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::caps::{caps, of_server};
use super::context::LimitContext;
use super::health::health;
use super::limit::key_of;
use super::names::{Definitions, NamedSection};
use super::numbers::{ms, usize_of};
use super::upstream_tls::{Reach, SystemRoots};
use crate::config::reader::{At, Section, choose};
use crate::config::report::Diagnostic;
use crate::config::tree::{Node, Value};
use crate::config::{origin, schema};
use crate::limit::key::Key;
use crate::upstream::budget::{RetryOn, RetryRule};
use crate::upstream::caps::ServerCaps;
use crate::upstream::eject::EjectRule;
use crate::upstream::introduction::ProxyVersion;
use crate::upstream::{Balance, Fraction, Server, Upstream};

pub struct Upstreams<'r> {
    pub list: Vec<Upstream>,
    /// Index into `list`.
    pub names: Definitions<usize>,
    /// Those written as URLs, shared by equal lists.
    anonymous: HashMap<Vec<Server>, usize>,
    /// How those are reached.
    pub reach: Reach<'r>,
}

pub fn upstreams<'r>(named: Vec<NamedSection>, roots: &'r SystemRoots, context: &LimitContext) -> Upstreams<'r> {
    let mut upstreams = Upstreams {
        list: Vec::new(),
        names: Definitions::new(schema::UPSTREAM.name),
        anonymous: HashMap::new(),
        reach: Reach::plain(roots),
    };
    for NamedSection { name, place, section } in named {
        let balance = section.label("balance", Balance::ALL, Balance::label);
        let reach = Reach::read(&section, roots);
        let servers = match section.node("servers") {
            Some(node) => servers(&section, "servers", node, &reach),
            None => section.absent(format!("{} has no servers", section.title), "add servers = [\"http://HOST:PORT\"]"),
        };
        let max_idle = usize_of(section.integer("max_idle", 0..=100_000));
        let eject = section.section("eject", &schema::EJECT).map(eject);
        let health = section.section("health", &schema::HEALTH).map(health);
        let retry = section.section("retry", &schema::RETRY).map(retry);
        let hash_on = hash_on(&section, balance, context);
        let spread_above = spread_above(&section, balance);
        let slow_start_ms = section.duration("slow_start", Duration::ZERO..=Duration::from_secs(3600)).map_or(0, ms);
        let proxy_protocol = section.label("proxy_protocol", ProxyVersion::ALL, ProxyVersion::label);
        let caps = caps(&section, servers.as_deref());
        let resolve_every_ms = section.duration("resolve_every", RESOLVE_EVERY).map(ms);
        if servers.is_some() {
            reach.finish(&section);
        }
        section.finish();
        let index = servers.map(|servers| {
            let balance = balance.unwrap_or(Balance::P2c);
            let plain = Upstream::new(name, servers, balance);
            upstreams.list.push(Upstream {
                max_idle,
                eject,
                health,
                retry,
                hash_on,
                spread_above: spread_above.unwrap_or(plain.spread_above),
                slow_start_ms,
                proxy_protocol,
                caps,
                resolve_every_ms: resolve_every_ms.unwrap_or(plain.resolve_every_ms),
                ..plain
            });
            upstreams.list.len() - 1
        });
        upstreams.names.insert(name, place, index);
    }
    upstreams
}

impl Upstreams<'_> {
    /// The upstream of a list of URLs in a route.
    pub fn anonymous(&mut self, servers: Vec<Server>) -> usize {
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

/// How long addresses are used before they are looked up again.
const RESOLVE_EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// How often a thing is looked at, and how long it is left alone.
const TIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

fn eject(section: Section) -> EjectRule {
    let time = |key, default| ms(section.duration(key, TIME).unwrap_or(default));
    let rule = EjectRule {
        consecutive_errors: section
            .integer("consecutive_errors", 1..=10_000)
            .and_then(|errors| u32::try_from(errors).ok())
            .unwrap_or(5),
        error_rate: section.fraction("error_rate").unwrap_or(Fraction::HALF),
        every_ms: time("every", Duration::from_secs(10)),
        for_ms: time("for", Duration::from_secs(30)),
        max: section.fraction("max").unwrap_or(Fraction::HALF),
    };
    section.finish();
    rule
}

/// `hash_on`, which goes with one way to balance.
fn hash_on(section: &Section, balance: Option<Balance>, context: &LimitContext) -> Option<Key> {
    let node = section.node("hash_on");
    match (balance, node) {
        (Some(Balance::ConsistentHash), Some(node)) => match key_of(section, "hash_on", node, context)? {
            key if key.reads_body() => {
                let what = "a server is chosen before the body is read";
                section.fault("hash_on", node, what, "name parts that stand in the head, such as \"header:x-user\"")
            }
            key => Some(key),
        },
        (Some(Balance::ConsistentHash), None) => section.absent(
            format!("{} has no hash_on", section.title),
            "say what requests are told apart by, like hash_on = \"ip\" or [\"header:x-user\"]",
        ),
        (_, Some(node)) => {
            let what = "it is for balance = \"consistent_hash\" alone";
            section.fault("hash_on", node, what, "add that, or remove hash_on")
        }
        (_, None) => None,
    }
}

/// `spread_above`, which goes with the same way to balance.
fn spread_above(section: &Section, balance: Option<Balance>) -> Option<u32> {
    match (balance, section.node("spread_above")) {
        (Some(Balance::ConsistentHash), _) => {
            section.integer("spread_above", 1..=1_000_000).and_then(|requests| u32::try_from(requests).ok())
        }
        (_, Some(node)) => {
            let what = "it is for balance = \"consistent_hash\" alone";
            section.fault("spread_above", node, what, "add that, or remove spread_above")
        }
        (_, None) => None,
    }
}

fn retry(section: Section) -> RetryRule {
    let attempts = usize_of(section.integer("attempts", 1..=10)).unwrap_or(2);
    let budget = section.fraction("budget").unwrap_or(Fraction::FIFTH);
    let on = section.strings("on", |text| choose(text, RETRY_ON));
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
    section.finish();
    rule
}

/// A word of `on`.
#[derive(Clone, Copy, PartialEq)]
enum RetryCause {
    Connect,
    Reset,
    Timeout,
    /// By its place among those that count.
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

/// A URL, or a list of URLs and `{ url, weight }` tables, which may have caps.
pub fn servers(section: &Section, key: &'static str, node: &Node, reach: &Reach) -> Option<Vec<Server>> {
    let items = match &node.value {
        Value::Array(items) if items.is_empty() => {
            return section.fault(key, node, "the list is empty", "name a server, like \"http://127.0.0.1:3000\"");
        }
        Value::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let servers: Vec<Option<At<Server>>> = items.iter().map(|item| server(section, key, item, reach)).collect();
    let servers: Vec<At<Server>> = servers.into_iter().collect::<Option<_>>()?;
    let mut seen = HashMap::new();
    let mut unique = true;
    for server in &servers {
        if let Some(first) = seen.insert(&server.value.origin, server.place) {
            section.mistake(
                Diagnostic::new(server.place, format!("the server `{}` is listed twice", server.value.origin))
                    .related(first, "first listed here")
                    .help("give it a weight instead: { url = \"...\", weight = 2 }"),
            );
            unique = false;
        }
    }
    if servers.iter().all(|server| server.value.weight == 0) {
        let help = "a server of weight 0 gets no requests: give one of them at least 1";
        return section.fault(key, node, "no server has a weight above 0", help);
    }
    unique.then(|| servers.into_iter().map(|at| at.value).collect())
}

fn server(section: &Section, key: &'static str, item: &Node, reach: &Reach) -> Option<At<Server>> {
    let place = item.place;
    let server_of = |text: &str| {
        Ok(Server {
            origin: origin::origin(text, reach.protocol, || reach.tls())?,
            weight: 1,
            caps: ServerCaps::default(),
        })
    };
    let Value::Table(table) = &item.value else {
        if !matches!(item.value, Value::String(_)) {
            return section.wrong_type(key, "a URL or { url, weight }", item);
        }
        return section.parse_node(key, item, server_of).map(|value| At { place, value });
    };
    let section = Section::new(section.sources, &schema::UPSTREAM_SERVER, format!("`{key}`"), table);
    let server = match section.node("url") {
        Some(node) => section.parse_node("url", node, server_of),
        None => section.absent("a server without url", "write { url = \"http://HOST:PORT\", weight = 1 }"),
    };
    let weight = section.integer("weight", 0..=1000).and_then(|weight| u32::try_from(weight).ok()).unwrap_or(1);
    let caps = of_server(&section);
    section.finish();
    server.map(|server| At { place, value: Server { weight, caps, ..server } })
}
