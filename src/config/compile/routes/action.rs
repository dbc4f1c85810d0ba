//! Action of a route: its upstream, fixed response, redirect or folder of files. Called by `routes`.

use bytes::Bytes;
use http::StatusCode;

use crate::config::compile::matcher::{TEXT, parse_content_type, parse_status};
use crate::config::compile::routes::files::{compile_files, report_options_without_files};
use crate::config::compile::routes::redirect::compile_redirect;
use crate::config::compile::upstreams::{Upstreams, compile_server_list};
use crate::config::origin;
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::schema::row::ConfigOption;
use crate::config::tree::{Node, Value};
use crate::config::values::invalid_text;
use crate::route::matcher::Matcher;
use crate::route::split::Split;
use crate::route::{Action, FixedResponse};
use crate::upstream::caps::ServerCaps;

/// Compiles what the route does. `split`: the branches of a route that has several upstreams.
pub fn compile_action(
    section: &Section,
    matcher: Option<&Matcher>,
    split: Option<&Split>,
    upstreams: &mut Upstreams,
) -> Option<Action> {
    const HELP: &str = "add upstream = \"http://HOST:PORT\", the name of an [upstream.NAME], or \"echo:\"; or split = [{ upstream = \"app\", weight = 95 }, ...]; or respond = { status = 200, body = \"...\" }; or redirect = \"https://example.com{path}\"; or files = \"FOLDER\"";
    let written = [
        route::UPSTREAM.option,
        route::SPLIT.option,
        route::RESPOND.option,
        route::REDIRECT.option,
        route::FILES.option,
    ]
    .map(|option| section.node(&option).map(|node| (option.name, node)));
    let mut written = written.into_iter().flatten();
    let first = written.next();
    if let (Some((first, _)), Some((other, node))) = (first, written.next()) {
        let what = match first == route::UPSTREAM.name {
            true => format!("the route has an `{first}` as well"),
            false => format!("the route has a `{first}` as well"),
        };
        return section.report_fault(other, node, &what, "keep one of the two");
    }
    if first.is_none_or(|(key, _)| key != route::FILES.name) {
        report_options_without_files(section);
    }
    match first {
        Some((key, node)) if key == route::FILES.name => compile_files(section, node).map(Action::Files),
        Some((key, node)) if key == route::UPSTREAM.name => compile_upstream_action(section, node, upstreams),
        Some((key, _)) if key == route::SPLIT.name => Some(Action::Upstream(split?.branches.first()?.upstream)),
        Some((key, _)) if key == route::RESPOND.name => compile_response(section),
        Some(_) => compile_redirect(section, matcher).map(|redirect| Action::Redirect(Box::new(redirect))),
        None => section.report_missing("this route has none of upstream, split, respond, redirect and files", HELP),
    }
}

fn compile_upstream_action(section: &Section, node: &Node, upstreams: &mut Upstreams) -> Option<Action> {
    match &node.value {
        Value::String(text) if text.value == "echo:" => Some(Action::Echo),
        _ => find_upstream(section, &route::UPSTREAM, node, upstreams).map(Action::Upstream),
    }
}

/// Returns the index of an upstream that is written by name, as a URL or as a list of URLs.
pub fn find_upstream(
    section: &Section,
    option: &ConfigOption,
    node: &Node,
    upstreams: &mut Upstreams,
) -> Option<usize> {
    if let Value::String(text) = &node.value
        && !origin::is_url(&text.value)
    {
        if !crate::config::values::is_name(&text.value) {
            return section.parse_node(option.name, node, |text| {
                let help = match origin::check_origin(&format!("http://{text}")) {
                    Ok(_) => format!("write \"http://{text}\""),
                    Err(_) => "write http://HOST:PORT, https://HOST, h2c://HOST:PORT, unix:/PATH, the name of an [upstream.NAME], or \"echo:\"".to_owned(),
                };
                invalid_text(format!("`{text}` is neither a URL nor a name"), help)
            });
        }
        return upstreams.names.find(section.sources, node.place, &text.value);
    }
    let servers = compile_server_list(section, option, node, &upstreams.transport)?;
    if servers.iter().any(|server| server.caps != ServerCaps::default()) {
        let help = "write [upstream.NAME] with these servers and upstream = \"NAME\" here";
        return section.report_fault(option.name, node, "only servers of an [upstream.NAME] have caps", help);
    }
    Some(upstreams.intern_url_list(servers))
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
