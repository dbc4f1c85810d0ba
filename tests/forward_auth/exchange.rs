//! The request that the auth server gets, and the effect of its response.

use std::time::Duration;

use http::Request;

use super::pair::{COPIED, Pair, admit, admitting, echoing_socket, responding};
use crate::support::client::{get, post};
use crate::support::frames::*;
use crate::support::h2::{self, H2Client, Sent};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const TO_LOGIN: &str = "HTTP/1.1 302 Found\r\nlocation: https://login.a.test/?rd=%2F\r\nset-cookie: state=1; Path=/\r\n\
                        set-cookie: nonce=2\r\ncache-control: no-store\r\nkeep-alive: timeout=5\r\nx-shown: yes\r\n\
                        connection: x-hidden\r\nx-hidden: 1\r\ncontent-length: 12\r\n\r\nlog in first";

#[test]
fn the_auth_server_gets_the_head_and_the_application_the_body() {
    let pair = Pair::with("", COPIED, "max_body = \"2MiB\"", admitting(), Upstream::text("the application"));
    let body: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let fields = "cookie: session=1\r\nauthorization: Bearer x\r\naccept: a/b\r\nif-none-match: \"1\"\r\nrange: bytes=0-1\r\n\
                  te: trailers\r\nconnection: te\r\n";
    for framing in ["length", "chunked", "h2"] {
        let response = match framing {
            "length" => pair.gateway.client().fetch(&post("/a/b?c=d&e", body.len() as u64, fields), &body).status(),
            "chunked" => {
                let head =
                    format!("POST /a/b?c=d&e HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n{fields}\r\n");
                let chunked = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
                pair.gateway.client().fetch(&head, chunked).status()
            }
            _ => {
                let mut request = h2::post("/a/b?c=d&e");
                for (name, value) in [("cookie", "session=1"), ("authorization", "Bearer x"), ("accept", "a/b")] {
                    request.headers_mut().append(name, value.parse().unwrap());
                }
                H2Client::connect(pair.gateway.addr).fetch(request, Sent { body: &body, trailers: None }).status()
            }
        };
        assert_eq!(response, 200, "{framing}");
        let auth_request = pair.auth.request();
        assert_eq!(auth_request.start_line(), "GET /verify?from=gateway HTTP/1.1");
        for (name, value) in [
            ("host", Some(pair.auth.addr.to_string().as_str())),
            ("x-forwarded-method", Some("POST")),
            ("x-forwarded-uri", Some("/a/b?c=d&e")),
            ("x-forwarded-host", Some("a.test")),
            ("x-forwarded-proto", Some("http")),
            ("x-forwarded-for", Some("127.0.0.1")),
            ("x-real-ip", Some("127.0.0.1")),
            ("cookie", Some("session=1")),
            ("authorization", Some("Bearer x")),
            ("accept", Some("a/b")),
            ("content-length", None),
            ("transfer-encoding", None),
            ("if-none-match", None),
            ("range", None),
            ("te", None),
            ("connection", None),
        ] {
            assert_eq!(auth_request.get(name), value, "{framing}: {name}");
        }
        let forwarded = pair.app.request();
        assert!(forwarded.body == body, "{framing}: the body differs");
        assert_eq!(forwarded.start_line(), "POST /a/b?c=d&e HTTP/1.1");
        assert_eq!((forwarded.get("remote-user"), forwarded.get("x-role")), (Some("alice"), Some("admin")));
        assert_eq!(forwarded.get("x-request-id"), auth_request.get("x-request-id"), "{framing}");
        assert_eq!((forwarded.get("x-forwarded-uri"), forwarded.get("x-forwarded-method")), (None, None));
    }
    assert_eq!(pair.auth.connections(), 1, "the connection is used again");
}

