//! Refusals before the body: what is read of it, and what happens to the connection.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, ok};

/// The limit of `/spent` is exhausted; `/free` has none.
fn spent(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&format!(
        r#"
        [[route]]
        name = "spent"
        path = "/spent"
        upstream = "{url}"
        limits = ["one"]
        max_body = "1GiB"

        [[route]]
        path = "/spend"
        respond = {{ body = "spent" }}
        limits = ["one"]

        [[route]]
        path = "/free"
        respond = {{ body = "free" }}

        [limit.one]
        rate = "1/h"
        key = "all"
        "#,
        url = upstream.url()
    ));
    assert_eq!(gateway.get("/spend").status(), 200);
    gateway
}

/// Writes up to `bytes`, and returns how many the gateway accepted before it closed.
fn pour(client: &mut Client, bytes: usize) -> usize {
    let piece = [b'x'; 64 * 1024];
    let mut poured = 0;
    while poured < bytes && client.try_send(piece).is_ok() {
        poured += piece.len();
    }
    poured
}

#[test]
fn a_client_that_expects_100_gets_429_and_sends_nothing() {
    let upstream = Upstream::text("never");
    let gateway = spent(&upstream);
    for length in [5, 1 << 30] {
        let mut client = gateway.client();
        let response = client.fetch(&post("/spent", length, "expect: 100-continue\r\n"), "");
        assert_eq!((response.status(), response.get("connection")), (429, Some("close")), "{length}");
        client.assert_closed();
    }
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn an_expectation_is_compared_as_it_was_sent() {
    let gateway = Gateway::start(
        r#"
        [[route]]
        name = "expecting"
        path = "/"
        header = { expect = "100-Continue" }
        respond = { status = 417 }

        [[route]]
        path = "/"
        respond = { status = 404 }
        "#,
    );
    for (sent, status) in [("100-Continue", 417), ("100-continue", 404)] {
        let response = gateway.client().fetch(&post("/", 5, &format!("expect: {sent}\r\n")), "");
        assert_eq!(response.status(), status, "{sent}");
    }
}

#[test]
fn a_small_unread_body_leaves_the_connection_usable() {
    let upstream = Upstream::text("never");
    let gateway = spent(&upstream);
    let mut client = gateway.client();
    for _ in 0..3 {
        let response = client.fetch(&post("/spent", 5, ""), "12345");
        assert_eq!((response.status(), response.get("connection")), (429, None));
        assert_eq!(client.fetch(&get("/free", ""), "").text(), "free");
    }
    // Body and next request in one piece, and a body that looks like a request.
    client.send(post("/spent", 27, "") + "GET /evil HTTP/1.1\r\nx: y\r\n\r" + &get("/free", ""));
    assert_eq!(client.read_response("POST").status(), 429);
    assert_eq!(client.read_response("GET").text(), "free");
    // The body comes only after the refusal.
    client.send(post("/spent", 40_000, ""));
    assert_eq!(client.read_response("POST").status(), 429);
    client.send([b'x'; 40_000]);
    assert_eq!(client.fetch(&get("/free", ""), "").text(), "free");
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn a_large_unread_body_is_discarded_within_bounds_and_the_close_announced() {
    let upstream = Upstream::text("never");
    let gateway = spent(&upstream);
    let chunked = "POST /spent HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFF\r\n".to_owned();
    for head in [post("/spent", 1 << 30, ""), chunked] {
        let mut client = gateway.client();
        client.send(head);
        // What is discarded, the socket buffers of both ends, and what the gateway had read before it decided.
        let poured = pour(&mut client, 100 << 20);
        assert!((32 << 20..48 << 20).contains(&poured), "the gateway accepted {poured} bytes");
        let response = client.read_response("POST");
        assert_eq!((response.status(), response.get("connection")), (429, Some("close")));
    }
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn the_body_cap_refuses_before_and_while_it_streams() {
    let upstream = Upstream::text("stored");
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"capped\"\npath = \"/\"\nupstream = \"{}\"\nmax_body = \"1KiB\"\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    assert_eq!(client.fetch(&post("/", 1024, ""), [b'x'; 1024]).status(), 200);
    assert_eq!(upstream.request().body.len(), 1024);
    let chunked = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = |size: usize| [format!("{size:x}\r\n").as_bytes(), &vec![b'x'; size], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(client.fetch(chunked, body(1024)).status(), 200);
    assert_eq!(upstream.connections(), 1);

    // Refused because of its announced length, and small enough to keep the connection.
    let response = client.fetch(&post("/", 1025, ""), [b'x'; 1025]);
    assert_eq!((response.status(), response.get("connection")), (413, None));
    assert_eq!(response.json()["detail"], "the request body is larger than allowed here");
    assert_eq!(upstream.connections(), 1);
    let mut large = gateway.client();
    let response = large.fetch(&post("/", 1 << 30, "expect: 100-continue\r\n"), "");
    assert_eq!((response.status(), response.get("connection")), (413, Some("close")));

    let response = client.fetch(chunked, body(1025));
    assert_eq!(response.status(), 413);
    gateway.assert_metric("requests_total", &[("route", "capped"), ("method", "POST"), ("code", "413")], 3.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "body_too_large")], 3.0);
    gateway.assert_metric("requests_in_flight", &[("route", "capped")], 0.0);
}

#[test]
fn a_full_route_refuses_with_503_and_takes_the_next_when_one_ends() {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            let _ = wait.lock().unwrap().recv();
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"narrow\"\npath = \"/\"\nupstream = \"{}\"\nmax_in_flight = 2\n",
        upstream.url()
    ));
    let mut held = [gateway.client(), gateway.client()];
    for client in &mut held {
        client.send(get("/", ""));
        upstream.request();
    }
    gateway.assert_metric("requests_in_flight", &[("route", "narrow")], 2.0);
    let response = gateway.get("/");
    assert_eq!(response.status(), 503);
    let full = [("route", "narrow"), ("limit", "_none"), ("reason", "max_in_flight")];
    gateway.assert_metric("rejections_total", &full, 1.0);

    for client in &mut held {
        release.send(()).unwrap();
        let _ = client;
    }
    for client in &mut held {
        assert_eq!(client.read_response("GET").text(), "done");
    }
    release.send(()).unwrap();
    gateway.assert_metric("requests_in_flight", &[("route", "narrow")], 0.0);
    assert_eq!(gateway.get("/").text(), "done");
}

/// The task that sends the rest of an upload must end with the exchange.
#[test]
fn uploads_whose_response_breaks_off_leave_nothing_in_memory() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
        // Meanwhile the gateway sends the rest of the upload.
        std::thread::sleep(Duration::from_millis(20));
        peer.send("no chunk\r\n")?;
        peer.wait_for_end()
    });
    let gateway = Gateway::with(
        "workers = 1",
        &format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\nmax_body = \"1GiB\"\n", upstream.url()),
    );
    let upload = || {
        let mut client = gateway.client();
        let _ = client.try_send(post("/", 10_000_000, "") + &"x".repeat(15_000));
        client.try_read_response("POST").unwrap_err();
    };
    let upload_many = |count: usize| {
        std::thread::scope(|scope| (0..20).for_each(|_| drop(scope.spawn(|| (0..count / 20).for_each(|_| upload())))));
    };
    upload_many(200);
    let before = gateway.memory("VmRSS");
    upload_many(1000);
    let grown = gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 4 << 20, "{} kB for 1000 uploads", grown >> 10);
}
