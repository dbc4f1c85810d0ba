//! A real Envoy in front, with the configs of the manual.

use std::net::SocketAddr;

use crate::support::app::App;
use crate::support::ca::Ca;
use crate::support::client::{self, Client};
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::token::{SECRET, hs256};
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
    start_changed(title, app, |own| own, |envoy| envoy)
}

/// The same with other configs.
fn start_changed(
    title: &str,
    app: &Upstream,
    change_own: impl FnOnce(String) -> String,
    change_envoy: impl Fn(String) -> String,
) -> (Gateway, App) {
    let port = ReservedPort::new();
    let own = change_own(block(title, "toml")).replace("127.0.0.1:8081", &port.addr().to_string());
    assert!(own.contains(&port.addr().to_string()));
    let gateway = Gateway::with_config(&format!("{own}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    let envoy = App::envoy(|addr: SocketAddr| {
        let ports = [("10000", addr.port()), ("3000", app.addr.port()), ("8081", port.port())];
        ports.iter().fold(change_envoy(block(title, "yaml")), |text, (from, to)| {
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
    let login = || client::fetch(envoy.addr, &client::get("/login", ""));
    for left in ["1", "0"] {
        let response = login();
        assert_eq!((response.status(), response.text().as_str()), (200, "hello"));
        assert!(response.get("ratelimit").unwrap().starts_with(&format!("\"logins\";r={left};t=")), "{left}");
    }
    let refused = login();
    assert_eq!((refused.status(), refused.get("content-type")), (429, Some("application/problem+json")));
    let wait: u32 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    assert!(refused.text().contains("\"violated-policies\":[\"logins\"]"), "{}", refused.text());
    assert_eq!(client::fetch(envoy.addr, &client::get("/", "")).status(), 200);
    gateway.assert_metric("rls_descriptors_total", &[("result", "limited")], 3.0);
    // Without the gateway, `failure_mode_deny` refuses.
    drop(gateway);
    assert_eq!(login().status(), 500);
    assert_eq!(client::fetch(envoy.addr, &client::get("/", "")).status(), 200);
}

#[test]
fn envoy_limits_by_the_whole_request() {
    let app = Upstream::text("hello");
    let (gateway, envoy) = start("Limit by the whole request (ext_authz)", &app);
    let fetch = |target: &str, fields: &str| client::fetch(envoy.addr, &client::get(target, fields));
    for left in ["1", "0"] {
        let response = fetch("/a?b", "x-api-key: k1\r\n");
        assert_eq!((response.status(), response.text().as_str()), (200, "hello"));
        assert!(response.get("ratelimit").unwrap().starts_with(&format!("\"per-key\";r={left};t=")), "{left}");
    }
    let refused = fetch("/other", "x-api-key: k1\r\n");
    assert_eq!((refused.status(), refused.get("content-type")), (429, Some("application/problem+json")));
    let wait: u32 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    assert_eq!(fetch("/a", "x-api-key: k2\r\n").status(), 200);
    // A missing key, a repeated one, and a path that servers could read differently.
    assert_eq!(fetch("/a", "").status(), 403);
    assert_eq!(fetch("/a", "x-api-key: k3\r\nx-api-key: k4\r\n").status(), 400);
    assert_eq!(fetch("/health", "").status(), 200);
    gateway.assert_metric(
        "limit_decisions_total",
        &[("route", "api"), ("limit", "per-key"), ("decision", "allow")],
        3.0,
    );
    gateway.assert_metric("rpc_calls_total", &[("method", "Check"), ("code", "OK")], 6.0);
    drop(gateway);
    assert_eq!(fetch("/a", "x-api-key: k5\r\n").status(), 503);
}

/// With `failure_mode_allow`, Envoy lets a request pass whose check fails. No client can make its check fail.
#[test]
fn no_request_passes_as_a_failed_check() {
    let app = Upstream::text("hello");
    let open = |text: String| {
        let text = text.replace("timeout: 0.05s }", "timeout: 5s }\n              failure_mode_allow: true");
        // Envoy would refuse or rewrite what the gateway is to judge.
        ["normalize_path: true", "merge_slashes: true", "path_with_escaped_slashes_action: REJECT_REQUEST"]
            .iter()
            .fold(text, |text, line| text.replace(&format!("          {line}\n"), ""))
            .replace("use_remote_address: true", "use_remote_address: true\n          max_request_headers_kb: 8192")
    };
    let (gateway, envoy) = start_changed(
        "Limit by the whole request (ext_authz)",
        &app,
        |own| own.replace("missing = \"refuse\"", "missing = \"shared\""),
        open,
    );
    let send = |request: &[u8]| {
        let mut client = Client::connect(envoy.addr);
        let _ = client.try_send(request);
        client.try_read_response("GET").map_or(0, |response| response.status())
    };
    let plain = b"GET / HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n";
    assert_eq!([send(plain), send(plain), send(plain)], [200, 200, 429]);
    app.requests();
    let targets: [&[u8]; 16] = [
        b"/?q=<x>",
        b"/`",
        b"/<",
        b"/\"",
        b"/?a=\x7f",
        b"/?a=\xff",
        b"/\xc3\xa9",
        b"/%00",
        b"/%zz",
        b"/a/../../b",
        b"//",
        b"/a\\b",
        b"/a#b",
        b"*",
        b"http://b.test/",
        b"http://b.test",
    ];
    let large = format!("GET / HTTP/1.1\r\nhost: a.test\r\nx-large: {}\r\n\r\n", "a".repeat(400_000)).into_bytes();
    let long = format!("GET /{} HTTP/1.1\r\nhost: a.test\r\n\r\n", "a".repeat(70_000)).into_bytes();
    let fields: [&[u8]; 4] = [b"x-a: \x01", b"x-api-key: a\x01", b"x-api-key: \x7f", b"x-a: 1\r\nx-a: 2"];
    let requests = targets
        .iter()
        .map(|target| [b"GET ", *target, b" HTTP/1.1\r\nhost: a.test\r\n\r\n"].concat())
        .chain([large, long, b"get / HTTP/1.1\r\nhost: a.test\r\n\r\n".to_vec()])
        .chain([
            b"PROPFIND / HTTP/1.1\r\nhost: a.test\r\n\r\n".to_vec(),
            b"GET / HTTP/1.1\r\nhost: a_b\r\n\r\n".to_vec(),
        ])
        .chain(fields.iter().map(|line| [b"GET / HTTP/1.1\r\nhost: a.test\r\n", *line, b"\r\n\r\n"].concat()));
    for request in requests {
        let shown = String::from_utf8_lossy(&request[..request.len().min(100)]).into_owned();
        let status = send(&request);
        let passed: Vec<String> = app.requests().iter().map(|request| request.head.clone()).collect();
        assert!(passed.is_empty(), "{shown} reached the application as {passed:?}");
        assert!(status != 200 && (status < 500 || status == 501), "{status}: {shown}");
    }
    let failed = gateway.metrics();
    let failed =
        failed.lines().filter(|line| line.contains("rpc_calls_total{method=\"Check\"") && !line.contains("\"OK\""));
    assert_eq!(failed.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Envoy has judged `X-Forwarded-For` by its own settings, so the gateway does not read it, even if the client has an
/// address in `trusted_proxies`.
#[test]
fn the_client_is_the_address_that_envoy_states() {
    let app = Upstream::text("hello");
    let own = |text: String| {
        text.replace("key = \"header:x-api-key\"\nmissing = \"refuse\"", "key = \"ip\"")
            .replace("[\"127.0.0.1\"]", "[\"127.0.0.0/8\"]")
    };
    let envoy = |text: String| text.replace("timeout: 0.05s", "timeout: 5s");
    let (_gateway, envoy) = start_changed("Limit by the whole request (ext_authz)", &app, own, envoy);
    let fetch = |n: u8| {
        let fields = format!("x-forwarded-for: 198.51.100.{n}\r\nforwarded: for=198.51.100.{n}\r\n");
        Client::from([127, 0, 0, 9].into(), envoy.addr).fetch(&client::get("/", &fields), "").status()
    };
    assert_eq!([1, 2, 3, 4].map(fetch), [200, 200, 429, 429]);
}

/// Checks about routes with lists, tokens and different strictness. Envoy reaches the gateway over TLS and has no
/// certificate of its own.
#[test]
fn envoy_asks_about_routes_over_tls() {
    let app = Upstream::text("hello");
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new("Gateways");
    ca.issue(&["gateway.test"], "gateway").save(dir.path(), "server");
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    let own = |text: String| {
        let (listener, _) = text.split_once("[decide.api]").unwrap();
        let route = |name: &str, more: &str| {
            let limits = "host = \"never.test\"\nrespond = { status = 204 }\nlimits = [\"per-user\"]";
            format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\n{limits}\n{more}\n")
        };
        format!(
            "{listener}tls = {{ certificates = [{{ cert = \"{}\", key = \"{}\" }}] }}\n{}{}\
             [jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n\
             [limit.per-user]\nrate = \"2/h\"\nkey = \"jwt:sub\"\nmissing = \"refuse\"\n",
            path("server.pem"),
            path("server.key"),
            route("api", "deny = [\"127.0.0.66\"]\nallow = [\"127.0.0.77\"]"),
            route("lenient", "strictness = \"monitor\""),
        )
    };
    let envoy = |text: String| {
        let tls = format!(
            "  - name: sluicegate\n    transport_socket:\n      name: envoy.transport_sockets.tls\n      typed_config:\n        \
             \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n        \
             sni: gateway.test\n        auto_sni_san_validation: true\n        common_tls_context:\n          \
             validation_context: {{ trusted_ca: {{ filename: \"{}\" }} }}\n",
            path("ca.pem")
        );
        let text = text.replacen("  - name: sluicegate\n", &tls, 1);
        let lenient = "check_settings: { context_extensions: { decide: lenient } }";
        // Envoy would refuse what the gateway is to judge.
        let text = text.replace("          path_with_escaped_slashes_action: REJECT_REQUEST\n", "");
        text.replacen("disabled: true", lenient, 1).replace("timeout: 0.05s", "timeout: 5s")
    };
    let (gateway, envoy) = start_changed("Limit by the whole request (ext_authz)", &app, own, envoy);
    let fetch = |last: u8, target: &str, token: &str| {
        let mut client = Client::from([127, 0, 0, last].into(), envoy.addr);
        let fields = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
        client.fetch(&client::get(target, &fields), "").status()
    };
    let [anna, bert] = ["anna", "bert"].map(|name| hs256(SECRET, &format!("{{\"sub\":\"{name}\"}}")));
    let forged = hs256("another secret, of enough bytes...", "{\"sub\":\"anna\"}");
    // Tokens have budgets of their own, whoever sends them; without a valid one, `missing` refuses.
    assert_eq!(
        [(2, &anna), (3, &anna), (2, &anna), (2, &bert)].map(|(last, token)| fetch(last, "/", token)),
        [200, 200, 429, 200]
    );
    assert_eq!([fetch(2, "/", &forged), fetch(2, "/", "")], [403, 403]);
    // The lists, by the address that Envoy sees. A client cannot claim another one.
    assert_eq!([fetch(66, "/", &bert), fetch(77, "/", &anna), fetch(77, "/", "")], [403, 200, 200]);
    let mut claiming = Client::from([127, 0, 0, 4].into(), envoy.addr);
    assert_eq!(claiming.fetch(&client::get("/", "x-forwarded-for: 127.0.0.77\r\n"), "").status(), 403);
    // What servers could read in two ways, by the strictness of each route. Both have the same limit.
    assert_eq!([fetch(2, "/a%2Fb", &bert), fetch(2, "/health%2Fb", &bert)], [400, 200]);
    assert_eq!(fetch(2, "/health%2Fb", &bert), 429);
    assert_eq!(gateway.metric("rpc_calls_total", &[("method", "Check"), ("code", "INTERNAL")]), None);
}
