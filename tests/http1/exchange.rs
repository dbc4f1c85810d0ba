//! The exchange with an upstream: framing that contradicts itself, uploads and responses that overtake each
//! other, connections that are kept or not.

use std::net::Shutdown;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::machine::Stopwatch;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn route(upstream: &Upstream, more: &str) -> String {
    format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{more}\n", upstream.url())
}

fn outcomes(gateway: &Gateway, upstream: &Upstream, outcome: &str) -> f64 {
    let name = upstream.addr.to_string();
    gateway.metric("upstream_requests_total", &[("upstream", &name), ("outcome", outcome)]).unwrap_or(0.0)
}

fn rejected(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("http_rejected_total", &[("reason", reason)]).unwrap_or(0.0)
}

#[test]
fn responses_of_every_framing_leave_their_connection_for_the_next_request() {
    let responses = [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-a\r\n\r\n3;x=y\r\nabc\r\n0\r\nx-a: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3\r\n\r\nabc",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 300\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
    ];
    for response in responses {
        // Whole, and in pieces.
        for piece in [usize::MAX, 7] {
            let upstream = Upstream::start(move |peer| {
                while peer.request()?.is_some() {
                    for bytes in response.as_bytes().chunks(piece) {
                        peer.send(bytes)?;
                        if piece != usize::MAX {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
                Ok(())
            });
            let gateway = Gateway::start(&route(&upstream, ""));
            let mut client = gateway.client();
            for _ in 0..20 {
                let seen = client.fetch(&get("/", ""), "");
                assert_eq!(seen.text(), if seen.status() == 200 { "abc" } else { "" }, "{response}");
            }
            assert_eq!(upstream.connections(), 1, "{response}");
        }
    }
}

#[test]
fn head_responses_have_no_body_and_leave_their_connection() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let whole = request.start_line().starts_with("GET");
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")?;
            peer.send(if whole { "whole" } else { "" })?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, ""));
    let mut client = gateway.client();
    for _ in 0..3 {
        let head = client.fetch("HEAD / HTTP/1.1\r\nhost: a.test\r\n\r\n", "");
        assert_eq!((head.status(), head.get("content-length")), (200, Some("5")));
        assert_eq!(client.fetch(&get("/", ""), "").text(), "whole");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn any_method_may_have_a_body_of_unknown_length() {
    let upstream = Upstream::text("in");
    let gateway = Gateway::start(&route(&upstream, ""));
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let mut client = gateway.client();
        let head = format!("{method} /_search HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(client.fetch(&head, "5\r\nquery\r\n1\r\n!\r\n0\r\n\r\n").status(), 200, "{method}");
        let seen = upstream.request();
        assert_eq!((seen.text().as_str(), seen.get("transfer-encoding")), ("query!", Some("chunked")), "{method}");
    }

    let silent = Upstream::silent();
    let gateway = Gateway::start(&route(&silent, "response_timeout = \"300ms\""));
    for method in ["GET", "HEAD"] {
        let watch = Stopwatch::start();
        let head = format!("{method} / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(gateway.client().fetch(&head, "5\r\nquery\r\n0\r\n\r\n").status(), 504, "{method}");
        watch.assert_ms(0..2000);
    }
}

#[test]
fn contradictory_responses_are_502_and_end_the_connection() {
    let responses = [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 30\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx : 1\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/2 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 99 Low\r\ncontent-length: 5\r\n\r\nhello",
    ];
    for response in responses {
        let upstream = Upstream::start(move |peer| {
            peer.request()?;
            peer.send(response)?;
            peer.wait_for_end()?;
            peer.note("ended");
            Ok(())
        });
        let gateway = Gateway::start(&route(&upstream, ""));
        assert_eq!(gateway.get("/").status(), 502, "{response}");
        upstream.request();
        assert_eq!(upstream.request().head, "ended", "{response}");
        assert_eq!(outcomes(&gateway, &upstream, "broken"), 1.0, "{response}");
    }
}

#[test]
fn broken_chunks_end_the_response_for_all_to_see() {
    for chunks in [
        "5\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5;\nhello\r\n",
        "0x5\r\nhello\r\n",
    ] {
        let upstream = Upstream::start(move |peer| {
            peer.request()?;
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")?;
            peer.send(chunks)?;
            peer.wait_for_end()
        });
        let gateway = Gateway::start(&route(&upstream, ""));
        let mut client = gateway.client();
        client.send(get("/", ""));
        client.try_read_response("GET").unwrap_err();
    }
}

/// A connection that closes without a byte looks as if its request had never been served, and many clients send it
/// again.
#[test]
fn the_part_of_a_response_before_it_breaks_off_reaches_the_client() {
    let large = "x".repeat(1 << 20);
    let sized = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{large}", 2 << 20);
    for (response, end) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789", "\r\n\r\n0123456789"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", "\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", "\r\n\r\n5\r\nhello\r\n"),
        (&sized, &large),
    ] {
        let sent = response.to_owned();
        let upstream = Upstream::start(move |peer| {
            peer.request()?;
            peer.send(&sent)
        });
        let gateway = Gateway::start(&route(&upstream, ""));
        for _ in 0..5 {
            let mut client = gateway.client();
            client.send(get("/", ""));
            // The client reads a large response after a pause.
            std::thread::sleep(Duration::from_millis(if end.len() > 100 { 100 } else { 0 }));
            let all = String::from_utf8(client.rest().unwrap()).unwrap();
            assert!(all.starts_with("HTTP/1.1 200 ") && all.ends_with(end), "{} bytes of {response:.60}", all.len());
        }
    }
}

#[test]
fn interim_responses_are_bounded_in_rate() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let count: usize = request.target()[1..].parse().unwrap();
            peer.send("HTTP/1.1 102 Processing\r\nx: y\r\n\r\n".repeat(count) + &ok("final"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, ""));
    assert_eq!(gateway.get("/90").text(), "final");
    assert_eq!(gateway.get("/5000").status(), 502);
}

