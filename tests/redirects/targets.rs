//! Targets of redirects, and the properties that redirects have in common with other responses.

use crate::support::gateway::Gateway;
use crate::support::http::Message;

const ROUTES: &str = r#"
[[route]]
host = "www.example.com"
redirect = { to = "https://example.com{path}", status = 301 }

[[route]]
host = ["example.com", "*.example.com"]
path = "/secure/"
redirect = "https://{host}:8443{path}"

[[route]]
path = "/users/{id}"
redirect = { to = "/u/{id}", status = 307 }

[[route]]
path = "/search/{words}"
redirect = { to = "/find?q={words}&p={path}", status = 302 }

[[route]]
path = "/query"
redirect = { to = "/found?was={query}&more=1", status = 303 }

[[route]]
path = "/drop"
redirect = { to = "https://example.com/new", query = "drop" }

[[route]]
path = "/blog/"
rewrite = { strip_prefix = "/blog" }
redirect = "https://blog.example.com{path}"

[[route]]
path = "/scheme"
redirect = "{scheme}://example.com{path}/x#top"

[[route]]
path = "/limited"
redirect = "/elsewhere"
limits = ["one"]
response_headers = { set = { x-moved = "yes" } }

[limit.one]
rate = "1/day"
"#;

fn fetch(gateway: &Gateway, method: &str, host: &str, target: &str, fields: &str) -> Message {
    gateway.fetch(&format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n"))
}

#[test]
fn targets_have_the_parts_of_the_request() {
    let gateway = Gateway::with("trusted_proxies = [\"127.0.0.1\"]", ROUTES);
    for (host, target, fields, status, location) in [
        ("www.example.com", "/", "", 301, "https://example.com/"),
        ("WWW.Example.com.:8080", "/a/b?c=d", "", 301, "https://example.com/a/b?c=d"),
        ("www.example.com", "/a//../b/%7euser", "", 301, "https://example.com/b/~user"),
        ("www.example.com", "/%C3%A9?\u{e9}", "", 400, ""),
        ("example.com", "/secure/x", "", 308, "https://example.com:8443/secure/x"),
        ("a.b.example.com", "/secure/", "", 308, "https://a.b.example.com:8443/secure/"),
        ("a.test", "/users/7?x", "", 307, "/u/7?x"),
        ("a.test", "/search/a&b=c%20d", "", 302, "/find?q=a%26b%3Dc%20d&p=/search/a%26b%3Dc%20d"),
        ("a.test", "/query?a=b&c=d", "", 303, "/found?was=a=b&c=d&more=1"),
        ("a.test", "/query", "", 303, "/found?was=&more=1"),
        ("a.test", "/drop?a=b", "", 308, "https://example.com/new"),
        ("a.test", "/blog", "", 308, "https://blog.example.com/"),
        ("a.test", "/blog/2026/x?p=1", "", 308, "https://blog.example.com/2026/x?p=1"),
        ("a.test", "/scheme?q", "", 308, "http://example.com/scheme/x?q#top"),
        ("a.test", "/scheme", "x-forwarded-proto: https\r\n", 308, "https://example.com/scheme/x#top"),
        ("a.test", "/scheme", "x-forwarded-proto: javascript\r\n", 308, "http://example.com/scheme/x#top"),
    ] {
        let response = fetch(&gateway, "GET", host, target, fields);
        assert_eq!(
            (response.status(), response.get("location").unwrap_or_default()),
            (status, location),
            "{host}{target}"
        );
        assert!(status == 400 || response.body.is_empty(), "{host}{target}");
    }
}

#[test]
fn every_method_is_redirected_and_limits_apply() {
    let gateway = Gateway::start(ROUTES);
    for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS"] {
        let response = fetch(&gateway, method, "www.example.com", "/a", "");
        assert_eq!((response.status(), response.get("location")), (301, Some("https://example.com/a")), "{method}");
    }
    let head = "POST /a HTTP/1.1\r\nhost: www.example.com\r\ncontent-length: 5\r\n\r\n";
    let mut client = gateway.client();
    assert_eq!(client.fetch(head, "hello").status(), 301);
    assert_eq!(client.fetch(head, "hello").status(), 301, "the connection is still usable");
    assert_eq!(fetch(&gateway, "OPTIONS", "www.example.com", "*", "").get("location"), Some("https://example.com/"));
    let response = fetch(&gateway, "GET", "a.test", "/limited", "");
    assert_eq!((response.status(), response.get("x-moved")), (308, Some("yes")));
    assert_eq!(fetch(&gateway, "GET", "a.test", "/limited", "").status(), 429);
    gateway.assert_metric("requests_total", &[("route", "www.example.com/"), ("method", "GET"), ("code", "301")], 1.0);
}

#[test]
fn a_changed_target_applies_at_once() {
    let gateway = Gateway::start("[[route]]\nredirect = \"https://one.example{path}\"\n");
    assert_eq!(gateway.get("/a").get("location"), Some("https://one.example/a"));
    gateway.reload_with("one.example", "two.example");
    assert_eq!(gateway.get("/a").get("location"), Some("https://two.example/a"));
}
