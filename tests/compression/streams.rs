//! Streamed responses: flushes, trailers, bodies that break off, clients that leave, HTTP/1.0.

use std::io::{self, Read};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Request;

use super::{accepting, chunk, decode, decode_so_far, gateway, page, response, text};
use crate::support::client::get;
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::h2_server::Http2Server;
use crate::support::upstream::Upstream;
use crate::support::{WAIT_MAX, wait_until};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n";

#[test]
fn bodies_of_unknown_length_are_compressed() {
    for body in [String::new(), "x".to_owned(), page(300_000)] {
        let whole = if body.is_empty() { String::new() } else { chunk(&body) };
        let upstream = Upstream::fixed(format!("{CHUNKED}\r\n{whole}0\r\n\r\n"));
        let gateway = gateway(&upstream);
        for coding in ["zstd", "br", "gzip"] {
            let mut client = gateway.client();
            for _ in 0..2 {
                let received = client.fetch(&get("/", &accepting(coding)), "");
                assert_eq!(received.get("content-encoding"), Some(coding));
                assert_eq!(received.get("transfer-encoding"), Some("chunked"));
                assert_eq!(text(&received), body, "{coding}");
            }
        }
    }
}

#[test]
fn a_pause_of_the_server_flushes_the_compressed_body() {
    let (go, ended) = channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send(format!("{CHUNKED}\r\n"))?;
            for number in 0..5 {
                peer.send(chunk(&format!("step {number};")))?;
                ended.lock().unwrap().recv_timeout(WAIT_MAX).map_err(io::Error::other)?;
            }
            peer.send("0\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = gateway(&upstream);
    for coding in ["zstd", "br", "gzip"] {
        let (mut compressed, mut expected) = (Vec::new(), String::new());
        let mut steps = 0;
        let mut client = gateway.client();
        client.send(get("/", &accepting(coding)));
        let response = client.stream_response("GET", |piece| {
            compressed.extend_from_slice(piece);
            let next = format!("{expected}step {steps};");
            // The server continues only after the client has decoded everything that was sent.
            if decode_so_far(coding, &compressed).0 == next.as_bytes() {
                expected = next;
                steps += 1;
                go.send(()).unwrap();
            }
        });
        assert_eq!(response.unwrap().get("content-encoding"), Some(coding));
        assert_eq!(decode(coding, &compressed).unwrap(), b"step 0;step 1;step 2;step 3;step 4;");
    }
}

#[test]
fn trailers_follow_the_compressed_body() {
    let upstream = Upstream::fixed(format!(
        "{CHUNKED}trailer: x-sum, repr-digest\r\n\r\n{}0\r\nx-sum: 42\r\nrepr-digest: sha-256=:x:\r\n\r\n",
        chunk(&page(5000))
    ));
    let gateway = gateway(&upstream);
    for coding in ["zstd", "br", "gzip"] {
        let mut client = gateway.client();
        client.send(get("/", &format!("{}te: trailers\r\nconnection: te, close\r\n", accepting(coding))));
        let all = client.rest().unwrap();
        assert!(
            all.ends_with(b"\r\n0\r\nx-sum: 42\r\n\r\n"),
            "{coding}: {:?}",
            String::from_utf8_lossy(&all[all.len() - 60..])
        );

        let request = Request::get("http://a.test/").header("accept-encoding", coding).header("te", "trailers");
        let response = H2Client::connect(gateway.addr).fetch(request.body(()).unwrap(), Sent::default());
        assert_eq!(decode(coding, &response.body).unwrap(), page(5000).as_bytes());
        assert_eq!(response.trailers.len(), 1, "{:?}", response.trailers);
        assert_eq!(response.trailers["x-sum"], "42");
    }
}

#[test]
fn responses_of_http2_servers_are_compressed() {
    let server = Http2Server::start(|mut incoming| async move {
        let head = http::Response::builder().header("content-type", "text/html").header("etag", "\"a\"");
        let mut stream = incoming.head(head.body(()).unwrap(), false)?;
        crate::support::h2_server::send_all(&mut stream, page(200_000).into()).await?;
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        stream.send_trailers(trailers)
    });
    let gateway = Gateway::start(&format!("[[route]]\nupstream = \"h2c://{}\"\ncompress = true\n", server.addr));
    let response = gateway.fetch(&get("/", &accepting("zstd")));
    assert_eq!((response.get("etag"), text(&response)), (Some("W/\"a\""), page(200_000)));
    let head = gateway.fetch(&get("/", &accepting("zstd")).replacen("GET", "HEAD", 1));
    assert_eq!((head.get("content-length"), head.get("content-encoding")), (None, Some("zstd")));
    let request = Request::get("http://a.test/").header("accept-encoding", "br").body(()).unwrap();
    let response = H2Client::connect(gateway.addr).fetch(request, Sent::default());
    assert_eq!(decode("br", &response.body).unwrap(), page(200_000).as_bytes());
    assert_eq!(response.trailers["x-sum"], "42");
}

#[test]
fn http10_clients_get_no_chunks() {
    let long = page(300_000);
    let upstream = Upstream::fixed(response("", &long));
    for coding in ["zstd", "br", "gzip"] {
        let head = format!("GET / HTTP/1.0\r\nhost: a.test\r\n{}connection: keep-alive\r\n\r\n", accepting(coding));
        let long_gateway = gateway(&upstream);
        let mut client = long_gateway.client();
        let received = client.fetch(&head, "");
        assert_eq!((received.get("transfer-encoding"), received.get("content-length")), (None, None));
        assert_eq!(text(&received), long, "{coding}");
        // A small body has a length, so the connection stays open.
        let small = Gateway::start(&format!(
            "[[route]]\ncompress = true\nrespond = {{ body = '''{}''', content_type = \"text/html\" }}\n",
            page(5000)
        ));
        let mut client = small.client();
        for _ in 0..2 {
            let received = client.fetch(&head, "");
            assert_eq!(received.get("content-length"), Some(received.body.len().to_string().as_str()));
            assert_eq!(text(&received), page(5000), "{coding}");
        }
    }
}

/// The client gets what the server sent, and sees that the rest is missing.
#[test]
fn a_body_that_breaks_off_has_no_end() {
    let sent = page(200_000);
    let (length, chunked) = (
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 300000\r\n\r\n{sent}"),
        format!("{CHUNKED}\r\n{}", chunk(&sent)),
    );
    for head in [length, chunked.clone(), chunked + "nonsense\r\n"] {
        let upstream = Upstream::start(move |peer| {
            if peer.request()?.is_some() {
                peer.send(&head)?;
            }
            Ok(())
        });
        for coding in ["zstd", "br", "gzip"] {
            let gateway = gateway(&upstream);
            for version in ["1.1", "1.0"] {
                let mut client = gateway.client();
                client.send(format!("GET / HTTP/{version}\r\nhost: a.test\r\n{}\r\n", accepting(coding)));
                let mut body = Vec::new();
                let ended = client.stream_response("GET", |piece| body.extend_from_slice(piece));
                assert!(ended.is_err() || version == "1.0", "{coding}: the chunked body had an end");
                let (text, is_whole) = decode_so_far(coding, &body);
                assert!(!is_whole, "{coding} over HTTP/{version}: the compressed body had an end");
                assert!(text == sent.as_bytes(), "{coding} over HTTP/{version}: {} bytes", text.len());
            }
            let request = Request::get("http://a.test/").header("accept-encoding", coding).body(()).unwrap();
            assert!(H2Client::connect(gateway.addr).try_fetch(request, Sent::default()).is_err());
            wait_until("the log gives the reason", || {
                gateway.stdout().matches("\"reason\":\"upstream_cut_off\"").count() == 3
            });
        }
    }
}

#[test]
fn a_client_that_leaves_ends_the_request_to_the_server() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(format!("{CHUNKED}\r\n"))?;
        let piece = chunk(&page(60_000));
        // Ends with an error once the gateway has closed the connection.
        loop {
            peer.send(&piece)?;
        }
    });
    let gateway = gateway(&upstream);
    for coding in ["zstd", "br", "gzip"] {
        let mut client = gateway.client();
        client.send(get("/", &accepting(coding)));
        client.bytes(10_000);
        drop(client);
        upstream.wait_for_close();

        let mut wire = Wire::connect(gateway.addr, &[]);
        wire.send(headers(
            1,
            END_HEADERS | END_STREAM,
            &[&request("GET", "/")[..], &[("accept-encoding", coding)]].concat(),
        ));
        wire.read_until("data arrives", |frame| frame.kind == DATA);
        wire.send(reset(1, CANCEL));
        upstream.wait_for_close();
        assert!(wire.is_alive());
    }
    gateway.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
}

/// A fast server and a client that does not read: the gateway holds a bounded part of the body.
#[test]
fn a_slow_reader_stops_the_server() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(format!("{CHUNKED}\r\n"))?;
        let mut state: u64 = 1;
        loop {
            let noise = (0..60_000).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'0' + ((state >> 33) % 64) as u8)
            });
            peer.send(chunk(&noise.collect::<String>()))?;
        }
    });
    let gateway = gateway(&upstream);
    let before = gateway.memory("VmRSS");
    let mut clients: Vec<_> = (0..5)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/", &accepting("gzip")));
            client.bytes(1);
            client
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let grown = gateway.memory("VmRSS").saturating_sub(before) / 1024;
    assert!(grown < 5 * 4096, "{grown} KiB for five responses");
    drop(clients.split_off(1));
    let mut client = clients.remove(0);
    let mut total = 0;
    let mut piece = [0; 65_536];
    let since = Instant::now();
    while total < 200_000 && since.elapsed() < WAIT_MAX {
        total += client.stream().read(&mut piece).unwrap();
    }
    assert!(total >= 200_000, "{total} bytes in {:?}", since.elapsed());
}
