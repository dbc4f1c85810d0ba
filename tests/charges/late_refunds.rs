//! Requests that wait until the bucket has refilled what they charged, and then get a refund as well.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::Upstream;

/// Responds to `/fail` with 500 after a while; to others at once.
fn upstream(after: Duration) -> Upstream {
    Upstream::start(move |peer| {
        loop {
            let Some(request) = peer.request()? else { return Ok(()) };
            let fails = request.head.starts_with("GET /fail");
            if fails {
                std::thread::sleep(after);
            }
            peer.send(if fails {
                "HTTP/1.1 500 Failed\r\ncontent-length: 0\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
            })?;
        }
    })
}

fn gateway(store: &str, upstream: SocketAddr, limit: &str) -> Gateway {
    // A client that closes its side counts as gone at once.
    let config = format!(
        "{store}\n[[route]]\nupstream = \"http://{upstream}\"\nlimits = [\"one\"]\n\n[limit.one]\nkey = \"all\"\n\
         algorithm = {limit}\n"
    );
    Gateway::with("half_close_timeout = \"0s\"", &config)
}

/// Runs `test` with each algorithm in memory and in Redis, all concurrently, because most of the time is spent waiting.
fn on_both(algorithms: &[&str], test: impl Fn(&str, &str) + Sync) {
    let server = RedisServer::start(&[]);
    std::thread::scope(|scope| {
        for algorithm in algorithms {
            let store = format!("url = \"{}\"\ndeadline = \"5s\"\nprefix = \"{algorithm}\"", server.url());
            for store in [String::new(), format!("[store]\n{store}\n")] {
                let test = &test;
                scope.spawn(move || test(&store, algorithm));
            }
        }
    });
}

fn admitted(gateway: &Gateway, most: usize) -> usize {
    (0..most).filter(|_| gateway.fetch(&get("/", "")).status() == 200).count()
}

/// Five requests that fail after their five units have been refilled.
#[test]
fn refilled_units_are_not_refunded() {
    const LATE: Duration = Duration::from_millis(2600);
    let upstream = upstream(LATE);
    let addr = upstream.addr;
    on_both(&["token_bucket", "gcra", "leaky_bucket"], |store, algorithm| {
        let size = if algorithm == "leaky_bucket" { "queue = \"2s\"\nnodelay = true" } else { "burst = 5" };
        let limit = format!("\"{algorithm}\"\nrate = \"2/s\"\n{size}\nrefund_on = [\"5xx\"]");
        let gateway = gateway(store, addr, &limit);
        let mut failing: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
        let since = Instant::now();
        failing.iter_mut().for_each(|client| client.send(get("/fail", "")));
        std::thread::sleep((LATE - Duration::from_millis(100)).saturating_sub(since.elapsed()));
        let before = Instant::now();
        let kept = admitted(&gateway, 8);
        assert!(kept >= 4, "{algorithm} admits only {kept}");
        for client in &mut failing {
            assert_eq!(client.read_response("GET").status(), 500);
        }
        std::thread::sleep(Duration::from_millis(50));
        let more = admitted(&gateway, 8);
        let most = 5 + usize::try_from(before.elapsed().as_millis()).unwrap() * 2 / 1000;
        assert!(kept + more <= most, "{algorithm} {store}: {kept}, then {more}; at most {most}");
    });
}

/// The clients of slow requests leave a few at a time, while other requests are sent.
#[test]
fn leaving_slow_requests_buys_no_burst() {
    let upstream = upstream(Duration::from_secs(50));
    let addr = upstream.addr;
    on_both(&["gcra"], |store, _| {
        let limit = "\"gcra\"\nrate = \"10/s\"\nburst = 5\nrefund_on = [\"client_abort\"]";
        let gateway = gateway(store, addr, limit);
        let mut slow = Vec::new();
        while slow.len() < 25 {
            let mut client = gateway.client();
            client.send(get("/fail", ""));
            slow.push(client);
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(600));
        let since = Instant::now();
        let mut kept = admitted(&gateway, 8);
        while !slow.is_empty() {
            slow.truncate(slow.len() - 5);
            gateway.assert_metric("requests_in_flight", &[("route", "/")], slow.len() as f64);
            kept += admitted(&gateway, 5);
        }
        let most = 5 + usize::try_from(since.elapsed().as_millis()).unwrap() / 100;
        assert!(kept <= most, "{kept} in {:?}, at most {most}", since.elapsed());
    });
}

/// Far more is reserved than used, and as much is refilled in the meantime: unused units can be used at once.
#[test]
fn unused_reservations_are_refunded_after_a_while() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_secs(1));
            peer.send("HTTP/1.1 200 OK\r\nx-actual-cost: 200\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let addr = upstream.addr;
    on_both(&["token_bucket", "gcra", "leaky_bucket"], |store, algorithm| {
        let size = if algorithm == "leaky_bucket" { "queue = \"9s\"\nnodelay = true" } else { "burst = 9000" };
        let settle = "cost = 1000\nsettle = \"header:x-actual-cost\"";
        let gateway = gateway(store, addr, &format!("\"{algorithm}\"\nrate = \"1000/s\"\n{size}\n{settle}"));
        for round in 0..2 {
            let mut clients: Vec<Client> = (0..8).map(|_| gateway.client()).collect();
            clients.iter_mut().for_each(|client| client.send(get("/", "")));
            for client in &mut clients {
                assert_eq!(client.read_response("GET").status(), 200, "{algorithm} {store}, round {round}");
            }
            // 6400 units are refunded. The refill of a few hundred units would not suffice.
            std::thread::sleep(Duration::from_millis(250));
        }
    });
}

