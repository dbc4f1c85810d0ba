//! Sections `[[route]]`, and checks across routes. Called by `compile`.
//!
//! Input: the sections with compiled limits, sets, upstreams and defaults. Output: routes and their table. `action`
//! compiles what the route does, the files `redirect*` redirects, `files` folders, `rewrite` what servers get instead,
//! `auth` authentication, `header_lists` the headers that clients must not state, `bodies` what limits that read bodies
//! mean for a route. This file adds limits, timeouts and address lists, orders chained limits, and reports routes that
//! conflict.

pub(crate) mod action;
pub(crate) mod auth;
mod bodies;
mod files;
pub(crate) mod forward_auth;
pub(crate) mod header_lists;
pub(crate) mod identity_header;
mod mirror;
pub(crate) mod over;
mod redirect;
mod redirect_loop;
mod redirect_map;
mod redirect_target;
mod rewrite;
mod split;
pub(crate) mod verified;

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use crate::auth::RouteAuth;
use crate::config::compile::context::LimitContext;
use crate::config::compile::jwt::TokenVerifiers;
use crate::config::compile::limits::candidates::CompanionLists;
use crate::config::compile::limits::list::{compile_limit_list, place_of};
use crate::config::compile::limits::refuse::compile_refuse;
use crate::config::compile::named_set::ListedItem;
use crate::config::compile::names::Definitions;
use crate::config::compile::pages::{PageFiles, compile_error_pages};
use crate::config::compile::routes::auth::{CompiledAuth, UserFiles};
use crate::config::compile::routes::bodies::BodyBounds;
use crate::config::compile::routes::verified::{has_token, has_user, warn_of_unverified};
use crate::config::compile::server::{Defaults, read_dialects, read_timeout_origins};
use crate::config::compile::shared::SharedValues;
use crate::config::compile::upstreams::Upstreams;
use crate::config::compile::upstreams::breaker::compile_breaker;
use crate::config::compile::{compress, cors, edit, matcher};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::route;
use crate::config::schema::row::ConfigOption;
use crate::config::source::SourceTexts;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::key::Missing;
use crate::limiting::limit::Limit;
use crate::limiting::limit::address_set::AddressSet;
use crate::limiting::source::{PathParam, Source, SourceOrigin};
use crate::net::IpSet;
use crate::route::matcher::{HostPattern, Matcher, PathPattern, Segment};
use crate::route::table::RouteTable;
use crate::route::{Action, Dialect, ParsingRules, Route, SettingOrigin, Strictness, Timeouts};
use crate::upstream::breaker::machine::BreakerRule;
use crate::upstream::priority::Priority;

const NAME_MAX: usize = 128;

pub struct RouteContext<'a> {
    pub keys: &'a LimitContext<'a>,
    pub defaults: &'a Defaults,
    pub limits: &'a Definitions<Arc<Limit>>,
    pub companions: &'a CompanionLists,
    pub jwt: &'a TokenVerifiers,
    pub users: UserFiles,
    pub sets: &'a Definitions<ListedItem>,
    pub page_files: &'a PageFiles,
    /// Dialects of the rate limit headers of all routes that do not list others.
    pub ratelimit_headers: &'a [Dialect],
}

/// All routes, their table, and the place of each in the config.
pub struct CompiledRoutes {
    pub routes: Vec<Route>,
    pub table: RouteTable,
    pub places: Vec<Place>,
}

/// A compiled route with its place; the place of its name if it has one, of what it does, and of its section.
struct PlacedRoute {
    route: Route,
    place: Place,
    name_place: Option<Place>,
    redirect: Place,
    section: Place,
}

