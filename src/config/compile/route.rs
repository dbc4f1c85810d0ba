//! `[[route]]`: everything a route says, and what the routes say together. Called by `compile`.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::Definitions;
use super::numbers::usize_of;
use super::refuse::refuse;
use super::server::{BODY_MAX, Defaults, KEY_BODY_MAX, dialects, strictness, timeouts};
use super::set::ListedItem;
use super::shared::SharedValues;
use super::upstream::Upstreams;
use super::{action, edit, matcher};
use crate::config::hints;
use crate::config::reader::{At, Section};
use crate::config::report::{Diagnostic, Place};
use crate::config::source::SourceTexts;
use crate::config::values::{self, Fault, fault};
use crate::limit::limits::Limit;
use crate::limit::source::PathParam;
use crate::net::IpSet;
use crate::route::table::RouteTable;
use crate::route::{HostPattern, PathPattern, Reading, Route, Segment, Upgrades};

/// One decision of the store carries no more.
const LIMITS_MAX: usize = 16;
const NAME_MAX: usize = 128;

pub struct RouteContext<'a> {
    pub defaults: &'a Defaults,
    pub limits: &'a Definitions<Arc<Limit>>,
    pub sets: &'a Definitions<ListedItem>,
}

/// A compiled route and where it stands. The name's place when it was given one.
struct Placed {
    route: Route,
    place: Place,
    named: Option<Place>,
}

pub fn routes(
    sources: &SourceTexts,
    sections: &[Section],
    context: &RouteContext,
    upstreams: &mut Upstreams,
) -> (Vec<Route>, RouteTable) {
    let (mut placed, mut shared) = (Vec::with_capacity(sections.len()), SharedValues::default());
    for section in sections {
        placed.extend(route(section, context, upstreams, &mut shared));
        section.unknown();
    }
    let (routes, places): (Vec<Route>, Vec<(Place, Option<Place>)>) =
        placed.into_iter().map(|Placed { route, place, named }| (route, (place, named))).unzip();
    let shadowed = RouteTable::conflicts(&routes);
    for (route, by) in &shadowed {
        let message =
            format!("the route `{}` never gets a request: `{}` takes them all", routes[*route].name, routes[*by].name);
        sources.mistake(
            Diagnostic::new(places[*route].0, message)
                .label("shadowed")
                .related(places[*by].0, "takes every request of the other")
                .help("remove one of the two, or narrow one by host, path, methods or header"),
        );
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, route) in routes.iter().enumerate() {
        let Some(first) = names.insert(&route.name, index) else { continue };
        let (place, named) = places[index];
        if named.is_none() && shadowed.iter().any(|(a, b)| [*a, *b].contains(&index)) {
            continue;
        }
        let help = match named {
            Some(_) => "give each route its own name",
            None => "names come from host and path; give one of the two a `name` of its own",
        };
        sources.mistake(
            Diagnostic::new(named.unwrap_or(place), format!("two routes have the name `{}`", route.name))
                .related(places[first].1.unwrap_or(places[first].0), "first named here")
                .help(help),
        );
    }
    // A table of ten thousand routes takes a while; a config with mistakes needs none.
    let table = if sources.has_mistakes() { RouteTable::new(&[]) } else { RouteTable::new(&routes) };
    (routes, table)
}

