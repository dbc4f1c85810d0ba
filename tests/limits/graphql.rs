//! Limits on GraphQL requests: estimated costs and operations, under attack by clients that want more than they pay for.

use serde_json::{Value, json};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;

const JSON: &str = "content-type: application/json\r\n";

fn start(upstream: &Upstream) -> Gateway {
    let cost = |more: &str| {
        format!("cost = {{ graphql = {{ weights = {{ search = 50 }}, list_size = 100, max_depth = 8{more} }} }}")
    };
    let (units, stored) = (cost(""), cost(", stored = 300"));
    let routes = [
        ("/", "units", units.as_str()),
        ("/stored", "stored", &stored),
        ("/op", "op", "key = \"graphql:operation\"\nburst = 2"),
        ("/export", "export", "burst = 1\nwhen = { graphql = { operation = \"Export*\" } }"),
    ];
    scenario().upstream(upstream).limited_routes("1000/day", &routes).start()
}

fn query(text: &str) -> Value {
    json!({ "query": text })
}

/// Returns the status and what is left of 1000 units in a new gateway.
fn left(upstream: &Upstream, target: &str, body: &Value) -> (u16, i64) {
    let response = start(upstream).post(target, JSON, body.to_string());
    let header = response.get("ratelimit").unwrap_or_default().to_owned();
    let rest = header.split("r=").nth(1).unwrap_or_default().split(';').next().unwrap().parse();
    (response.status(), rest.unwrap_or(-1))
}

#[test]
fn a_query_costs_its_estimate() {
    let upstream = Upstream::text("done");
    let list = "query($n: Int = 20) { users(first: $n) { id name } }";
    for (body, expected) in [
        (query("{ me { id } }"), (200, 998)),
        (query(list), (200, 959)),
        (json!({ "query": list, "variables": { "n": 100 } }), (200, 799)),
        (json!({ "query": list, "variables": { "n": null } }), (200, 799)),
        (json!({ "query": list, "variables": { "n": 1000 } }), (429, 1000)),
        (query("{ a: search { id } b: search { id } }"), (200, 898)),
        (query("{ ...F ...F } fragment F on Query { search { id } }"), (200, 898)),
        (json!([query("{ search { id } }"), query("{ me }"), query("mutation { x }")]), (200, 947)),
        (query("query A { a } "), (200, 999)),
        (json!({ "query": "query A { a } query B { search }", "operationName": "B" }), (200, 950)),
    ] {
        assert_eq!(left(&upstream, "/", &body), expected, "{body}");
    }
    let gateway = start(&upstream);
    let asked = gateway.fetch(&get("/?query=%7Busers(first:5)%7Bid%7D%7D", ""));
    assert_eq!((asked.status(), asked.get("ratelimit").unwrap().contains("r=994")), (200, true));
}

