//! Tests HTTP/1.1 byte by byte: `100 Continue`, early hints, forms of targets, trailers, and bytes that are not a
//! request.

use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Peer, Upstream, ok};

/// A header that every browser sends over TLS, and to its own machine.
const BROWSER: &str = "sec-fetch-mode: navigate\r\n";
const EXPECT: &str = "expect: 100-continue\r\n";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

fn in_front_of(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(&format!("[[route]]\nname = \"app\"\nupstream = \"{}\"\n{more}\n", upstream.url()))
}

/// A server that reads a head and then follows the steps of the test, one after the other: bytes to send, or `body N`
/// to read.
fn scripted_upstream() -> (Upstream, Sender<&'static str>) {
    let (steps, script) = channel();
    let script: Mutex<Receiver<&'static str>> = Mutex::new(script);
    let upstream = Upstream::start(move |peer: &mut Peer| {
        while peer.head()?.is_some() {
            while let Ok(line) = script.lock().unwrap().recv() {
                match line.strip_prefix("body ") {
                    Some(count) => {
                        let body = peer.exactly(count.parse().unwrap())?;
                        peer.note(&format!("GET {} HTTP/1.1\r\n\r\n", String::from_utf8_lossy(&body)));
                    }
                    None if line == "end" => {
                        peer.note("GET end HTTP/1.1\r\n\r\n");
                        return peer.wait_for_end();
                    }
                    None => peer.send(line)?,
                }
                if line.contains("HTTP/1.1 2") {
                    break;
                }
            }
        }
        Ok(())
    });
    (upstream, steps)
}

#[track_caller]
fn assert_silent(client: &mut Client, time: Duration) {
    let stream = client.stream();
    stream.set_read_timeout(Some(time)).unwrap();
    let mut byte = [0];
    let peeked = stream.peek(&mut byte);
    assert!(peeked.is_err(), "received {peeked:?}");
    stream.set_read_timeout(Some(crate::support::WAIT_MAX)).unwrap();
}

#[test]
fn a_body_is_sent_once_the_server_asks_for_it() {
    let (upstream, steps) = scripted_upstream();
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(post("/", 5, EXPECT));
        let head = upstream.request();
        assert_eq!((head.get("expect"), head.get("content-length")), (Some("100-continue"), Some("5")));
        assert_silent(&mut client, Duration::from_millis(300));
        steps.send(CONTINUE).unwrap();
        assert_eq!(client.try_read_head().unwrap().head, CONTINUE);
        steps.send("body 5").unwrap();
        client.send("12345");
        assert_eq!(upstream.request().target(), "12345");
        steps.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        let response = client.read_response("POST");
        assert_eq!((response.text().as_str(), response.get("connection")), ("ok", None));
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_response_without_asking_is_passed_on_and_no_byte_of_the_body_is_read() {
    let (upstream, steps) = scripted_upstream();
    let gateway = in_front_of(&upstream, "");
    for (response, status) in [
        ("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\n\r\nno", 417),
        ("HTTP/1.1 401 Unauthorized\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", 401),
        ("HTTP/1.1 302 Found\r\ncontent-length: 2\r\n\r\nno", 302),
    ] {
        for length in [5, 1 << 20] {
            let mut client = gateway.client();
            client.send(post("/", length, EXPECT));
            upstream.request();
            steps.send(response).unwrap();
            steps.send("end").unwrap();
            let response = client.read_response("POST");
            assert_eq!(
                (response.status(), response.text().as_str(), response.get("connection")),
                (status, "no", Some("close"))
            );
            client.assert_closed();
            assert_eq!(upstream.request().target(), "end");
        }
    }
}

#[test]
fn a_server_that_never_asks_gets_the_body_after_a_second() {
    let (upstream, steps) = scripted_upstream();
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    let start = Instant::now();
    client.send(post("/", 5, EXPECT));
    assert_eq!(client.try_read_head().unwrap().head, CONTINUE);
    assert!(start.elapsed() > Duration::from_millis(900));
    client.send("12345");
    for line in ["body 5", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"] {
        steps.send(line).unwrap();
    }
    assert_eq!(client.read_response("POST").text(), "ok");
}

#[test]
fn a_body_that_comes_unasked_or_was_read_already_is_asked_for_by_nobody() {
    let upstream = Upstream::text("in");
    let gateway = in_front_of(
        &upstream,
        "[[route]]\npath = \"/by-body\"\nupstream = \"app\"\nlimits = [\"by-body\"]\n[upstream.app]\nservers = \
         [\"http://127.0.0.1:1\"]\n[limit.by-body]\nrate = \"9/s\"\nkey = \"json:/user\"\n",
    );
    gateway.reload_with("http://127.0.0.1:1", &upstream.url());
    let mut client = gateway.client();
    let json = "{\"user\": \"a\"}";
    let head = post("/by-body", json.len() as u64, &format!("{EXPECT}content-type: application/json\r\n"));
    client.send(&head);
    assert_eq!(client.try_read_head().unwrap().head, CONTINUE);
    client.send(json);
    assert_eq!(client.read_response("POST").text(), "in");
    assert_eq!(upstream.request().get("expect"), None);
    // HTTP/1.0 knows no interim responses.
    let mut old = gateway.client();
    old.send("POST / HTTP/1.0\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\nhi");
    assert_eq!(old.read_response("POST").text(), "in");
    let seen = upstream.request();
    assert_eq!((seen.get("expect"), seen.text().as_str()), (None, "hi"));
}

/// A server that sends hints before each response. If the target says so, the response waits for the test, or has a
/// length but no body.
fn hinting() -> (Upstream, Sender<()>) {
    let (go, wait) = channel();
    let wait: Mutex<Receiver<()>> = Mutex::new(wait);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            let more = if target == "/long" { "y".repeat(20 << 10) } else { "1".to_owned() };
            peer.send(format!(
                "HTTP/1.1 103 Early Hints\r\nlink: <{target}>\r\nconnection: x-own\r\nx-own: 1\r\nx-secret: {more}\r\n\
                 content-length: 7\r\n\r\n"
            ))?;
            if target == "/held" && wait.lock().unwrap().recv().is_err() {
                return Ok(());
            }
            let body = if target == "/large" { "x".repeat(8 << 20) } else { target };
            peer.send(ok(&body))?;
        }
        Ok(())
    });
    (upstream, go)
}

