//! HTTP/1 connections and the end of the process: order of responses, versions, clients that leave, shutdown.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Responds to each request with its target when the test releases it.
fn held() -> (Upstream, Sender<()>) {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if wait.lock().unwrap().recv().is_err() {
                return Ok(());
            }
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    (upstream, release)
}

fn in_front_of(upstream: &Upstream, server: &str) -> Gateway {
    Gateway::with(server, &format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()))
}

#[test]
fn term_lets_the_request_in_flight_finish_and_exits_with_0() {
    for signal in ["TERM", "INT"] {
        let (upstream, release) = held();
        let mut gateway = in_front_of(&upstream, "");
        let (mut idle, mut busy) = (gateway.client(), gateway.client());
        release.send(()).unwrap();
        assert_eq!(idle.fetch(&get("/idle", ""), "").text(), "/idle");
        upstream.request();
        busy.send(get("/busy", ""));
        upstream.request();
        gateway.signal(signal);
        // The worker that serves both has begun the drain when the idle connection is closed.
        idle.assert_closed();
        wait_until("the listener is closed", || TcpStream::connect(gateway.addr).is_err());
        release.send(()).unwrap();
        let response = busy.read_response("GET");
        assert_eq!((response.text().as_str(), response.get("connection")), ("/busy", Some("close")), "{signal}");
        busy.assert_closed();
        assert_eq!(gateway.exit().code(), Some(0), "{signal}");
    }
}

/// Runs `meanwhile` while the process is stopped. When the process continues, it finds all effects together.
fn stopped(gateway: &Gateway, meanwhile: impl FnOnce()) {
    gateway.signal("STOP");
    wait_until("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).unwrap();
        stat.contains(") T ")
    });
    meanwhile();
    gateway.signal("CONT");
}

#[test]
fn requests_sent_before_the_shutdown_are_answered() {
    for workers in [1, 2] {
        let upstream = Upstream::text("in");
        let mut gateway = in_front_of(&upstream, &format!("workers = {workers}"));
        let (mut rested, mut warm, mut fresh, mut idle) =
            (gateway.client(), gateway.client(), gateway.client(), gateway.client());
        rested.fetch(&get("/", ""), "");
        idle.fetch(&get("/", ""), "");
        // Its parser has been released.
        std::thread::sleep(Duration::from_millis(900));
        warm.fetch(&get("/", ""), "");
        let mut late = Vec::new();
        stopped(&gateway, || {
            for client in [&mut rested, &mut warm, &mut fresh] {
                client.send(get("/", ""));
            }
            // These connections are in the listen queue; the process has not accepted them.
            late.extend((0..50).map(|_| gateway.client()));
            late.iter_mut().for_each(|client| client.send(get("/", "")));
            gateway.signal("TERM");
        });
        for client in [&mut rested, &mut warm, &mut fresh].into_iter().chain(&mut late) {
            assert_eq!(client.read_response("GET").text(), "in");
            client.assert_closed();
        }
        idle.assert_closed();
        assert_eq!(gateway.exit().code(), Some(0));
    }
}

#[test]
fn from_the_first_moment_of_the_end_responses_say_that_they_are_the_last() {
    let upstream = Upstream::text("in");
    let mut gateway = in_front_of(&upstream, "shutdown_delay = \"2s\"");
    let config = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.reload(&format!("{config}\n[[route]]\npath = \"/own\"\nrespond = {{ body = \"in\" }}\n"));
    let mut idle = gateway.client();
    assert_eq!(idle.fetch(&get("/before", ""), "").get("connection"), None);
    gateway.signal("TERM");
    wait_until("the gateway is draining", || gateway.admin("/readyz").status() == 503);
    // The worker begins the drain a moment later.
    wait_until("the response says so", || gateway.get("/").get("connection") == Some("close"));
    for (client, target) in [(&mut idle, "/again"), (&mut gateway.client(), "/new"), (&mut gateway.client(), "/own")] {
        assert_eq!(client.fetch(&get(target, ""), "").get("connection"), Some("close"));
        client.assert_closed();
    }
    assert_eq!(gateway.exit().code(), Some(0));
}

#[test]
fn a_request_in_flight_ends_under_the_config_it_began_with() {
    let (upstream, release) = held();
    let gateway = in_front_of(&upstream, "");
    let config = gateway.config();
    let before = std::fs::read_to_string(&config).unwrap();
    let mark = |mark: &str| {
        let edited = format!("{before}response_headers = {{ set = {{ x-config = \"{mark}\" }} }}\n");
        let reloads = || gateway.log().matches("config reloaded").count();
        let seen = reloads();
        std::fs::write(&config, edited).unwrap();
        wait_until("the edit is active", || reloads() > seen);
    };
    mark("first");
    let mut client = gateway.client();
    client.send(get("/", ""));
    upstream.request();
    mark("second");
    release.send(()).unwrap();
    assert_eq!(client.read_response("GET").get("x-config"), Some("first"));
    release.send(()).unwrap();
    assert_eq!(client.fetch(&get("/", ""), "").get("x-config"), Some("second"));
}

