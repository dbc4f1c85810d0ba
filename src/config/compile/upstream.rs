//! `[upstream.NAME]`, and the upstreams that routes write as URLs. Called by `compile`.

use std::collections::HashMap;

use super::names::{Definitions, NamedSection};
use super::server::usize_of;
use super::upstream_tls::{Reach, SystemRoots};
use crate::config::reader::{At, Section};
use crate::config::report::Diagnostic;
use crate::config::tree::{Node, Value};
use crate::config::{origin, schema};
use crate::upstream::{Balance, Server, Upstream};

pub struct Upstreams<'r> {
    pub list: Vec<Upstream>,
    /// Index into `list`.
    pub names: Definitions<usize>,
    /// Those written as URLs, shared by equal lists.
    anonymous: HashMap<Vec<Server>, usize>,
    /// How those are reached.
    pub reach: Reach<'r>,
}

pub fn upstreams<'r>(named: Vec<NamedSection>, roots: &'r SystemRoots) -> Upstreams<'r> {
    let mut upstreams = Upstreams {
        list: Vec::new(),
        names: Definitions::new(schema::UPSTREAM.name),
        anonymous: HashMap::new(),
        reach: Reach::plain(roots),
    };
    for NamedSection { name, place, section } in named {
        let balance = section.choice("balance", &[("p2c", Balance::P2c), ("round_robin", Balance::RoundRobin)]);
        let reach = Reach::read(&section, roots);
        let servers = match section.node("servers") {
            Some(node) => servers(&section, "servers", node, &reach),
            None => section.absent(format!("{} has no servers", section.title), "add servers = [\"http://HOST:PORT\"]"),
        };
        let max_idle = usize_of(section.integer("max_idle", 0..=100_000));
        if servers.is_some() {
            reach.finish(&section);
        }
        section.finish();
        let index = servers.map(|servers| {
            let balance = balance.unwrap_or(Balance::P2c);
            upstreams.list.push(Upstream { name: name.to_owned(), servers, balance, max_idle });
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
        self.list.push(Upstream { name, servers: servers.clone(), balance: Balance::P2c, max_idle: None });
        self.anonymous.insert(servers, self.list.len() - 1);
        self.list.len() - 1
    }
}

/// A URL, or a list of URLs and `{ url, weight }` tables.
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
    unique.then(|| servers.into_iter().map(|at| at.value).collect())
}

fn server(section: &Section, key: &'static str, item: &Node, reach: &Reach) -> Option<At<Server>> {
    let place = item.place;
    let server_of = |text: &str| Ok(Server { origin: origin::origin(text, || reach.tls())?, weight: 1 });
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
    let weight = section.integer("weight", 1..=1000).and_then(|weight| u32::try_from(weight).ok()).unwrap_or(1);
    section.finish();
    server.map(|server| At { place, value: Server { weight, ..server } })
}