fn route(
    section: &Section,
    context: &RouteContext,
    upstreams: &mut Upstreams,
    shared: &mut SharedValues,
) -> Option<Placed> {
    let place = section.node("path").map_or(section.place, |node| node.place);
    let name = section.parse_at("name", name);
    let matcher = matcher::matcher(section);
    let action = action::action(section, upstreams);
    let limits = limits(section, context);
    let allow = networks(section, "allow", context);
    let deny = networks(section, "deny", context);
    let rewrite = action::rewrite(section);
    let request_headers = edit::edit(section, "request_headers");
    let response_headers = edit::edit(section, "response_headers");
    let max_body = section.size("max_body", BODY_MAX).unwrap_or(context.defaults.max_body);
    let max_key_body = section.size("max_key_body", KEY_BODY_MAX).unwrap_or(context.defaults.max_key_body);
    let max_in_flight = usize_of(section.integer("max_in_flight", 1..=10_000_000));
    let timeouts = timeouts(section, &context.defaults.timeouts);
    let refuse = refuse(section);
    let ratelimit_headers = dialects(section, "ratelimit_headers");
    let upgrades = upgrades(section);
    let strictness = strictness(section).unwrap_or(context.defaults.strictness);
    let reading = Reading::new(strictness, section.choice("encoded_slashes", &[("refuse", false), ("keep", true)]));
    let matcher = matcher?;
    let params = params(&matcher.path);
    let limits = limits.filter(|limits| known(section, limits, &params));
    let by_body = limits.iter().flatten().any(|limit| limit.key.reads_body());
    let key_body = usize::try_from(max_key_body).ok().filter(|_| by_body);
    let named = name.as_ref().map(|at| at.place);
    let path = section.string("path").unwrap_or_else(|| "/".to_owned());
    let name = name.map_or_else(|| derived_name(matcher.hosts.first(), &path), |at| at.value);
    let route = Route {
        name,
        matcher,
        params,
        action: action?,
        limits: limits?,
        allow: shared.networks.share(allow?),
        deny: shared.networks.share(deny?),
        rewrite: shared.rewrites.share(rewrite),
        request_headers: shared.edits.share(request_headers?),
        response_headers: shared.edits.share(response_headers?),
        reading,
        max_body,
        max_in_flight,
        key_body,
        timeouts: shared.timeouts.share(timeouts),
        refuse: shared.refusals.share(refuse),
        ratelimit_headers,
        upgrades,
    };
    Some(Placed { route, place, named })
}

fn name(text: &str) -> Result<String, Fault> {
    match text.len() {
        1..=NAME_MAX if !text.chars().any(char::is_control) && text.trim() == text => Ok(text.to_owned()),
        _ => fault("it is not a route name", format!("names have 1 to {NAME_MAX} bytes and no control characters")),
    }
}

/// `upgrades`: names of protocols, without their versions.
fn upgrades(section: &Section) -> Upgrades {
    let names = section.strings("upgrades", |text| {
        let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte));
        match text {
            "" => fault("it names no protocol", "an empty list allows none; leave it out to allow all"),
            text if is_name => Ok(text.to_owned()),
            _ => fault(format!("`{text}` is not the name of a protocol"), "write \"websocket\", without a version"),
        }
    });
    names.map_or(Upgrades::Any, |names| Upgrades::Only(names.into_iter().map(|at| at.value).collect()))
}

