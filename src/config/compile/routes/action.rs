//! Action of a route: its upstream, fixed response or redirect, and its rewrite. Called by `routes`.

use bytes::Bytes;
use http::StatusCode;

use crate::config::compile::matcher::{TEXT, parse_content_type, parse_path_prefix, parse_status};
use crate::config::compile::routes::redirect::compile_redirect;
use crate::config::compile::upstreams::{Upstreams, compile_server_list};
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::config::{origin, values};
use crate::route::{Action, FixedResponse, Matcher, Rewrite, SentHost};
use crate::upstream::caps::ServerCaps;

pub fn compile_action(section: &Section, matcher: Option<&Matcher>, upstreams: &mut Upstreams) -> Option<Action> {
    const HELP: &str = "add upstream = \"http://HOST:PORT\", the name of an [upstream.NAME], or \"echo:\"; or respond = { status = 200, body = \"...\" }; or redirect = \"https://example.com{path}\"";
    let written = [route::UPSTREAM.option, route::RESPOND.option, route::REDIRECT.option]
        .map(|option| section.node(&option).map(|node| (option.name, node)));
    let mut written = written.into_iter().flatten();
    let first = written.next();
    if let (Some((first, _)), Some((other, node))) = (first, written.next()) {
        let article = if first == route::UPSTREAM.name { "an" } else { "a" };
        let what = format!("the route has {article} `{first}` as well");
        return section.report_fault(other, node, &what, "keep one of the two");
    }
    match first {
        Some((key, node)) if key == route::UPSTREAM.name => compile_upstream_action(section, node, upstreams),
        Some((key, _)) if key == route::RESPOND.name => compile_response(section),
        Some(_) => compile_redirect(section, matcher).map(|redirect| Action::Redirect(Box::new(redirect))),
        None => section.report_missing("this route has none of upstream, respond and redirect", HELP),
    }
}

fn compile_upstream_action(section: &Section, node: &Node, upstreams: &mut Upstreams) -> Option<Action> {
    if let Value::String(text) = &node.value {
        if text.value == "echo:" {
            return Some(Action::Echo);
        }
        if !origin::is_url(&text.value) {
            if !crate::config::values::is_name(&text.value) {
                return section.parse_node(route::UPSTREAM.name, node, |text| {
                    let help = match origin::check_origin(&format!("http://{text}")) {
                        Ok(_) => format!("write \"http://{text}\""),
                        Err(_) => "write http://HOST:PORT, https://HOST, h2c://HOST:PORT, unix:/PATH, the name of an [upstream.NAME], or \"echo:\"".to_owned(),
                    };
                    invalid_text(format!("`{text}` is neither a URL nor a name"), help)
                });
            }
            return upstreams.names.find(section.sources, node.place, &text.value).map(Action::Upstream);
        }
    }
    let servers = compile_server_list(section, &route::UPSTREAM, node, &upstreams.transport)?;
    if servers.iter().any(|server| server.caps != ServerCaps::default()) {
        let help = "write [upstream.NAME] with these servers and upstream = \"NAME\" here";
        return section.report_fault(route::UPSTREAM.name, node, "only servers of an [upstream.NAME] have caps", help);
    }
    Some(Action::Upstream(upstreams.intern_url_list(servers)))
}

fn compile_response(section: &Section) -> Option<Action> {
    let respond = section.read_section(&route::RESPOND)?;
    let status = match respond.node(&route::respond::STATUS) {
        Some(_) => parse_status(&respond),
        None => Some(StatusCode::OK),
    };
    let body = respond.read_string(&route::respond::BODY);
    let content_type = parse_content_type(&respond);
    let bare = matches!(status, Some(StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED));
    if let Some(node) =
        respond.node(&route::respond::BODY).filter(|_| bare && body.as_ref().is_some_and(|body| !body.is_empty()))
    {
        respond.report_fault::<()>(
            route::respond::BODY.name,
            node,
            "a response of this status has no body",
            "leave `body` out, or choose another status",
        );
    }
    respond.report_unread_keys();
    Some(Action::Respond(Box::new(FixedResponse {
        status: status?,
        body: Bytes::from(body.unwrap_or_default()),
        content_type: content_type.unwrap_or(TEXT),
    })))
}

pub fn compile_rewrite(section: &Section) -> Rewrite {
    let locations = read_locations(section);
    let Some(rewrite) = section.read_section(&route::REWRITE) else {
        return Rewrite { locations, ..Rewrite::default() };
    };
    let result = Rewrite {
        strip_prefix: rewrite.parse_string(&route::rewrite::STRIP_PREFIX, parse_path_prefix).unwrap_or_default(),
        add_prefix: rewrite.parse_string(&route::rewrite::ADD_PREFIX, parse_path_prefix).unwrap_or_default(),
        upstream_host: rewrite.get(&route::rewrite::UPSTREAM_HOST),
        host: rewrite.parse_string(&route::rewrite::HOST, parse_sent_host),
        locations,
    };
    if let Some(node) = rewrite.node(&route::rewrite::HOST).filter(|_| result.upstream_host) {
        let what = "the server gets its own host or this one, not both";
        rewrite.report_fault::<()>(route::rewrite::HOST.name, node, what, "remove `upstream_host` or `host`");
    }
    rewrite.report_unread_keys();
    result
}

/// Parses the `host` of a `rewrite`.
fn parse_sent_host(text: &str) -> Result<SentHost, TextFault> {
    match text {
        "{host}" => Ok(SentHost::WithoutPort),
        _ => values::parse_sent_host(text).map(SentHost::Fixed),
    }
}

/// Reads `rewrite_location`.
fn read_locations(section: &Section) -> Vec<(String, String)> {
    const KEY: &str = route::REWRITE_LOCATION.option.name;
    let is_text = |text: &str| match values::parse_header_value(text) {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        Ok(_) => invalid_text("an empty text starts every value", "write the start of a URL or a path"),
        Err(fault) => Err(fault),
    };
    let table = section.node(&route::REWRITE_LOCATION).and_then(|_| section.read_table(&route::REWRITE_LOCATION));
    let mut locations = Vec::new();
    for entry in table.map_or(&[][..], |table| &table.entries) {
        if let Err(TextFault { what, help }) = is_text(&entry.key) {
            section.report_fault_at::<()>(KEY, entry.place, &what, &help);
        }
        let to = section.parse_node(&entry.key, &entry.node, is_text);
        locations.extend(to.map(|to| (entry.key.clone(), to)));
    }
    locations
}