#[test]
fn a_second_term_ends_at_once() {
    let (upstream, _release) = held();
    let mut gateway = in_front_of(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/busy", ""));
    upstream.request();
    gateway.signal("TERM");
    wait_until("the gateway is draining", || gateway.admin("/readyz").status() == 503);
    let watch = Stopwatch::start();
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(1));
    watch.assert_ms(0..2000);
}

#[test]
fn a_request_that_does_not_end_is_cut_at_the_shutdown_timeout() {
    let (upstream, _release) = held();
    let mut gateway = in_front_of(&upstream, "shutdown_timeout = \"300ms\"");
    let mut busy = gateway.client();
    busy.send(get("/busy", ""));
    upstream.request();
    let watch = Stopwatch::start();
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(1));
    watch.assert_ms(250..2000);
}

#[test]
fn readiness_fails_before_the_listener_closes() {
    let mut gateway = Gateway::with("shutdown_delay = \"600ms\"", "[[route]]\npath = \"/\"\nrespond = { }\n");
    gateway.signal("TERM");
    wait_until("the gateway is draining", || gateway.admin("/readyz").status() == 503);
    assert_eq!(gateway.admin("/livez").status(), 200);
    assert_eq!(gateway.get("/").status(), 200);
    assert_eq!(gateway.exit().code(), Some(0));
}

#[test]
fn a_client_that_leaves_counts_as_499_and_frees_its_place() {
    let (upstream, release) = held();
    let gateway = in_front_of(&upstream, "");
    let mut leaving = gateway.client();
    leaving.send(get("/left", ""));
    upstream.request();
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 1.0);
    drop(leaving);
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "499")], 1.0);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);

    // A client that leaves during its upload.
    let mut leaving = gateway.client();
    leaving.send(post("/upload", 1000, "") + "some of it");
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 1.0);
    drop(leaving);
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    let left = [("route", "app"), ("method", "POST"), ("code", "499")];
    gateway.assert_metric("requests_total", &left, 1.0);

    // The unread rest does not reach the next client.
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(gateway.get("/next").text(), "/next");
}

#[test]
fn a_client_that_leaves_ends_the_download() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")?;
        peer.wait_for_end()?;
        // Reported to the test like a request.
        peer.note("ended");
        Ok(())
    });
    let gateway = in_front_of(&upstream, "");
    let mut leaving = gateway.client();
    leaving.send(get("/", ""));
    assert_eq!(leaving.try_read_head().unwrap().status(), 200);
    upstream.request();
    drop(leaving);
    assert_eq!(upstream.request().head, "ended");
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/0" {
                std::thread::sleep(Duration::from_millis(200));
            }
            peer.send(ok(&format!("{} {}", request.target(), request.text())))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\n\n[[route]]\npath = \"/9\"\nrespond = {{ body = \"/9 \" }}\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    let all: Vec<String> = (0..10)
        .map(|i| if i % 2 == 0 { get(&format!("/{i}"), "") } else { post(&format!("/{i}"), 2, "") + "hi" })
        .collect();
    client.send(all.concat());
    for i in 0..10 {
        let expected = if i % 2 == 0 || i == 9 { format!("/{i} ") } else { format!("/{i} hi") };
        assert_eq!(client.read_response("GET").text(), expected);
    }
}

