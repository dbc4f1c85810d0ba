//! Bounds of compression: memory of encoders, hostile `Accept-Encoding`, other requests during a large response.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{accepting, chunk, decode, page, response, route, text};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::{WAIT_MAX, wait_until};

#[test]
fn responses_beyond_the_memory_for_encoders_are_not_compressed() {
    let (go, ended) = channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/small" {
                peer.send(response("", &page(5000)))?;
                continue;
            }
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\netag: \"a\"\r\ntransfer-encoding: chunked\r\n\r\n";
            peer.send(format!("{head}{}", chunk(&page(5000))))?;
            ended.lock().unwrap().recv_timeout(WAIT_MAX).map_err(std::io::Error::other)?;
            peer.send("0\r\n\r\n")?;
        }
        Ok(())
    });
    // One encoder of gzip reserves 512 KiB.
    let gateway = Gateway::with("max_compress_memory = \"1MiB\"\n", &route(&upstream, "compress = true"));
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/", &accepting("gzip")));
            (client.try_read_head().unwrap(), client)
        })
        .collect();
    let codings = clients.iter().map(|(head, _)| head.get("content-encoding")).collect::<Vec<_>>();
    assert_eq!(codings, [Some("gzip"), Some("gzip"), None]);
    let head = &clients[2].0;
    assert_eq!((head.get("etag"), head.get("vary")), (Some("\"a\""), Some("Accept-Encoding")));
    gateway.assert_metric("compressions_skipped_total", &[], 1.0);
    // A small body that is complete needs no reserved memory.
    let small = gateway.fetch(&get("/small", &accepting("gzip")));
    assert_eq!((small.get("content-encoding"), text(&small)), (Some("gzip"), page(5000)));
    // A client that leaves releases its memory, and so does a response that ends.
    drop(clients.remove(0));
    go.send(()).unwrap();
    go.send(()).unwrap();
    go.send(()).unwrap();
    wait_until("memory is free again", || {
        go.send(()).unwrap();
        let received = gateway.fetch(&get("/", &accepting("gzip")));
        assert_eq!(text(&received), page(5000));
        received.get("content-encoding").is_some()
    });
}

#[test]
fn no_memory_for_encoders_leaves_streams_uncompressed() {
    let upstream = Upstream::fixed(response("", &page(100_000)));
    let gateway = Gateway::with("max_compress_memory = 0\n", &route(&upstream, "compress = true"));
    let received = gateway.fetch(&get("/", &accepting("gzip, br, zstd")));
    assert_eq!((received.get("content-encoding"), text(&received)), (None, page(100_000)));
    assert_eq!(received.get("content-length"), Some("100000"));
}

#[test]
fn any_accept_encoding_gets_a_response_that_it_accepts() {
    let upstream = Upstream::fixed(response("", &page(3000)));
    let gateway = Gateway::with("max_header_bytes = \"256KiB\"\n", &route(&upstream, "compress = true"));
    let many = |text: &str, count: usize| vec![text; count].join(",");
    for (codings, coding) in [
        (many("gzip", 20_000), Some("gzip")),
        (many("x;q=0.5", 12_000) + ",br", Some("br")),
        (many("gzip;q=0", 10_000) + ",gzip", None),
        (many("", 100_000), None),
        (many("gzip;q=1.5", 8_000), None),
        ("gzip;".to_owned() + &"q=1;".repeat(20_000), None),
        ("q".repeat(100_000), None),
        ("gzip;q=0.9999999999999999999".to_owned(), None),
        ("*;q=0.001,".repeat(9_000), Some("zstd")),
        ("\u{e9}, gzip".to_owned(), Some("gzip")),
        ("gzip\t;\tq=1".to_owned(), Some("gzip")),
    ] {
        let since = Instant::now();
        let received = gateway.fetch(&get("/", &accepting(&codings)));
        let start: String = codings.chars().take(30).collect();
        assert_eq!((received.status(), received.get("content-encoding")), (200, coding), "{start}");
        assert_eq!(text(&received), page(3000), "{start}");
        assert!(since.elapsed() < Duration::from_secs(5), "{start}: {:?}", since.elapsed());
    }
    let lines: String = (0..90).map(|at| accepting(if at == 70 { "br;q=0.3" } else { "gzip;q=0.2" })).collect();
    assert_eq!(gateway.fetch(&get("/", &lines)).get("content-encoding"), Some("br"));
}

/// One worker compresses a body that arrives as fast as it reads, and still serves others.
#[test]
fn a_large_response_does_not_keep_others_waiting() {
    let zeros = "0".repeat(1 << 20);
    let large = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")?;
            let piece = chunk(&zeros);
            (0..16).try_for_each(|_| peer.send(&piece))?;
            peer.send("0\r\n\r\n")?;
        }
        Ok(())
    });
    let routes = route(&large, "compress = true") + "[[route]]\npath = \"/quick\"\nrespond = { body = \"quick\" }\n";
    let gateway = Gateway::start(&routes);
    for coding in ["zstd", "br", "gzip"] {
        let mut client = gateway.client();
        client.send(get("/", &accepting(coding)));
        let reader = std::thread::spawn(move || client.read_response("GET"));
        let (mut quick, mut slowest, mut count) = (gateway.client(), Duration::ZERO, 0);
        while !reader.is_finished() {
            let since = Instant::now();
            assert_eq!(quick.fetch(&get("/quick", ""), "").text(), "quick");
            slowest = slowest.max(since.elapsed());
            count += 1;
        }
        let response = reader.join().unwrap();
        assert_eq!(decode(coding, &response.body).unwrap().len(), 16 << 20);
        assert!(response.body.len() < 1 << 20, "{coding}: {} bytes", response.body.len());
        eprintln!("{coding}: {count} other requests, the slowest took {slowest:?}");
        // Generous for a debug build on a busy machine; without turns, one request would wait for the whole response.
        assert!(count > 20, "{coding}: {count} requests, slowest {slowest:?}");
    }
}
