//! Whatever a body says of its calls: nothing panics, no call is free, and a batch costs no less than its calls alone.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use sluicegate::config::load_text;
use sluicegate::fuzzing::{BodyKind, COST_MAX, Facts, Limit};

/// Limits by JSON-RPC method and by estimate of a GraphQL query. Each call costs one unit at least.
static LIMITS: LazyLock<[Arc<Limit>; 2]> = LazyLock::new(|| {
    let text = "[[route]]\nupstream = \"echo:\"\nlimits = [\"rpc\", \"graphql\"]\n\
        [limit.rpc]\nrate = \"1000000/s\"\nkey = \"jsonrpc:method\"\ncosts = { eth_getLogs = 75, \"tools/call:search\" = 5, default = 1 }\n\
        [limit.graphql]\nrate = \"1000000/s\"\nkey = \"all\"\ncost = { graphql = { weights = { a = 3, default = 1 } } }\n";
    let config = load_text("calls.toml", text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    ["rpc", "graphql"].map(|name| config.limits.find(name).expect("it is there").clone())
});

/// Whether the body is GraphQL, and the body.
pub type Input<'a> = (bool, &'a [u8]);

fn cost_of(limit: &Limit, body: &[u8]) -> Option<i64> {
    let headers = HeaderMap::new();
    let facts = Facts {
        client: IpAddr::from([192, 0, 2, 1]),
        method: "POST",
        host: "a.test",
        path: "/",
        query: None,
        server_path: "/",
        server_query: None,
        headers: &headers,
        has_joined_lines: false,
        route: "",
        params: &[],
        claims: None,
        geo: None,
        certificate: None,
        user: None,
        body: BodyKind::Json.check_body(body),
        descriptor: &[],
        body_length: None,
        stated_ms: None,
        calls: Default::default(),
    };
    if limit.unreadable_body(&facts).is_some() {
        return None;
    }
    let cost = limit.price_of(&facts).ok()?.units;
    assert!(cost > 0, "a request is free");
    Some(cost)
}

pub fn run((is_graphql, body): Input<'_>) {
    let limit = &LIMITS[usize::from(is_graphql)];
    let Some(alone) = cost_of(limit, body) else { return };
    assert_eq!(cost_of(limit, body), Some(alone), "the cost changes");
    // A batch of it twice costs twice as much, or is refused. One of a batch is no call.
    let batch = [b"[", body, b",", body, b"]"].concat();
    if let Some(twice) = cost_of(limit, &batch) {
        assert!(twice >= (2 * alone).min(COST_MAX), "{twice} for two of {alone}");
    }
}
