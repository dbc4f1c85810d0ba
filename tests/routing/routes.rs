//! Which route serves a request, and what a route does by itself: `respond`, `echo:`, rewriting.

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// A route that responds with its own name.
fn named(name: &str, conditions: &str) -> String {
    format!("[[route]]\nname = \"{name}\"\n{conditions}\nrespond = {{ body = \"{name}\" }}\n")
}

fn fetch(gateway: &Gateway, method: &str, host: &str, target: &str, fields: &str) -> (u16, String) {
    let response = gateway.fetch(&format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n"));
    (response.status(), response.text())
}

#[test]
fn the_most_specific_host_then_path_takes_the_request() {
    let routes = [
        named("any", "path = \"/\""),
        named("docs", "path = \"/docs/\""),
        named("docs-api", "path = \"/docs/api\""),
        named("exact", "path = \"= /docs/api/v1\""),
        named("user", "path = \"/users/{id}\""),
        named("user-me", "path = \"/users/me\""),
        named("orders", "path = \"/users/{id}/orders/\""),
        named("image", "host = \"img.test\"\npath = \"~ ^/pics/[0-9]+\\\\.png$\""),
        named("host", "host = \"api.test\"\npath = \"/v1\""),
        named("below", "host = \"*.api.test\"\npath = \"/\""),
        named("deep", "host = \"*.eu.api.test\"\npath = \"/\""),
    ];
    let gateway = Gateway::start(&routes.concat());
    for (host, target, route) in [
        ("x.test", "/", "any"),
        ("x.test", "/doc", "any"),
        ("x.test", "/docs", "docs"),
        ("x.test", "/docs/", "docs"),
        ("x.test", "/docsx", "any"),
        ("x.test", "/docs/a?b=/docs/api", "docs"),
        ("x.test", "/docs/api/v2", "docs-api"),
        ("x.test", "/docs/api/v1", "exact"),
        ("x.test", "/docs/api/v1/more", "docs-api"),
        ("x.test", "/users/7", "user"),
        ("x.test", "/users/7/", "user"),
        ("x.test", "/users/me/", "user-me"),
        ("x.test", "/users/7/orders/", "orders"),
        ("x.test", "/users/me", "user-me"),
        ("x.test", "/users/7/orders", "orders"),
        ("x.test", "/users/7/orders/9", "orders"),
        ("x.test", "/users/7/other", "any"),
        ("x.test", "/pics/42.png", "any"),
        ("img.test", "/pics/42.png", "image"),
        ("img.test", "/pics/x.png", "any"),
        ("api.test", "/v1/x", "host"),
        ("API.test.:8080", "/v1", "host"),
        ("api.test", "/other", "any"),
        ("a.api.test", "/v1", "below"),
        ("a.b.api.test", "/", "below"),
        ("a.eu.api.test", "/", "deep"),
        ("eu.api.test", "/", "below"),
        ("xapi.test", "/v1", "any"),
        // One canonical path routes: aliases reach the route of the plain form.
        ("x.test", "//docs/./x", "docs"),
        ("x.test", "/a/../docs/%61pi", "docs-api"),
    ] {
        assert_eq!(fetch(&gateway, "GET", host, target, ""), (200, route.to_owned()), "{host}{target}");
    }
}

#[test]
fn a_regex_methods_and_header_values_decide_and_the_rest_is_404() {
    let routes = [
        named("image", "path = \"~ ^/pics/[0-9]+\\\\.png$\""),
        named("write", "path = \"/items\"\nmethods = [\"POST\", \"PUT\"]"),
        named("read", "path = \"/items\"\nmethods = [\"GET\"]"),
        named("v2", "path = \"/v\"\nheader = { x-version = \"2\" }"),
        named("v1", "path = \"/v\"\nheader = { x-version = \"1\" }"),
    ];
    let gateway = Gateway::start(&routes.concat());
    for (method, target, fields, route) in [
        ("GET", "/pics/42.png", "", "image"),
        ("GET", "/items", "", "read"),
        ("POST", "/items", "content-length: 0\r\n", "write"),
        ("PUT", "/items/1", "content-length: 0\r\n", "write"),
        ("GET", "/v", "X-Version: 2\r\n", "v2"),
        ("GET", "/v", "x-version: 1\r\n", "v1"),
    ] {
        assert_eq!(fetch(&gateway, method, "x", target, fields), (200, route.to_owned()), "{method} {target}");
    }
    for (method, target, fields) in [
        ("GET", "/pics/42.pngx", ""),
        ("GET", "/pics/x.png", ""),
        ("DELETE", "/items", ""),
        ("GET", "/v", ""),
        ("GET", "/v", "x-version: 3\r\n"),
        ("GET", "/", ""),
    ] {
        let response = gateway.fetch(&format!("{method} {target} HTTP/1.1\r\nhost: x\r\n{fields}\r\n"));
        assert_eq!(response.status(), 404, "{method} {target}");
        assert_eq!(response.get("content-type"), Some("application/problem+json"));
        assert_eq!(response.json()["detail"], "no route matches this host, path and method");
    }
    gateway.assert_metric("requests_total", &[("route", "_none"), ("method", "GET"), ("code", "404")], 5.0);
}

#[test]
fn respond_and_echo_need_no_upstream() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        path = "/teapot"
        respond = { status = 418, body = "short and stout", content_type = "text/x-tea" }
        response_headers = { set = { x-pot = "tea" } }

        [[route]]
        path = "/none"
        respond = { status = 204 }

        [[route]]
        path = "/echo"
        upstream = "echo:"
        request_headers = { set = { x-env = "prod" }, remove = ["x-debug"] }
        "#,
    );
    let teapot = gateway.get("/teapot");
    assert_eq!((teapot.status(), teapot.text().as_str()), (418, "short and stout"));
    assert_eq!((teapot.get("content-type"), teapot.get("x-pot")), (Some("text/x-tea"), Some("tea")));
    let mut client = gateway.client();
    let head = client.fetch(&get("/teapot", "").replace("GET", "HEAD"), "");
    assert_eq!((head.status(), head.get("content-length")), (418, Some("15")));
    assert_eq!(client.fetch(&get("/none", ""), "").status(), 204);

    let shown = client.fetch(&get("/echo/x?y=1", "x-debug: 1\r\nx-kept: 2\r\n"), "").text();
    assert!(shown.starts_with("GET /echo/x?y=1 HTTP/1.1\n"), "{shown}");
    assert!(shown.contains("\nx-env: prod\n") && shown.contains("\nx-kept: 2\n"), "{shown}");
    assert!(shown.contains("\nx-forwarded-for: 127.0.0.1\n") && !shown.contains("x-debug"), "{shown}");

    let returned = client.fetch(&post("/echo", 7, "content-type: text/x-seven\r\n"), b"\x00seven\xff");
    assert_eq!(returned.body, b"\x00seven\xff");
    assert_eq!(returned.get("content-type"), Some("text/x-seven"));
    let chunked = "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(client.fetch(chunked, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").text(), "abcde");
}