#[test]
fn a_refusal_of_the_auth_server_is_forwarded_unchanged() {
    let pair = Pair::start(COPIED, |_| TO_LOGIN.to_owned());
    let mut client = pair.gateway.client();
    for _ in 0..2 {
        let response = client.fetch(&post("/", 5, ""), "hello");
        assert_eq!((response.status(), response.text()), (302, "log in first".to_owned()));
        assert_eq!(response.get("location"), Some("https://login.a.test/?rd=%2F"));
        assert_eq!(response.all("set-cookie"), ["state=1; Path=/", "nonce=2"]);
        assert_eq!((response.get("cache-control"), response.get("x-shown")), (Some("no-store"), Some("yes")));
        assert_eq!((response.get("keep-alive"), response.get("x-hidden")), (None, None));
        assert!(response.get("via").unwrap().contains("sluicegate"));
    }
    let head = client.fetch("HEAD / HTTP/1.1\r\nhost: a.test\r\n\r\n", "");
    assert_eq!((head.status(), head.get("content-length")), (302, Some("12")));
    assert_eq!(
        client.fetch(&get("/", ""), "").text(),
        "log in first",
        "the connection after HEAD has no leftover bytes"
    );
    let mut over_h2 = H2Client::connect(pair.gateway.addr);
    for method in ["GET", "HEAD"] {
        let request = Request::builder().method(method).uri("http://a.test/").body(()).unwrap();
        let response = over_h2.fetch(request, Sent::default());
        assert_eq!((response.status(), response.field("location")), (302, Some("https://login.a.test/?rd=%2F")));
        assert_eq!(response.text(), if method == "GET" { "log in first" } else { "" });
    }
    assert!(pair.app.requests().is_empty(), "the application got a request");
    pair.gateway.assert_metric("forward_auth_total", &[("route", "app"), ("outcome", "refused")], 6.0);
    wait_until("all requests are logged", || pair.gateway.stdout().lines().count() == 6);
    let log = pair.gateway.stdout();
    assert!(
        log.lines().all(|line| line.contains("\"status\":302,\"reason\":\"auth_refused\",\"setting\":\"auth\"")),
        "{log}"
    );
    assert!(
        log.lines().all(|line| line.contains("\"upstream_ms\":null") && !line.contains("\"auth_ms\":null")),
        "{log}"
    );
}

#[test]
fn a_success_admits_and_every_other_status_refuses() {
    let pair = Pair::start(COPIED, |request| {
        let status = request.get("x-forwarded-uri").unwrap().trim_start_matches('/').to_owned();
        let length = if status == "204" || status == "304" { "" } else { "content-length: 0\r\n" };
        format!("HTTP/1.1 {status} Status\r\n{length}\r\n")
    });
    let mut client = pair.gateway.client();
    for status in [200, 201, 202, 204, 206, 299] {
        assert_eq!(client.fetch(&get(&format!("/{status}"), ""), "").text(), "the application", "{status}");
    }
    for status in [300, 302, 304, 400, 401, 403, 404, 407, 418, 429, 500, 503, 599] {
        assert_eq!(client.fetch(&get(&format!("/{status}"), ""), "").status(), status);
    }
    assert_eq!(pair.app.requests().len(), 6);
}

#[test]
fn cookies_of_a_success_are_added_to_every_response() {
    let auth = responding(|_| {
        "HTTP/1.1 200 OK\r\nset-cookie: session=2\r\nset-cookie: csrf=3\r\ncontent-length: 0\r\n\r\n".to_owned()
    });
    let app = Upstream::fixed("HTTP/1.1 200 OK\r\nset-cookie: app=1\r\ncontent-length: 0\r\n\r\n");
    let rest = "limits = [\"once\"]\n[limit.once]\nrate = \"1/day\"\nkey = \"ip\"\n";
    let pair = Pair::with("", "", rest, auth, app);
    let first = pair.gateway.get("/");
    assert_eq!((first.status(), first.all("set-cookie")), (200, vec!["app=1", "session=2", "csrf=3"]));
    let refused = pair.gateway.get("/");
    assert_eq!((refused.status(), refused.all("set-cookie")), (429, vec!["session=2", "csrf=3"]));
    assert_eq!(pair.app.request().get("set-cookie"), None);
}