pub fn compile_routes(
    sources: &SourceTexts,
    sections: &[Section],
    context: &RouteContext,
    upstreams: &mut Upstreams,
) -> CompiledRoutes {
    let (mut placed, mut shared) = (Vec::with_capacity(sections.len()), SharedValues::default());
    for section in sections {
        placed.extend(compile_route(section, context, upstreams, &mut shared));
        section.report_unknown();
    }
    let redirects: Vec<Place> = placed.iter().map(|placed| placed.redirect).collect();
    let sections: Vec<Place> = placed.iter().map(|placed| placed.section).collect();
    let (routes, places): (Vec<Route>, Vec<(Place, Option<Place>)>) =
        placed.into_iter().map(|PlacedRoute { route, place, name_place, .. }| (route, (place, name_place))).unzip();
    let shadowed_routes = RouteTable::find_shadowed(&routes);
    for (route, by) in &shadowed_routes {
        let is_regex = |index: usize| matches!(routes[index].matcher.path, PathPattern::Regex(_));
        let help = match is_regex(*route) && !is_regex(*by) {
            true => {
                "regular expressions are tried after all other paths: write the other path as an expression, too, such \
                 as `~ ^/`, in a section after this one"
            }
            false => "remove one of the two, or narrow one by host, path, methods or header",
        };
        let message = format!(
            "the route `{}` never matches: `{}` matches all its requests",
            routes[*route].name, routes[*by].name
        );
        sources.add_mistake(
            Diagnostic::new(places[*route].0, message)
                .with_label("shadowed")
                .with_related(places[*by].0, "matches every request of the other")
                .with_help(help),
        );
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, route) in routes.iter().enumerate() {
        let Some(first) = names.insert(&route.name, index) else { continue };
        let (place, name_place) = places[index];
        if name_place.is_none() && shadowed_routes.iter().any(|(a, b)| [*a, *b].contains(&index)) {
            continue;
        }
        let help = match name_place {
            Some(_) => "give each route its own name",
            None => "names come from host and path; give one of the two a `name` of its own",
        };
        sources.add_mistake(
            Diagnostic::new(name_place.unwrap_or(place), format!("two routes have the name `{}`", route.name))
                .with_related(places[first].1.unwrap_or(places[first].0), "first named here")
                .with_help(help),
        );
    }
    // All files that the config reads are known by now.
    sources.report_exposed_files();
    // Building a table of ten thousand routes takes a while, and a config with mistakes does not need it.
    let table = if sources.has_mistakes() { RouteTable::new(&[]) } else { RouteTable::new(&routes) };
    if !sources.has_mistakes() {
        redirect_loop::report_loops(sources, &routes, &table, &redirects);
    }
    CompiledRoutes { routes, table, places: sections }
}

