//! `GET /-/config`: the config in force without its secrets, with an ETag per generation.

use std::fs;

use serde_json::json;

use super::api::fetch_with;
use crate::support::gateway::Gateway;

const CONFIG: &str = "[limit.per-ip]\nrate = \"10/s\"\nburst = 20\n\
                      [[route]]\nname = \"api\"\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\
                      request_headers = { set = { authorization = \"Bearer canary\" } }\n";

#[test]
fn the_config_in_force_is_shown_without_secrets() {
    let gateway = Gateway::start(CONFIG);
    let fetch = |fields: &str| fetch_with(&gateway, "GET", "/-/config", fields, "");
    let response = fetch("");
    assert_eq!(response.status(), 200, "{}", response.text());
    let tag = response.get("etag").unwrap().to_owned();
    let page = response.json();
    assert_eq!(tag, format!("\"1-{}\"", page["hash"].as_str().unwrap()));
    let burst = &page["config"]["limit"]["per-ip"]["burst"];
    assert_eq!(burst["value"], 20);
    assert!(burst["origin"].as_str().unwrap().contains("sluicegate.toml:"), "{burst}");
    assert_eq!(page["config"]["route"][0]["request_headers.set.authorization"]["value"], "***");
    assert!(!page.to_string().contains("canary"));
    assert_eq!(fetch(&format!("if-none-match: {tag}\r\n")).status(), 304);

    let text = fs::read_to_string(gateway.config()).unwrap();
    let changed = gateway.reload(&text.replace("burst = 20", "burst = 40")).json();
    let line = "limit per-ip: burst 20 → 40 (keys keep what they used) [weaker]";
    // The watcher may have been quicker.
    if changed["changed"] == true {
        assert_eq!((&changed["changes_total"], &changed["changes_weaker"]), (&json!(1), &json!(1)), "{changed}");
        assert_eq!(changed["changes"][0]["text"], line);
    }
    assert!(gateway.log().contains(line), "{}", gateway.log());
    let response = fetch(&format!("if-none-match: {tag}\r\n"));
    assert_eq!(response.json()["config"]["limit"]["per-ip"]["burst"]["value"], 40);
    assert_ne!(response.get("etag").unwrap(), tag);
}
