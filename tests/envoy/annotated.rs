//! Limits that let the requests over them pass: Envoy gets their names with the request.

use http::{HeaderName, HeaderValue};
use sluicegate::config::load_text;

use super::{field, framed};
use crate::support::gateway::{Gateway, program};
use crate::support::h2::{H2Client, Sent, post};
use crate::support::limiting::{RedisServer, on_both_stores};

const RULES: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n\
    [[rls]]\ndomain = \"edge\"\ndescriptor = { user = \"*\" }\nlimits = [\"soft\", \"tried\", \"hard\"]\n\
    [limit.soft]\nrate = \"1/h\"\nkey = \"descriptor:user\"\nover = \"annotate\"\n\
    [limit.tried]\nrate = \"2/h\"\nkey = \"descriptor:user\"\nmode = \"shadow\"\n\
    [limit.hard]\nrate = \"3/h\"\nkey = \"descriptor:user\"\n";

/// Returns the message that answers a request of a user.
fn fetch(client: &mut H2Client, user: &str) -> Vec<u8> {
    let entry = field(1, &[field(1, b"user"), field(2, user.as_bytes())].concat());
    let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let message = [field(1, b"edge"), field(2, &entry)].concat();
    let response = client.fetch(request, Sent { body: &framed(&message), trailers: None });
    assert_eq!(response.trailers["grpc-status"], "0");
    response.body[5..].to_vec()
}

/// A list of texts as `google.protobuf.Struct` has it.
fn texts(key: &str, texts: &[&str]) -> Vec<u8> {
    let values: Vec<u8> = texts.iter().flat_map(|text| field(1, &field(3, text.as_bytes()))).collect();
    field(1, &[field(1, key.as_bytes()), field(2, &field(6, &values))].concat())
}

#[test]
fn envoy_gets_the_names_of_limits_that_a_request_exceeds() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let server = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let gateway = Gateway::with_config(&format!("{server}{RULES}{store}"));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        let client = &mut H2Client::connect(gateway.addr);
        let has = |answer: &[u8], part: &[u8]| answer.windows(part.len()).any(|window| window == part);
        let header = field(4, &[field(1, b"x-limit-exceeded"), field(2, b"soft")].concat());
        let of_soft = texts("exceeded", &["soft"]);
        let both = field(6, &[of_soft.clone(), texts("would_refuse", &["tried"])].concat());

        let within = fetch(client, "u");
        assert!(within[1] == 1 && !has(&within, b"soft\x12"), "{within:?}");
        assert!(!has(&within, &header) && !has(&within, &of_soft), "{within:?}");
        let over = fetch(client, "u");
        assert!(over[1] == 1 && has(&over, &header) && has(&over, &field(6, &of_soft)), "{over:?}");
        let third = fetch(client, "u");
        assert!(third[1] == 1 && has(&third, &header) && has(&third, &both), "{third:?}");
        // A refusal forwards nothing.
        let refused = fetch(client, "u");
        assert!(refused[1] == 2 && !has(&refused, &header) && !has(&refused, &of_soft), "{refused:?}");
        let annotated = [("route", "rls:edge"), ("limit", "soft"), ("decision", "annotate")];
        gateway.assert_metric("limit_decisions_total", &annotated, 3.0);

        let url = format!("http://{}", gateway.admin);
        let explained = program().args(["explain", "--rls", "edge", "user=u", "--admin", &url]).output().unwrap();
        let text = String::from_utf8(explained.stdout).unwrap();
        assert!(text.contains("soft   annotates") && text.contains("OVER_LIMIT by hard"), "{text}");
    });
}

#[test]
fn envoy_cannot_send_requests_elsewhere_or_wait() {
    let mistake = |from: &str, to: &str| {
        let rest = "[upstream.b]\nservers = [\"http://127.0.0.1:1\"]\n";
        let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{}{rest}", RULES.replace(from, to));
        load_text("c", &text).unwrap_err().render(false)
    };
    let elsewhere = mistake("over = \"annotate\"", "over = \"upstream:b\"");
    assert!(elsewhere.contains("use over = \"annotate\""), "{elsewhere}");
    let slow = "algorithm = \"leaky_bucket\"\nrate = \"3/h\"\noverrides = [{ key = \"a\", queue = \"1h\" }]\n";
    let waits = mistake("[limit.hard]\nrate = \"3/h\"\n", &format!("[limit.hard]\n{slow}"));
    assert!(waits.contains("delays requests, but Envoy does not wait"), "{waits}");
}

/// A live override cannot make requests of Envoy wait either: they are refused, and the answer says why.
#[test]
fn a_live_override_with_a_queue_refuses() {
    let slow = "[limit.hard]\nalgorithm = \"leaky_bucket\"\nrate = \"3/h\"\n";
    let rules = RULES.replace("[limit.hard]\nrate = \"3/h\"\n", slow);
    let server = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::with_config(&format!("{server}{rules}"));
    let client = &mut H2Client::connect(gateway.addr);
    let set = gateway.admin_request("PUT", "/-/limits/hard/override?key=vip", "", "{\"queue\": \"1h\"}");
    assert_eq!(set.status(), 200, "{}", set.text());
    assert_eq!(fetch(client, "other")[1], 1);
    let refused = fetch(client, "vip");
    assert_eq!(refused[1], 2);
    assert!(String::from_utf8_lossy(&refused).contains("delays requests, but Envoy does not wait"));
}