/// Servers send 102 or 104 to report that long work continues.
#[test]
fn interim_responses_extend_the_wait_for_the_response_up_to_a_bound() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let beats: usize = request.target()[1..].parse().unwrap();
            for beat in 0..beats {
                let status = if beat % 2 == 0 { "102 Processing" } else { "104 Upload Resumption Supported" };
                peer.send(format!("HTTP/1.1 {status}\r\nx-beat: {beat}\r\n\r\n"))?;
                std::thread::sleep(Duration::from_millis(100));
            }
            peer.send(ok("final"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, "response_timeout = \"400ms\""));
    let begun = Instant::now();
    assert_eq!(gateway.get("/15").text(), "final");
    assert_eq!(gateway.get("/1000").status(), 504);
    let took = begun.elapsed();
    // Once 1.5 s, then ten times `response_timeout`.
    assert!((Duration::from_secs(5)..Duration::from_secs(12)).contains(&took), "{took:?}");
    // A client that supports these interim responses gets them.
    let mut client = gateway.client();
    client.send(post("/2", 3, "upload-draft-interop-version: 6\r\n") + "abc");
    let beats = [client.try_read_head().unwrap().head, client.try_read_head().unwrap().head];
    let expected = ["102 Processing\r\nx-beat: 0", "104 \r\nx-beat: 1"];
    assert_eq!(beats, expected.map(|head| format!("HTTP/1.1 {head}\r\n\r\n")));
    assert_eq!(client.read_response("POST").text(), "final");
}

#[test]
fn bytes_after_a_response_do_not_answer_the_next_request() {
    let split = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
    for pause in [0, 60] {
        let upstream = Upstream::start(move |peer| {
            while peer.request()?.is_some() {
                if pause == 0 {
                    peer.send(ok("right") + split)?;
                } else {
                    peer.send(ok("right"))?;
                    std::thread::sleep(Duration::from_millis(pause));
                    peer.send(split)?;
                }
            }
            Ok(())
        });
        let gateway = Gateway::start(&route(&upstream, ""));
        let mut client = gateway.client();
        for _ in 0..5 {
            assert_eq!(client.fetch(&get("/", ""), "").text(), "right");
            std::thread::sleep(Duration::from_millis(2 * pause));
        }
        assert_eq!(upstream.connections(), 5);
    }
}

/// Sends the pieces with pauses that add up to more than any timeout.
fn drip(client: &mut Client, pieces: usize) {
    for _ in 0..pieces {
        std::thread::sleep(Duration::from_millis(150));
        client.send([b'x'; 10]);
    }
}

#[test]
fn an_upload_continues_after_its_response_and_both_connections_stay() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.head()? {
            let upload = request.start_line().starts_with("POST");
            peer.send(ok("early"))?;
            if upload {
                peer.exactly(100)?;
                peer.note("whole");
            }
        }
        Ok(())
    });
    let timeouts = "stream_timeout = \"500ms\"\nresponse_timeout = \"500ms\"\nbody_timeout = \"1s\"\nmin_body_rate = 1";
    let gateway = Gateway::with("header_timeout = \"500ms\"", &route(&upstream, timeouts));
    let mut client = gateway.client();
    client.send(post("/", 100, ""));
    assert_eq!(client.read_response("POST").text(), "early");
    drip(&mut client, 10);
    upstream.request();
    assert_eq!(upstream.request().head, "whole");
    assert_eq!(client.fetch(&get("/", ""), "").text(), "early");
    assert_eq!((rejected(&gateway, "header_timeout"), upstream.connections()), (0.0, 1));

    // An upload that stops is ended like any other.
    client.send(post("/", 100, ""));
    assert_eq!(client.read_response("POST").text(), "early");
    client.send("some");
    client.assert_closed();
    assert_eq!((rejected(&gateway, "header_timeout"), rejected(&gateway, "body_timeout")), (0.0, 1.0));
}

