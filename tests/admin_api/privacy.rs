//! Roles do not see values of clients that are not meant for them: keys of overrides, bodies of responses, hidden keys.

use serde_json::{Value, json};

use super::{fetch_as, problem, secret, tokens};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::http::Message;

const CONFIG: &str = r#"
[limit.user]
rate = "5/day"
algorithm = "fixed_window"
key = ["header:x-user", "ip"]
missing = "skip"
overrides = [
    { key = ["CANARY-ann", "*"], rate = "7/day" },
    { key = [{ percent = "CANARY-b%E9" }, "127.0.0.1"], rate = 0 },
]
refuse = { body = "CANARY refuse" }

[limit.pin]
rate = "5/day"
algorithm = "fixed_window"
key = "header:x-pin"
missing = "skip"
overrides = [{ key = "CANARY-4711", rate = "3/day" }]

[limit.shared]
rate = "5/day"
key = "all"
fair = { key = ["header:x-user", "ip"], reserve = 2, weights = { "CANARY-big,127.0.0.1" = 5, "CANARY-b%E9,::1" = 2 } }

[limit.drawn]
rate = "5/day"
key = "all"

[limit.drawn.fair]
key = "header:x-pin"
reserve = 2

[limit.drawn.fair.weights]
CANARY-4711 = 3
CANARY-4712 = 4

[[route]]
name = "api"
path = "/"
respond = { body = "CANARY respond" }
auth = { forward = "http://127.0.0.1:9/verify?k=CANARY-forward" }
limits = ["user"]

[[route]]
name = "pins"
path = "/pins/"
respond = { body = "in" }
limits = ["pin"]

[limit.code]
rate = "5/day"
key = "descriptor:code"

[[rls]]
domain = "edge"
descriptor = { code = "*" }
limits = ["code"]

[limit.address]
rate = "5/day"
key = "ip"
overrides = [{ key = "203.0.113.7", rate = "3/day" }]

[[rls]]
domain = "edge"
descriptor = { remote_address = "*" }
limits = ["address"]
"#;

const SETTINGS: &str = "edit = true\nkeys_secret = \"0123456789abcdef0123456789abcdef\"\n\
                        keys = { \"header:x-pin\" = \"hidden\", \"descriptor:code\" = \"hidden\" }\n";

fn start() -> Gateway {
    Gateway::start(&format!("{SETTINGS}{}{CONFIG}", tokens()))
}