#[test]
fn early_hints_come_before_the_response_is_there() {
    let (upstream, go) = hinting();
    let gateway = in_front_of(&upstream, "response_headers = { remove = [\"x-secret\"], set = { x-set = \"1\" } }");
    let mut client = gateway.client();
    client.send(get("/held", BROWSER));
    let hints = client.try_read_head().unwrap();
    assert_eq!(hints.head, "HTTP/1.1 103 Early Hints\r\nlink: </held>\r\n\r\n");
    go.send(()).unwrap();
    let response = client.read_response("GET");
    assert_eq!((response.status(), response.text().as_str(), response.get("x-set")), (200, "/held", Some("1")));
    // A client of HTTP/1.0 gets no hints.
    let mut old = gateway.client();
    old.send(format!("GET /old HTTP/1.0\r\nhost: a\r\n{BROWSER}\r\n"));
    assert_eq!(old.read_response("GET").text(), "/old");
    let mut other = gateway.client();
    other.send(get("/other", ""));
    assert_eq!(other.try_read_response("GET").unwrap().text(), "/other");
}

#[test]
fn hints_without_bounds_are_left_out() {
    let (upstream, _go) = hinting();
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    client.send(get("/long", BROWSER) + &get("/short", BROWSER));
    assert_eq!(client.try_read_response("GET").unwrap().text(), "/long");
    assert_eq!(client.try_read_response("GET").unwrap().status(), 103);
    assert_eq!(client.try_read_response("GET").unwrap().text(), "/short");
}

