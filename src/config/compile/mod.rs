//! From the trees of all files to the compiled config: one file per kind of section. Called by
//! `config::load` and its likes.

mod access_log;
mod acme;
mod action;
mod afterwards;
mod caps;
mod context;
mod dates;
mod edit;
mod health;
mod jwt;
mod limit;
mod listener;
mod matcher;
mod names;
mod numbers;
mod overrides;
mod refuse;
mod route;
mod rule;
mod server;
mod set;
mod shared;
mod spans;
mod unused;
mod upstream;
mod upstream_tls;
mod when;

use std::sync::Arc;

use super::reader::Section;
use super::report::{Diagnostic, MistakeKind, Place};
use super::schema::{self, Schema};
use super::source::{SMALLEST, SourceTexts};
use super::tree::{self, Node, Table, Value};
use super::{AdminContact, Config};
use crate::limit::limits::LimitTable;
use crate::route::Strictness;
use context::LimitContext;
use names::NamedSection;
use upstream_tls::SystemRoots;

/// `None` when anything is wrong; every mistake is in `sources` then.
pub fn compile(sources: &SourceTexts, documents: &[Table]) -> Option<Config> {
    let roots: Vec<Section> =
        documents.iter().map(|table| Section::new(sources, &schema::ROOT, "the top level", table)).collect();
    let merged = |key| merged(sources, &roots, key);
    let [server, admin, acme, store, headers, jwt, upstreams, sets, limits] =
        ["server", "admin", "acme", "store", "headers", "jwt", "upstream", "set", "limit"].map(merged);
    let has_acme = roots.iter().any(|root| root.node("acme").is_some());
    let no_route = roots.iter().all(|root| root.node("route").is_none());
    let routes = tables(sources, &roots, "route", &schema::ROUTE);
    let listeners = tables(sources, &roots, "listener", &schema::LISTENER);
    for root in roots {
        root.entry("include");
        root.finish();
    }

    let acme = acme.section(sources, &schema::ACME);
    let acme = acme::AcmeSection::read(&acme, has_acme);
    let server = server::server(&server.section(sources, &schema::SERVER), &listeners, &acme);
    let acme = acme.finish(&server.listeners);
    let admin = server::admin(&admin.section(sources, &schema::ADMIN), &server.listeners);
    let store = server::store(&store.section(sources, &schema::STORE));
    let ratelimit_headers = server::headers(&headers.section(sources, &schema::HEADERS));
    let sets = set::sets(sets.named(sources, "set", &schema::SET));
    let has_jwt = !jwt.table.entries.is_empty();
    let jwt = jwt::jwt(&jwt.section(sources, &schema::JWT));
    let asks_clients = listeners.iter().any(listener::asks_clients);
    let context =
        LimitContext { on_error: store.on_error, sets: &sets, has_jwt, asks_clients, max_keys: store.max_keys };
    let limits = limit::limits(limits.named(sources, "limit", &schema::LIMIT), &context);
    let roots = SystemRoots::default();
    let mut upstreams = upstream::upstreams(upstreams.named(sources, "upstream", &schema::UPSTREAM), &roots, &context);
    let context = route::RouteContext { defaults: &server.defaults, limits: &limits, sets: &sets };
    let (routes, table) = route::routes(sources, &routes, &context, &mut upstreams);
    if no_route && !documents.is_empty() {
        let place = Place { file: 0, start: 0, end: 0 };
        let message = "the configuration has no route, so it would answer 404 to everything";
        sources
            .mistake(Diagnostic::new(place, message).kind(MistakeKind::Absent).help(format!("add one:\n\n{SMALLEST}")));
    }
    if sources.has_mistakes() {
        return None;
    }
    unused::warn(sources, &routes, &limits, &upstreams);
    let limits = Arc::new(LimitTable::new(limits.into_values()));
    let strict = |strictness| strictness == Strictness::Strict;
    Some(Config {
        is_strict_somewhere: strict(server.settings.strictness)
            || routes.iter().any(|route| strict(route.reading.strictness)),
        server: server.settings,
        listeners: server.listeners,
        admin: admin?,
        acme,
        store,
        ratelimit_headers,
        jwt,
        table,
        routes,
        upstreams: upstreams.list.into_iter().map(Arc::new).collect(),
        limits,
        hash: sources.hash(),
        files: sources.files(),
        warnings: sources.warnings(),
    })
}

