//! Questions about requests that the gateway cannot parse: each byte of a request that a client may send through the
//! asking proxy ends in a decision or in a refusal with the status of the name, never in an error of the question.

use super::{NAMES, gateway};
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::http::Message;

fn ask(gateway: &Gateway, question: &[u8]) -> Message {
    let mut client = Client::connect(gateway.addr);
    client.send(question);
    client.read_response("GET")
}

/// Returns a question of a proxy like nginx about a request with this target and these headers.
fn question(name: &str, target: &[u8], fields: &[u8]) -> Vec<u8> {
    let facts: &[u8] = match name {
        "fwd" => b"x-forwarded-method: GET\r\nx-forwarded-host: a.test\r\nx-forwarded-uri: ",
        _ => b"host: a.test\r\nx-original-method: GET\r\nx-original-uri: ",
    };
    let line = format!("GET /decide/{name} HTTP/1.1\r\nconnection: close\r\nx-forwarded-for: 192.0.2.1\r\n");
    [line.as_bytes(), facts, target, b"\r\n", fields, b"\r\n"].concat()
}

#[test]
fn each_byte_of_a_target_or_header_is_decided_or_refused() {
    let gateway = gateway(&NAMES.replace("3/day", "1000000/day"));
    for byte in (1..=u8::MAX).filter(|byte| !b"\r\n".contains(byte)) {
        for (target, fields) in [
            ([b"/a", &[byte][..], b"b"].concat(), Vec::new()),
            ([b"/?a", &[byte][..], b"b"].concat(), Vec::new()),
            (b"/".to_vec(), [b"x-key: a", &[byte][..], b"b\r\n"].concat()),
            (b"/".to_vec(), [b"x", &[byte][..], b"y: 1\r\n"].concat()),
        ] {
            let refused = ask(&gateway, &question("fwd", &target, &fields));
            assert!([200, 400].contains(&refused.status()), "{byte:#x} {}", refused.head);
            let shown = ask(&gateway, &question("orig", &target, &fields));
            let own = shown.get("x-limit-status").map(str::to_owned);
            let expected = if refused.status() == 200 { (200, None) } else { (403, Some("400".to_owned())) };
            assert_eq!((shown.status(), own), expected, "{byte:#x} {}", shown.head);
        }
    }
    gateway.assert_metric("decide_requests_total", &[("result", "bad_facts")], 0.0);
}

#[test]
fn heads_that_are_too_large_are_refused_with_the_status_of_the_name() {
    let gateway = gateway(NAMES);
    let many: String = (0..150).map(|n| format!("h{n}: 1\r\n")).collect();
    let large = format!("x-key: {}\r\n", "a".repeat(100_000));
    for fields in [many.as_bytes(), large.as_bytes()] {
        assert_eq!(ask(&gateway, &question("fwd", b"/", fields)).status(), 431);
        let refused = ask(&gateway, &question("orig", b"/", fields));
        assert_eq!((refused.status(), refused.get("x-limit-status")), (403, Some("431")));
    }
    // Nothing of a peer that may not ask, or about a name that nobody may ask about, looks like a refusal of a limit.
    let bad = question("orig", b"/", b"x: \x01\r\n");
    let mut stranger = gateway.client_from([127, 0, 0, 66]);
    stranger.send(&bad);
    assert_eq!(stranger.read_response("GET").get("x-limit-status"), None);
    let unknown = ask(&gateway, &question("none", b"/", b"x: \x01\r\n"));
    assert_eq!((unknown.status(), unknown.get("x-limit-status")), (400, None));
}

/// A request over HTTP/1.0 may have no host. Such a request is decided, and its key has no host.
#[test]
fn a_request_without_a_host_is_decided() {
    let gateway = gateway(NAMES);
    let hostless = |name: &str, from: &str, to: &str| {
        String::from_utf8(question(name, b"/", b"")).unwrap().replacen(from, to, 1).into_bytes()
    };
    for question in [
        hostless("fwd", "host: a.test", "host: "),
        hostless("orig", "host: a.test\r\n", ""),
        hostless("orig", "host: a.test\r\n", "host: \r\n"),
        b"GET /decide/path/ HTTP/1.1\r\nconnection: close\r\nx-forwarded-for: 192.0.2.1\r\n\r\n".to_vec(),
    ]
    .iter()
    .zip(0..)
    {
        let status = ask(&gateway, question.0).status();
        assert_eq!(status, if question.1 < 3 { 200 } else { 429 }, "{}", String::from_utf8_lossy(question.0));
    }
    // The asking proxy must say that there is none.
    let unstated = hostless("fwd", "x-forwarded-host: a.test\r\n", "");
    assert_eq!(ask(&gateway, &unstated).status(), 400);
    gateway.assert_metric("decide_requests_total", &[("result", "bad_facts")], 1.0);
}