#[track_caller]
fn ok(response: &Message) -> Value {
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

#[test]
fn keys_of_overrides_and_bodies_are_for_editors() {
    let gateway = start();
    let state = ok(&fetch_as(&gateway, "keys", "GET", "/-/limits/user/state?key=CANARY-big&key=::1", ""));
    let big = state["key"].as_str().unwrap().split(['#', ',']).nth(1).unwrap().to_owned();
    let state = ok(&fetch_as(&gateway, "keys", "GET", "/-/limits/user/state?key=CANARY-ann&key=::1", ""));
    let digits = state["key"].as_str().unwrap().split(['#', ',']).nth(1).unwrap().to_owned();
    assert_eq!(state["policy"]["quota"], 7, "{state}");
    let mut tags = Vec::new();
    for role in ["read", "keys", "limits"] {
        let response = fetch_as(&gateway, role, "GET", "/-/config", "");
        let page = ok(&response);
        assert!(!page.to_string().contains("CANARY"), "{role}: {page}");
        let keys = &page["config"]["limit"]["user"]["overrides"]["value"];
        assert_eq!(keys[0]["key"], json!([{ "hash": digits }, "*"]));
        assert_eq!(keys[1]["key"][1], "127.0.0.1");
        assert_eq!(page["config"]["limit"]["pin"]["overrides"]["value"][0]["key"], "***");
        let limit = |name: &str| page["config"]["limit"][name].as_object().unwrap().clone();
        let big = format!("fair.weights.%#{big},127.0.0.1");
        let shared: Vec<String> = limit("shared").into_iter().map(|(name, _)| name.replace(&big, "BIG")).collect();
        assert!(shared.contains(&"BIG".to_owned()), "{big}: {shared:?}");
        let hidden: Vec<(String, Value)> =
            limit("drawn").into_iter().filter(|(name, _)| name.starts_with("fair.weights")).collect();
        assert!(hidden.iter().all(|(name, _)| name.starts_with("fair.weights.*** (")), "{hidden:?}");
        assert_eq!(hidden.iter().map(|(_, option)| option["value"].as_i64().unwrap()).sum::<i64>(), 7);
        assert_eq!(page["config"]["route"][0]["auth.forward"]["value"], "http://127.0.0.1:9/verify?***");
        tags.push(response.get("etag").unwrap().to_owned());
    }
    let response = fetch_as(&gateway, "edit", "GET", "/-/config", "");
    tags.dedup();
    assert!(tags.len() == 1 && tags[0] != response.get("etag").unwrap(), "{tags:?}");
    let page = ok(&response).to_string();
    assert!(
        page.contains("CANARY-ann") && page.contains("CANARY respond") && !page.contains("CANARY-forward"),
        "{page}"
    );

    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let changed = text
        .replace("CANARY-ann", "CANARY-bob")
        .replace("CANARY-4711", "CANARY-0815")
        .replace("CANARY-big,127.0.0.1\" = 5", "CANARY-big,127.0.0.1\" = 6")
        .replace("CANARY re", "CANARY other re")
        .replace("CANARY-forward", "CANARY-other");
    gateway.write_config(&changed);
    let response = ok(&fetch_as(&gateway, "edit", "POST", "/-/reload", ""));
    let pages = ["/-/config", "/-/config/history", "/-/status", "/-/routes", "/-/limits", "/-/upstreams"];
    let pages = pages.map(|path| ok(&fetch_as(&gateway, "read", "GET", path, "")).to_string());
    for text in pages.iter().chain([&response.to_string(), &gateway.log()]) {
        assert!(!text.contains("CANARY"), "{text}");
    }
    let log = gateway.log();
    let weight = format!("fair.weights.%#{big},127.0.0.1 5 \u{2192} 6");
    let removed = format!("removed {{ key = [{{ hash = \"{digits}\" }}, \"*\"], rate = \"7/day\" }}");
    for part in
        ["refuse.body changed", "respond.body changed", "auth.forward changed", "fair.weights.*** (", &weight, &removed]
    {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

#[test]
fn mistakes_show_no_values_of_clients() {
    let gateway = start();
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let twice = "    { key = [\"CANARY-ann\", \"*\"], rate = \"7/day\" },\n";
    for (right, wrong) in [
        ("\"*\"], rate = \"7/day\"", "\"*\"], rate = \"many\""),
        ("\"127.0.0.1\"], rate = 0", "\"CANARY-ip\"], rate = 0"),
        ("{ percent = \"CANARY-b%E9\" }", "{ per_cent = \"CANARY-b\" }"),
        (twice, &twice.repeat(2)),
        ("key = \"CANARY-4711\"", "key = [\"CANARY-4711\", \"CANARY-4712\"]"),
        ("CANARY-big,127.0.0.1\" = 5", "CANARY-big,127.0.0.1\" = 0"),
        ("CANARY-big,127.0.0.1\" = 5", "CANARY-big,CANARY-ip\" = 5"),
        ("CANARY-4712 = 4", "CANARY-4712 = \"4\""),
        ("CANARY-4712 = 4", "CANARY-4711 = 4"),
        ("key = \"CANARY-4711\", rate = \"3/day\" }]", "key = \"CANARY-4711, rate = 3 }]"),
        ("CANARY refuse", "CANARY {retry_aftr} refuse"),
        ("refuse = { body = \"CANARY refuse\" }", "refuse = \"CANARY refuse\""),
        ("refuse = { body = \"CANARY refuse\" }", "refuse = { body = \"CANARY refuse }"),
        ("body = \"CANARY respond\" }", "body = \"CANARY respond\", status = 99 }"),
        ("body = \"CANARY respond\" }", "bdoy = '''CANARY {x}\nCANARY''' }"),
    ] {
        assert!(text.contains(right), "{right}");
        gateway.write_config(&text.replacen(right, wrong, 1));
        let response = fetch_as(&gateway, "edit", "POST", "/-/reload", "");
        assert_eq!(response.status(), 422, "{wrong}: {}", response.text());
        let status = ok(&fetch_as(&gateway, "read", "GET", "/-/status", "")).to_string();
        for shown in [status, response.text(), gateway.log()] {
            assert!(!shown.contains("CANARY"), "{wrong}: {shown}");
        }
    }
}

#[test]
fn a_guess_of_a_hidden_value_is_not_confirmed() {
    let gateway = start();
    assert_eq!(gateway.fetch(&get("/pins/x", "x-pin: CANARY-4711\r\n")).status(), 200);
    let explain = |role: &str, pin: &str| {
        let body = json!({ "url": "http://a.test/pins/x", "headers": { "x-pin": pin } }).to_string();
        let fields = format!("content-type: application/json\r\nauthorization: Bearer {}\r\n", secret(role));
        ok(&gateway.admin_request("POST", "/-/explain", &fields, body))
    };
    let (right, wrong) = (explain("keys", "CANARY-4711"), explain("keys", "CANARY-4712"));
    let without_pin = |page: &Value| page.to_string().replace("4711", "").replace("4712", "");
    assert_eq!(without_pin(&right), without_pin(&wrong));
    let limit = &right["limits"][0];
    assert_eq!((&limit["name"], &limit["effect"]), (&json!("pin"), &json!("unknown")), "{limit}");
    assert_eq!(explain("limits", "CANARY-4711")["limits"][0]["state"]["remaining"], 2);
    assert_eq!(explain("limits", "CANARY-4712")["limits"][0]["state"]["remaining"], 5);

    let state = |role: &str| fetch_as(&gateway, role, "GET", "/-/limits/pin/state?key=CANARY-4711", "");
    let refused = state("keys");
    assert_eq!(refused.status(), 403, "{}", refused.text());
    let problem = problem(&refused);
    assert_eq!(problem["type"], "urn:sluicegate:problem:role-too-low");
    assert_eq!((&problem["required_role"], &problem["token_role"]), (&json!("limits"), &json!("keys")));
    assert_eq!(ok(&state("limits"))["remaining"], 2);

    let refused = explain_descriptor(&gateway, "keys", "code", "4711");
    assert_eq!(refused.status(), 403, "{}", refused.text());
    let shown = ok(&explain_descriptor(&gateway, "limits", "code", "4711"));
    assert_eq!(shown["rls"]["descriptors"][0]["limits"][0]["state"]["remaining"], 5);
}

#[test]
fn a_descriptor_is_explained_unless_its_limit_reads_what_is_hidden() {
    let explain = |gateway: &Gateway, role: &str| explain_descriptor(gateway, role, "remote_address", "203.0.113.7");
    let left = |page: &Message| ok(page)["rls"]["descriptors"][0]["limits"][0]["state"]["remaining"].clone();
    assert_eq!(left(&explain(&start(), "keys")), 3);
    let settings = SETTINGS.replace("keys = {", "keys = { ip = \"hidden\",");
    let gateway = Gateway::start(&format!("{settings}{}{CONFIG}", tokens()));
    let refused = explain(&gateway, "keys");
    assert_eq!(refused.status(), 403, "{}", refused.text());
    assert!(!refused.text().contains("203.0.113.7") && refused.text().contains("address"), "{}", refused.text());
    assert_eq!(left(&explain(&gateway, "limits")), 3);
}

fn explain_descriptor(gateway: &Gateway, role: &str, entry: &str, value: &str) -> Message {
    let descriptor = json!({ "entries": [[entry, value]] });
    let body = json!({ "rls": { "domain": "edge", "descriptors": [descriptor] } }).to_string();
    let fields = format!("content-type: application/json\r\nauthorization: Bearer {}\r\n", secret(role));
    gateway.admin_request("POST", "/-/explain", &fields, body)
}
