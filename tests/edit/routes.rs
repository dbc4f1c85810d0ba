//! The list of routes in matching order.

use std::fmt::Write;
use std::time::Instant;

use serde_json::{Value, json};

use super::Editor;
use crate::support::gateway::Gateway;

#[test]
fn routes_are_listed_in_the_order_in_which_they_are_tried() {
    let gateway = Gateway::start(
        "[limit.a]\nrate = \"1/s\"\n\n[upstream.app]\nservers = [\"http://127.0.0.1:9\"]\n\n\
         [[route]]\nname = \"rest\"\npath = \"/\"\nmethods = [\"GET\"]\nupstream = \"app\"\n\n\
         [[route]]\nname = \"regex\"\npath = \"~ ^/x\"\nrespond = { status = 204 }\n\n\
         [[route]]\nname = \"user\"\npath = \"/users/{id}\"\nmethods = [\"GET\"]\nupstream = \"app\"\nlimits = [\"a\"]\n\n\
         [[route]]\nname = \"me\"\npath = \"/users/me\"\nheader = { \"x-v\" = \"2\" }\nupstream = \"echo:\"\n\n\
         [[route]]\nname = \"hosts\"\nhost = [\"*.example.com\", \"example.com\"]\nredirect = { to = \"https://b.example\", status = 308 }\n",
    );
    let list = gateway.admin("/-/routes").json();
    assert_eq!((&list["total"], &list["generation"]), (&6.into(), &1.into()));
    let routes = list["routes"].as_array().unwrap();
    let names: Vec<(&str, &Value)> = routes.iter().map(|r| (r["name"].as_str().unwrap(), &r["host"])).collect();
    let (exact, wild, any) = (json!("example.com"), json!("*.example.com"), Value::Null);
    assert_eq!(
        names,
        [("hosts", &exact), ("hosts", &wild), ("me", &any), ("user", &any), ("rest", &any), ("regex", &any)]
    );
    let user = &routes[3];
    assert_eq!(
        (&user["path"], &user["match"], &user["methods"]),
        (&json!("/users/{id}"), &json!("exact"), &json!(["GET"]))
    );
    assert_eq!((&user["action"], &user["limits"]), (&json!({ "upstream": "app" }), &json!(["a"])));
    assert_eq!((&routes[2]["header"], &routes[2]["auth"]), (&json!({ "x-v": "2" }), &Value::Null));
    assert_eq!((&routes[0]["action"], &routes[5]["action"]), (&json!({ "redirect": 308 }), &json!({ "respond": 204 })));
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    let line = text.lines().take_while(|line| !line.contains("name = \"user\"")).count();
    let origin = user["origin"].as_str().unwrap();
    assert!(origin.ends_with(&format!("sluicegate.toml:{line}")), "{origin} is not line {line}");
}

/// Values of `${...}`, and secrets in conditions.
const HIDDEN: &str = "[[route]]\nname = \"v\"\npath = \"= /a/${NO_SUCH:-canary-path}\"\nhost = \"${NO_SUCH:-canary.test}\"\n\
                      header = { x-v = \"${NO_SUCH:-canary-v}\", x-origin-secret = \"canary-s\", x-access-key = \"canary-k\", \
                      x-n = \"2\" }\nupstream = \"echo:\"\n";

#[test]
fn the_list_of_routes_and_explanations_show_no_secrets() {
    let gateway = Gateway::start(HIDDEN);
    let list = gateway.admin("/-/routes").json();
    let route = &list["routes"][0];
    assert_eq!((&route["path"], &route["match"]), (&json!("/a/${NO_SUCH:-***}"), &json!("exact")), "{route}");
    let headers = json!({ "x-v": "${NO_SUCH:-***}", "x-origin-secret": "***", "x-access-key": "***", "x-n": "2" });
    assert_eq!((&route["host"], &route["header"]), (&json!("${NO_SUCH:-***}"), &headers));
    assert!(!list.to_string().contains("canary"), "{list}");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["explain", "GET", "http://b.test/other", "--format", "json", "-c", gateway.config().to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("${NO_SUCH:-***}") && !text.contains("canary"), "{text}");
}

#[test]
fn ten_thousand_routes_are_listed_at_once() {
    let mut text = String::new();
    for i in 0..10_000 {
        writeln!(
            text,
            "[[route]]\nname = \"r{i}\"\nhost = \"h{}.test\"\npath = \"/p{i}\"\nupstream = \"echo:\"",
            i % 100
        )
        .unwrap();
    }
    let gateway = Gateway::start(&text);
    let start = Instant::now();
    let list = gateway.admin("/-/routes").json();
    eprintln!("first: {:?}", start.elapsed());
    assert_eq!(list["routes"].as_array().unwrap().len(), 10_000);
    assert_eq!(list["routes"][9999]["priority"], 10_000);
    let start = Instant::now();
    (0..10).for_each(|_| assert_eq!(gateway.admin("/-/routes").status(), 200));
    eprintln!("ten more: {:?}", start.elapsed());
    assert!(Editor::start().get("/-/routes").status() == 200);
}
