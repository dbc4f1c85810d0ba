//! Compiles the trees of all files into a [`Config`]. Called by `config::load_config` and the other entry points.
//!
//! Input: parsed tables. Output: the compiled config; every mistake goes to `sources`. `server`, `limits`, `upstreams`,
//! `routes` and `decide` compile their kind of section; `context` and `names` carry what sections know of each other,
//! `matcher`, `edit`, `compress`, `cors`, `jwt`, `geo` and `named_set` read what several kinds use: match conditions,
//! header changes, compression, cross-origin rules, token verification, countries and lists of values. `shared` stores
//! equal values once, `pages` reads error pages, `unused` warns about limits and upstreams that no route uses, `lint`
//! about configs that protect less than they seem to, and `wide_origins` about `cors` for strangers.
//!
//! To add a section, add its schema, a file here, and its call in [`compile`].

pub(crate) mod compress;
mod context;
mod cors;
mod decide;
pub(crate) mod edit;
mod exposure;
mod geo;
pub(crate) mod jwt;
mod limits;
mod lint;
pub(crate) mod matcher;
pub(crate) mod named_set;
mod names;
mod pages;
mod rls;
mod routes;
mod server;
mod shared;
mod stated_value;
mod unused;
mod upstreams;
mod wide_origins;

use std::sync::Arc;
use std::time::Duration;

use crate::config::compile::context::LimitContext;
use crate::config::compile::decide::compile_decide;
use crate::config::compile::limits::candidates::CompanionLists;
use crate::config::compile::named_set::ListedItem;
use crate::config::compile::names::{Definitions, NamedSection};
use crate::config::compile::pages::PageFiles;
use crate::config::compile::routes::header_lists::{list_guarded_headers, list_own_headers};
use crate::config::compile::routes::{CompiledRoutes, compile_routes};
use crate::config::compile::server::acme::AcmeSection;
use crate::config::compile::server::{internal, listener};
use crate::config::compile::upstreams::Upstreams;
use crate::config::compile::upstreams::tls::SystemRoots;
use crate::config::diagnostics::report::{Diagnostic, MistakeKind, Place};
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{Schema, root};
use crate::config::source::{SMALLEST, SourceTexts};
use crate::config::tree::{Node, Table, TableEntry, Value};
use crate::config::{Admin, AdminContact, Config, ListenerSettings, ServerSettings, WrittenConfig, tree};
use crate::envoy::rules::RateLimitDomains;
use crate::limiting::key::shown_key::KeyHasher;
use crate::limiting::limit::address_set::SetFile;
use crate::limiting::limit::{Limit, LimitTable};
use crate::route::decide::DecideTable;
use crate::route::{Route, Strictness};