#[test]
fn no_request_is_cheaper_than_what_a_server_executes() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let aliases: String = (0..30).map(|number| format!("a{number}: search {{ id }} ")).collect();
    assert_eq!(gateway.post("/", JSON, query(&format!("{{ {aliases} }}")).to_string()).status(), 429);
    let bomb: String = (0..90).map(|at| format!("fragment f{at} on X {{ ...f{0} ...f{0} }} ", at + 1)).collect();
    let bomb = query(&format!("{{ ...f0 }} {bomb} fragment f90 on X {{ a }}")).to_string();
    assert_eq!(gateway.post("/", JSON, bomb).json()["title"], "the request costs more than its whole quota");
    let deep = query(&format!("{}a{}", "{a".repeat(9), "}".repeat(9))).to_string();
    let deeper = query(&format!("{}a{}", "{a".repeat(40_000), "}".repeat(40_000))).to_string();
    let wide = query(&format!("{{ {} }}", "a ".repeat(30_000))).to_string();
    let two = r#"{"query":"{ a }","query":"{ search }"}"#;
    let expensive = query("{ search }").to_string();
    for (target, fields, body, status) in [
        ("/", JSON, deep.as_str(), 400),
        ("/", JSON, &deeper, 400),
        ("/", JSON, &wide, 400),
        ("/", JSON, two, 400),
        ("/", JSON, r#"{"query":"{ a }","Query":"{ search }"}"#, 400),
        ("/", JSON, r#"{"query":"{ ...F } fragment F on X { ...F }"}"#, 400),
        ("/", JSON, r#"{"query":"{ ...F }"}"#, 400),
        ("/", JSON, r#"{"query":"query A { a } query B { search }"}"#, 400),
        ("/", JSON, r#"{"query":"{ a }","variables":{"n":1,"n":1000}}"#, 400),
        ("/", JSON, r#"{"query":"{ a"}"#, 400),
        ("/", JSON, "{}", 400),
        ("/", JSON, "[]", 400),
        ("/", JSON, r#"{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"x"}}}"#, 400),
        ("/", JSON, r#"{"id":"expensive","query":"{ a }"}"#, 400),
        ("/?query=%7Bsearch%7D", JSON, r#"{"query":"{ a }"}"#, 400),
        ("/?variables=%7B%22n%22:1000%7D", JSON, r#"{"query":"{ a }"}"#, 400),
        ("/?query=%7Ba%7D&query=%7Bsearch%7D", JSON, r#"{"query":"{ a }"}"#, 400),
        ("/", "content-type: application/graphql\r\n", "{ search }", 415),
        ("/", "content-type: application/x-www-form-urlencoded\r\n", "query=%7Bsearch%7D", 415),
        ("/", "content-type: multipart/form-data; boundary=x\r\n", &expensive, 415),
        ("/", "content-type: text/plain\r\n", &expensive, 415),
        ("/", "", &expensive, 415),
    ] {
        let response = gateway.post(target, fields, body);
        assert_eq!(response.status(), status, "{target} {fields}{body:.80}");
    }
    assert_eq!(gateway.get("/?query=%7Ba%7D;query=%7Bsearch%7D").status(), 400);
    assert_eq!(gateway.get("/").status(), 400, "nothing says what it costs");
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn stored_queries_cost_what_is_configured() {
    let upstream = Upstream::text("done");
    let hash = json!({ "extensions": { "persistedQuery": { "version": 1, "sha256Hash": "x" } } });
    for (body, expected) in [
        (hash.clone(), 700),
        (json!({ "documentId": "x", "query": "{ a }" }), 700),
        (json!([hash.clone(), hash, query("{ search }")]), 350),
        // The server compares the query with its hash.
        (json!({ "query": "{ a }", "extensions": { "persistedQuery": { "version": 1, "sha256Hash": "x" } } }), 999),
    ] {
        assert_eq!(left(&upstream, "/stored", &body), (200, expected), "{body}");
    }
}

#[test]
fn operations_have_budgets_and_conditions() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let status = |target: &str, body: Value| gateway.post(target, JSON, body.to_string()).status();
    let named = |name: &str| query(&format!("query {name} {{ a }}"));
    assert_eq!([named("A"), named("B"), named("A"), named("A")].map(|body| status("/op", body)), [200, 200, 200, 429]);
    assert_eq!(status("/op", json!([named("B"), named("C")])), 400);
    assert_eq!(status("/op", json!([named("C"), named("C")])), 200);
    assert_eq!(status("/op", named("C")), 429);

    let both = json!([named("Export1"), named("A"), named("Export2")]);
    assert_eq!(status("/export", both), 429, "two units of one");
    assert_eq!(status("/export", json!([named("Export1"), named("A")])), 200);
    assert_eq!(status("/export", named("Export1")), 429);
    assert_eq!(status("/export", named("A")), 200);

    let question = json!({ "method": "POST", "url": "http://a/", "headers": { "content-type": "application/json" },
        "body": query("{ users(first: 10) { id } }").to_string() });
    let explained = gateway.admin_request("POST", "/-/explain", JSON, question.to_string()).json();
    assert_eq!(explained["limits"][0]["cost"], 11, "{explained}");
}
