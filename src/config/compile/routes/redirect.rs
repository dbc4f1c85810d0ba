//! Option `redirect` of a route: the target, its placeholders and its status. Called by `action`.
//!
//! The authority of a target must not depend on the client. It is written out, or it is the host that the route
//! matches.

use std::sync::Arc;

use http::StatusCode;

use crate::config::closest::find_closest;
use crate::config::compile::routes::list_params;
use crate::config::compile::routes::redirect_map::read_redirect_map;
use crate::config::compile::routes::redirect_target::{
    TARGET_HELP, check_start, check_target_bytes, parse_redirect_status,
};
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::route::matcher::{HostPattern, Matcher, PathPattern};
use crate::route::redirect::{Redirect, RedirectTarget, TargetPart, TargetPlaceholder};
use crate::template::TextTemplate;

const HOST_HELP: &str =
    "the client chooses the Host. Add `host` to the route, with the names to accept, or write the name in the target";

/// Variables of nginx and the placeholders that replace them. The query is kept without a placeholder.
const VARIABLES: [(&str, &str); 7] = [
    ("$request_uri", "{path}"),
    ("$uri", "{path}"),
    ("$host", "{host}"),
    ("$http_host", "{host}"),
    ("$server_name", "{host}"),
    ("$scheme", "{scheme}"),
    ("$args", "{query}"),
];

pub fn compile_redirect(section: &Section, matcher: Option<&Matcher>) -> Option<Redirect> {
    let node = section.node(&route::REDIRECT)?;
    let is_rewritten = section.node(&route::REWRITE).is_some();
    let parse = |section: &Section, key: &str, node: &Node| {
        let to = section.parse_node(key, node, |text| parse_target(text, matcher))?;
        let Value::String(text) = &node.value else { return None };
        match !is_rewritten && leads_to_itself(&text.value, matcher) {
            true => {
                section.report_fault(key, node, "it redirects every request to itself", "name another path or host")
            }
            false => Some(to),
        }
    };
    if let Value::String(_) = &node.value {
        let to = parse(section, route::REDIRECT.name, node)?;
        return Some(Redirect { status: StatusCode::PERMANENT_REDIRECT, to: Some(to), map: None, keeps_query: true });
    }
    let Value::Table(_) = &node.value else {
        return section.report_wrong_type(route::REDIRECT.name, "a target or a table", node);
    };
    let redirect = section.read_section(&route::REDIRECT)?;
    let to = redirect.node(&route::redirect::TO).map(|node| parse(&redirect, route::redirect::TO.name, node));
    let status = match redirect.node(&route::redirect::STATUS) {
        Some(node) => read_status(&redirect, node),
        None => Some(StatusCode::PERMANENT_REDIRECT),
    };
    let keeps_query = !redirect.get(&route::redirect::QUERY);
    let map =
        redirect.node(&route::redirect::MAP).map(|node| read_redirect_map(&redirect, node, matcher).map(Arc::new));
    if to.is_none() && map.is_none() {
        redirect.report_missing::<()>("`redirect` has neither `to` nor `map`", TARGET_HELP);
    }
    redirect.report_unread_keys();
    // A target or a map with mistakes is `Some(None)`.
    let (to, map) = (to.map_or(Some(None), |to| to.map(Some))?, map.map_or(Some(None), |map| map.map(Some))?);
    if to.is_none() && map.is_none() {
        return None;
    }
    Some(Redirect { status: status?, to, map, keeps_query })
}

fn read_status(section: &Section, node: &Node) -> Option<StatusCode> {
    let Value::Integer(number) = node.value else {
        return section.report_wrong_type(route::redirect::STATUS.name, "an integer", node);
    };
    match parse_redirect_status(&number.to_string()) {
        Ok(status) => Some(status),
        Err(TextFault { what, help }) => section.report_fault(route::redirect::STATUS.name, node, &what, &help),
    }
}

/// Rejects variables of nginx, which would be sent as they are.
fn check_variables(text: &str) -> Result<(), TextFault> {
    match VARIABLES.iter().find(|(variable, _)| text.contains(variable)) {
        None => Ok(()),
        Some((variable, own)) => {
            invalid_text(format!("`{variable}` is a variable of nginx"), format!("write {own} instead of {variable}"))
        }
    }
}

/// Returns whether a target without a rewrite is the target of the request itself.
fn leads_to_itself(to: &str, matcher: Option<&Matcher>) -> bool {
    let is_own = |matcher: &Matcher| {
        matches!(&matcher.path, PathPattern::Segments { exact: true, .. }) && matcher.path.to_string() == to
    };
    matches!(to, "{path}" | "{scheme}://{host}{path}") || matcher.is_some_and(is_own)
}

/// Parses a target. `matcher`: the conditions of the route, unless they have mistakes.
fn parse_target(text: &str, matcher: Option<&Matcher>) -> Result<RedirectTarget, TextFault> {
    check_variables(text)?;
    check_target_bytes(text)?;
    let params = matcher.map(|matcher| list_params(&matcher.path)).unwrap_or_default();
    // A client chooses the ending of `app.*`.
    let is_open = |host: &HostPattern| matches!(host, HostPattern::Prefix(_));
    let unsafe_host = match matcher {
        Some(matcher) if matcher.hosts.is_empty() => Some("the route matches every host"),
        Some(matcher) if matcher.hosts.iter().any(is_open) => Some("a host of the route has any ending"),
        _ => None,
    };
    let mut names = vec!["scheme", "host", "path", "query"];
    names.extend(params.iter().map(|param| param.name.as_str()));
    let template = TextTemplate::parse(text, |name, at| {
        let part = if text[..at].contains(['?', '#']) { TargetPart::Query } else { TargetPart::Path };
        let param = params.iter().find(|param| param.name == name);
        match (name, param) {
            ("scheme" | "host" | "path" | "query", Some(_)) => invalid_text(
                format!("`{{{name}}}` is a parameter of the path and a placeholder of every redirect"),
                "give the parameter another name",
            ),
            ("scheme", _) if at == 0 => Ok(Some(TargetPlaceholder::Scheme)),
            ("scheme", _) => invalid_text("`{scheme}` is not at the start", TARGET_HELP),
            ("host", _) => match unsafe_host {
                None => Ok(Some(TargetPlaceholder::Host)),
                Some(why) => invalid_text(format!("`{{host}}` could be any name, because {why}"), HOST_HELP),
            },
            ("path", _) => Ok(Some(TargetPlaceholder::Path(part))),
            ("query", _) => Ok(Some(TargetPlaceholder::Query)),
            (_, Some(param)) => Ok(Some(TargetPlaceholder::Segment(param.segment, part))),
            (_, None) => {
                let help = match find_closest(name, names.iter().copied()) {
                    Some(known) => format!("did you mean `{{{known}}}`?"),
                    None => format!(
                        "the placeholders are {}",
                        names.iter().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join(", ")
                    ),
                };
                invalid_text(format!("unknown placeholder `{{{name}}}`"), help)
            }
        }
    })?;
    check_start(text)?;
    let has_query = text.split('#').next().is_some_and(|url| url.contains('?')) || text.contains("{query}");
    Ok(RedirectTarget { template, has_query })
}