fn compile_route(
    section: &Section,
    context: &RouteContext,
    upstreams: &mut Upstreams,
    shared: &mut SharedValues,
) -> Option<PlacedRoute> {
    let place = section.node(&route::PATH).map_or(section.place, |node| node.place);
    let name = section.parse_at(&route::NAME, read_route_name);
    let matcher = matcher::compile_matcher(section);
    let params = matcher.as_ref().map(|matcher| list_params(&matcher.path)).unwrap_or_default();
    let split = split::compile_split(section, &params, context.keys, upstreams);
    let action = action::compile_action(section, matcher.as_ref(), split.as_ref(), upstreams);
    let mirror = mirror::compile_mirror(section, upstreams);
    let limits = compile_limit_list(section, context.limits, context.companions);
    let [allow, deny] = [&route::ALLOW, &route::DENY].map(|list| compile_networks(section, list, context));
    let rewrite = rewrite::compile_rewrite(section, matcher.as_ref());
    let request_headers = edit::compile_request_edit(section);
    let response_headers = edit::compile_response_edit(section);
    let body_bounds = BodyBounds::read(section, context.defaults);
    let (request_trailers, max_in_flight) = (section.get(&route::REQUEST_TRAILERS), section.get(&route::MAX_IN_FLIGHT));
    let breaker = compile_route_breaker(section, action.as_ref());
    let priority = section.read(&route::PRIORITY).and_then(Priority::from_number).unwrap_or_default();
    let timeouts = compile_timeouts(section, &context.defaults.timeouts);
    let error_pages = compile_error_pages(section, context.defaults.error_pages.as_ref(), context.page_files);
    let ratelimit_headers = read_dialects(section, &route::RATELIMIT_HEADERS);
    let compress = compress::compile_compress(section, &route::compress::TABLE, &context.defaults.compress);
    let cors = cors::read_cors(section, context.defaults.cors.as_ref());
    let (refuse, upgrades) = (compile_refuse(section), bodies::compile_upgrades(section));
    let parsing = compile_parsing(section, context.defaults.strictness, matcher.as_ref());
    let matcher = matcher?;
    let name_place = name.as_ref().map(|at| at.place);
    let path = section.read_string(&route::PATH).unwrap_or_else(|| route::PATH.default_str().to_owned());
    let name = name.map_or_else(|| derive_name(matcher.hosts.first(), &path), |at| at.value);
    let auth = auth::compile_auth(section, context, upstreams, &name)?;
    let (auth, of_auth) = auth.map(|CompiledAuth { auth, limits }| (Box::new(auth), limits)).unzip();
    let limits = join_limits(section, of_auth.unwrap_or_default(), limits?)?;
    check_readable(section, &limits, auth.as_deref(), context)?;
    let (request_headers, action, (deny, wrong_deny_sets)) = (request_headers?, action?, deny?);
    warn_of_unverified(section, &request_headers, auth.as_deref(), context);
    over::check_forwarding(section, &limits, &action)?;
    check_descriptors(section, &limits)?;
    let limits = Some(limits).filter(|limits| check_params(section, limits, &params))?;
    let dialects = ratelimit_headers.as_deref().unwrap_or(context.ratelimit_headers);
    let cors = cors.map(|cors| shared.cors.share_value(cors.to_policy(&matcher.methods, dialects)));
    let response_headers = response_headers?;
    cors::check_edits(section, cors.is_some(), &response_headers)?;
    let route = Route {
        name,
        matcher,
        params,
        action,
        key_body: body_bounds.find_key_body(&limits, &refuse),
        upgrades: upgrades.unwrap_or_else(|| bodies::default_upgrades(&limits)),
        limits,
        auth,
        allow: shared.networks.share_value(allow?.0),
        deny: shared.networks.share_value(deny),
        wrong_deny_sets,
        rewrite: shared.rewrites.share_value(rewrite),
        request_headers: shared.edits.share_value(request_headers),
        response_headers: shared.response_edits.share_value(response_headers),
        parsing,
        max_body: body_bounds.max_body,
        max_in_flight,
        breaker,
        priority,
        timeouts: shared.timeouts.share_value(timeouts),
        timeout_origins: read_timeout_origins(section, SettingOrigin::Route, context.defaults.timeout_origins),
        refuse: shared.refusals.share_value(refuse),
        error_pages,
        ratelimit_headers,
        request_trailers,
        cors,
        split: split.map(Box::new),
        mirror: mirror.map(Box::new),
        compress: compress.is_enabled.then(|| shared.compressions.share_value(compress.settings)),
    };
    let redirect = section.node(&route::REDIRECT).map_or(place, |node| node.place);
    Some(PlacedRoute { route, place, name_place, redirect, section: section.place })
}

/// Puts the limits of `auth` before those of the route.
fn join_limits(section: &Section, mut of_auth: Vec<Arc<Limit>>, of_route: Vec<Arc<Limit>>) -> Option<Vec<Arc<Limit>>> {
    check_charged_once(section, &of_auth, &of_route)?;
    of_auth.extend(of_route);
    Some(of_auth)
}

/// Compiles how strictly the route reads requests.
fn compile_parsing(section: &Section, inherited: Strictness, matcher: Option<&Matcher>) -> ParsingRules {
    let strictness = section.get(&route::STRICTNESS).unwrap_or(inherited);
    let rules = ParsingRules::new(strictness, section.read(&route::ENCODED_SLASHES));
    let accepts_trace = matcher.is_some_and(|matcher| matcher.methods.contains(&Method::TRACE));
    ParsingRules { keeps_repeated_slashes: !section.get(&route::MERGE_SLASHES), accepts_trace, ..rules }
}

