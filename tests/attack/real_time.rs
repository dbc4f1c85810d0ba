//! A bound is true in real time: by the client's own clock, from the moment the first request was
//! sent to the moment the last answer came.

use std::time::{Duration, Instant};

use crate::stores::RedisServer;
use crate::support::client::get;
use crate::support::gateway::Gateway;

/// One request after another, each as soon as the one before is answered.
fn never_more_than_20_within_a_second(gateway: &Gateway, target: &str) {
    let mut client = gateway.client();
    let (start, mut admitted) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(2200) {
        let sent = Instant::now();
        if client.ask(&get(target, ""), "").status() == 200 {
            admitted.push((sent, Instant::now()));
        }
    }
    assert!(admitted.len() >= 40, "{} in {:?}", admitted.len(), start.elapsed());
    for pair in admitted.windows(21) {
        let took = pair[20].1 - pair[0].0;
        assert!(took >= Duration::from_secs(1), "{target}: 21 within {took:?}");
    }
}

fn config(store: &str) -> String {
    let limit = |name: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ body = \"in\" }}\nlimits = [\"{name}\"]\n\
             [limit.{name}]\nalgorithm = \"sliding_log\"\nrate = \"20/s\"\nkey = \"all\"\nstate = \"{name}\"\n"
        )
    };
    format!("[store]\nurl = \"{store}\"\ndeadline = \"200ms\"\n{}{}", limit("list"), limit("sorted_set"))
}

#[test]
fn a_log_in_memory_is_exact_by_the_clock_of_the_client() {
    never_more_than_20_within_a_second(&Gateway::start(&config("memory:")), "/list");
}

#[test]
fn a_log_in_redis_is_exact_by_the_clock_of_the_client() {
    let server = RedisServer::start(&[]);
    let gateway = Gateway::start(&config(&server.url()));
    gateway.until_connected();
    std::thread::scope(|scope| {
        for target in ["/list", "/sorted_set"] {
            scope.spawn(|| never_more_than_20_within_a_second(&gateway, target));
        }
    });
}
