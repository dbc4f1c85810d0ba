//! `intercept`: error responses of upstream servers are replaced by error pages.

use super::files::start;
use super::formats::BROWSER;
use crate::support::client::get;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// A server whose status is the last segment of the path. With `/long/`, the body is larger than the gateway discards.
fn server() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let path = request.target().split('?').next().unwrap_or_default().to_owned();
            let status = path.rsplit('/').next().unwrap_or_default().to_owned();
            let body = match path.starts_with("/long/") {
                true => "secret ".repeat(200_000),
                false => "a secret stack trace".to_owned(),
            };
            let kind = if path.starts_with("/grpc/") { "application/grpc" } else { "text/plain" };
            let fields = "set-cookie: a=1\r\nset-cookie: b=2\r\nwww-authenticate: Basic realm=\"x\"\r\nallow: GET\r\n\
                          retry-after: 7\r\netag: \"e\"\r\nlast-modified: Mon, 23 Nov 2026 00:00:00 GMT\r\n\
                          content-encoding: identity\r\ncontent-language: de\r\ncontent-disposition: attachment\r\n\
                          content-security-policy: default-src 'self'\r\ncache-control: max-age=60\r\n\
                          accept-ranges: bytes\r\nvary: cookie\r\nx-cost: 3\r\nlink: </a>; rel=preload\r\n";
            let body = if request.start_line().starts_with("HEAD") { String::new() } else { body };
            let length = if body.is_empty() { 20 } else { body.len() };
            peer.send(format!(
                "HTTP/1.1 {status} Own Words\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{fields}\r\n{body}"
            ))?;
        }
        Ok(())
    })
}

fn route(upstream: &Upstream, intercept: &str) -> String {
    format!(
        "[[route]]\nupstream = \"{}\"\nerror_pages = {{ 502 = \"502.html\", \"4xx\" = \"4xx.html\" }}\nintercept = \
         {intercept}\nlimits = [\"cost\"]\nresponse_headers = {{ set = {{ x-edited = \"yes\" }} }}\n\n[limit.cost]\n\
         rate = \"1000/day\"\nsettle = \"header:x-cost\"\nrefund_on = [\"5xx\"]\n",
        upstream.url()
    )
}

const FILES: [(&str, &str); 2] = [("502.html", "<p>ours {status} {retry_after}"), ("4xx.html", "<p>client {status}")];

#[test]
fn errors_with_a_page_are_replaced() {
    let upstream = server();
    let gateway = start("", &route(&upstream, "true"), &FILES);
    let mut client = gateway.client();
    let response = client.fetch(&get("/502", BROWSER), "");
    assert_eq!((response.status(), response.text().as_str()), (502, "<p>ours 502 7"));
    for (name, value) in [
        ("content-type", Some("text/html; charset=utf-8")),
        ("content-length", Some("13")),
        ("www-authenticate", Some("Basic realm=\"x\"")),
        ("allow", Some("GET")),
        ("retry-after", Some("7")),
        ("cache-control", Some("no-store")),
        ("x-cost", Some("3")),
        ("x-edited", Some("yes")),
        ("etag", None),
        ("last-modified", None),
        ("content-encoding", None),
        ("content-language", None),
        ("content-disposition", None),
        ("content-security-policy", None),
        ("accept-ranges", None),
        ("link", None),
    ] {
        assert_eq!(response.get(name), value, "{name}");
    }
    assert_eq!(response.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.all("vary"), ["cookie", "accept"]);
    for (target, text) in
        [("/403", "<p>client 403"), ("/500", "a secret stack trace"), ("/200", "a secret stack trace")]
    {
        assert_eq!(client.fetch(&get(target, BROWSER), "").text(), text, "{target}");
    }
    // Another client gets its own format, but never the body of the server.
    let problem = client.fetch(&get("/502", ""), "");
    assert_eq!((problem.status(), &problem.json()["status"]), (502, &502.into()));
    assert_eq!(problem.get("content-type"), Some("application/problem+json"));
    let head = client.fetch(&format!("HEAD /502 HTTP/1.1\r\nhost: a.test\r\n{BROWSER}\r\n"), "");
    assert_eq!((head.status(), head.get("content-length"), head.body.len()), (502, Some("13"), 0));
    assert_eq!(upstream.connections(), 1, "the bodies were read, and the connection was used again");
    assert_eq!(client.fetch(&get("/grpc/502", BROWSER), "").text(), "a secret stack trace");
}