/// Compiles the config. Returns `None` if anything is wrong; `sources` then holds every mistake.
pub fn compile(sources: &SourceTexts, documents: &Arc<[Table]>) -> Option<Config> {
    let TopLevel { sections, lists: [route_sections, listeners, rls], has_acme, has_route } =
        read_top(sources, documents);
    let [server, admin, acme, store, headers, geo, jwt, upstreams, sets, limits, decide] = sections;
    let no_route = !has_route && decide.table.entries.is_empty() && !documents.is_empty();
    let (acme, server_section) = (acme.to_section(sources), server.to_section(sources));
    let (acme, page_files, roots) = (AcmeSection::read(&acme, has_acme), PageFiles::default(), SystemRoots::default());
    let mut server = server::compile_server(&server_section, &listeners, &acme, &page_files);
    let acme = acme.complete(&server.listeners);
    let admin = server::compile_admin(&admin.to_section(sources), &server.listeners);
    let store = server::compile_store(&store.to_section(sources));
    let ratelimit_headers = server::compile_headers(&headers.to_section(sources));
    server.settings.cors = server.defaults.cors.as_ref().map(|cors| Arc::new(cors.to_policy(&[], &ratelimit_headers)));
    let sets = named_set::compile_sets(sets.named_sections(sources));
    let (upstreams, limits) = (upstreams.named_sections(sources), limits.named_sections(sources));
    let context = LimitContext {
        refunded: limits::overload::list_refunded_limits(&route_sections, &upstreams, &limits),
        repriced: limits::list::list_repriced_limits(&route_sections, &decide.table),
        on_error: store.on_error,
        sets: &sets,
        has_geo: !geo.table.entries.is_empty(),
        has_jwt: !jwt.table.entries.is_empty(),
        requests_client_certs: listeners.iter().any(listener::requests_client_certs),
        max_keys: store.max_keys,
        hasher: &find_hasher(admin.as_ref()),
    };
    routes::verified::warn_of_unlogged(&server_section, &server.settings, &context);
    let (geo, jwt) = (geo::compile_geo(&geo.to_section(sources), context.has_geo), compile_jwt(sources, jwt));
    let mut upstreams = upstreams::compile_upstreams(upstreams, (&roots, &server.settings), &context);
    let limits = limits::compile_limits(limits, &context, &upstreams.names);
    let context = routes::RouteContext {
        keys: &context,
        defaults: &server.defaults,
        limits: &limits,
        companions: &CompanionLists::collect(&limits),
        jwt: &jwt,
        users: Default::default(),
        sets: &sets,
        page_files: &page_files,
        ratelimit_headers: &ratelimit_headers,
    };
    let CompiledRoutes { routes, table, places } = compile_routes(sources, &route_sections, &context, &mut upstreams);
    let decide = compile_decide(decide.named_sections(sources), &routes, &context, &server.listeners);
    let rls = rls::compile_rls(&rls, &context, (&routes, &places), decide.routes.len());
    let set_files = check_routes(sources, no_route, &sets, [&routes, &decide.routes, &rls.routes]);
    let admin = admin.filter(|_| !sources.has_mistakes())?;
    complete_listeners(sources, &mut server.listeners, &listeners, &routes);
    let texts = (documents.as_ref(), route_sections.as_slice());
    warn(sources, texts, (&server.settings, &admin), (&routes, &decide, &rls), (&limits, &upstreams));
    Some(Config {
        guarded_headers: list_guarded_headers((&routes, &upstreams.list), jwt.default.as_deref(), &server.settings),
        is_strict_somewhere: is_strict_somewhere(&routes, server.settings.strictness),
        has_cors: server.settings.cors.is_some() || routes.iter().any(|route| route.cors.is_some()),
        server: server.settings,
        listeners: server.listeners,
        admin,
        acme,
        store,
        ratelimit_headers,
        token_keys: jwt.list_remote_keys(),
        geo,
        jwt: jwt.default,
        identity_headers: list_own_headers(&routes),
        table,
        route_lines: sources.find_lines(&places),
        routes,
        decide,
        rls,
        upstreams: upstreams.list.into_iter().map(Arc::new).collect(),
        limits: Arc::new(LimitTable::new(limits.into_values())),
        sets: named_set::list_small_sets(&sets),
        set_files,
        written: WrittenConfig::new(documents.clone(), sources.texts()),
        hash: sources.hash(),
        files: sources.files(),
        config_files: sources.list_config_files(),
        warnings: sources.warning_report(),
    })
}

/// Adds the hosts of routes to the listeners that issue certificates for them, and warns of open listeners.
fn complete_listeners(
    sources: &SourceTexts,
    listeners: &mut [Arc<ListenerSettings>],
    sections: &[Section],
    routes: &[Route],
) {
    internal::add_route_hosts(listeners, sections, routes);
    lint::warn_of_open_listeners(sources, sections, listeners);
}

/// Warns about statements that load but are probably mistakes.
fn warn(
    sources: &SourceTexts,
    texts: (&[Table], &[Section]),
    settings: (&ServerSettings, &Admin),
    (routes, decide, rls): (&[Route], &DecideTable, &RateLimitDomains),
    (limits, upstreams): (&Definitions<Arc<Limit>>, &Upstreams),
) {
    unused::warn_unused(sources, routes, decide.routes.iter().chain(&rls.routes), limits, upstreams);
    lint::warn_of_gaps(sources, texts, settings, (routes, &decide.routes), limits);
}