#[test]
fn a_rewrite_strips_and_adds_prefixes() {
    let upstream = Upstream::text("ok");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        r#"
        [[route]]
        path = "/strip"
        upstream = "{url}"
        rewrite = {{ strip_prefix = "/strip" }}

        [[route]]
        path = "/swap/"
        upstream = "{url}"
        rewrite = {{ strip_prefix = "/swap", add_prefix = "/api/v2" }}

        [[route]]
        path = "/"
        upstream = "{url}"
        rewrite = {{ add_prefix = "/site" }}

        [[route]]
        path = "/plain"
        upstream = "{url}"
        "#
    ));
    let mut client = gateway.client();
    for (target, forwarded) in [
        ("/strip/a/b?c=d", "/a/b?c=d"),
        ("/strip", "/"),
        ("/strip?c", "/?c"),
        ("/strip/", "/"),
        ("/swap/a", "/api/v2/a"),
        ("/swap", "/api/v2/"),
        ("/", "/site/"),
        ("/stripped", "/site/stripped"),
        ("/plain/a;b=c/%7Euser?x=%2F&y=//../", "/plain/a;b=c/~user?x=%2F&y=//../"),
        ("/plain//a/./b/../c", "/plain/a/c"),
    ] {
        assert_eq!(client.fetch(&get(target, ""), "").status(), 200, "{target}");
        assert_eq!(upstream.request().target(), forwarded, "{target}");
    }
}

#[test]
fn the_deny_list_responds_with_403_before_any_limit_and_sets_name_networks() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        name = "guarded"
        path = "/"
        respond = { body = "in" }
        limits = ["one"]
        allow = ["set:office"]
        deny = ["127.0.0.66", "127.6.0.0/16", "::ffff:127.7.0.0/112"]

        [set.office]
        values = ["127.0.1.0/24", "::1"]

        [limit.one]
        rate = "1/h"
        key = "ip"
        "#,
    );
    for source in [[127, 0, 0, 66], [127, 6, 7, 8], [127, 7, 8, 9]] {
        let denied = gateway.client_from(source).fetch(&get("/", ""), "");
        assert_eq!((denied.status(), denied.get("ratelimit")), (403, None));
        assert_eq!(denied.json()["detail"], "your address is not allowed on this route");
    }
    for _ in 0..3 {
        let spared = gateway.client_from([127, 0, 1, 9]).fetch(&get("/", ""), "");
        assert_eq!((spared.status(), spared.get("ratelimit")), (200, None));
    }
    assert_eq!(gateway.get("/").status(), 200);
    assert_eq!(gateway.get("/").status(), 429);

    let one = |decision| [("route", "guarded"), ("limit", "one"), ("decision", decision)];
    gateway.assert_metric("limit_decisions_total", &one("bypass"), 3.0);
    gateway.assert_metric("limit_decisions_total", &one("allow"), 1.0);
    gateway.assert_metric("limit_decisions_total", &one("deny"), 1.0);
    let denied = [("route", "guarded"), ("limit", "_none"), ("reason", "denied")];
    gateway.assert_metric("rejections_total", &denied, 3.0);
}

#[test]
fn ten_thousand_routes_take_at_most_30_mb() {
    let route =
        |i: usize| format!("[[route]]\nhost = [\"h{}.test\"]\npath = \"/r{}/\"\nrespond = {{ }}\n", i / 100, i % 100);
    let start = |count: usize| Gateway::start(&(0..count).map(route).collect::<String>());
    let (few, many) = (start(10), start(10_000));
    wait_until("the load has released its memory", || {
        many.memory("VmRSS").saturating_sub(few.memory("VmRSS")) < 30_000_000
    });
    let found = many.fetch("GET /r42/x HTTP/1.1\r\nhost: h99.test\r\n\r\n");
    assert_eq!(found.status(), 200);
    assert_eq!(many.fetch("GET /r42/x HTTP/1.1\r\nhost: h100.test\r\n\r\n").status(), 404);
}
