//! What a route does: its upstream or fixed response, and its rewrite. Called by
//! `route`.

use bytes::Bytes;
use http::StatusCode;

use super::matcher::{TEXT, content_type, prefix, status};
use super::upstream::{Upstreams, servers};
use crate::config::reader::Section;
use crate::config::tree::{Node, Value};
use crate::config::values::fault;
use crate::config::{origin, schema};
use crate::route::{Action, Fixed, Rewrite};
use crate::upstream::caps::ServerCaps;

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