/// The contents of the top level of all files.
struct TopLevel<'a> {
    sections: [Merged; 11],
    /// `[[route]]`, `[[listener]]`, `[[rls]]`.
    lists: [Vec<Section<'a>>; 3],
    has_acme: bool,
    has_route: bool,
}

fn read_top<'a>(sources: &'a SourceTexts, documents: &'a [Table]) -> TopLevel<'a> {
    let roots: Vec<Section> =
        documents.iter().map(|table| Section::new(sources, &root::TABLE, "the top level", table)).collect();
    let top = TopLevel {
        sections: merge_tables(sources, &roots),
        lists: [&root::ROUTE, &root::LISTENER, &root::RLS].map(|list| list_sections(sources, &roots, list)),
        has_acme: roots.iter().any(|root| root.node(&root::ACME).is_some()),
        has_route: !roots.iter().all(has_no_route),
    };
    report_root_keys(roots);
    top
}

/// Returns the hasher of keys. If `[admin]` has an error, overrides with hashes are not reported in addition.
fn find_hasher(admin: Option<&Admin>) -> KeyHasher {
    admin.map_or_else(|| KeyHasher::from_secret(""), |admin| admin.key_display.hasher.clone())
}

fn has_no_route(root: &Section) -> bool {
    root.node(&root::ROUTE).is_none() && root.node(&root::RLS).is_none()
}

fn report_root_keys(roots: Vec<Section>) {
    for root in roots {
        root.entry(&root::INCLUDE);
        root.report_unread_keys();
    }
}

/// Reports names that no route has, and whether there is no route. Returns the files of sets with the rows that are
/// skipped.
fn check_routes(
    sources: &SourceTexts,
    has_none: bool,
    sets: &Definitions<ListedItem>,
    routes: [&[Route]; 3],
) -> Vec<SetFile> {
    report_no_route(sources, has_none);
    let names: Vec<&str> = routes.into_iter().flatten().map(|route| route.name.as_str()).collect();
    sources.report_unknown_routes(&names);
    named_set::collect_files(sources, sets, &names)
}

fn report_no_route(sources: &SourceTexts, is_mistake: bool) {
    if !is_mistake {
        return;
    }
    let place = Place { file: 0, start: 0, end: 0 };
    let message = "the config has no route, so every response would be 404";
    sources.add_mistake(
        Diagnostic::new(place, message).with_kind(MistakeKind::Absent).with_help(format!("add one:\n\n{SMALLEST}")),
    );
}

fn is_strict_somewhere(routes: &[Route], of_server: Strictness) -> bool {
    let mut strictness = routes.iter().map(|route| route.parsing.strictness).chain([of_server]);
    strictness.any(|strictness| strictness == Strictness::Strict)
}

/// Compiles `[jwt]` and the sections `[jwt.NAME]`, which are tables within it.
fn compile_jwt(sources: &SourceTexts, jwt: Merged) -> jwt::TokenVerifiers {
    let (default, named) = jwt.split_names();
    jwt::compile_verifiers(&default.to_section(sources), named.named_sections(sources))
}

fn merge_tables(sources: &SourceTexts, roots: &[Section]) -> [Merged; 11] {
    [
        root::SERVER.option,
        root::ADMIN.option,
        root::ACME.option,
        root::STORE.option,
        root::HEADERS.option,
        root::GEO.option,
        root::JWT.option,
        root::UPSTREAM.option,
        root::SET.option,
        root::LIMIT.option,
        root::DECIDE.option,
    ]
    .map(|option| merge_sections(sources, roots, &option))
}

/// A section merged from all files.
struct Merged {
    title: &'static str,
    schema: &'static Schema,
    table: Table,
}

/// Returns where `[admin]` listens, even if other parts of the config are wrong; `None` if it cannot be read.
pub fn admin_contact(sources: &SourceTexts, documents: &[Table]) -> Option<AdminContact> {
    let roots: Vec<Section> =
        documents.iter().map(|table| Section::new(sources, &root::TABLE, "the top level", table)).collect();
    let admin = merge_sections(sources, &roots, &root::ADMIN);
    server::read_admin_contact(&admin.to_section(sources)).filter(|_| !documents.is_empty())
}

