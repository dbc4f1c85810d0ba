//! A bound is true in real time: by the client's clock, from the first request sent to the last response received.

use std::time::{Duration, Instant};

use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::variants::compile_limit;

/// Sends one request after another, each as soon as the response to the last one has arrived.
fn never_more_than_20_within_a_second(gateway: &Gateway, target: &str) {
    let mut client = gateway.client();
    let (start, mut admitted) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(2200) {
        let sent = Instant::now();
        if client.fetch(&get(target, ""), "").status() == 200 {
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
    gateway.wait_for_store();
    std::thread::scope(|scope| {
        for target in ["/list", "/sorted_set"] {
            scope.spawn(|| never_more_than_20_within_a_second(&gateway, target));
        }
    });
}

/// Charges a limit at the end of one of the server's milliseconds, and then sends requests without a pause until it
/// admits again.
#[test]
fn a_log_in_redis_is_exact_to_less_than_a_tick() {
    let server = &RedisServer::start(&[]);
    std::thread::scope(|scope| {
        for state in ["list", "sorted_set"] {
            scope.spawn(move || {
                let limit =
                    compile_limit("log", &format!("algorithm = \"sliding_log\"\nrate = \"1/s\"\nstate = \"{state}\""));
                let [check, other] = ["log", "other"].map(|key| [Check::new(&limit, format!("{{a}}{state}{key}"), 1)]);
                let call = ScriptCall::new(&[(Op::Take, &check)], 0);
                let mut client = server.client();
                let admitted = |reply| {
                    decode_reply(reply, [(Op::Take, &check[..])].into_iter()).unwrap().remove(0).unwrap().admitted
                };
                // After this call the server has the script.
                assert!(admitted(ScriptCall::new(&[(Op::Take, &other)], 0).eval_command().query(&mut client).unwrap()));
                let sent = loop {
                    let (_, micros): (u64, u64) = redis::cmd("TIME").query(&mut client).unwrap();
                    if (600..800).contains(&(micros % 1000)) {
                        break Instant::now();
                    }
                };
                assert!(admitted(call.evalsha_command().query(&mut client).unwrap()));
                while !admitted(call.evalsha_command().query(&mut client).unwrap()) {}
                let took = sent.elapsed();
                assert!(took >= Duration::from_secs(1), "{state}: 2 within {took:?}");
            });
        }
    });
}
