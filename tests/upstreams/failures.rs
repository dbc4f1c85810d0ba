//! Connections to upstream servers and their failures: balancing, timeouts, responses that break off, kept connections.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::machine::Stopwatch;
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn route(upstream: &str) -> String {
    format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{upstream}\"\n")
}

fn balanced(balance: &str, servers: &[String]) -> Gateway {
    let servers = servers.join(", ");
    let upstream = format!("[upstream.app]\nbalance = \"{balance}\"\nservers = [{servers}]\n");
    Gateway::start(&(route("app") + &upstream))
}

fn quoted(upstream: &Upstream) -> String {
    format!("\"{}\"", upstream.url())
}

fn outcome(outcome: &str) -> [(&str, &str); 2] {
    [("upstream", "app"), ("outcome", outcome)]
}

#[test]
fn round_robin_alternates_by_weight() {
    let [a, b, c] = ["a", "b", "c"].map(Upstream::text);
    let gateway = balanced("round_robin", &[quoted(&a), quoted(&b), quoted(&c)]);
    let mut client = gateway.client();
    let turns: Vec<String> = (0..7).map(|_| client.fetch(&get("/", ""), "").text()).collect();
    assert_eq!(turns, ["a", "b", "c", "a", "b", "c", "a"]);

    let heavy = format!("{{ url = \"{}\", weight = 2 }}", b.url());
    let gateway = balanced("round_robin", &[quoted(&a), heavy]);
    let mut client = gateway.client();
    let turns: String = (0..9).map(|_| client.fetch(&get("/", ""), "").text()).collect();
    assert_eq!(turns.matches('b').count(), 6, "{turns}");
}

#[test]
fn two_choices_pass_over_the_busy_server() {
    let busy_on_hold = |name: &'static str| {
        Upstream::start(move |peer| {
            while let Some(request) = peer.request()? {
                if request.target() == "/hold" {
                    return peer.wait_for_end();
                }
                peer.send(ok(name))?;
            }
            Ok(())
        })
    };
    let (a, b) = (busy_on_hold("a"), busy_on_hold("b"));
    let gateway = balanced("p2c", &[quoted(&a), quoted(&b)]);
    let mut held = gateway.client();
    held.send(get("/hold", ""));
    let mut free = "";
    wait_until("the held request has reached a server", || {
        free = if a.requests().is_empty() { "a" } else { "b" };
        free == "b" || !b.requests().is_empty()
    });
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.fetch(&get("/", ""), "").text(), free);
    }
}

#[test]
fn a_dead_server_is_passed_over() {
    let live = Upstream::text("live");
    for balance in ["round_robin", "p2c"] {
        let gateway = balanced(balance, &[format!("\"http://{}\"", closed_addr()), quoted(&live)]);
        let mut client = gateway.client();
        for _ in 0..10 {
            let response = client.fetch(&post("/", 2, ""), "hi");
            assert_eq!((response.status(), response.text().as_str()), (200, "live"), "{balance}");
        }
        gateway.assert_metric("upstream_requests_total", &outcome("ok"), 10.0);
        gateway.assert_metric("upstream_requests_total", &outcome("connect_error"), 0.0);
        let retries = gateway.metric("upstream_retries_total", &[("upstream", "app"), ("reason", "connect_error")]);
        // After a failed connect the server is left alone for a while.
        assert!(retries.unwrap() <= 2.0, "{balance}: {retries:?}");
    }
}

#[test]
fn without_a_server_that_listens_the_response_is_502() {
    let gateway = balanced("p2c", &[format!("\"http://{}\"", closed_addr()), format!("\"http://{}\"", closed_addr())]);
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.fetch(&get("/", ""), "");
        assert_eq!((response.status(), response.get("content-type")), (502, Some("application/problem+json")));
        assert_eq!(response.json()["detail"], "no upstream server accepts connections");
    }
    gateway.assert_metric("upstream_requests_total", &outcome("connect_error"), 2.0);
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "502")], 2.0);
}

#[test]
fn a_server_that_hangs_is_504_at_the_response_timeout() {
    let upstream = Upstream::silent();
    let gateway = Gateway::start(&format!("{}response_timeout = \"300ms\"\n", route(&upstream.url())));
    let mut client = gateway.client();
    for request in [get("/", ""), post("/", 2, "") + "hi"] {
        let watch = Stopwatch::start();
        let response = client.fetch(&request, "");
        watch.assert_ms(290..1200);
        assert_eq!(response.status(), 504);
        assert_eq!(response.json()["detail"], "the upstream server did not respond in time");
    }
    // Once each: a request that may have been acted on is not sent again.
    assert_eq!(upstream.requests().len(), 2);
}