fn merge_sections(sources: &SourceTexts, roots: &[Section], option: &ConfigOption) -> Merged {
    let key = option.name;
    let mut tables = Vec::new();
    for root in roots {
        match root.node(option) {
            Some(Node { value: Value::Table(table), .. }) => tables.push(table.clone()),
            Some(node @ Node { value: Value::Array(_), .. }) => {
                root.report_fault::<()>(
                    key,
                    node,
                    "it is a list",
                    &format!("write [{key}] or [{key}.NAME] with single brackets"),
                );
            }
            Some(node) => {
                root.report_wrong_type::<()>(key, "a table", node);
            }
            None => {}
        }
    }
    let nowhere = Table { place: Place { file: 0, start: 0, end: 0 }, entries: Vec::new() };
    let schema = option.value_type().tables().into_iter().next().unwrap_or(&root::TABLE);
    Merged { title: key, schema, table: tree::merge_tables(sources, key, tables).unwrap_or(nowhere) }
}

impl Merged {
    /// Divides a section into its own keys, which its schema lists, and its tables with other names.
    fn split_names(self) -> (Merged, Merged) {
        let Merged { title, schema, table: Table { place, entries } } = self;
        let is_named = |entry: &TableEntry| {
            matches!(entry.node.value, Value::Table(_)) && schema.keys().all(|known| known != entry.key)
        };
        let (named, own) = entries.into_iter().partition(is_named);
        let with_entries = |entries| Merged { title, schema, table: Table { place, entries } };
        (with_entries(own), with_entries(named))
    }

    fn to_section<'a>(&'a self, sources: &'a SourceTexts) -> Section<'a> {
        Section::new(sources, self.schema, format!("[{}]", self.title), &self.table)
    }

    /// Returns the sections `[KIND.NAME]` in file order.
    fn named_sections<'a>(&'a self, sources: &'a SourceTexts) -> Vec<NamedSection<'a>> {
        let Merged { title: kind, schema, .. } = *self;
        let mut sections = Vec::new();
        for entry in &self.table.entries {
            if !super::values::is_name(&entry.key) {
                sources.add_mistake(
                    Diagnostic::new(entry.place, format!("`{}` is not a name for [{kind}.NAME]", entry.key))
                        .with_help(super::values::NAME_HELP),
                );
            }
            let title = format!("[{kind}.{}]", entry.key);
            match &entry.node.value {
                Value::Table(table) => {
                    let section = Section::new(sources, schema, title, table);
                    sections.push(NamedSection { name: &entry.key, place: entry.place, section });
                }
                Value::Broken => {}
                _ => sources.add_mistake(
                    Diagnostic::new(
                        entry.place,
                        format!("`{}` must be a table, found {}", entry.key, entry.node.type_name()),
                    )
                    .with_help(format!("{kind}s have names: put its keys under [{kind}.NAME]")),
                ),
            }
        }
        sections
    }
}

/// Returns the sections `[[KEY]]` in file order.
fn list_sections<'a>(sources: &'a SourceTexts, roots: &[Section<'a>], option: &ConfigOption) -> Vec<Section<'a>> {
    let key = option.name;
    let schema = option.value_type().tables().into_iter().next().unwrap_or(&root::TABLE);
    let mut tables = Vec::new();
    for root in roots {
        let items = match root.node(option) {
            Some(Node { value: Value::Array(items), .. }) => items.as_slice(),
            Some(node @ Node { value: Value::Table(_), .. }) => {
                root.report_fault::<()>(
                    key,
                    node,
                    "it is a single table",
                    &format!("write [[{key}]] with two brackets, once for each {key}"),
                );
                &[]
            }
            Some(node) => {
                root.report_wrong_type::<()>(key, "a list of tables", node);
                &[]
            }
            None => &[],
        };
        for item in items {
            match &item.value {
                Value::Table(table) => tables.push(Section::new(sources, schema, format!("[[{key}]]"), table)),
                _ => {
                    root.report_wrong_type::<()>(key, "a list of tables", item);
                }
            }
        }
    }
    tables
}

pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
