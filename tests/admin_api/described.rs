//! Responses with something in them, and events of the streams, compared with their descriptions. Requests made up from
//! the description alone find only empty lists.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{bearer, fetch_as, secret, start};
use crate::support::app::api_venv;
use crate::support::client::{Client, call};
use crate::support::gateway::Gateway;

/// Prints what differs from the schema of each pair of a name and a value.
const COMPARE: &str = r##"
import json, sys
from jsonschema import Draft202012Validator, FormatChecker
document = json.load(open("docs/reference/openapi.json"))
for name, value in json.load(sys.stdin):
    schema = {"$ref": "#/components/schemas/" + name, "components": document["components"]}
    for error in Draft202012Validator(schema, format_checker=FormatChecker()).iter_errors(value):
        print(name, error.json_path, error.message[:500])
"##;

fn compare(pairs: &[(&str, Value)]) -> String {
    let mut child = Command::new(api_venv().join("bin/python"))
        .args(["-B", "-c", COMPARE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    serde_json::to_writer(child.stdin.take().unwrap(), pairs).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// An open stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(gateway: &Gateway, path: &str) -> Events {
        let mut client = Client::connect(gateway.admin);
        client.send(call("GET", path, &bearer(&secret("edit")), 0));
        let stream = client.into_stream();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Events(BufReader::new(stream))
    }

    /// Returns the name of the next event, empty if it has none, and its data.
    fn next(&mut self) -> (String, Value) {
        let (mut name, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if let Some(text) = line.strip_prefix("event: ") {
                text.trim().clone_into(&mut name);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).unwrap());
            }
        }
    }
}

#[test]
fn responses_and_events_are_as_described() {
    let gateway = start();
    let mut found: Vec<(&str, Value)> = Vec::new();
    let mut tap = Events::open(&gateway, "/-/tap");
    found.push(("TapCounts", tap.next().1));
    let statuses: Vec<u16> = (0..7).map(|_| gateway.get("/").status()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let mut live = Events::open(&gateway, "/-/live");
    found.extend([("LiveEvent", live.next().1), ("LiveEvent", live.next().1)]);
    let fetch = |method: &str, path: &str, body: &str| {
        let response = fetch_as(&gateway, "edit", method, path, body);
        assert_eq!(response.status(), 200, "{path} {}", response.text());
        response
    };
    let explain = r#"{"url": "http://a.test/x?y", "method": "PUT", "headers": {"x-user": "u"}, "body": "b"}"#;
    let change = |method: &str, path: &str, source: &str, kind: &str, body: &str| {
        let tag = fetch("GET", source, "").get("etag").unwrap().to_owned();
        let fields = format!("{}content-type: {kind}\r\nif-match: {tag}\r\n", bearer(&secret("edit")));
        let response = gateway.admin_request(method, path, &fields, body);
        assert_eq!(response.status(), 200, "{path} {}", response.text());
        response.json()
    };
    let pages = [
        ("Refusals", "GET", "/-/refusals", ""),
        ("Top", "GET", "/-/top", ""),
        ("Top", "GET", "/-/top?by=admitted&window=10m", ""),
        ("SizeEstimate", "POST", "/-/limits/per-ip/what-if", r#"{"burst": 6}"#),
        ("SizeEstimate", "POST", "/-/limits/per-ip/what-if", r#"{"burst": 4, "rate": "9/s"}"#),
        ("Explanation", "POST", "/-/explain", explain),
        ("Routes", "GET", "/-/routes", ""),
        ("ConfigFiles", "GET", "/-/config/files", ""),
        ("EffectiveConfig", "GET", "/-/config", ""),
        ("Upstreams", "GET", "/-/upstreams", ""),
        ("Audit", "GET", "/-/audit", ""),
    ];
    found.extend(pages.map(|(schema, method, path, body)| (schema, fetch(method, path, body).json())));
    let refusals = &found.iter().find(|(schema, _)| *schema == "Refusals").unwrap().1["refusals"];
    assert_eq!(refusals.as_array().unwrap().len(), 2);
    let file = fetch("GET", "/-/config/files", "").json()["files"][0]["name"].as_str().unwrap().replace('/', "%2F");
    let file = format!("/-/config/files/{file}");
    let text = fetch("GET", &file, "").text().replace("burst = 5", "burst = 9");
    found.push(("ConfigEdit", change("PUT", &format!("{file}?dry_run=1"), &file, "application/toml", &text)));
    found.push(("ConfigEdit", change("PUT", &file, &file, "application/toml", &text)));
    found.push(("Reload", fetch("POST", "/-/reload?dry_run=1", "").json()));
    let back = r#"{"generation": 1}"#;
    found.push(("ConfigRollback", change("POST", "/-/rollback", "/-/config/history", "application/json", back)));
    found.push(("ConfigHistory", fetch("GET", "/-/config/history", "").json()));
    found.push(("Status", fetch("GET", "/-/status", "").json()));
    loop {
        let (name, data) = tap.next();
        let schema = match name.as_str() {
            "counts" => "TapCounts",
            "end" => "TapEnd",
            _ => "TapRequest",
        };
        found.push((schema, data));
        if name == "end" {
            break;
        }
    }
    assert_eq!(found.iter().filter(|(schema, _)| *schema == "TapRequest").count(), 7);
    assert_eq!(compare(&found), "");
    assert_ne!(compare(&[("TapEnd", json!({ "reason": "tired" }))]), "", "the comparison finds differences");
}
