//! `rewrite_location`: redirects and cookies of a server lead the client where they lead on the server.

use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::upstream::Upstream;

/// A server that answers with the headers in `x-answer` of the request. `HOST` stands for the host that it got.
fn echoing() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let answer = request.get("x-answer").unwrap_or_default().replace('|', "\r\n");
            let answer = answer.replace("HOST", request.get("host").unwrap_or_default());
            peer.send(format!("HTTP/1.1 302 Found\r\n{answer}\r\ncontent-length: 0\r\n\r\n"))?;
        }
        Ok(())
    })
}

fn ask(gateway: &Gateway, target: &str, answer: &str) -> Message {
    gateway.fetch(&format!("GET {target} HTTP/1.1\r\nhost: www.test\r\nx-answer: {answer}\r\n\r\n"))
}

#[test]
fn redirects_and_cookies_lead_back_through_the_route() {
    let upstream = echoing();
    let url = upstream.url();
    let own = url.strip_prefix("http://").unwrap().to_owned();
    let gateway = Gateway::start(&format!(
        r#"
        [[route]]
        path = "/app/"
        upstream = "{url}"
        rewrite = {{ strip_prefix = "/app", upstream_host = true }}
        [[route]]
        path = "/host/"
        upstream = "{url}"
        rewrite = {{ host = "inner.test" }}
        [[route]]
        path = "~ ^/([a-z]+)/blog/(.*)$"
        upstream = "{url}"
        rewrite = {{ path = "/v1/{{1}}/{{2}}" }}
        [[route]]
        path = "/off/"
        upstream = "{url}"
        rewrite = {{ strip_prefix = "/off", upstream_host = true }}
        rewrite_location = false
        [[route]]
        path = "/plain/"
        upstream = "{url}"
        [[route]]
        path = "/on/"
        upstream = "{url}"
        rewrite_location = true
        "#
    ));
    let evil = "location: http://evil.test/x";
    let direct = format!("location: http://{own}/login?a");
    for (target, answer, name, expected) in [
        ("/app/x", "location: /login", "location", "/app/login"),
        ("/app/x", "location: http://HOST/login?a#b", "location", "http://www.test/app/login?a#b"),
        ("/app/x", "content-location: /x", "content-location", "/app/x"),
        ("/app/x", "refresh: 3; url=http://HOST/next", "refresh", "3; url=http://www.test/app/next"),
        (
            "/app/x",
            "set-cookie: a=1; Path=/; HttpOnly; Domain=127.0.0.1",
            "set-cookie",
            "a=1; Path=/app; HttpOnly; Domain=www.test",
        ),
        ("/app/x", evil, "location", "http://evil.test/x"),
        ("/app/x", "location: /app/login", "location", "/app/login"),
        ("/host/x", "location: http://inner.test/host/y", "location", "http://www.test/host/y"),
        ("/host/x", &direct, "location", "http://www.test/login?a"),
        ("/host/x", "set-cookie: a=1; Path=/; Domain=inner.test", "set-cookie", "a=1; Path=/; Domain=www.test"),
        ("/de/blog/x", "location: /v1/de/y/z", "location", "/de/blog/y/z"),
        ("/de/blog/x", "location: /v1/en/y", "location", "/v1/en/y"),
        ("/off/x", "location: /login", "location", "/login"),
        ("/off/x", "set-cookie: a=1; Path=/", "set-cookie", "a=1; Path=/"),
        ("/plain/x", &direct, "location", &format!("http://{own}/login?a")),
        ("/on/x", &direct, "location", "http://www.test/login?a"),
    ] {
        assert_eq!(ask(&gateway, target, answer).get(name), Some(expected), "{target}: {answer}");
    }
    let cookies = ask(&gateway, "/app/x", "set-cookie: a=1; Path=/|set-cookie: b=2|set-cookie: c=3; Path=/c");
    assert_eq!(cookies.all("set-cookie"), ["a=1; Path=/app", "b=2", "c=3; Path=/app/c"]);
}