fn derived_name(host: Option<&HostPattern>, path: &str) -> String {
    let host = match host {
        Some(HostPattern::Exact(name)) => name.clone(),
        Some(HostPattern::Suffix(suffix)) => format!("*{suffix}"),
        None => String::new(),
    };
    let mut name: String = host.chars().chain(path.chars()).filter(|c| !c.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    name
}

fn limits(section: &Section, context: &RouteContext) -> Option<Vec<Arc<Limit>>> {
    match section.node("limits") {
        None => return Some(Vec::new()),
        Some(node) if hints::holds_tables(node) => {
            return section.fault("limits", node, "it takes the names of limits, not limits", hints::LIMIT_HELP);
        }
        Some(_) => {}
    }
    let names = section.strings("limits", |text| Ok(text.to_owned()))?;
    if let Some(At { place, .. }) = names.get(LIMITS_MAX) {
        let what = format!("{} limits on one route", names.len());
        return section.fault_at("limits", *place, &what, &format!("a route may have {LIMITS_MAX}"));
    }
    let mut limits = Vec::with_capacity(names.len());
    for (i, At { place, value }) in names.iter().enumerate() {
        if names[..i].iter().any(|earlier| earlier.value == *value) {
            section.fault_at::<()>(
                "limits",
                *place,
                &format!("`{value}` stands there twice"),
                "a limit is asked once per request",
            );
        }
        if values::rate(value).is_ok() {
            let what = format!("`{value}` is a rate, and here stand the names of limits");
            limits.push(section.fault_at("limits", *place, &what, hints::LIMIT_HELP));
            continue;
        }
        limits.push(context.limits.find(section.sources, *place, value));
    }
    chained(section, &names, limits.into_iter().collect::<Option<_>>()?)
}

/// The parameters of a template.
fn params(path: &PathPattern) -> Vec<PathParam> {
    let PathPattern::Segments { segments, .. } = path else { return Vec::new() };
    let named = segments.iter().enumerate().filter_map(|(index, segment)| match segment {
        Segment::Param(name) => Some(PathParam { name: name.clone(), segment: index }),
        Segment::Literal(_) => None,
    });
    named.collect()
}

/// Whether the route has all the parameters that its limits look at.
fn known(section: &Section, limits: &[Arc<Limit>], params: &[PathParam]) -> bool {
    let mut known = true;
    let names = section.strings("limits", |text| Ok(text.to_owned())).unwrap_or_default();
    for limit in limits {
        let Some(name) = limit.params().find(|name| params.iter().all(|param| param.name != *name)) else { continue };
        let place = names.iter().find(|at| at.value == limit.name).map_or(section.place, |at| at.place);
        let what = format!("`{}` looks at param:{name}, which the path of this route does not have", limit.name);
        let help = format!(
            "write {{{name}}} for a segment of `path`, like \"/users/{{{name}}}\", or give this route another limit"
        );
        section.fault_at::<()>("limits", place, &what, &help);
        known = false;
    }
    known
}

/// The limits in an order in which each comes after its base.
fn chained(section: &Section, names: &[At<String>], mut waiting: Vec<Arc<Limit>>) -> Option<Vec<Arc<Limit>>> {
    let place = |limit: &Limit| names.iter().find(|at| at.value == limit.name).map_or(section.place, |at| at.place);
    let mut ordered: Vec<Arc<Limit>> = Vec::with_capacity(waiting.len());
    let mut whole = true;
    for limit in &waiting {
        let Some(base) = limit.after.as_ref().filter(|base| !names.iter().any(|at| at.value == **base)) else {
            continue;
        };
        let what = format!("`{}` comes after `{base}`, which is not a limit of this route", limit.name);
        section.fault_at::<()>("limits", place(limit), &what, &format!("add \"{base}\" to the limits of this route"));
        whole = false;
    }
    if !whole {
        return None;
    }
    while !waiting.is_empty() {
        let ready = |limit: &Arc<Limit>| {
            limit.after.as_ref().is_none_or(|base| ordered.iter().any(|earlier| earlier.name == *base))
        };
        // Else they come after one another, which is reported where they say so.
        let next = waiting.iter().position(ready)?;
        ordered.push(waiting.remove(next));
    }
    Some(ordered)
}

/// `allow`, `deny`: addresses, networks and `set:NAME`.
fn networks(section: &Section, key: &'static str, context: &RouteContext) -> Option<IpSet> {
    enum RouteItem {
        Set(String),
        Network(ipnet::IpNet),
    }
    if section.node(key).is_none() {
        return Some(IpSet::default());
    }
    let items = section.strings(key, |text| match text.strip_prefix("set:") {
        Some(name) => Ok(RouteItem::Set(name.to_owned())),
        None => values::network(text).map(RouteItem::Network),
    })?;
    let (mut networks, mut sets) = (Vec::new(), Vec::new());
    for At { place, value } in items {
        match value {
            RouteItem::Network(network) => networks.push(network),
            RouteItem::Set(name) => {
                let set = context.sets.find(section.sources, place, &name);
                sets.push(set.and_then(|listed| listed.addresses(section.sources)));
            }
        }
    }
    let mut all: IpSet = networks.into_iter().collect();
    for set in sets {
        all.extend(&set?.networks);
    }
    Some(all)
}