/// Compiles the timeouts of a route, which inherits those that it does not set.
fn compile_timeouts(section: &Section, inherited: &Timeouts) -> Timeouts {
    Timeouts {
        body: section.get(&route::BODY_TIMEOUT).unwrap_or(inherited.body),
        min_body_rate: section.get(&route::MIN_BODY_RATE).unwrap_or(inherited.min_body_rate),
        min_response_rate: section.get(&route::MIN_RESPONSE_RATE).unwrap_or(inherited.min_response_rate),
        connect: section.get(&route::CONNECT_TIMEOUT).unwrap_or(inherited.connect),
        response: section.get(&route::RESPONSE_TIMEOUT).unwrap_or(inherited.response),
        stream: section.get(&route::STREAM_TIMEOUT).unwrap_or(inherited.stream),
        tunnel: section.get(&route::TUNNEL_TIMEOUT).unwrap_or(inherited.tunnel),
    }
}

fn read_route_name(text: &str) -> Result<String, TextFault> {
    match text.len() {
        1..=NAME_MAX if !text.chars().any(char::is_control) && text.trim() == text => Ok(text.to_owned()),
        _ => invalid_text(
            "it is not a route name",
            format!("names have 1 to {NAME_MAX} bytes and no control characters"),
        ),
    }
}

/// Compiles `breaker`, which is for routes with an upstream.
fn compile_route_breaker(section: &Section, action: Option<&Action>) -> Option<Box<BreakerRule>> {
    let rule = compile_breaker(section)?;
    match (action, section.node(&route::BREAKER)) {
        (Some(Action::Upstream(_)) | None, _) | (_, None) => Some(Box::new(rule)),
        (Some(_), Some(node)) => {
            let what = "the route sends no requests to servers";
            section.report_fault(route::BREAKER.name, node, what, "remove it, or give the route an upstream")
        }
    }
}