#[test]
fn a_client_that_expects_100_continue_gets_it_from_the_application() {
    let refusing = Pair::start("", |_| TO_LOGIN.to_owned());
    let expecting = post("/", 5, "expect: 100-continue\r\n");
    let mut client = refusing.gateway.client();
    client.send(&expecting);
    assert_eq!(client.try_read_head().unwrap().status(), 302);

    let app = Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            assert_eq!(head.get("expect"), Some("100-continue"));
            peer.send("HTTP/1.1 100 Continue\r\n\r\n")?;
            let body = peer.body(&head)?;
            peer.send(crate::support::upstream::ok(&String::from_utf8(body).unwrap()))?;
        }
        Ok(())
    });
    let pair = Pair::with("", "", "", admitting(), app);
    let mut client = pair.gateway.client();
    client.send(&expecting);
    assert_eq!(client.try_read_head().unwrap().status(), 100);
    assert_eq!(pair.auth.request().get("expect"), None);
    client.send("hello");
    assert_eq!(client.read_response("POST").text(), "hello");
}

#[test]
fn a_websocket_opens_only_with_permission() {
    const UPGRADE: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let auth = responding(|request| match request.get("cookie") {
        Some("session=1") => admit("alice"),
        _ => TO_LOGIN.to_owned(),
    });
    let pair = Pair::with("", COPIED, "", auth, echoing_socket());
    let mut client = pair.gateway.client();
    assert_eq!(client.fetch(&get("/chat", UPGRADE), "").status(), 302);
    let auth_request = pair.auth.request();
    assert_eq!((auth_request.get("upgrade"), auth_request.get("connection")), (None, None));
    client.send(get("/chat", &format!("{UPGRADE}cookie: session=1\r\n")));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    client.send("ping");
    assert_eq!(client.bytes(4), b"ping");
    assert_eq!(pair.app.request().get("remote-user"), Some("alice"));

    let mut wire = Wire::connect(pair.gateway.addr, &[]);
    wire.send(connect(1, "/chat", "websocket"));
    let refused = wire.read_until("the refusal", |frame| frame.kind == HEADERS && frame.stream == 1);
    drop(refused);
    assert_eq!(pair.auth.request().get("x-forwarded-method"), Some("GET"));
    wait_until("the refused tunnel has no slot", || pair.gateway.metric("tunnels", &[]) == Some(1.0));
    assert!(pair.app.requests().is_empty(), "the application got a refused handshake");
}

#[test]
fn only_listed_headers_reach_the_auth_server() {
    let options = "request_headers = [\"cookie\", \"X-Api-Key\"], copy_headers = [\"x-api-key>x-key-owner\"]";
    let pair = Pair::start(options, |_| "HTTP/1.1 200 OK\r\nx-api-key: alice\r\ncontent-length: 0\r\n\r\n".to_owned());
    let fields =
        "cookie: session=1\r\nauthorization: Bearer x\r\nx-api-key: 1\r\nx-key-owner: me\r\nuser-agent: test\r\n";
    assert_eq!(pair.gateway.fetch(&get("/", fields)).status(), 200);
    let auth_request = pair.auth.request();
    let mut names: Vec<&str> = auth_request.fields().map(|(name, _)| name).collect();
    names.sort_unstable();
    let expected = [
        "cookie",
        "host",
        "via",
        "x-api-key",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-method",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-forwarded-uri",
        "x-real-ip",
        "x-request-id",
    ];
    assert_eq!(names, expected);
    let forwarded = pair.app.request();
    assert_eq!((forwarded.get("x-key-owner"), forwarded.get("x-api-key")), (Some("alice"), Some("1")));
    assert_eq!(forwarded.get("authorization"), Some("Bearer x"));
}

