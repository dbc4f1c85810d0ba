//! The configs of docs/reference/requests.md and routing.md, run unchanged.

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::manual::{Page, changed};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn page() -> Page {
    Page::read("docs/reference/requests.md")
}

fn routing() -> Page {
    Page::read("docs/reference/routing.md")
}

#[test]
fn double_slashes_dots_and_percent_signs() {
    let app = Upstream::text("in");
    let gateway = page().under("Strictness")[0].start(&app, None);
    for (asked, goes_on) in [
        ("/a//b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/x/../b", "/a/b"),
        ("/%61/%2e%2e/b", "/b"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a{b}", "/a%7Bb%7D"),
        ("/a/?q=//%2e", "/a/?q=//%2e"),
    ] {
        assert_eq!(gateway.get(asked).status(), 200, "{asked}");
        assert_eq!(app.request().target(), goes_on);
    }
    let rejected = |reason: &str| gateway.metric("http_rejected_total", &[("reason", reason)]).unwrap_or(0.0);
    for (head, status, reason) in [
        ("GET /x HTTP/1.1\nhost: a.test\r\n\r\n", 400, "line_end"),
        ("GET /a%5Cb HTTP/1.1\r\nhost: a.test\r\n\r\n", 400, "path_backslash"),
        ("GET /legacy HTTP/1.1\nhost: a.test\r\n\r\n", 200, ""),
        ("GET /legacy/a%5Cb HTTP/1.1\r\nhost: a.test\r\n\r\n", 200, ""),
        ("GET /legacy/a%00 HTTP/1.1\r\nhost: a.test\r\n\r\n", 400, "path_control"),
        ("GET /legacy/../../x HTTP/1.1\r\nhost: a.test\r\n\r\n", 400, "path_above_root"),
    ] {
        let before = rejected(reason);
        let mut client = gateway.client();
        assert_eq!(client.fetch(head, "").status(), status, "{head}");
        let after = before + if status == 400 { 1.0 } else { 0.0 };
        wait_until("it is counted", || rejected(reason) == after);
        if head.contains("1.1\n") {
            // What it looked at strictly before, it looks at no longer.
            client.assert_closed();
        }
    }
}

#[test]
fn via_is_not_added_if_it_is_left_out() {
    let app = Upstream::text("in");
    let title = "Forwarded headers and Via";
    let page = page();
    let part = page.under(title)[0];
    let asked_and_answered = |gateway: Gateway| {
        let response = gateway.get("/");
        let request = app.request();
        assert!(request.get("x-forwarded-for").is_some() && request.get("x-request-id").is_some());
        [request.get("via").is_some(), response.get("via").is_some()]
    };
    assert_eq!(asked_and_answered(part.start(&app, None)), [false, false]);
    let default = Gateway::start(&format!("[[route]]\nupstream = \"{}\"\n", app.url()));
    assert_eq!(asked_and_answered(default), [true, true]);
}

#[test]
fn uploads_may_be_larger_where_a_route_says_so() {
    let app = Upstream::text("in");
    let title = "Sizes";
    let gateway = page().under(title)[0].start(&app, None);
    let body = vec![b'x'; (10 << 20) + 1];
    let mut client = gateway.client();
    // It is refused by its length.
    assert_eq!(client.fetch(&post("/other", body.len() as u64, ""), "").status(), 413);
    assert_eq!(gateway.client().fetch(&post("/git/push", body.len() as u64, ""), &body).status(), 200);
    assert_eq!(app.request().body.len(), body.len());
}

#[test]
fn encoded_slashes() {
    let app = Upstream::text("in");
    let gateway = routing().under("Encoded slashes")[0].start(&app, None);
    for (asked, goes_on) in [
        ("/npm/@scope%2fname", "/npm/@scope%2Fname"),
        ("/api/v4/projects/group%2Fsub%2Fproject/issues?a=%2f", "/api/v4/projects/group%2Fsub%2Fproject/issues?a=%2f"),
        ("/npm/@scope/name", "/npm/@scope/name"),
    ] {
        assert_eq!(gateway.get(asked).status(), 200, "{asked}");
        assert_eq!(app.request().target(), goes_on);
    }
    for (asked, reason) in [
        ("/other%2Fpath", "path_slash"),
        ("/npm%2F@scope", "path_slash"),
        ("/api/v4/users/a%2fb", "path_slash"),
        ("/npm/x%2F..%2F..%2Fadmin", "path_slash_dots"),
        ("/npm/%2e%2e%2fadmin", "path_slash_dots"),
    ] {
        let refused = gateway.get(asked);
        assert_eq!((refused.status(), refused.text().contains("%2F")), (400, true), "{asked}");
        let count = gateway.metric("http_rejected_total", &[("reason", reason)]);
        assert!(count >= Some(1.0), "{asked}: {reason}");
        assert_eq!(refused.text().contains("encoded_slashes"), reason == "path_slash", "{}", refused.text());
    }
    assert!(app.requests().is_empty());
    // One spelling, one budget; the slash another.
    for (asked, status) in [("/npm/@scope%2Fname", 200), ("/npm/@scope%2fname", 429), ("/npm/@scope/name", 200)] {
        assert_eq!(gateway.get(asked).status(), status, "{asked}");
    }
}

#[test]
fn behind_a_load_balancer() {
    let app = Upstream::text("in");
    let page = page();
    let part = &page.under("Client address")[0];
    let config = changed(&part.config, "127.0.0.1:3000", &app.addr.to_string());
    let config = format!("{}\n[admin]\nlisten = \"127.0.0.1:0\"\n", changed(&config, "0.0.0.0:8000", "127.0.0.1:0"));
    let gateway = Gateway::with_config(&config);
    let mut client = gateway.client();
    client.send(format!("PROXY TCP4 192.0.2.7 198.51.100.1 4711 80\r\n{}", get("/", "")));
    assert_eq!(client.read_response("GET").text(), "in");
    let seen = app.request();
    assert_eq!((seen.get("x-forwarded-for"), seen.get("x-forwarded-port")), (Some("192.0.2.7"), Some("80")));
    gateway.client().send("x".repeat(20));
    gateway.assert_metric("http_rejected_total", &[("reason", "proxy_header")], 1.0);
}

#[test]
fn websocket() {
    let app = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.get("upgrade") {
                Some(protocol) => {
                    peer.send(format!("HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"))?;
                    return peer.wait_for_end();
                }
                None => peer.send(ok("plain"))?,
            }
        }
        Ok(())
    });
    let gateway = page().under("WebSocket and other upgrades")[0].start(&app, None);
    let fetch = |protocol: &str| {
        let mut client = gateway.client();
        client.send(get("/chat", &format!("connection: upgrade\r\nupgrade: {protocol}\r\n")));
        let status = client.try_read_head().unwrap().status();
        (status, client)
    };
    assert_eq!(fetch("tcp").0, 200);
    let mut chats: Vec<_> = (0..5).map(|_| fetch("websocket")).collect();
    assert!(chats.iter().all(|(status, _)| *status == 101));
    assert_eq!(fetch("websocket").0, 429);
    gateway.assert_metric("tunnels", &[], 5.0);
    chats.pop();
    wait_until("a place is free again", || fetch("websocket").0 == 101);
}

