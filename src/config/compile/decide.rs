//! Sections `[decide.NAME]`, and the routes that other proxies may ask about by name. Called by `compile`.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;

use crate::config::compile::limits::list::{compile_limit_list, place_of};
use crate::config::compile::names::NamedSection;
use crate::config::compile::routes::{RouteContext, check_params, check_readable};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::Section;
use crate::config::schema::decide;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{ListenerSettings, Service};
use crate::limiting::limit::Limit;
use crate::limiting::source::{Source, SourceKind};
use crate::route::decide::{DecidePoint, DecideTable, DenyStatus, FactFamily, why_undecidable};
use crate::route::{ParsingRules, Route};

const ONCE_HELP: &str = "write once = \"header:x-request-id\", and let the asking proxy set that header";

/// Compiles the sections. If a listener has `serve = "decide"`, routes may be asked about by name too.
pub fn compile_decide(
    sections: Vec<NamedSection>,
    routes: &[Route],
    context: &RouteContext,
    listeners: &[Arc<ListenerSettings>],
) -> DecideTable {
    let has_listener = listeners.iter().any(|listener| listener.service != Service::Http);
    let mut table = DecideTable::default();
    if sections.is_empty() && !has_listener {
        return table;
    }
    let indexes: HashMap<&str, usize> =
        routes.iter().enumerate().map(|(index, route)| (route.name.as_str(), index)).collect();
    if has_listener {
        let is_decidable = |route: &Route| route.limits.iter().all(|limit| why_undecidable(limit).is_none());
        for (name, index) in indexes.iter().filter(|(_, index)| is_decidable(&routes[**index])) {
            let point = DecidePoint {
                route: *index,
                from: FactFamily::Forwarded,
                deny_as: DenyStatus::TooManyRequests,
                once: None,
                joins_lines: None,
            };
            table.insert(name, point);
        }
    }
    for NamedSection { name, place, section } in sections {
        let route = compile_limits(name, &section, indexes.get(name).map(|index| (*index, &routes[*index])), context);
        let from = section.get(&decide::FROM);
        let deny_as = read_deny_as(&section);
        let once = section.parse_string(&decide::ONCE, parse_once);
        let joins_lines = section.get(&decide::JOINS_LINES);
        if !has_listener {
            let what = format!("no listener answers questions, so nobody can ask about [decide.{name}]");
            let help = "add a [[listener]] with serve = \"decide\", at the address where the other proxies ask";
            let warning = Diagnostic::new(place, what).with_label("not used").with_help(help);
            section.sources.add_warning(DiagnosticCode::UnusedDecide, warning);
        }
        section.report_unread_keys();
        let Some(route) = route else { continue };
        let route = match route {
            PointLimits::OfRoute(index) => index,
            PointLimits::Own(route) => {
                table.routes.push(*route);
                routes.len() + table.routes.len() - 1
            }
        };
        let deny_as = deny_as.unwrap_or(DenyStatus::TooManyRequests);
        table.insert(name, DecidePoint { route, from, deny_as, once, joins_lines });
    }
    table
}

/// Selects the limits that decide about a name.
enum PointLimits {
    /// The limits of the route at this index.
    OfRoute(usize),
    Own(Box<Route>),
}

/// Compiles `limits`. `named`: the route with the same name, whose limits are the default.
fn compile_limits(
    name: &str,
    section: &Section,
    named: Option<(usize, &Route)>,
    context: &RouteContext,
) -> Option<PointLimits> {
    let limits_node = section.node(&decide::LIMITS);
    let limits = match (limits_node, named) {
        (None, None) => {
            let message = format!("[decide.{name}] has no limits, and no route has this name");
            return section.report_missing(message, "add limits = [\"NAME\"], or call it like a route");
        }
        (Some(node), Some(_)) => {
            let what = format!("a route has the name `{name}` too, and the limits of both would share one label");
            let help = "leave `limits` out to decide by those of the route, or rename one of the two";
            return section.report_fault(decide::LIMITS.name, node, &what, help);
        }
        (Some(Node { value: Value::Array(items), .. }), None) if items.is_empty() => {
            return section.report_fault(
                decide::LIMITS.name,
                limits_node?,
                "the list is empty",
                "name at least one limit",
            );
        }
        (Some(_), None) => compile_limit_list(section, context.limits, context.companions)?,
        (None, Some((index, route))) => {
            return check_decidable(section, &route.limits).map(|()| PointLimits::OfRoute(index));
        }
    };
    check_decidable(section, &limits)?;
    check_readable(section, &limits, None, context)?;
    check_params(section, &limits, &[]).then(|| PointLimits::Own(Box::new(own_route(name, limits, context))))
}

/// Reports limits by which no question can be decided.
fn check_decidable(section: &Section, limits: &[Arc<Limit>]) -> Option<()> {
    let mut ok = Some(());
    for limit in limits {
        let Some(why) = why_undecidable(limit) else { continue };
        let place = place_of(section, &limit.name);
        let what = format!("`{}` cannot decide for other proxies: {why}", limit.name);
        ok = section.report_fault_at(
            decide::LIMITS.name,
            place,
            &what,
            "leave it out here, or let the requests pass through a route",
        );
    }
    ok
}

/// Makes the route of a section. No request is routed to it.
pub fn own_route(name: &str, limits: Vec<Arc<Limit>>, context: &RouteContext) -> Route {
    let defaults = context.defaults;
    // An encoded slash cannot lead to another route here, and the proxy that asks decides about TRACE.
    let parsing = ParsingRules { accepts_trace: true, ..ParsingRules::new(defaults.strictness, Some(true)) };
    Route {
        name: name.to_owned(),
        limits,
        max_body: defaults.max_body,
        error_pages: defaults.error_pages.clone(),
        timeout_origins: defaults.timeout_origins,
        ..Route::bare(defaults.timeouts.clone(), parsing)
    }
}

fn read_deny_as(section: &Section) -> Option<DenyStatus> {
    match section.node(&decide::DENY_AS)? {
        Node { value: Value::Integer(429), .. } => Some(DenyStatus::TooManyRequests),
        Node { value: Value::Integer(403), .. } => Some(DenyStatus::Forbidden),
        node @ Node { value: Value::Integer(_), .. } => section.report_fault(
            decide::DENY_AS.name,
            node,
            "refusals have status 429 or 403",
            "nginx accepts only 403",
        ),
        node => section.report_wrong_type(decide::DENY_AS.name, "429 or 403", node),
    }
}

/// Parses `once`: the header with the id of a request.
fn parse_once(text: &str) -> Result<HeaderName, TextFault> {
    match Source::parse(text, &[SourceKind::Header]) {
        Some(Ok(Source::Header(name))) => Ok(name),
        Some(Err(fault)) => Err(fault),
        Some(Ok(_)) | None => invalid_text(format!("`{text}` is not a header"), ONCE_HELP),
    }
}
