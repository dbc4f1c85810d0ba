//! Asking proxies that leave while the gateway waits for Redis: what they asked for is done once, and done wholly.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use super::forwarded;
use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::slow_link::DelayLine;
use crate::support::wait_until;

/// A settlement takes about four round trips, and a question with an id four as well.
const EACH_WAY: Duration = Duration::from_millis(30);
const LEAVES_AFTER_MS: [u64; 8] = [15, 45, 75, 105, 135, 165, 195, 225];

fn gateway(line: &DelayLine) -> Gateway {
    let limits = ["a", "b"].map(|name| {
        format!(
            "[limit.{name}]\nalgorithm = \"fixed_window\"\nrate = \"100/day\"\nkey = \"header:x-k\"\n\
             refund_on = [\"5xx\"]\n"
        )
    });
    let gateway = Gateway::with_config(&format!(
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\nworkers = 1\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nkeys_secret = \"0123456789abcdef0123456789abcdef\"\n\
         [store]\nurl = \"{}\"\ndeadline = \"3s\"\non_error = \"closed\"\n{}\
         [decide.d]\nlimits = [\"a\", \"b\"]\nonce = \"header:x-request-id\"\n",
        line.redis_url(),
        limits.concat()
    ));
    gateway.wait_for_store();
    gateway
}

/// Sends a request and resets the connection after `time`.
fn leave_after(gateway: &Gateway, head: &str, time: Duration) {
    let mut stream = TcpStream::connect(gateway.listeners()[0]).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    thread::sleep(time);
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn question(key: &str) -> String {
    get("/decide/d", &forwarded("GET", "/", &format!("x-k: {key}\r\nx-request-id: {key}\r\n")))
}

fn used(gateway: &Gateway, key: &str) -> [i64; 2] {
    ["a", "b"].map(|limit| {
        let state = gateway.admin(&format!("/-/limits/{limit}/state?key={key}")).json();
        100 - state["remaining"].as_i64().unwrap_or_else(|| panic!("{state}"))
    })
}

#[test]
fn a_settlement_is_finished_when_its_proxy_leaves() {
    let server = RedisServer::start(&[]);
    let gateway = gateway(&DelayLine::to(server.port, EACH_WAY));
    let attempt = |leaves_ms: u64| {
        let key = format!("s{leaves_ms}");
        let asked = gateway.fetch(&question(&key));
        let receipt = asked.get("x-limit-receipt").expect("a receipt").to_owned();
        let settle = post("/settle/d", 0, &format!("x-limit-receipt: {receipt}\r\nx-limit-status: 500\r\n"));
        leave_after(&gateway, &settle, Duration::from_millis(leaves_ms));
        // If the receipt was used, both charges are corrected. If not, this corrects them.
        let status = gateway.fetch(&settle).status();
        assert!(status == 200 || status == 409, "{status}");
        wait_until(&format!("both charges are corrected, left after {leaves_ms} ms, {status}"), || {
            used(&gateway, &key) == [0, 0]
        });
    };
    thread::scope(|scope| LEAVES_AFTER_MS.iter().for_each(|ms| drop(scope.spawn(|| attempt(*ms)))));
}

#[test]
fn a_repeated_question_is_charged_once_when_the_first_proxy_leaves() {
    let server = RedisServer::start(&[]);
    let line = DelayLine::to(server.port, EACH_WAY);
    let gateways = [gateway(&line), gateway(&line)];
    let attempt = |(number, leaves_ms): (usize, u64)| {
        let key = format!("q{leaves_ms}");
        leave_after(&gateways[0], &question(&key), Duration::from_millis(leaves_ms));
        let repeated = gateways[number % 2].fetch(&question(&key));
        assert_eq!(repeated.status(), 200, "{}", repeated.text());
        assert!(repeated.get("x-limit-receipt").is_some());
        assert_eq!(used(&gateways[1], &key), [1, 1], "left after {leaves_ms} ms");
    };
    thread::scope(|scope| {
        LEAVES_AFTER_MS.into_iter().enumerate().for_each(|case| drop(scope.spawn(move || attempt(case))));
    });
}