/// A slow request was charged to a long window. A shorter window has begun since, and is exhausted.
#[test]
fn a_window_refunds_nothing_that_it_never_counted() {
    let upstream = upstream(Duration::from_millis(2500));
    let addr = upstream.addr;
    // The test must not run across the end of an hour.
    let to_the_hour = 3600 - SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 3600;
    if to_the_hour < 12 {
        std::thread::sleep(Duration::from_secs(to_the_hour));
    }
    on_both(&["fixed_window", "calendar"], |store, algorithm| {
        let anchor = if algorithm == "fixed_window" { "anchor = \"clock\"\n" } else { "" };
        let after = "cost = \"header:x-cost\"\nrefund_on = [\"5xx\"]";
        let gateway = gateway(store, addr, &format!("\"{algorithm}\"\nrate = \"100/day\"\n{anchor}{after}"));
        let mut slow = gateway.client();
        slow.send(get("/fail", "x-cost: 50\r\n"));
        gateway.assert_metric("requests_in_flight", &[("route", "/")], 1.0);
        gateway.reload_with("100/day", "20/hour");
        let kept = admitted(&gateway, 25);
        assert_eq!(slow.read_response("GET").status(), 500);
        std::thread::sleep(Duration::from_millis(100));
        // In the first hour of a day the short window had counted the request, so its units are free again.
        let more = admitted(&gateway, 25);
        assert_eq!(kept + more, 20, "{algorithm} {store}: {kept}, then {more}");
    });
}

fn left(gateway: &Gateway) -> i64 {
    gateway.admin("/-/limits/one/state?cost=0").json()["remaining"].as_i64().unwrap()
}

/// Takes `cost` units and returns the receipt.
fn take(gateway: &Gateway, cost: i64) -> Value {
    let body = json!({ "operation": "take", "decisions": [{ "limits": ["one"], "cost": cost }] });
    let response = gateway.admin_request("POST", "/-/decide", "", body.to_string()).json();
    let receipt = response["decisions"][0]["limits"][0]["receipt"].clone();
    assert!(receipt.is_string(), "{response}");
    receipt
}

fn refund(gateway: &Gateway, receipt: &Value) -> Value {
    gateway.admin_request("POST", "/-/limits/one/refund", "", json!({ "receipt": receipt }).to_string()).json()
}

/// Nearly all of a charge is refilled; then the limit gets settings under which almost nothing would have been.
#[test]
fn a_receipt_is_refunded_by_the_rule_that_made_it() {
    let upstream = upstream(Duration::ZERO);
    let addr = upstream.addr;
    on_both(&["token_bucket", "gcra", "leaky_bucket", "nodelay"], |store, case| {
        let (lines, from, to) = match case {
            "leaky_bucket" => (
                "\"leaky_bucket\"\nrate = \"50/s\"\nqueue = \"1980ms\"\nnodelay = true".to_owned(),
                "rate = \"50/s\"\nqueue = \"1980ms\"",
                "rate = \"50/h\"\nqueue = \"7128s\"",
            ),
            // Receipts that were slots are times of charges under the new setting.
            "nodelay" => (
                "\"leaky_bucket\"\nrate = \"50/s\"\nqueue = \"1980ms\"\nnodelay = false".to_owned(),
                "nodelay = false",
                "nodelay = true",
            ),
            name => (format!("\"{name}\"\nrate = \"50/s\"\nburst = 100"), "50/s", "50/h"),
        };
        let gateway = gateway(store, addr, &lines);
        let receipt = take(&gateway, 100);
        std::thread::sleep(Duration::from_millis(1600));
        gateway.reload_with(from, to);
        let since = Instant::now();
        let whole = left(&gateway);
        assert!(whole > 70, "{case} {store}: only {whole} were refunded");
        take(&gateway, whole);
        refund(&gateway, &receipt);
        let (left, ms) = (left(&gateway), i64::try_from(since.elapsed().as_millis()).unwrap());
        // The rest of the charge, and the refill.
        let most = 100 - whole + 1 + ms / 20;
        assert!(left <= most, "{case} {store}: {left} left, at most {most}");
    });
}

/// The remaining part of the charge is refunded, under the old numbers and the new ones.
#[test]
fn a_receipt_is_valid_after_its_limit_changed() {
    let upstream = upstream(Duration::ZERO);
    let addr = upstream.addr;
    on_both(
        &["token_bucket", "gcra", "fixed_window", "sliding_window", "calendar", "sliding_log"],
        |store, algorithm| {
            let (from, to) = if algorithm == "calendar" { ("100/month", "100/year") } else { ("100/12h", "100/15h") };
            let gateway = gateway(store, addr, &format!("\"{algorithm}\"\nrate = \"{from}\""));
            let receipt = take(&gateway, 60);
            gateway.reload_with(from, to);
            take(&gateway, 10);
            assert_eq!(
                (left(&gateway), refund(&gateway, &receipt)["applied"].clone()),
                (30, json!(true)),
                "{algorithm} {store}"
            );
            assert!((89..=90).contains(&left(&gateway)), "{algorithm} {store}: {}", left(&gateway));
        },
    );
}
