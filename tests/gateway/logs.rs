//! What the gateway says of failures: its own log, where lines are sampled, and the access log.

use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::ports::nobody;
use crate::support::until;
use crate::support::upstream::Upstream;

fn route_to(url: &str, more: &str) -> String {
    format!("[upstream.app]\nservers = [\"{url}\"]\n[[route]]\npath = \"/\"\nupstream = \"app\"\n{more}\n")
}

/// The lines of the log that hold all of `words`.
fn lines(gateway: &Gateway, words: &[&str]) -> usize {
    gateway.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn every_way_in_which_an_upstream_fails_is_told_once_and_then_sampled() {
    let garbage = Upstream::fixed("nonsense\r\n\r\n");
    let cut = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
    });
    let silent = Upstream::silent();
    let stalled = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")?;
        peer.wait_for_end()
    });
    let closed = format!("http://{}", nobody());
    for (url, more, kind, times) in [
        (closed, "", "connect", 30),
        (garbage.url(), "", "broken", 5),
        (silent.url(), "response_timeout = \"50ms\"", "timeout", 3),
        (cut.url(), "", "cut_off", 5),
        (stalled.url(), "stream_timeout = \"50ms\"", "stalled", 3),
    ] {
        let gateway = Gateway::with("workers = 2", &route_to(&url, more));
        let server = url.strip_prefix("http://").unwrap();
        let words = ["WARN", "upstream=\"app\"", &format!("server=\"{server}\""), &format!("kind=\"{kind}\"")];
        for _ in 0..times {
            let mut client = gateway.client();
            client.send(get("/", ""));
            let _ = client.try_answer("GET");
        }
        until("it is told", || lines(&gateway, &words) > 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(lines(&gateway, &words), 1, "{kind}: {}", gateway.log());
        assert_eq!(lines(&gateway, &["an exchange with an upstream failed"]), 1, "{kind}: {}", gateway.log());
    }
}

#[test]
fn what_is_no_request_is_counted_by_its_kind_and_another_protocol_is_named() {
    let gateway = Gateway::with("http2 = false", "[[route]]\npath = \"/\"\nrespond = { }\n");
    let hello = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 and so on";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(40_000));
    let cases: [(&str, &[u8], Option<&str>); 4] = [
        ("tls_hello", hello, Some("TLS")),
        ("http2_preface", preface, Some("HTTP/2")),
        ("malformed_head", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", None),
        ("head_too_large", large.as_bytes(), None),
    ];
    for (reason, bytes, named) in cases {
        for _ in 0..2 {
            let mut client = gateway.client();
            let _ = client.try_send(bytes);
            let _ = client.try_answer("GET");
        }
        gateway.assert_metric("http_rejected_total", &[("reason", reason)], 2.0);
        let told = format!("reason=\"{reason}\" listener=\"127.0.0.1:0\" client=127.0.0.1");
        assert_eq!(lines(&gateway, &["WARN", &told]), usize::from(named.is_some()), "{}", gateway.log());
        if let Some(named) = named {
            assert_eq!(lines(&gateway, &[&told, &format!("a client speaks {named} on a listener without it")]), 1);
        }
    }
}