/// Python's own client takes the first response other than `100 Continue` for the final one.
#[test]
fn clients_that_know_no_hints_see_the_response() {
    let (upstream, _go) = hinting();
    let gateway = in_front_of(&upstream, "");
    let script = "import http.client, sys\n\
                  link = http.client.HTTPConnection(sys.argv[1], timeout=20)\n\
                  for target in ('/a', '/b'):\n    \
                      link.request('GET', target)\n    \
                      answer = link.getresponse()\n    \
                      assert (answer.status, answer.read().decode()) == (200, target), answer.status\n";
    let output = Command::new("python3").args(["-c", script, &gateway.addr.to_string()]).output();
    let output = output.expect("python3 does not start; install it: apt-get install python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn hints_of_pipelined_requests_stay_with_their_responses() {
    let (upstream, _go) = hinting();
    let gateway = in_front_of(&upstream, "");
    let mut client = gateway.client();
    // The first response does not fit into the socket while the next ones are in progress.
    let targets: Vec<String> = std::iter::once("/large".to_owned()).chain((0..20).map(|i| format!("/{i}"))).collect();
    client.send(targets.iter().map(|target| get(target, BROWSER)).collect::<String>());
    std::thread::sleep(Duration::from_millis(300));
    let mut hinted = 0;
    for target in &targets {
        let mut response = client.try_read_response("GET").unwrap();
        if response.status() == 103 {
            hinted += 1;
            assert_eq!(response.get("link"), Some(format!("<{target}>").as_str()));
            response = client.try_read_response("GET").unwrap();
        }
        assert_eq!(response.status(), 200);
        let expected = if target == "/large" { "x".repeat(8 << 20) } else { target.clone() };
        assert!(response.text() == expected, "{target}: {} bytes", response.body.len());
    }
    assert!(hinted > 10, "{hinted}");
}

#[test]
fn forms_of_targets_other_than_a_path() {
    let upstream = Upstream::text("in");
    let gateway = in_front_of(&upstream, "");
    for (line, target) in [
        ("OPTIONS * HTTP/1.1", "*"),
        ("OPTIONS /x HTTP/1.1", "/x"),
        ("GET http://a.test/x?y HTTP/1.1", "/x?y"),
        ("GET http://A.test:80 HTTP/1.1", "/"),
        ("OPTIONS http://a.test HTTP/1.1", "/"),
    ] {
        let response = gateway.fetch(&format!("{line}\r\nhost: a.test\r\n\r\n"));
        assert_eq!(response.status(), 200, "{line}: {}", response.text());
        let seen = upstream.request();
        assert_eq!((seen.target(), seen.get("host")), (target, Some("a.test")), "{line}");
    }
    for line in
        ["GET * HTTP/1.1", "GET ftp://a.test/ HTTP/1.1", "GET a.test:80 HTTP/1.1", "GET http://b.test/ HTTP/1.1"]
    {
        assert_eq!(gateway.fetch(&format!("{line}\r\nhost: a.test\r\n\r\n")).status(), 400, "{line}");
    }
    assert!(upstream.requests().is_empty());
}

#[test]
fn trailers_reach_clients_that_accept_them() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nin\r\n0\r\nx-sum: 42\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = in_front_of(&upstream, "");
    for (fields, trailers) in [("te: trailers\r\n", true), ("", false), ("te: gzip\r\n", false)] {
        let mut client = gateway.client();
        client.send(get("/", &format!("{fields}connection: close{}\r\n", if fields.is_empty() { "" } else { ", te" })));
        let all = String::from_utf8(client.rest().unwrap()).unwrap();
        let end = if trailers { "0\r\nx-sum: 42\r\n\r\n" } else { "0\r\n\r\n" };
        assert!(all.ends_with(end), "{fields:?}: {all:?}");
        assert_eq!(upstream.request().get("te"), trailers.then_some("trailers"));
    }
}

#[test]
fn invalid_requests_are_refused_in_the_common_format() {
    let upstream = Upstream::text("in");
    let gateway =
        Gateway::with("max_header_bytes = \"128KiB\"", &format!("[[route]]\nupstream = \"{}\"\n", upstream.url()));
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(300 * 1024));
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(70_000));
    let many: String = (0..101).map(|i| format!("x-{i}: 1\r\n")).collect();
    for (bytes, status, title, setting) in [
        ("GET / HTTP/1.1\r\nhost a\r\n\r\n".to_owned(), 400, "Bad Request", None),
        ("\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), 400, "Bad Request", None),
        ("GET / HTTP/3.0\r\nhost: a\r\n\r\n".to_owned(), 400, "Bad Request", None),
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}".to_owned(), 400, "Bad Request", Some("tls")),
        (large, 431, "Request Header Fields Too Large", Some("max_header_bytes")),
        (get("/", &many), 431, "Request Header Fields Too Large", Some("max_header_bytes")),
        (long, 414, "URI Too Long", Some("max_header_bytes")),
    ] {
        for before in [0, 1, 2] {
            let mut client = gateway.client();
            let _ = client.try_send((0..before).map(|_| get("/", "")).collect::<String>() + &bytes);
            for _ in 0..before {
                assert_eq!(client.read_response("GET").text(), "in");
            }
            let response = client.read_response("GET");
            let what = format!("{before} {:?}:\n{}{}", &bytes[..bytes.len().min(40)], response.head, response.text());
            assert_eq!((response.status(), response.get("connection")), (status, Some("close")), "{what}");
            assert_eq!(response.get("content-type"), Some("application/problem+json"), "{what}");
            let problem = response.json();
            assert_eq!((&problem["title"], &problem["status"]), (&title.into(), &status.into()), "{what}");
            assert_eq!(problem["setting"].as_str(), setting, "{what}");
            assert!(problem["detail"].as_str().unwrap().len() > 20 && response.get("date").is_some(), "{what}");
            client.finish();
            client.assert_closed();
        }
    }
}