#[test]
fn charges_follow_the_response_of_the_server() {
    let upstream = server();
    let gateway = start("", &route(&upstream, "true"), &FILES);
    let remaining = || gateway.admin("/-/limits/cost/state?key=127.0.0.1&cost=0").json()["remaining"].as_i64();
    assert_eq!(gateway.fetch(&get("/403", BROWSER)).status(), 403);
    wait_until("the stated cost is charged", || remaining() == Some(997));
    assert_eq!(gateway.fetch(&get("/502", BROWSER)).status(), 502);
    wait_until("an error is refunded", || remaining() == Some(997));
}

/// The trailers of a replaced body still settle the cost, and its end does not hold a slot of the limit.
#[test]
fn charges_follow_the_trailers_of_the_server() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send("HTTP/1.1 500 Error\r\ntransfer-encoding: chunked\r\ntrailer: x-cost\r\n\r\n5\r\nerror\r\n")?;
            if request.target() == "/endless" {
                while peer.send("1\r\n.\r\n").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(200));
                }
                return Ok(());
            }
            peer.send("0\r\nx-cost: 100\r\n\r\n")?;
        }
        Ok(())
    });
    let config = format!(
        "[[route]]\nupstream = \"{}\"\nintercept = [500]\nlimits = [\"cost\", \"slots\"]\n\n[limit.cost]\n\
         rate = \"1000/day\"\nsettle = \"trailer:x-cost\"\n\n[limit.slots]\nalgorithm = \"concurrency\"\n\
         in_flight = 2\n",
        upstream.url()
    );
    let gateway = start("", &config, &FILES);
    let remaining = || gateway.admin("/-/limits/cost/state?key=127.0.0.1&cost=0").json()["remaining"].as_i64();
    assert_eq!(gateway.fetch(&get("/", BROWSER)).status(), 500);
    wait_until("the cost in the trailer is charged", || remaining() == Some(900));
    for _ in 0..2 {
        assert_eq!(gateway.fetch(&get("/endless", BROWSER)).status(), 500);
    }
    // The gateway gives up on the endless bodies after five seconds, not after `linger`.
    wait_until("the slots are free", || gateway.fetch(&get("/", BROWSER)).status() == 500);
}

#[test]
fn listed_statuses_need_no_page() {
    let upstream = server();
    let gateway = start("", &route(&upstream, "[500, 404]"), &FILES);
    for (target, text) in
        [("/500", "Internal Server Error"), ("/404", "<p>client 404"), ("/502", "a secret stack trace")]
    {
        assert!(gateway.fetch(&get(target, BROWSER)).text().contains(text), "{target}");
    }
    let page = gateway.fetch(&get("/500", BROWSER));
    assert!(page.get("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(!page.text().contains("secret"));
    let odd = start("", &route(&upstream, "[\"5xx\"]"), &FILES);
    let response = odd.fetch(&get("/599", BROWSER));
    assert_eq!((response.status(), response.text().contains("<title>599 Error</title>")), (599, true));
}

/// A long body costs a connection, not memory or time of the client.
#[test]
fn a_long_body_is_dropped() {
    let upstream = server();
    let gateway = start("", &route(&upstream, "true"), &FILES);
    for _ in 0..5 {
        let response = gateway.fetch(&get("/long/502", BROWSER));
        assert_eq!(response.text(), "<p>ours 502 7");
    }
    assert_eq!(gateway.fetch(&get("/200", "")).status(), 200);
    assert!(upstream.connections() >= 5, "{}", upstream.connections());
}

#[test]
fn without_intercept_the_server_has_the_last_word() {
    let upstream = server();
    for intercept in ["false", "[503]"] {
        let gateway = start("", &route(&upstream, intercept), &FILES);
        let response = gateway.fetch(&get("/502", BROWSER));
        assert_eq!((response.text().as_str(), response.get("etag")), ("a secret stack trace", Some("\"e\"")));
    }
    // The server's setting is the default of routes.
    let files = [("502.html", "<p>ours")];
    let plain = format!("[[route]]\nupstream = \"{}\"\n", upstream.url());
    let gateway = start("error_pages = { 502 = \"502.html\" }\nintercept = true", &plain, &files);
    assert_eq!(gateway.fetch(&get("/502", BROWSER)).text(), "<p>ours");
}