fn derive_name(host: Option<&HostPattern>, path: &str) -> String {
    let host = host.map(HostPattern::to_string).unwrap_or_default();
    let mut name: String = host.chars().chain(path.chars()).filter(|c| !c.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    name
}

/// Returns the parameters of a path template.
fn list_params(path: &PathPattern) -> Vec<PathParam> {
    let PathPattern::Segments { segments, .. } = path else { return Vec::new() };
    let params = segments.iter().enumerate().filter_map(|(index, segment)| match segment {
        Segment::Param(name) => Some(PathParam { name: name.clone(), segment: index }),
        Segment::Literal(_) => None,
    });
    params.collect()
}

/// Returns whether the route has all path parameters that its limits read.
pub fn check_params(section: &Section, limits: &[Arc<Limit>], params: &[PathParam]) -> bool {
    let mut is_complete = true;
    for limit in limits {
        let Some(name) = limit.path_params().find(|name| params.iter().all(|param| param.name != *name)) else {
            continue;
        };
        let place = place_of(section, &limit.name);
        let what = format!("`{}` reads param:{name}, which the path of this route does not have", limit.name);
        let help = format!(
            "write {{{name}}} for a segment of `path`, like \"/users/{{{name}}}\", or give this route another limit"
        );
        section.report_fault_at::<()>(route::LIMITS.name, place, &what, &help);
        is_complete = false;
    }
    is_complete
}

/// Reports limits that `auth` and the route both list.
fn check_charged_once(section: &Section, of_auth: &[Arc<Limit>], of_route: &[Arc<Limit>]) -> Option<()> {
    match (
        section.node(&route::LIMITS),
        of_route.iter().find(|limit| of_auth.iter().any(|other| other.name == limit.name)),
    ) {
        (Some(node), Some(limit)) => {
            let what = format!("`{}` is a limit of `auth` as well", limit.name);
            section.report_fault(
                route::LIMITS.name,
                node,
                &what,
                "each limit applies once per request; keep one of the two",
            )
        }
        _ => Some(()),
    }
}

/// Reports limits that read an identity or a token which the route does not verify.
pub fn check_readable(
    section: &Section,
    limits: &[Arc<Limit>],
    auth: Option<&RouteAuth>,
    context: &RouteContext,
) -> Option<()> {
    let (has_token, has_user) = (has_token(auth, context), has_user(auth));
    let (reason, remedy) = match auth {
        None => ("the route has no `auth`", "add `auth` to the route"),
        Some(_) => (
            "the auth server names no user",
            "name the header with the user in `auth`: copy_headers = [\"X-Auth-Request-User\"]",
        ),
    };
    let mut ok = Some(());
    for limit in limits {
        let name = &limit.name;
        let reads_token = limit.sources().any(|source| source.kind().origin() == SourceOrigin::Token);
        let place = place_of(section, name);
        let (what, help) = if !has_user && (limit.is_keyed_by_user() || limit.when.requires(Source::is_user)) {
            let effect = match limit.missing {
                _ if limit.when.requires(Source::is_user) => "never applies here",
                Missing::Skip => "never applies here",
                Missing::Refuse => "refuses every request here",
                Missing::Shared => {
                    let message = format!("all requests of this route share one budget of `{name}`");
                    let help = format!("it depends on `user`: {remedy}, or remove `user` from its key");
                    section
                        .sources
                        .add_warning(DiagnosticCode::SharedByAll, Diagnostic::new(place, message).with_help(help));
                    continue;
                }
            };
            (format!("`{name}` {effect}: it depends on `user`, and {reason}"), remedy)
        } else if reads_token && !has_token {
            let what = format!("`{name}` reads a claim, and nothing verifies the tokens of this route");
            (what, "add auth = { jwt = \"NAME\" } to the route, or [jwt] for the tokens of all routes")
        } else {
            continue;
        };
        ok = section.report_fault_at(route::LIMITS.name, place, &what, help);
    }
    ok
}

/// Reports limits that depend on a descriptor, which no request of a route has.
fn check_descriptors(section: &Section, limits: &[Arc<Limit>]) -> Option<()> {
    let mut ok = Some(());
    for (limit, source) in limits.iter().filter_map(|limit| Some((limit, limit.required_descriptor()?))) {
        let place = place_of(section, &limit.name);
        let what = format!("`{}` depends on {source}, which only rate limit requests of Envoy have", limit.name);
        let help = "list it in an [[rls]], and give this route another limit";
        ok = section.report_fault_at(route::LIMITS.name, place, &what, help);
    }
    ok
}

/// Compiles `allow` or `deny`: addresses, networks and `set:NAME`. Returns also the sets whose files have rows with
/// errors.
fn compile_networks(
    section: &Section,
    option: &ConfigOption,
    context: &RouteContext,
) -> Option<(IpSet, Vec<Arc<AddressSet>>)> {
    enum RouteItem {
        Set(String),
        Network(ipnet::IpNet),
    }
    if section.node(option).is_none() {
        return Some(Default::default());
    }
    let items = section.read_strings(option, |text| match text.strip_prefix("set:") {
        Some(name) => Ok(RouteItem::Set(name.to_owned())),
        None => section.sources.parse_network(text).map(RouteItem::Network),
    })?;
    let (mut networks, mut sets, mut wrong_sets) = (Vec::new(), Vec::new(), Vec::new());
    for At { place, value } in items {
        match value {
            RouteItem::Network(network) => networks.push(network),
            RouteItem::Set(name) => {
                let listed = context.sets.find(section.sources, place, &name);
                let set = listed.as_ref().and_then(|listed| listed.as_addresses(section.sources));
                wrong_sets.extend(set.clone().filter(|_| listed.is_some_and(|listed| listed.skips_addresses())));
                sets.push(set);
            }
        }
    }
    let mut all: IpSet = networks.into_iter().collect();
    for set in sets {
        all.extend(&set?.networks);
    }
    Some((all, wrong_sets))
}