#[test]
fn a_server_that_breaks_off_is_502_before_its_head_and_a_cut_body_after() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/close" => return Ok(()),
                "/garbage" => return peer.send("SSH-2.0-OpenSSH_9.2\r\n\r\n"),
                "/short" => return peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfour"),
                "/chunk" => return peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfour\r\n"),
                _ => peer.send(ok("fine"))?,
            }
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream.url()));
    let mut client = gateway.client();
    for target in ["/close", "/garbage"] {
        let response = client.fetch(&get(target, ""), "");
        assert_eq!(response.status(), 502, "{target}");
        assert_eq!(
            response.json()["detail"],
            "the upstream server closed the connection or sent an invalid response",
            "{target}"
        );
    }
    assert_eq!(client.fetch(&get("/", ""), "").text(), "fine");
    for target in ["/short", "/chunk"] {
        let mut client = gateway.client();
        client.send(get(target, ""));
        // The client must be able to tell that the body is not whole.
        let error = client.try_read_response("GET").unwrap_err();
        assert!(
            matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset),
            "{target}: {error}"
        );
    }
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

#[test]
fn a_kept_connection_that_turns_out_closed_is_retried_for_get_and_never_doubles_a_post() {
    // Responds to the first request of a connection and closes when the second arrives.
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(ok("first"))?;
        peer.request()?;
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream.url()));
    let mut client = gateway.client();
    assert_eq!(client.fetch(&get("/1", ""), "").status(), 200);
    assert_eq!(client.fetch(&get("/2", ""), "").status(), 200);
    let targets: Vec<String> = upstream.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(targets, ["/1", "/2", "/2"]);

    assert_eq!(client.fetch(&post("/3", 1, ""), "x").status(), 502);
    let targets: Vec<String> = upstream.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(targets, ["/3"]);
    let authority = upstream.addr.to_string();
    let stale = [("upstream", authority.as_str()), ("reason", "stale_connection")];
    gateway.assert_metric("upstream_retries_total", &stale, 1.0);
}

#[test]
fn connections_are_kept_and_those_the_server_closes_are_not_used_again() {
    let keeping = Upstream::text("ok");
    let closing = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
    });
    for (upstream, connections) in [(&keeping, 1), (&closing, 8)] {
        let gateway = Gateway::start(&route(&upstream.url()));
        for round in 0..4 {
            assert_eq!(gateway.get("/").status(), 200, "{round}");
            assert_eq!(gateway.client().fetch(&post("/", 1, ""), "x").status(), 200, "{round}");
        }
        assert_eq!(upstream.connections(), connections);
    }
}

#[test]
fn an_expectation_is_answered_here_if_the_server_ignores_it() {
    let upstream = Upstream::text("uploaded");
    let gateway = Gateway::start(&route(&upstream.url()));
    let mut client = gateway.client();
    client.send(post("/", 4, "expect: 100-continue\r\n"));
    assert_eq!(client.try_read_head().unwrap().status(), 100);
    client.send("body");
    assert_eq!(client.read_response("POST").text(), "uploaded");
    assert_eq!(upstream.request().body, b"body");
}

#[test]
fn a_response_before_the_end_of_the_upload_reaches_the_client() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")?;
        peer.wait_for_end()
    });
    let gateway = Gateway::start(&route(&upstream.url()));
    let mut client = gateway.client();
    client.send(post("/", 8 << 20, ""));
    let response = client.read_response("POST");
    assert_eq!((response.status(), response.text().as_str()), (403, "no"));
}

#[test]
fn a_response_streams_while_the_server_still_writes_it() {
    let (more, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        for event in ["5\r\none\n\n\r\n", "5\r\ntwo\n\n\r\n", "0\r\n\r\n"] {
            peer.send(event)?;
            let _ = wait.lock().unwrap().recv();
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream.url()));
    let mut client = gateway.client();
    client.send(get("/", ""));
    let mut seen = Vec::new();
    client
        .stream_response("GET", |piece| {
            seen.extend_from_slice(piece);
            if seen.ends_with(b"\n\n") {
                // The next event is written only once this one has been read.
                more.send(()).unwrap();
            }
        })
        .unwrap();
    assert_eq!(seen, b"one\n\ntwo\n\n");
}
