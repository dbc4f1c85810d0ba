//! A real Envoy in front, with the configs of the manual.

use std::net::SocketAddr;

use crate::support::app::App;
use crate::support::client;
use crate::support::gateway::Gateway;
use crate::support::ports::Reserved;
use crate::support::upstream::Upstream;

const PAGE: &str = "docs/guides/envoy.md";

/// The first block in a language of the section with this title.
fn block(title: &str, language: &str) -> String {
    let text = std::fs::read_to_string(PAGE).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with(title)).expect(title);
    let (_, rest) = section.split_once(&format!("```{language}\n")).expect(language);
    rest.split_once("\n```").unwrap().0.to_owned()
}

/// Starts the gateway and the Envoy of a section of the manual. Only their ports change.
fn start(title: &str, app: &Upstream) -> (Gateway, App) {
    let port = Reserved::new();
    let own = block(title, "toml").replace("127.0.0.1:8081", &port.addr().to_string());
    assert!(own.contains(&port.addr().to_string()));
    let gateway = Gateway::whole(&format!("{own}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    let envoy = App::envoy(|addr: SocketAddr| {
        let ports = [("10000", addr.port()), ("3000", app.addr.port()), ("8081", port.port())];
        ports.iter().fold(block(title, "yaml"), |text, (from, to)| {
            let (from, to) = (format!("port_value: {from} "), format!("port_value: {to} "));
            assert!(text.contains(&from), "{from}");
            text.replace(&from, &to)
        })
    });
    (gateway, envoy)
}

#[test]
fn envoy_limits_by_descriptors() {
    let app = Upstream::text("hello");
    let (gateway, envoy) = start("Limit requests by descriptors", &app);
    let login = || client::ask(envoy.addr, &client::get("/login", ""));
    for left in ["1", "0"] {
        let answer = login();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"));
        assert!(answer.get("ratelimit").unwrap().starts_with(&format!("\"logins\";r={left};t=")), "{left}");
    }
    let refused = login();
    assert_eq!((refused.status(), refused.get("content-type")), (429, Some("application/problem+json")));
    let wait: u32 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    assert!(refused.text().contains("\"violated-policies\":[\"logins\"]"), "{}", refused.text());
    assert_eq!(client::ask(envoy.addr, &client::get("/", "")).status(), 200);
    gateway.assert_metric("rls_descriptors_total", &[("result", "limited")], 3.0);
    // Without the gateway, `failure_mode_deny` refuses.
    drop(gateway);
    assert_eq!(login().status(), 500);
    assert_eq!(client::ask(envoy.addr, &client::get("/", "")).status(), 200);
}

#[test]
fn envoy_limits_by_the_whole_request() {
    let app = Upstream::text("hello");
    let (gateway, envoy) = start("Limit by the whole request (ext_authz)", &app);
    let ask = |target: &str, fields: &str| client::ask(envoy.addr, &client::get(target, fields));
    for left in ["1", "0"] {
        let answer = ask("/a?b", "x-api-key: k1\r\n");
        assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"));
        assert!(answer.get("ratelimit").unwrap().starts_with(&format!("\"per-key\";r={left};t=")), "{left}");
    }
    let refused = ask("/other", "x-api-key: k1\r\n");
    assert_eq!((refused.status(), refused.get("content-type")), (429, Some("application/problem+json")));
    let wait: u32 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    assert_eq!(ask("/a", "x-api-key: k2\r\n").status(), 200);
    // A missing key, a repeated one, and a path that servers could read differently.
    assert_eq!(ask("/a", "").status(), 403);
    assert_eq!(ask("/a", "x-api-key: k3\r\nx-api-key: k4\r\n").status(), 400);
    assert_eq!(ask("/health", "").status(), 200);
    gateway.assert_metric(
        "limit_decisions_total",
        &[("route", "api"), ("limit", "per-key"), ("decision", "allow")],
        3.0,
    );
    gateway.assert_metric("rpc_calls_total", &[("method", "Check"), ("code", "OK")], 6.0);
    drop(gateway);
    assert_eq!(ask("/a", "x-api-key: k5\r\n").status(), 403);
}
