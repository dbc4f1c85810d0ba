//! Lists the routes as JSON. With many routes this is expensive, so it is built once per config. Called by `mod.rs`.

use std::cell::RefCell;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::auth::AuthMethod;
use crate::config::Config;
use crate::route::Action;
use crate::route::matcher::{HeaderPattern, PathPattern};
use crate::route::order::{RankedRoute, rank_routes};
use crate::route::split::Branch;
use crate::snapshot::Snapshot;

/// The list built last, and its generation.
#[derive(Default)]
pub struct RouteListing(RefCell<Option<(u64, Bytes)>>);

/// Maximum number of entries. A route has one for each of its hosts.
const ENTRIES_MAX: usize = 20_000;
/// Size of the text, in bytes, above which no further entry is added.
const TEXT_MAX: usize = 16 * 1024 * 1024;

impl RouteListing {
    pub fn list_all(&self, snapshot: &Snapshot) -> Bytes {
        let mut slot = self.0.borrow_mut();
        let fresh = slot.take().filter(|(generation, _)| *generation == snapshot.generation);
        let (_, text) = slot.insert(fresh.unwrap_or_else(|| (snapshot.generation, write_list(snapshot))));
        text.clone()
    }
}

/// Writes entry by entry, so that no tree of all entries is in memory.
fn write_list(snapshot: &Snapshot) -> Bytes {
    let config = &snapshot.config;
    let routes = rank_routes(&config.routes);
    let mut text = format!("{{\"generation\":{},\"total\":{},\"routes\":[", snapshot.generation, routes.len());
    for (place, route) in routes.iter().take(ENTRIES_MAX).enumerate() {
        if text.len() > TEXT_MAX {
            break;
        }
        if place > 0 {
            text.push(',');
        }
        text.push_str(&describe_route(config, route, place + 1).to_string());
    }
    text.push_str("]}");
    text.into()
}

fn describe_route(config: &Config, ranked: &RankedRoute, priority: usize) -> Value {
    let Some(route) = config.routes.get(ranked.index) else { return Value::Null };
    let matcher = &route.matcher;
    let path = &matcher.path;
    let kind = match path {
        PathPattern::Regex(_) => "regex",
        PathPattern::Segments { exact: true, .. } => "exact",
        PathPattern::Segments { exact: false, .. } => "prefix",
    };
    let source = config.written_matcher(ranked.index);
    let header = |(name, pattern): &(http::HeaderName, HeaderPattern)| {
        (name.to_string(), source.shown_header(name.as_str(), &pattern.to_string()).into())
    };
    let path = source
        .path_with_variables()
        .map_or_else(|| path.to_string(), |path| path.trim_start_matches("= ").trim_start_matches("~ ").to_owned());
    let action = match &route.action {
        Action::Upstream(_) if route.split.is_some() => {
            let branch = |branch: &Branch| json!({ "upstream": config.upstreams.get(branch.upstream).map(|upstream| &upstream.name), "weight": branch.weight });
            json!({ "split": route.split.iter().flat_map(|split| &split.branches).map(branch).collect::<Vec<_>>() })
        }
        Action::Upstream(index) => json!({ "upstream": config.upstreams.get(*index).map(|upstream| &upstream.name) }),
        Action::Echo => json!({ "upstream": "echo:" }),
        Action::Respond(response) => json!({ "respond": response.status.as_u16() }),
        Action::Redirect(redirect) => json!({ "redirect": redirect.status.as_u16() }),
        Action::Files(folder) => json!({ "files": folder.path }),
    };
    let line = config.route_lines.get(ranked.index);
    json!({
        "priority": priority,
        "name": route.name,
        "host": ranked.host.map(|host| source.shown_host(&host.to_string())),
        "path": path,
        "match": kind,
        "methods": matcher.methods.iter().map(http::Method::as_str).collect::<Vec<_>>(),
        "header": matcher.headers.iter().map(header).collect::<serde_json::Map<String, Value>>(),
        "action": action,
        "limits": route.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(),
        "auth": route.auth.as_ref().map(|auth| match auth.method {
            AuthMethod::Basic(_) => "basic",
            AuthMethod::Jwt(_) => "jwt",
            AuthMethod::Forward(_) => "forward",
        }),
        "origin": line.map(|line| format!("{}:{}", line.file, line.line)),
    })
}