/// A request line that the parser refuses is encoded, also if it arrives with the request before it, whole or not.
#[test]
fn odd_characters_in_targets_of_pipelined_requests_pass() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            std::thread::sleep(Duration::from_millis(20));
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    let gateway = Gateway::with(
        "access_log = true",
        &format!(
            "[[route]]\npath = \"/m\"\nupstream = \"{url}\"\nstrictness = \"monitor\"\n\
             [[route]]\npath = \"/\"\nupstream = \"{url}\"\n",
            url = upstream.url()
        ),
    );
    for (target, sent) in [
        (&b"/m?q=\"<x>"[..], "/m?q=%22%3Cx%3E"),
        (b"/m`<", "/m%60%3C"),
        (b"/m?\xff", "/m?%FF"),
        (b"/s?q=\"", "/s?q=%22"),
        (b"/s?q=\xff", ""),
    ] {
        let line = [b"GET ", target, b" HTTP/1.1\r\nHost: a.test\r\n\r\n"].concat();
        let first = [get("/s/first", ""), post("/s/second", 2, "") + "hi"].concat().into_bytes();
        for cut in [0, line.len() - 3, 12, target.len() + 4] {
            let mut client = gateway.client();
            client.send([&first[..], &line[..line.len() - cut]].concat());
            std::thread::sleep(Duration::from_millis(10));
            client.send([&line[line.len() - cut..], get("/s/last", "").as_bytes()].concat());
            assert_eq!(client.read_response("GET").text(), "/s/first");
            assert_eq!(client.read_response("POST").text(), "/s/second");
            let odd = client.read_response("GET");
            let shown = String::from_utf8_lossy(target).into_owned();
            if sent.is_empty() {
                assert_eq!(odd.status(), 400, "{shown} {cut}");
                continue;
            }
            assert_eq!((odd.status(), odd.text().as_str()), (200, sent), "{shown} {cut}");
            // After a repaired head, the connection ends.
            if !target.contains(&0xff) {
                assert_eq!(client.read_response("GET").text(), "/s/last", "{shown} {cut}");
            }
        }
    }
    let refused = |line: &str| line.contains("\"status\":400") && line.contains("\"host\":\"a.test\",\"path\":\"/s\"");
    wait_until("refused requests are logged as others", || {
        gateway.stdout().lines().filter(|line| refused(line)).count() == 4
    });
    // What no parser accepts is refused, and logged with method, host and path.
    gateway.client().send("GET /\x01 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let whole = |line: &str| line.contains("\"method\":\"GET\",\"host\":\"a.test\",\"path\":\"/\\u0001\"");
    wait_until("the host is logged", || gateway.stdout().lines().any(whole));
}

#[test]
fn http_1_0_is_served_and_closed_unless_it_asks_to_be_kept() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let upstream = Upstream::fixed(chunked);
    let gateway = in_front_of(&upstream, "");
    let mut old = gateway.client();
    let response = old.fetch("GET /old HTTP/1.0\r\n\r\n", "");
    assert_eq!((response.status(), response.text().as_str()), (200, "abcde"));
    assert_eq!(response.get("transfer-encoding"), None);
    old.assert_closed();
    let seen = upstream.request();
    assert_eq!(seen.start_line(), "GET /old HTTP/1.1");

    let gateway = Gateway::start("[[route]]\npath = \"/\"\nrespond = { body = \"kept\" }\n");
    let mut kept = gateway.client();
    for _ in 0..2 {
        let response = kept.fetch("GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n", "");
        assert_eq!(response.text(), "kept");
        assert!(response.get("connection").unwrap().eq_ignore_ascii_case("keep-alive"));
    }
    let last = kept.fetch(&get("/", "connection: close\r\n"), "");
    assert_eq!(last.get("connection"), Some("close"));
    kept.assert_closed();
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\netag: \"x\"\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.fetch("HEAD /x HTTP/1.1\r\nhost: a\r\n\r\n", "");
        assert_eq!((response.get("content-length"), response.get("etag")), (Some("1234"), Some("\"x\"")));
        assert_eq!(upstream.request().start_line(), "HEAD /x HTTP/1.1");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_unix_socket_serves_like_a_port() {
    use std::io::{Read, Write};
    let gateway = Gateway::launch(&[], |dir| {
        let config = dir.join("sluicegate.toml");
        let socket = dir.join("in.sock");
        let text = format!(
            "[server]\nlisten = [\"unix:{}\"]\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[[route]]\nupstream = \"echo:\"\n",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        vec!["run".to_owned(), "-c".to_owned(), config.display().to_string()]
    });
    let mut stream = std::os::unix::net::UnixStream::connect(gateway.dir.path().join("in.sock")).unwrap();
    stream.write_all(get("/unix", "connection: close\r\n").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("GET /unix HTTP/1.1"), "{response}");
}

#[test]
fn a_request_that_arrived_while_the_process_was_stopped_is_answered() {
    let upstream = Upstream::text("in");
    let gateway = in_front_of(&upstream, "keepalive_timeout = \"1s\"");
    // With its parser, and with the parser released.
    for rested in [Duration::ZERO, Duration::from_millis(750)] {
        let (mut client, mut silent) = (gateway.client(), gateway.client());
        for client in [&mut client, &mut silent] {
            assert_eq!(client.fetch(&get("/", ""), "").text(), "in");
        }
        std::thread::sleep(rested);
        stopped(&gateway, || {
            client.send(get("/", ""));
            std::thread::sleep(Duration::from_millis(1500));
        });
        assert_eq!(client.read_response("GET").text(), "in", "{rested:?}");
        silent.assert_closed();
        client.assert_closed();
    }
}