#[test]
fn grpc() {
    let page = page();
    let part = &page.under("gRPC")[0];
    let server = ("127.0.0.1:50051", closed_addr().to_string());
    let gateway = part.start_changed(&Upstream::text("no gRPC"), None, &[(server.0, &server.1)]);
    let call = |path: &str| {
        let response = gateway.fetch(&get(path, "content-type: application/grpc\r\nte: trailers\r\n"));
        assert_eq!(response.status(), 200);
        (response.get("grpc-status").unwrap().to_owned(), response.get("grpc-retry-pushback-ms").is_some())
    };
    for (path, status, pushback) in [
        ("/helloworld.Greeter/SayHello", "14", false),
        ("/helloworld.Greeter/SayHello", "14", false),
        ("/helloworld.Greeter/SayHello", "8", true),
        ("/helloworld.Other/SayHello", "12", false),
    ] {
        assert_eq!(call(path), (status.to_owned(), pushback), "{path}");
    }
}

#[test]
fn routes_change_paths_and_headers_and_answer_by_themselves() {
    let app = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\nserver: app\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let page = routing();
    let gateway = page.under("Routing")[0].start_changed(&app, None, &[("127.0.0.1:4000", &app.addr.to_string())]);
    let fetch = |head: &str| gateway.fetch(&format!("GET {head} HTTP/1.1\r\nhost: api.example.com\r\n\r\n"));
    let response = fetch("/v1/users");
    assert_eq!(response.get("x-frame-options"), Some("DENY"));
    assert_eq!((response.status(), response.get("server")), (200, None));
    assert_eq!(app.request().target(), "/users");
    assert!(fetch("/robots.txt").text().contains("Disallow"));
    assert_eq!(fetch("/other").get("server"), Some("app"));
}
