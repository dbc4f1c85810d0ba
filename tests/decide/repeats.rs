//! Questions that repeat (`once`): charged once, whichever worker or gateway gets them, and nobody gets the answer of
//! another request.

use std::thread;

use super::{fetch, forwarded, gateway, gateway_with};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

const ONCE: &str = "[limit.ten]\nrate = \"10/day\"\nkey = [\"ip\", \"path\"]\nrefund_on = [\"5xx\"]\n\
                    [limit.one]\nrate = \"1/day\"\nkey = \"ip\"\n\
                    [decide.a]\nlimits = [\"ten\"]\nonce = \"header:x-request-id\"\n\
                    [decide.b]\nlimits = [\"ten\"]\nonce = \"header:x-request-id\"\n\
                    [limit.fair]\nrate = \"100/day\"\nkey = \"all\"\nfair = { key = \"header:x-tenant\" }\n\
                    [decide.fair]\nlimits = [\"fair\"]\nonce = \"header:x-request-id\"\n\
                    [decide.one]\nlimits = [\"one\"]\nonce = \"header:x-request-id\"\n";

/// Returns the units that the response reports as left.
#[track_caller]
fn left(response: &crate::support::http::Message) -> i64 {
    assert_eq!(response.status(), 200, "{}", response.text());
    let state = response.get("ratelimit").unwrap();
    state.split(";r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

#[test]
fn a_repeated_question_gets_the_same_response_and_charges_nothing() {
    let gateway = gateway(ONCE);
    let id = "x-request-id: 1\r\n";
    let first = fetch(&gateway, "a", "/", id);
    for _ in 0..3 {
        let again = fetch(&gateway, "a", "/", id);
        assert_eq!((again.status(), left(&again)), (200, 9));
        assert_eq!(again.get("x-limit-receipt"), first.get("x-limit-receipt"));
    }
    gateway.assert_metric("decide_requests_total", &[("result", "replayed")], 3.0);
    gateway.assert_metric("limit_decisions_total", &[("route", "a"), ("limit", "ten"), ("decision", "allow")], 1.0);
    // Another id, name, client or key makes another question; one without an id is never a repetition.
    assert_eq!(left(&fetch(&gateway, "a", "/", "x-request-id: 2\r\n")), 8);
    assert_eq!(left(&fetch(&gateway, "b", "/", id)), 7);
    assert_eq!(left(&fetch(&gateway, "a", "/", "")), 6);
    assert_eq!(left(&fetch(&gateway, "a", "/", "x-request-id:\r\n")), 5);
    // The first question with this id left 8 units.
    let id = "x-request-id: 2\r\n";
    assert_eq!(left(&fetch(&gateway, "a", "/other", id)), 9, "the id of another request has no effect");
    let other_client = forwarded("GET", "/", id).replace("192.0.2.1", "192.0.2.2");
    assert_eq!(left(&gateway.fetch(&get("/decide/a", &other_client))), 9, "the id of another client has no effect");
    assert_eq!(fetch(&gateway, "a", "/", "x-request-id: 1\r\nx-request-id: 1\r\n").status(), 400);
    fetch(&gateway, "fair", "/", "x-tenant: a\r\nx-request-id: 1\r\n");
    fetch(&gateway, "fair", "/", "x-tenant: a\r\nx-request-id: 1\r\n");
    fetch(&gateway, "fair", "/", "x-tenant: b\r\nx-request-id: 1\r\n");
    let of_tenants = [("route", "fair"), ("limit", "fair"), ("decision", "allow")];
    gateway.assert_metric("limit_decisions_total", &of_tenants, 2.0);
    // Refusals repeat as well.
    assert_eq!(fetch(&gateway, "one", "/", "x-request-id: a\r\n").status(), 200);
    assert_eq!(fetch(&gateway, "one", "/", "x-request-id: b\r\n").status(), 429);
    let again = fetch(&gateway, "one", "/", "x-request-id: b\r\n");
    assert_eq!((again.status(), again.json()["violated-policies"][0].as_str()), (429, Some("one")));
    assert_eq!(fetch(&gateway, "one", "/", "x-request-id: a\r\n").status(), 200, "the admission is still known");
}

#[test]
fn parallel_questions_with_one_id_are_charged_once_by_all_workers() {
    let gateway = gateway_with("workers = 4", ONCE);
    for round in 0..3 {
        let id = format!("x-request-id: {round}\r\n");
        thread::scope(|scope| {
            let threads: Vec<_> = (0..12).map(|_| scope.spawn(|| fetch(&gateway, "a", "/", &id))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(left(&thread.join().unwrap()), 9 - round));
        });
    }
    gateway.assert_metric("limit_decisions_total", &[("route", "a"), ("limit", "ten"), ("decision", "allow")], 3.0);
}

#[test]
fn gateways_with_one_redis_charge_a_question_once() {
    let mut redis = RedisServer::start(&[]);
    let config = format!("{}{ONCE}", redis.store());
    // One gateway already has a candidate whose key is a value that differs in each repetition.
    let tried = "[limit.tried]\nrate = \"3/day\"\nkey = \"header:x-trace\"\ncandidate_of = \"ten\"\n\
                 [limit.more]\nrate = \"2/day\"\nkey = \"ip\"\ncandidate_of = \"one\"\n";
    let other = format!("{config}{tried}");
    let gateways = [gateway_with("workers = 2", &config), gateway_with("workers = 2", &other)];
    gateways.iter().for_each(Gateway::wait_for_store);
    for round in 0..3 {
        let id = format!("x-request-id: {round}\r\n");
        thread::scope(|scope| {
            let fetch = |n: usize| fetch(&gateways[n % 2], "a", "/", &format!("{id}x-trace: {n}\r\n"));
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || fetch(n))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(left(&thread.join().unwrap()), 9 - round));
        });
    }
    let decided: f64 = gateways
        .iter()
        .map(|gateway| {
            let labels = [("route", "a"), ("limit", "ten"), ("decision", "allow")];
            gateway.metric("limit_decisions_total", &labels).unwrap()
        })
        .sum();
    assert!((decided - 3.0).abs() < 0.1, "{decided}");
    // A refusal is shared too, and each key expires.
    assert_eq!(fetch(&gateways[0], "one", "/", "x-request-id: a\r\n").status(), 200);
    assert_eq!(fetch(&gateways[0], "one", "/", "x-request-id: b\r\n").status(), 429);
    let again = fetch(&gateways[1], "one", "/", "x-request-id: b\r\n");
    assert_eq!((again.status(), again.get("retry-after").is_some()), (429, true));
    let compared = [("route", "one"), ("limit", "more"), ("effect", "would_admit")];
    gateways[1].assert_metric("candidate_decisions_total", &compared, 0.0);
    assert_eq!(fetch(&gateways[1], "one", "/", "x-request-id: a\r\n").status(), 200);
    let mut client = redis.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sg:{once=*").query(&mut client).unwrap();
    assert_eq!(keys.len(), 5);
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut client).unwrap();
        assert!((1..=10_000).contains(&ttl), "{key} {ttl}");
    }
    // Without Redis, each gateway still charges its own questions once.
    redis.kill();
    let local = fetch(&gateways[0], "a", "/", "x-request-id: z\r\n");
    assert_eq!(left(&fetch(&gateways[0], "a", "/", "x-request-id: z\r\n")), left(&local));
}
