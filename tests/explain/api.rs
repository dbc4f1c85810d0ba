//! `POST /-/explain` of a running gateway: live state, access, secrets, and hostile bodies.

use std::fs;

use serde_json::{Value, json};

use super::run;
use crate::support::client::{Client, call, get};
use crate::support::gateway::Gateway;

const CONFIG: &str = "
[[route]]
name = \"api\"
path = \"/v1/\"
upstream = \"echo:\"
limits = [\"per-key\"]
[[route]]
name = \"internal\"
path = \"/v1/\"
header = { x-internal = \"ROUTE-SECRET\" }
upstream = \"echo:\"
[limit.per-key]
rate = \"3/day\"
algorithm = \"fixed_window\"
key = \"header:x-api-key\"
missing = \"skip\"
when = { header = { x-plan = \"PLAN-SECRET\" } }
";

fn explain(gateway: &Gateway, body: &Value) -> Value {
    let response = gateway.admin_request("POST", "/-/explain", "content-type: application/json\r\n", body.to_string());
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()
}

#[test]
fn the_live_state_decides_and_nothing_is_charged() {
    let gateway = Gateway::start(CONFIG);
    let fields = "x-api-key: KEY-SECRET\r\nx-plan: PLAN-SECRET\r\n";
    let headers = json!({ "x-api-key": "KEY-SECRET", "x-plan": "PLAN-SECRET" });
    let body = json!({ "url": "http://a.test/v1/x", "headers": headers });
    for _ in 0..5 {
        let found = explain(&gateway, &body);
        assert_eq!(found["verdict"]["decision"], "admit");
        assert_eq!(found["limits"][0]["state"]["remaining"], 3, "{found}");
        assert_eq!(found["limits"][0]["state"]["remaining_after"], 2);
    }
    assert_eq!([0; 3].map(|_| gateway.fetch(&get("/v1/x", fields)).status()), [200; 3]);
    let found = explain(&gateway, &body);
    assert_eq!((&found["verdict"]["decision"], &found["verdict"]["limit"]), (&"refuse".into(), &"per-key".into()));
    assert!(found["verdict"]["retry_after_ms"].as_i64().unwrap() > 86_000_000, "{found}");
    assert_eq!(found["live"], true);
    let text = found.to_string();
    assert!(!text.contains("SECRET"), "headers are hashed by default: {text}");
    assert!(found["limits"][0]["key"].as_str().unwrap().starts_with("header:x-api-key#"), "{text}");

    let url = format!("http://{}", gateway.admin);
    let arguments =
        ["explain", "GET", "http://a.test/v1/x", "-H", "x-api-key: KEY-SECRET", "-H", "x-plan: PLAN-SECRET"];
    let (code, stdout, stderr) = run(gateway.dir.path(), &[&arguments[..], &["--admin", &url]].concat());
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(stdout.contains("0 of 3 left, and it costs 1; passes in 23 h 59 min"), "{stdout}");
}

#[test]
fn a_token_is_required_and_no_secret_is_shown() {
    let config = "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        token = \"TOKEN-SECRET-1234567\"\nkeys_secret = \"HASH-SECRET-0123456789abcdefghijklmn\"\n";
    let gateway = Gateway::with_config(&format!("{config}{CONFIG}"));
    let body = json!({ "url": "http://a.test/v1/x", "headers": { "x-api-key": "KEY-SECRET" } }).to_string();
    let fetch = |fields: &str| gateway.admin_request("POST", "/-/explain", fields, &body);
    for fields in ["", "authorization: Bearer WRONG\r\n"] {
        assert_eq!(fetch(fields).status(), 401, "{fields}");
    }
    let response = fetch("authorization: Bearer TOKEN-SECRET-1234567\r\n");
    assert_eq!(response.status(), 200);
    assert!(!response.text().contains("SECRET"), "{}", response.text());
    assert_eq!(gateway.admin_request("GET", "/-/explain", "", "").status(), 405);

    // The command finds the token in the config.
    let url = format!("http://{}", gateway.admin);
    let (code, stdout, stderr) =
        run(gateway.dir.path(), &["explain", "GET", "http://a.test/v1/x", "--admin", &url, "--format", "json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    fs::remove_file(gateway.config()).unwrap();
    let (code, _, stderr) = run(gateway.dir.path(), &["explain", "GET", "http://a.test/v1/x", "--admin", &url]);
    assert_eq!((code, stderr.contains("401")), (1, true), "{stderr}");
}

#[test]
fn wrong_and_huge_bodies_are_refused() {
    let gateway = Gateway::start(CONFIG);
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("[]", 422),
        ("{}", 422),
        (r#"{"url": "a.test"}"#, 422),
        (r#"{"url": "http://a.test/", "methd": "GET"}"#, 422),
        (r#"{"url": "http://a.test/", "method": "G T"}"#, 422),
        (r#"{"url": "http://a.test/", "headers": {"a b": "c"}}"#, 422),
        (r#"{"url": "http://a.test/", "headers": {"a": "b\r\nc: d"}}"#, 422),
        (r#"{"url": "http://a.test/", "headers": [["a"]]}"#, 422),
        (r#"{"url": "http://a.test/", "from": "x"}"#, 422),
        (r#"{"url": "http://a.test/", "body": "x", "body_base64": "eA=="}"#, 422),
        (r#"{"url": "http://a.test/", "body_base64": "%"}"#, 422),
        (r#"{"url": "http://a.test/\u0000"}"#, 422),
    ] {
        let response = gateway.admin_request("POST", "/-/explain", "", body);
        assert_eq!(response.status(), status, "{body}: {}", response.text());
    }
    let misspelt = gateway.admin_request("POST", "/-/explain", "", r#"{"url": "http://a.test/", "methd": "GET"}"#);
    assert!(misspelt.text().contains("did you mean `method`?"), "{}", misspelt.text());
    let mut client = Client::connect(gateway.admin);
    client.send(call("POST", "/-/explain", "content-type: application/json\r\n", 100 * 1024 * 1024));
    assert_eq!(client.read_response("POST").status(), 413, "before the body has arrived");
    let long = json!({ "url": format!("http://a.test/{}", "a".repeat(100_000)) });
    assert_eq!(explain(&gateway, &long)["verdict"]["status"], 414);
    let many: Vec<_> = (0..2000).map(|i| [format!("x-{i}"), "v".to_owned()]).collect();
    assert_eq!(explain(&gateway, &json!({ "url": "http://a.test/", "headers": many }))["verdict"]["status"], 431);
    assert_eq!(gateway.admin("/livez").status(), 200);
}

/// The gateway does not ask limits that read the body if another one refuses in any case.
#[test]
fn limits_are_not_reached_if_another_refuses_before_the_body() {
    let gateway = Gateway::start(
        "[[route]]\npath = \"/\"\nrespond = {}\nlimits = [\"per-ip\", \"per-user\", \"all\"]\n\
         [limit.per-ip]\nrate = \"1/h\"\nkey = \"ip\"\n[limit.per-user]\nrate = \"5/h\"\nkey = \"json:/user\"\n\
         [limit.all]\nrate = \"9/h\"\nkey = \"all\"\n",
    );
    let request = json!({
        "url": "http://a.test/", "method": "POST", "headers": { "content-type": "application/json" },
        "body": "{\"user\":\"a\"}", "from": "127.0.0.1",
    });
    const JSON: &str = "content-type: application/json\r\n";
    let effects = |explained: &Value| -> Vec<String> {
        let limits = explained["limits"].as_array().unwrap();
        limits.iter().map(|limit| limit["effect"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(effects(&explain(&gateway, &request)), ["admits", "admits", "admits"]);
    assert_eq!(gateway.post("/", JSON, "{\"user\":\"a\"}").status(), 200);
    let explained = explain(&gateway, &request);
    assert_eq!(effects(&explained), ["refuses", "not_reached", "not_reached"]);
    assert_eq!(explained["verdict"]["status"], 429);
    assert_eq!(gateway.post("/", JSON, "{\"user\":\"a\"}").status(), 429);
}
