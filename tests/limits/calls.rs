//! Limits on JSON-RPC calls: `jsonrpc:method`, `mcp:tool` and `costs`, under attack by clients that want more calls, or
//! more expensive ones, than their budget allows.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;

const JSON: &str = "content-type: application/json\r\n";

/// `/` has prices, `/methods` and `/tools` a budget for each method and tool, and the others conditions.
fn start(upstream: &Upstream) -> Gateway {
    let routes = [
        ("/", "prices", "costs = { eth_getLogs = 75, \"debug_*\" = 50, \"tools/call:search\" = 20, default = 10 }"),
        ("/methods", "methods", "key = \"jsonrpc:method\"\nburst = 3\nmissing = \"refuse\""),
        ("/tools", "tools", "key = [\"header:x-user\", \"mcp:tool\"]\nburst = 2\nrepeated = \"first\""),
        (
            "/logs",
            "logs",
            "burst = 2\nwhen = { method = \"POST\", jsonrpc = { method = [\"eth_getLogs\", \"debug_*\"] } }",
        ),
        ("/others", "others", "burst = 2\nwhen = { jsonrpc = { method = \"!eth_chainId\" } }"),
        ("/pair", "pair", "burst = 1\nwhen = { jsonrpc = { method = \"tools/call\" }, mcp = { tool = \"delete\" } }"),
        ("/shadow", "shadow", "costs = { a = 100, default = 1 }\nmode = \"shadow\""),
    ];
    scenario().upstream(upstream).limited_routes("100/day", &routes).start()
}

fn call(method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": [] })
}

fn named(method: &str, member: &str, name: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { member: name } })
}

/// Returns what is left of the limit after the call.
fn left(response: &Message) -> i64 {
    let header = response.get("ratelimit").unwrap_or_default();
    header.split("r=").nth(1).unwrap_or_default().split(';').next().unwrap().parse().unwrap_or(-1)
}

#[test]
fn a_batch_costs_the_sum_of_its_calls_and_is_decided_whole() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    for (body, status, rest) in [
        (call("eth_chainId"), 200, 90),
        (call("eth_getLogs"), 200, 15),
        // Neither passes alone: 75 and 2 × 10 of 15.
        (call("eth_getLogs"), 429, 15),
        (json!([call("eth_chainId"), call("eth_call")]), 429, 15),
        (json!([call("eth_chainId")]), 200, 5),
        (json!([]), 429, 5),
        (json!({ "id": 1, "result": {} }), 429, 5),
    ] {
        let response = gateway.post("/", JSON, body.to_string());
        assert_eq!((response.status(), left(&response)), (status, rest), "{body}");
        if status == 200 {
            assert_eq!(upstream.request().text(), body.to_string(), "the body is forwarded unchanged");
        }
    }
    assert_eq!(gateway.get("/").status(), 429, "a request without a body costs the default");
    let never = json!([call("eth_getLogs"), call("eth_getLogs")]);
    assert_eq!(
        gateway.post("/", JSON, never.to_string()).json()["title"],
        "the request costs more than its whole quota"
    );
}

#[test]
fn the_price_is_that_of_the_most_specific_name() {
    let upstream = Upstream::text("done");
    for (body, rest) in [
        (call("debug_traceBlock"), 50),
        (named("tools/call", "name", "search"), 80),
        (named("tools/call", "name", "other"), 90),
        (named("prompts/get", "name", "search"), 90),
        (json!([named("tools/call", "name", "search"), call("debug_x"), call("x")]), 20),
    ] {
        let gateway = start(&upstream);
        assert_eq!(left(&gateway.post("/", JSON, body.to_string())), rest, "{body}");
    }
}