#[test]
fn an_upload_that_moves_keeps_a_response_alive_that_waits_for_it() {
    let upstream = Upstream::start(|peer| {
        while peer.head()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")?;
            peer.exactly(100)?;
            peer.send("whole")?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, "stream_timeout = \"500ms\""));
    let mut client = gateway.client();
    client.send(post("/", 100, ""));
    drip(&mut client, 10);
    assert_eq!(client.read_response("POST").text(), "whole");
    assert_eq!(rejected(&gateway, "stream_timeout"), 0.0);
}

#[test]
fn an_upstream_that_stops_reading_is_blamed_itself() {
    for timeouts in ["body_timeout = \"400ms\"", "response_timeout = \"400ms\""] {
        let upstream = Upstream::start(|peer| {
            peer.head()?;
            std::thread::sleep(Duration::from_secs(8));
            Ok(())
        });
        let gateway = Gateway::start(&route(&upstream, &format!("{timeouts}\nmax_body = \"100MiB\"")));
        let mut client = gateway.client();
        client.send(post("/", 64 << 20, ""));
        let mut writer = client.stream().try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            use std::io::Write;
            while writer.write_all(&[b'x'; 1 << 16]).is_ok() {}
        });
        let watch = Stopwatch::start();
        assert_eq!(client.read_response("POST").status(), 504, "{timeouts}");
        watch.assert_ms(0..4000);
        assert_eq!((outcomes(&gateway, &upstream, "timeout"), rejected(&gateway, "body_timeout")), (1.0, 0.0));
        client.stream().shutdown(Shutdown::Both).unwrap();
        sending.join().unwrap();
    }
}

#[test]
fn a_response_arrives_though_the_upstream_closes_while_more_is_sent() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig")
    });
    let gateway = Gateway::start(&route(&upstream, ""));
    let body = vec![b'x'; 2 << 20];
    for turn in 0..60 {
        let mut client = gateway.client();
        client.send(post("/", body.len() as u64, ""));
        client.try_send(&body).unwrap_or_else(|error| panic!("{turn}: {error}"));
        let response = client.read_response("POST");
        assert_eq!((response.status(), response.text().as_str()), (413, "big"), "{turn}");
    }
}

/// All clients at once; each has its response before the next burst.
fn burst(gateway: &Gateway, clients: usize) {
    let barrier = Arc::new(Barrier::new(clients));
    let addr = gateway.addr;
    let all: Vec<_> = (0..clients)
        .map(|_| {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(addr);
                barrier.wait();
                assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
            })
        })
        .collect();
    all.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn as_many_connections_are_kept_as_were_in_use() {
    for (max_idle, few) in [("", true), ("max_idle = 20\n", false)] {
        let upstream = Upstream::start(|peer| {
            while peer.request()?.is_some() {
                std::thread::sleep(Duration::from_millis(300));
                peer.send(ok("in"))?;
            }
            Ok(())
        });
        let to =
            format!("[[route]]\nupstream = \"app\"\n\n[upstream.app]\nservers = [\"{}\"]\n{max_idle}", upstream.url());
        let gateway = Gateway::start(&to);
        burst(&gateway, 150);
        let first = upstream.connections();
        burst(&gateway, 150);
        let opened = upstream.connections() - first;
        assert!(if few { opened <= 15 } else { opened >= 100 }, "{max_idle}: {opened} after {first}");
    }
}

#[test]
fn a_client_that_shuts_down_its_side_gets_its_response() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            std::thread::sleep(Duration::from_millis(if request.target() == "/slow" { 2500 } else { 300 }));
            peer.send(ok("in"))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, ""));
    for request in [get("/", ""), get("/", "connection: close\r\n"), post("/", 4, "") + "body"] {
        let mut client = gateway.client();
        client.send(&request);
        client.stream().shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read_response("GET").text(), "in", "{request}");
        client.assert_closed();
    }
    let mut client = gateway.client();
    client.send(get("/", "") + &get("/", ""));
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!([client.read_response("GET").text(), client.read_response("GET").text()], ["in", "in"]);
    client.assert_closed();

    // The client may also have left. That is noticed after a second, or at once with this setting, perhaps before the
    // request has a route.
    let labels = ["app", "_none"].map(|route| [("route", route), ("method", "GET"), ("code", "499")]);
    for (server, least, most) in [("", 900, 2200), ("half_close_timeout = \"0s\"", 0, 700)] {
        let gateway = Gateway::with(server, &route(&upstream, ""));
        let watch = Stopwatch::start();
        let mut client = gateway.client();
        client.send(get("/slow", ""));
        client.stream().shutdown(Shutdown::Write).unwrap();
        wait_until("the client has left", || {
            labels.iter().any(|labels| gateway.metric("requests_total", labels) == Some(1.0))
        });
        watch.assert_ms(least..most);
        client.assert_closed();
    }
}
