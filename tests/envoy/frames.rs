//! Calls frame by frame, including those that no library sends.

use http::{HeaderName, HeaderValue};

use super::{framed, question};
use crate::support::client;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, H2Response, Sent, post};

const LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const RULES: &str = "[[rls]]\ndomain = \"edge\"\ndescriptor = { a = \"*\" }\nlimits = [\"few\"]\n[limit.few]\nrate = \"RATE\"\nkey = \"descriptor:a\"\n";

fn config(rate: &str) -> String {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n";
    let server = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    format!("{server}{listener}{}", RULES.replace("RATE", rate))
}

fn call(client: &mut H2Client, fields: &[(&'static str, &'static str)], body: &[u8]) -> H2Response {
    let mut request = post(LIMIT);
    let all = [&[("content-type", "application/grpc"), ("te", "trailers")], fields].concat();
    for (name, value) in all {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    client.fetch(request, Sent { body, trailers: None })
}

/// The gRPC status, wherever it is.
fn status(response: &H2Response) -> u16 {
    assert_eq!(response.status(), 200);
    let found = response.trailers.get("grpc-status").or(response.head.headers().get("grpc-status"));
    found.expect("a status").to_str().unwrap().parse().unwrap()
}

#[test]
fn a_malformed_body_has_a_status_and_harms_no_other_call() {
    let gateway = Gateway::with_config(&config("100/h"));
    let mut client = H2Client::connect(gateway.addr);
    let good = framed(&question("edge", "a", "b"));
    for (body, code) in [
        (good.clone(), 0),
        (Vec::new(), 13),
        (good[..3].to_vec(), 13),
        (good[..good.len() - 1].to_vec(), 13),
        ([good.clone(), vec![0]].concat(), 13),
        ([good.clone(), good.clone()].concat(), 13),
        ([&[1], &good[1..]].concat(), 12),
        ([&[7], &good[1..]].concat(), 13),
        // Longer than is read: clients of Envoy can cause it, so the request is refused.
        (vec![0, 0xff, 0xff, 0xff, 0xff], 0),
        (framed(&vec![0x0a; 64 * 1024 + 1]), 0),
        (framed(&vec![0x12; 64 * 1024]), 13),
        // An unknown field, and a field of the wrong type.
        (framed(&[question("edge", "a", "b"), vec![0xf8, 0x7f, 1]].concat()), 0),
        (framed(&[0x08, 1]), 13),
    ] {
        let response = call(&mut client, &[], &body);
        assert_eq!(status(&response), code, "{:?}", &body[..body.len().min(40)]);
        assert!(code == 0 || response.body.is_empty());
        if code == 12 {
            assert_eq!(response.field("grpc-accept-encoding"), Some("identity"));
        }
        assert_eq!(status(&call(&mut client, &[], &good)), 0);
    }
    // The client announces an encoding, but the message is not compressed.
    assert_eq!(status(&call(&mut client, &[("grpc-encoding", "gzip")], &good)), 0);
}

#[test]
fn invalid_calls_get_no_decision() {
    let gateway = Gateway::with_config(&config("100/h"));
    let mut client = H2Client::connect(gateway.addr);
    let response = call(&mut client, &[("content-type", "application/json")], b"{}");
    assert_eq!((response.status(), response.field("content-type")), (415, Some("application/problem+json")));
    assert_eq!(client.get(LIMIT).status(), 415);
    let old = client::fetch(gateway.addr, &client::get("/", ""));
    assert_eq!(old.status(), 415, "{}", old.text());
    assert!(old.text().contains("HTTP/2"), "{}", old.text());
}

#[test]
fn a_reload_applies_to_the_next_call_of_the_connection() {
    let gateway = Gateway::with_config(&config("1/h"));
    let mut client = H2Client::connect(gateway.addr);
    let over = |client: &mut H2Client| {
        let response = call(client, &[], &framed(&question("edge", "a", "b")));
        assert_eq!(status(&response), 0);
        response.body[5..7] == [0x08, 2]
    };
    assert_eq!([over(&mut client), over(&mut client)], [false, true]);
    gateway.write_config(&config("100/h"));
    assert_eq!(gateway.admin_request("POST", "/-/reload", "", "").status(), 200);
    assert!(!over(&mut client));
    // A broken config changes nothing.
    gateway.write_config(&config("100/h").replace("descriptor:a", "descriptor:b"));
    let refused = gateway.admin_request("POST", "/-/reload", "", "");
    assert!(refused.status() == 422 && refused.text().contains("descriptor:b"), "{}", refused.text());
    assert!(!over(&mut client));
}