/// A section of all files together.
struct Merged {
    title: &'static str,
    table: Table,
}

/// Where [admin] listens, whatever else is wrong with the config; `None` where that cannot be read.
pub fn admin_contact(sources: &SourceTexts, documents: &[Table]) -> Option<AdminContact> {
    let roots: Vec<Section> =
        documents.iter().map(|table| Section::new(sources, &schema::ROOT, "the top level", table)).collect();
    let admin = merged(sources, &roots, "admin");
    server::admin_contact(&admin.section(sources, &schema::ADMIN)).filter(|_| !documents.is_empty())
}

fn merged(sources: &SourceTexts, roots: &[Section], key: &'static str) -> Merged {
    let mut tables = Vec::new();
    for root in roots {
        match root.node(key) {
            Some(Node { value: Value::Table(table), .. }) => tables.push(table.clone()),
            Some(node @ Node { value: Value::Array(_), .. }) => {
                root.fault::<()>(
                    key,
                    node,
                    "it is a list",
                    &format!("write [{key}] or [{key}.NAME] with single brackets"),
                );
            }
            Some(node) => {
                root.wrong_type::<()>(key, "a table", node);
            }
            None => {}
        }
    }
    let nowhere = Table { place: Place { file: 0, start: 0, end: 0 }, entries: Vec::new() };
    Merged { title: key, table: tree::merge(sources, key, tables).unwrap_or(nowhere) }
}

impl Merged {
    fn section<'a>(&'a self, sources: &'a SourceTexts, schema: &'static Schema) -> Section<'a> {
        Section::new(sources, schema, format!("[{}]", self.title), &self.table)
    }

    /// The sections `[KIND.NAME]`, in the order of the files.
    fn named<'a>(&'a self, sources: &'a SourceTexts, kind: &str, schema: &'static Schema) -> Vec<NamedSection<'a>> {
        let mut named = Vec::new();
        for entry in &self.table.entries {
            if !super::values::is_name(&entry.key) {
                sources.mistake(
                    Diagnostic::new(entry.place, format!("`{}` is not a name for [{kind}.NAME]", entry.key))
                        .help(super::values::NAME_HELP),
                );
            }
            let title = format!("[{kind}.{}]", entry.key);
            match &entry.node.value {
                Value::Table(table) => {
                    let section = Section::new(sources, schema, title, table);
                    named.push(NamedSection { name: &entry.key, place: entry.place, section });
                }
                Value::Broken => {}
                _ => sources.mistake(
                    Diagnostic::new(
                        entry.place,
                        format!("`{}` must be a table, found {}", entry.key, entry.node.type_name()),
                    )
                    .help(format!("{kind}s have names: put its keys under [{kind}.NAME]")),
                ),
            }
        }
        named
    }
}

/// The sections `[[KEY]]`, in the order of the files.
fn tables<'a>(
    sources: &'a SourceTexts,
    roots: &[Section<'a>],
    key: &'static str,
    schema: &'static Schema,
) -> Vec<Section<'a>> {
    let mut tables = Vec::new();
    for root in roots {
        let items = match root.node(key) {
            Some(Node { value: Value::Array(items), .. }) => items.as_slice(),
            Some(node @ Node { value: Value::Table(_), .. }) => {
                root.fault::<()>(
                    key,
                    node,
                    "it is a single table",
                    &format!("write [[{key}]] with two brackets, once for each {key}"),
                );
                &[]
            }
            Some(node) => {
                root.wrong_type::<()>(key, "a list of tables", node);
                &[]
            }
            None => &[],
        };
        for item in items {
            match &item.value {
                Value::Table(table) => tables.push(Section::new(sources, schema, format!("[[{key}]]"), table)),
                _ => {
                    root.wrong_type::<()>(key, "a list of tables", item);
                }
            }
        }
    }
    tables
}
