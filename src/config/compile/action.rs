//! What a route does: its upstream or fixed response, its rewrite, and how it refuses. Called by
//! `route`.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::matcher::{content_type, prefix, status};
use super::upstream::{Upstreams, servers};
use crate::config::reader::{Section, closest};
use crate::config::tree::{Node, Value};
use crate::config::values::fault;
use crate::config::{origin, schema};
use crate::limit::refuse::Refuse;
use crate::route::{Action, Fixed, Rewrite};
use crate::upstream::caps::ServerCaps;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

pub fn action(section: &Section, upstreams: &mut Upstreams) -> Option<Action> {
    const HELP: &str = "add upstream = \"http://HOST:PORT\", the name of an [upstream.NAME], or \"echo:\"; or respond = { status = 200, body = \"...\" }";
    match (section.node("upstream"), section.node("respond")) {
        (Some(node), None) => upstream(section, node, upstreams),
        (None, Some(_)) => respond(section),
        (Some(_), Some(node)) => {
            section.fault("respond", node, "the route has an `upstream` as well", "keep one of the two")
        }
        (None, None) => section.absent("this route has neither upstream nor respond", HELP),
    }
}

fn upstream(section: &Section, node: &Node, upstreams: &mut Upstreams) -> Option<Action> {
    if let Value::String(text) = &node.value {
        if text.value == "echo:" {
            return Some(Action::Echo);
        }
        if !origin::is_url(&text.value) {
            if !crate::config::values::is_name(&text.value) {
                return section.parse_node("upstream", node, |text| {
                    let help = match origin::check(&format!("http://{text}")) {
                        Ok(_) => format!("write \"http://{text}\""),
                        Err(_) => "write http://HOST:PORT, https://HOST, h2c://HOST:PORT, unix:/PATH, the name of an [upstream.NAME], or \"echo:\"".to_owned(),
                    };
                    fault(format!("`{text}` is neither a URL nor a name"), help)
                });
            }
            return upstreams.names.find(section.sources, node.place, &text.value).map(Action::Upstream);
        }
    }
    let servers = servers(section, "upstream", node, &upstreams.reach)?;
    if servers.iter().any(|server| server.caps != ServerCaps::default()) {
        let help = "write [upstream.NAME] with these servers and upstream = \"NAME\" here";
        return section.fault("upstream", node, "only servers of an [upstream.NAME] have caps", help);
    }
    Some(Action::Upstream(upstreams.anonymous(servers)))
}

fn respond(section: &Section) -> Option<Action> {
    let respond = section.section("respond", &schema::RESPOND)?;
    let status = match respond.node("status") {
        Some(_) => status(200..=599, &respond),
        None => Some(StatusCode::OK),
    };
    let body = respond.string("body");
    let content_type = content_type(&respond);
    let bare = matches!(status, Some(StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED));
    if let Some(node) = respond.node("body").filter(|_| bare && body.as_ref().is_some_and(|body| !body.is_empty())) {
        respond.fault::<()>(
            "body",
            node,
            "a response of this status has no body",
            "leave `body` out, or choose another status",
        );
    }
    respond.finish();
    Some(Action::Respond(Box::new(Fixed {
        status: status?,
        body: Bytes::from(body.unwrap_or_default()),
        content_type: content_type.unwrap_or(TEXT),
    })))
}

pub fn rewrite(section: &Section) -> Rewrite {
    let Some(rewrite) = section.section("rewrite", &schema::REWRITE) else { return Rewrite::default() };
    let compiled = Rewrite {
        strip_prefix: rewrite.parse("strip_prefix", prefix).unwrap_or_default(),
        add_prefix: rewrite.parse("add_prefix", prefix).unwrap_or_default(),
        upstream_host: rewrite.bool("upstream_host").unwrap_or(false),
    };
    rewrite.finish();
    compiled
}

/// How limits refuse that do not say so themselves.
pub fn refuse(section: &Section) -> Refuse {
    let plain = || Refuse { status: StatusCode::TOO_MANY_REQUESTS, body: None, content_type: PROBLEM };
    own_refuse(section).unwrap_or_else(plain)
}

/// `refuse` of a route or a limit, if it has one.
pub fn own_refuse(section: &Section) -> Option<Refuse> {
    let refuse = section.section("refuse", &schema::REFUSE)?;
    let status = status(400..=599, &refuse);
    let body = refuse.parse("body", template);
    let content_type = content_type(&refuse);
    if let (Some(node), None) = (refuse.node("content_type"), refuse.node("body")) {
        let help = "add a `body`, or leave it out for application/problem+json";
        refuse.fault::<()>("content_type", node, "there is no `body` that it could describe", help);
    }
    refuse.finish();
    Some(Refuse {
        status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        content_type: content_type.unwrap_or(if body.is_some() { TEXT } else { PROBLEM }),
        body,
    })
}

/// A body may well be JSON, so only a lower-case word in braces stands for a value.
fn template(text: &str) -> Result<String, crate::config::values::Fault> {
    const NAMES: [&str; 3] = ["retry_after", "limit", "route"];
    for part in text.split('{').skip(1) {
        let Some((name, _)) = part.split_once('}') else { continue };
        let is_word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let help = match closest(name, NAMES.into_iter()) {
            Some(known) if known == name => continue,
            Some(known) => format!("did you mean `{{{known}}}`?"),
            None if is_word => {
                let known = NAMES.map(|known| format!("{{{known}}}")).join(", ");
                format!("the placeholders are {known}; for the text itself write `{{ {name} }}`")
            }
            None => continue,
        };
        return fault(format!("unknown placeholder `{{{name}}}`"), help);
    }
    Ok(text.to_owned())
}
