//! Finds routes that redirect to themselves, which clients would follow without end. Called by `routes` once the table
//! of routes exists, because another route may match the target.

use http::{HeaderMap, Method, StatusCode};

use crate::canonical::repair_path;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::source::SourceTexts;
use crate::route::matcher::{HostPattern, PathPattern, Segment};
use crate::route::redirect::{Redirect, RedirectInput};
use crate::route::table::RouteTable;
use crate::route::{Action, Rewrite, Route};

/// Host of the sample request to a route for every host.
const ANY_HOST: &str = "localhost";

/// Reports the routes that redirect to themselves: as a mistake, or as a warning if only one of the schemes leads
/// there. `places`: where each route is written.
pub fn report_loops(sources: &SourceTexts, routes: &[Route], table: &RouteTable, places: &[Place]) {
    for (index, (route, place)) in routes.iter().zip(places).enumerate() {
        let Action::Redirect(redirect) = &route.action else { continue };
        let find = |is_https| find_loop(routes, table, index, redirect, is_https);
        let (what, is_certain) = match (find(false), find(true)) {
            (None, None) => continue,
            (Some(target), Some(_)) => (format!("`{target}` leads to this route again"), true),
            (Some(target), None) => (format!("over plain HTTP, `{target}` leads to this route again"), false),
            (None, Some(target)) => (format!("over HTTPS, `{target}` leads to this route again"), false),
        };
        let diagnostic = Diagnostic::new(*place, format!("{what}, so clients are redirected without end"));
        match is_certain {
            true => sources.add_mistake(diagnostic.with_help(
                "name another path or host, or match only the old path: path = \"= /old\" matches nothing below it",
            )),
            false => sources.add_warning(
                DiagnosticCode::RedirectLoop,
                diagnostic.with_help(
                    "name another host; to lead clients from plain HTTP to HTTPS, use `redirect_http` in [server]",
                ),
            ),
        }
    }
}

/// Returns the target if a sample request is redirected to the same target again by the same route.
fn find_loop(
    routes: &[Route],
    table: &RouteTable,
    index: usize,
    redirect: &Redirect,
    is_https: bool,
) -> Option<String> {
    let route = routes.get(index).filter(|route| can_judge(route))?;
    let path = sample_path(&route.matcher.path, redirect)?;
    let hosts = route.matcher.hosts.iter().filter_map(|pattern| match pattern {
        HostPattern::Exact(name) => Some(name.as_str()),
        HostPattern::Suffix(_) | HostPattern::Prefix(_) => None,
    });
    let any = route.matcher.hosts.is_empty().then_some(ANY_HOST);
    hosts.chain(any).find_map(|host| {
        let locate = |path: &str| {
            let input = RedirectInput { is_https, host, path, sent_path: path, rewritten_path: path, query: None };
            redirect.locate(input)
        };
        let (status, target) = locate(&path)?;
        let next = own_path(&target, host, is_https)?;
        let canonical = repair_path(next);
        let next = canonical.to_read(next);
        let method = repeated_method(&route.matcher.methods, status)?;
        let next_route = table.find_route(routes, host, next, &method, &HeaderMap::new());
        let is_same = next_route == Some(index) && locate(next).is_some_and(|(_, next_target)| next_target == target);
        is_same.then_some(target)
    })
}

/// Returns whether nothing but host, path and method decides about the route. A response could set the cookie that
/// another route looks for.
fn can_judge(route: &Route) -> bool {
    route.matcher.headers.is_empty()
        && *route.rewrite == Rewrite::default()
        && !route.response_headers.edits(&http::header::SET_COOKIE)
}

/// Returns a path that the route matches. For a target without placeholders every path is as good.
fn sample_path(pattern: &PathPattern, redirect: &Redirect) -> Option<String> {
    let is_literal = match pattern {
        PathPattern::Segments { segments, .. } => segments.iter().all(|part| matches!(part, Segment::Literal(_))),
        PathPattern::Regex(_) => false,
    };
    let is_fixed = redirect.to.as_ref().is_some_and(|to| to.template.placeholders().next().is_none());
    match (is_literal, is_fixed) {
        (true, _) => Some(pattern.to_string()),
        (false, true) => Some("/".to_owned()),
        (false, false) => None,
    }
}

/// Returns the path of a target that leads to the same listener.
fn own_path<'t>(target: &'t str, host: &str, is_https: bool) -> Option<&'t str> {
    let path = match target.split_once("://") {
        None => target,
        Some((scheme, rest)) => {
            let (name, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            (name.eq_ignore_ascii_case(host) && (scheme == "https") == is_https).then_some(path)?
        }
    };
    match path.split(['?', '#']).next() {
        Some("") => Some("/"),
        path => path,
    }
}

/// Returns the method of the request that a client sends to the target, if the route accepts it.
fn repeated_method(methods: &[Method], status: StatusCode) -> Option<Method> {
    let is_kept = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    match methods {
        [] => Some(Method::GET),
        methods if methods.contains(&Method::GET) => Some(Method::GET),
        [first, ..] if is_kept => Some(first.clone()),
        _ => None,
    }
}