#[test]
fn no_spelling_of_a_body_is_cheaper_than_what_a_server_reads() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let wide: Vec<u8> = r#"{"method":"eth_getLogs"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let huge = format!("[{}]", vec![r#"{"method":"x"}"#; 1001].join(","));
    let long = format!(r#"{{"x":"{}","method":"eth_getLogs"}}"#, "x".repeat(1 << 20));
    let deep = format!(r#"{{"method":"x","params":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    let plain = r#"{"method":"eth_getLogs"}"#;
    for (fields, body, status) in [
        (JSON, r#"{"method":"x","method":"eth_getLogs"}"#.as_bytes(), 400),
        (JSON, br#"{"method":"x","Method":"eth_getLogs"}"#, 400),
        (JSON, br#"{"METHOD":"eth_getLogs"}"#, 400),
        (JSON, br#"{"method\u0000":"eth_getLogs"}"#, 400),
        (JSON, br#"{"method":"eth_getLogs\u0000"}"#, 400),
        (JSON, br#"{"method":["eth_getLogs"]}"#, 400),
        (JSON, br#"[[{"method":"eth_getLogs"}]]"#, 400),
        (JSON, br#"{"method":"x"}{"method":"eth_getLogs"}"#, 400),
        (JSON, br#"{"method":"x"} trailing"#, 400),
        (JSON, "\u{feff}{\"method\":\"eth_getLogs\"}".as_bytes(), 400),
        (JSON, br#""eth_getLogs""#, 400),
        (JSON, b"{", 400),
        (JSON, &wide, 400),
        (JSON, huge.as_bytes(), 400),
        (JSON, deep.as_bytes(), 400),
        (JSON, long.as_bytes(), 413),
        ("content-type: text/plain\r\n", plain.as_bytes(), 415),
        ("", plain.as_bytes(), 415),
        ("content-type: application/json; charset=utf-16\r\n", &wide, 415),
        ("content-type: application/json\r\ncontent-encoding: gzip\r\n", plain.as_bytes(), 415),
        ("content-type: application/json\r\ncontent-type: text/plain\r\n", plain.as_bytes(), 415),
        ("content-type: application/x-www-form-urlencoded\r\n", b"method=eth_getLogs", 415),
    ] {
        let response = gateway.post("/", fields, body);
        assert_eq!(response.status(), status, "{fields}{:.60}", String::from_utf8_lossy(body));
    }
    assert_eq!(upstream.requests().len(), 0);
    let escaped = gateway.post("/", JSON, r#"{"params":[],"\u006dethod":"\u0065th_getLogs"}"#);
    assert_eq!((escaped.status(), left(&escaped)), (200, 25), "nothing was charged before");
    // A tunnel would carry calls that nobody counts.
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n"));
    assert_eq!(client.read_response("GET").status(), 403);
    gateway.assert_metric(
        "rejections_total",
        &[("limit", "prices"), ("route", "prices"), ("reason", "unreadable_key")],
        22.0,
    );
}

#[test]
fn each_method_has_a_budget_and_a_batch_of_several_has_none() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let status = |target: &str, fields: &str, body: Value| {
        gateway.post(target, &format!("{JSON}{fields}"), body.to_string()).status()
    };
    assert_eq!(status("/methods", "", json!([call("a"), call("a"), call("a")])), 200);
    assert_eq!(status("/methods", "", call("a")), 429, "the batch counted three times");
    assert_eq!(status("/methods", "", call("b")), 200);
    assert_eq!(status("/methods", "", json!([call("b"), call("c")])), 400);
    assert_eq!(status("/methods", "", json!({ "result": 1 })), 403, "it has no method");
    assert_eq!(gateway.get("/methods").status(), 403);

    // No call of a batch speaks for the others, whatever `repeated` says.
    let tools = json!([named("tools/call", "name", "x"), named("tools/call", "name", "y")]);
    assert_eq!(status("/tools", "x-user: u\r\n", tools), 400);
    for (body, expected) in [
        (named("tools/call", "name", "x"), 200),
        (named("prompts/get", "name", "x"), 200),
        (named("tools/call", "name", "x"), 429),
        (named("tools/call", "name", "y"), 200),
        (named("resources/read", "uri", "y"), 200),
        (named("resources/read", "uri", "y"), 429),
        // Other methods, and calls without a tool, share a budget.
        (call("tools/list"), 200),
        (call("tools/call"), 200),
        (json!({ "method": "ping" }), 429),
    ] {
        assert_eq!(status("/tools", "x-user: u\r\n", body.clone()), expected, "{body}");
    }
    assert_eq!(status("/tools", "x-user: v\r\n", named("tools/call", "name", "x")), 200);
}

#[test]
fn a_condition_selects_the_calls_of_a_batch_that_count() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let status = |target: &str, body: &str| gateway.post(target, JSON, body).status();
    let cheap = json!(vec![call("eth_chainId"); 50]).to_string();
    assert_eq!(status("/logs", &cheap), 200);
    let mut mixed = vec![call("eth_chainId"); 50];
    mixed.extend([call("eth_getLogs"), call("debug_x")]);
    assert_eq!(status("/logs", &json!(mixed).to_string()), 200, "two of 52 count");
    assert_eq!(status("/logs", &json!([call("eth_chainId"), call("debug_x")]).to_string()), 429);
    assert_eq!(status("/logs", &cheap), 200);
    assert_eq!(gateway.post("/logs", "content-type: text/plain\r\n", call("x").to_string()).status(), 415);
    let mut put = gateway.client();
    put.send(post("/logs", 1, "").replace("POST", "PUT") + "x");
    assert_eq!(put.read_response("PUT").status(), 200, "another condition fails, so the body is not read");

    // An excluded call does not exempt the others.
    for expected in [200, 200, 429] {
        assert_eq!(status("/others", &json!([call("eth_chainId"), call("x")]).to_string()), expected);
    }
    assert_eq!(status("/others", &call("eth_chainId").to_string()), 200);

    // All conditions have to be true of the same call.
    let apart = json!([named("tools/call", "name", "read"), named("prompts/get", "name", "delete")]).to_string();
    let both = named("tools/call", "name", "delete").to_string();
    assert_eq!([&apart, &both, &apart, &both].map(|body| status("/pair", body)), [200, 200, 200, 429]);
    // What a shadow limit cannot read passes.
    assert_eq!(status("/shadow", "{"), 200);
}

#[test]
fn headers_of_mcp_that_name_another_call_are_refused() {
    let upstream = Upstream::text("done");
    let gateway = start(&upstream);
    let search = named("tools/call", "name", "süß").to_string();
    for (target, fields, status) in [
        ("/tools", "mcp-method: tools/call\r\nmcp-name: =?base64?c8O8w58=?=\r\n", 200),
        ("/tools", "mcp-method: ping\r\n", 400),
        ("/tools", "mcp-name: other\r\n", 400),
        ("/tools", "mcp-method: tools/call\r\nmcp-method: ping\r\n", 400),
        ("/", "mcp-method: ping\r\n", 400),
        ("/others", "mcp-method: ping\r\n", 400),
    ] {
        let response = gateway.post(target, &format!("{JSON}{fields}"), &search);
        assert_eq!(response.status(), status, "{target} {fields}");
        if status == 400 {
            assert_eq!(response.json()["title"], "Mcp-Method or Mcp-Name names another call than the request body");
        }
    }
    gateway.assert_metric(
        "rejections_total",
        &[("limit", "prices"), ("route", "prices"), ("reason", "mcp_headers")],
        1.0,
    );
}

#[test]
fn an_explanation_has_the_cost_of_a_batch() {
    let gateway = start(&Upstream::text("done"));
    let explain = |target: &str, body: Value| {
        let headers = json!({ "content-type": "application/json" });
        let question = json!({ "method": "POST", "url": format!("http://a{target}"), "headers": headers, "body": body.to_string() });
        gateway.admin_request("POST", "/-/explain", JSON, question.to_string()).json()["limits"][0].clone()
    };
    assert_eq!(explain("/", json!([call("eth_getLogs"), call("x")]))["cost"], 85);
    assert_eq!(explain("/logs", json!([call("x"), call("debug_y"), call("eth_getLogs")]))["cost"], 2);
    assert_eq!(explain("/logs", call("x"))["effect"], "skipped");
    assert_eq!(explain("/methods", json!([call("a"), call("b")]))["effect"], "refuses");
}

/// Refuses every second request of a route whose limit reads no body, and every batch of a costly method.
fn start_refusing(upstream: &Upstream) -> Gateway {
    let routes = [
        ("/", "plain", ""),
        ("/never", "never", "burst = 5\ncosts = { eth_call = 5, x = 1 }"),
        ("/keyed", "keyed", "key = \"header:x-key\"\nmissing = \"refuse\""),
        ("/own", "own", "refuse = { status = 503, dialect = \"jsonrpc\", headers = { x-own = \"yes\" } }"),
    ];
    scenario()
        .upstream(upstream)
        .every_route("refuse = { dialect = \"jsonrpc\" }")
        .limited_routes("1/min", &routes)
        .start()
}

#[test]
fn refusals_are_errors_of_the_calls() {
    let upstream = Upstream::text("done");
    let gateway = start_refusing(&upstream);
    let id = |id: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "x" });
    assert_eq!(gateway.post("/", JSON, id(json!(1)).to_string()).text(), "done");
    let refused = gateway.post("/", JSON, id(json!("seven")).to_string());
    assert_eq!((refused.status(), refused.get("content-type")), (429, Some("application/json")));
    let wait_s: i64 = refused.get("retry-after").unwrap().parse().unwrap();
    let wait_ms = refused.json()["error"]["data"]["retry_after_ms"].as_i64().unwrap();
    assert!((50_000..=60_000).contains(&wait_ms) && wait_s == (wait_ms + 999) / 1000, "{wait_ms} {wait_s}");
    let error = json!({ "code": -32029, "message": "request quota exceeded", "data": { "retry_after_ms": wait_ms } });
    assert_eq!(refused.json(), json!({ "jsonrpc": "2.0", "id": "seven", "error": error }));
    assert_eq!(refused.get("ratelimit").map(|header| header.contains("r=0")), Some(true));

    for (fields, body, ids) in [
        (JSON, json!([id(json!(1)), { "jsonrpc": "2.0", "method": "x" }, id(json!("b"))]).to_string(), json!([1, "b"])),
        (JSON, json!({ "jsonrpc": "2.0", "method": "x" }).to_string(), Value::Null),
        (JSON, json!({ "jsonrpc": "2.0", "id": 3, "result": {} }).to_string(), Value::Null),
        (JSON, json!(vec![id(json!(1)); 101]).to_string(), Value::Null),
        (JSON, "{".to_owned(), Value::Null),
        ("content-type: text/plain\r\n", id(json!(1)).to_string(), Value::Null),
        (JSON, format!("{{\"id\":1,\"method\":\"{}\"}}", "x".repeat(1 << 20)), Value::Null),
    ] {
        let response = gateway.post("/", fields, &body);
        let found = match response.json() {
            Value::Array(errors) => errors.iter().map(|error| error["id"].clone()).collect(),
            error => error["id"].clone(),
        };
        assert_eq!((response.status(), found), (429, ids), "{:.80}", body);
    }
    let none = gateway.get("/");
    assert_eq!((none.status(), &none.json()["id"]), (429, &Value::Null));
    let head = gateway.client().fetch("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n", "");
    assert_eq!((head.status(), head.text().as_str()), (429, ""));

    let never = gateway.post("/never", JSON, json!([call("eth_call"), call("x")]).to_string());
    assert_eq!(
        never.json()[0]["error"],
        json!({ "code": -32029, "message": "the request costs more than its whole quota" })
    );
    let twice = gateway.post("/never", JSON, r#"{"id":1,"method":"x","method":"eth_call"}"#);
    assert_eq!((twice.status(), &twice.json()["error"]["code"]), (400, &json!(-32600)));
    let keyless = gateway.post("/keyed", JSON, id(json!(4)).to_string());
    assert_eq!((keyless.status(), &keyless.json()["id"]), (403, &json!(4)));
    let own = [(); 2].map(|()| gateway.post("/own", JSON, id(json!(5)).to_string()));
    assert_eq!((own[1].status(), own[1].get("x-own")), (503, Some("yes")));
    assert_eq!(own[1].json()["id"], 5);
}

/// The body of a refused request is read for its id: within its bounds, and the connection stays usable.
#[test]
fn the_body_of_a_refused_request_is_bounded() {
    let upstream = Upstream::text("done");
    let gateway = start_refusing(&upstream);
    let body = r#"{"jsonrpc":"2.0","id":9,"method":"x"}"#;
    assert_eq!(gateway.post("/", JSON, body).status(), 200);
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(post("/", body.len() as u64, &format!("{JSON}expect: 100-continue\r\n")));
        assert_eq!(client.try_read_head().unwrap().status(), 100);
        client.send(body);
        assert_eq!(client.read_response("POST").json()["id"], 9);
    }
    // A client over its limit does not keep its request open with a slow body.
    let begin = Instant::now();
    let mut stalled = gateway.client();
    stalled.send(post("/", body.len() as u64, JSON) + "{");
    let response = stalled.read_response("POST");
    assert_eq!((response.status(), &response.json()["id"]), (429, &Value::Null));
    assert_eq!(response.get("connection"), Some("close"));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    stalled.assert_closed();
    let whole = gateway.post("/", JSON, body);
    assert_eq!((whole.status(), &whole.json()["id"]), (429, &json!(9)));
}