#[test]
fn limits_and_the_log_know_the_user() {
    let rest = "limits = [\"per-user\"]\n[limit.per-user]\nrate = \"1/day\"\nkey = \"user\"\n";
    let auth = responding(|request| admit(request.get("cookie").unwrap()));
    let pair = Pair::with("", COPIED, rest, auth, Upstream::text("the application"));
    for (user, status) in [("alice", 200), ("bob", 200), ("alice", 429), ("bob", 429), ("carol", 200)] {
        assert_eq!(pair.gateway.fetch(&get("/", &format!("cookie: {user}\r\n"))).status(), status, "{user}");
        wait_until("the user is logged", || pair.gateway.stdout().contains(&format!("\"user\":\"{user}\"")));
    }
    pair.gateway.assert_metric("forward_auth_total", &[("route", "app"), ("outcome", "admitted")], 5.0);
}

#[test]
fn the_limits_of_auth_decide_before_the_auth_request() {
    let rest = "[limit.attempts]\nrate = \"2/day\"\nkey = \"ip\"\n";
    let options = "limits = [\"attempts\"]";
    let pair = Pair::with("", options, rest, responding(|_| TO_LOGIN.to_owned()), Upstream::text("the application"));
    let statuses: Vec<u16> = (0..4).map(|_| pair.gateway.get("/").status()).collect();
    assert_eq!(statuses, [302, 302, 429, 429]);
    assert_eq!(pair.auth.requests().len(), 2);
}

#[test]
fn only_refusals_are_charged_if_a_limit_says_so() {
    let rest = "[limit.failures]\nrate = \"2/day\"\nkey = \"ip\"\ncharge_on = [302]\n";
    let auth = responding(|request| match request.get("cookie") {
        Some(_) => admit("alice"),
        None => TO_LOGIN.to_owned(),
    });
    let pair = Pair::with("", "limits = [\"failures\"]", rest, auth, Upstream::text("the application"));
    for _ in 0..4 {
        assert_eq!(pair.gateway.fetch(&get("/", "cookie: session\r\n")).status(), 200);
    }
    assert_eq!([(); 4].map(|()| pair.gateway.get("/").status()), [302, 302, 429, 429]);
}

#[test]
fn an_upstream_with_a_path_is_an_auth_server_with_retries() {
    let (auth, dead, app) =
        (admitting(), crate::support::ports::ReservedPort::new(), Upstream::text("the application"));
    let gateway = crate::support::gateway::Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nauth = {{ forward = \"auth/check?a=1\", copy_headers = [\"remote-user>x-user\"] }}\n\
         [upstream.auth]\nservers = [\"http://{}\", \"{}\"]\nbalance = \"round_robin\"\n",
        app.url(),
        dead.addr(),
        auth.url()
    ));
    for _ in 0..4 {
        assert_eq!(gateway.get("/").status(), 200);
        assert_eq!(auth.request().start_line(), "GET /check?a=1 HTTP/1.1");
        assert_eq!(app.request().get("x-user"), Some("alice"));
    }
    let retried = gateway.metric("upstream_retries_total", &[("reason", "connect_error"), ("upstream", "auth")]);
    assert!(retried >= Some(1.0), "{retried:?}");
}

#[test]
fn a_client_that_leaves_ends_the_exchange_with_the_auth_server() {
    let pair = Pair::with("", "timeout = \"60s\"", "", Upstream::silent(), Upstream::text("the application"));
    for is_h2 in [false, true] {
        let before = pair.auth.connections();
        if is_h2 {
            let client = H2Client::connect(pair.gateway.addr);
            let sender = client.sender();
            client.run(async move {
                let mut sender = sender.ready().await.unwrap();
                let (response, _) = sender.send_request(h2::get("/"), true).unwrap();
                let _ = tokio::time::timeout(Duration::from_millis(300), response).await;
            });
            pair.auth.request();
        } else {
            let mut client = pair.gateway.client();
            client.send(get("/", ""));
            pair.auth.request();
        }
        assert_eq!(pair.auth.connections(), before + 1);
        pair.auth.wait_for_close();
    }
    assert!(pair.app.requests().is_empty());
}
