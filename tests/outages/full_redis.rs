//! A Redis whose memory is full: known keys stay exact, and new keys follow `on_error`.

use std::time::Duration;

use redis::Commands;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::variants::compile_limit;
use crate::support::wait_until;

const ROUTES: &str = r#"
[[route]]
name = "login"
path = "/login"
respond = { body = "in" }
limits = ["logins"]

[[route]]
name = "page"
path = "/page"
respond = { body = "in" }
limits = ["pages"]

[[route]]
name = "open"
path = "/open"
respond = { body = "in" }
limits = ["open"]

[[route]]
name = "flood"
path = "/flood"
respond = { body = "in" }
limits = ["flooded"]

[limit.logins]
rate = "3/h"
burst = 3
key = ["header:x-user"]
on_error = "closed"

[limit.pages]
algorithm = "sliding_log"
rate = "4/h"
key = ["header:x-user"]
on_error = "closed"

[limit.open]
rate = "1/h"
burst = 1
key = ["header:x-user"]
on_error = "open"

[limit.flooded]
rate = "5/87600h"
burst = 5
key = ["header:x-user"]
on_error = "open"
"#;

#[test]
fn a_flood_of_keys_leaves_the_known_ones_their_budgets() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gateway = Gateway::start(&format!("[store]\nurl = \"{}\"\ndeadline = \"2s\"\n{ROUTES}", server.url()));
    gateway.wait_for_store();
    let mut client = gateway.client();
    let mut fetch = |target: &str, user: &str| client.fetch(&get(target, &format!("x-user: {user}\r\n")), "").status();
    assert_eq!([0; 4].map(|_| fetch("/login", "spent")), [200, 200, 200, 429]);
    assert_eq!([fetch("/login", "known"), fetch("/page", "known")], [200, 200]);

    let mut redis = server.client();
    let used: String = redis::cmd("INFO").arg("memory").query(&mut redis).unwrap();
    let used: u64 = used.lines().find_map(|line| line.strip_prefix("used_memory:")?.parse().ok()).unwrap();
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(used + 300_000).query(&mut redis).unwrap();
    let oom = [("kind", "oom")];
    for user in 0.. {
        assert_eq!(fetch("/flood", &format!("junk-{user}")), 200);
        if user % 100 == 0 && gateway.metric("store_errors_total", &oom).is_some_and(|full| full > 100.0) {
            break;
        }
        assert!(user < 20_000, "Redis is never full");
    }
    let keys: i64 = redis::cmd("DBSIZE").query(&mut redis).unwrap();

    // Exhausted keys stay exhausted, and known keys are counted.
    assert_eq!([0; 3].map(|_| fetch("/login", "spent")), [429; 3]);
    assert_eq!([0; 3].map(|_| fetch("/login", "known")), [200, 200, 429]);
    assert_eq!([0; 4].map(|_| fetch("/page", "known")), [200, 200, 200, 429]);
    // New keys get the result of `on_error`, without delay.
    assert_eq!(
        [fetch("/login", "new"), fetch("/page", "new"), fetch("/open", "new"), fetch("/open", "new")],
        [503, 503, 200, 200]
    );
    assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut redis).unwrap(), keys);
    // Redis is available all the time.
    gateway.assert_metric("store_up", &[], 1.0);
    gateway.assert_metric("store_breaker_state", &[], 0.0);
    assert_eq!(gateway.metric("store_errors_total", &[("kind", "breaker_open")]).unwrap_or(0.0), 0.0);

    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query(&mut redis).unwrap();
    assert_eq!(
        [fetch("/login", "new"), fetch("/page", "new"), fetch("/open", "new"), fetch("/open", "new")],
        [200, 200, 200, 429]
    );
    assert!(redis.exists::<_, bool>("sg:{x-user=new}:logins:token_bucket").is_ok());
}

#[test]
fn a_request_with_one_new_key_is_refused_by_a_spent_one() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let config = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\nname = \"both\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"spent\", \"new\"]\n\n[limit.spent]\nrate = \"2/h\"\nburst = 2\nkey = [\"header:x-a\"]\non_error = \"open\"\n\n\
         [limit.new]\nrate = \"9/h\"\nkey = [\"header:x-b\"]\non_error = \"open\"\n",
        server.url()
    );
    // The second gateway has no cached refusal of the exhausted key, so it calls Redis.
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    for gateway in &gateways {
        gateway.wait_for_store();
    }
    let mut clients = gateways.each_ref().map(Gateway::client);
    let mut fetch =
        |gateway: usize, b: &str| clients[gateway].fetch(&get("/", &format!("x-a: a\r\nx-b: {b}\r\n")), "").status();
    assert_eq!([fetch(0, "0"), fetch(0, "0"), fetch(0, "0")], [200, 200, 429]);
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut server.client()).unwrap();
    for fresh in ["1", "2", "3"] {
        assert_eq!(fetch(1, fresh), 429, "a new key does not replace an exhausted one");
    }
    drop(server);
}

/// A shadow limit would only have counted the request.
#[test]
fn a_shadow_limit_without_room_for_its_key_decides_nothing() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\nname = \"both\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"known\", \"tried\"]\n\n[limit.known]\nrate = \"3/h\"\nburst = 3\nkey = [\"header:x-a\"]\non_error = \"closed\"\n\n\
         [limit.tried]\nmode = \"shadow\"\nrate = \"1/h\"\nburst = 1\nkey = [\"header:x-b\"]\non_error = \"closed\"\n",
        server.url()
    ));
    gateway.wait_for_store();
    let mut client = gateway.client();
    let mut fetch = |b: &str| client.fetch(&get("/", &format!("x-a: a\r\nx-b: {b}\r\n")), "").status();
    assert_eq!(fetch("0"), 200);
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut server.client()).unwrap();
    assert_eq!(["1", "2", "3"].map(fetch), [200, 200, 429]);
}

#[test]
fn a_slot_is_no_way_to_a_new_key() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\nname = \"slots\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"slots\"]\n\n[limit.slots]\nalgorithm = \"concurrency\"\nin_flight = 2\nkey = [\"header:x-user\"]\n\
         on_error = \"closed\"\n",
        server.url()
    ));
    gateway.wait_for_store();
    let mut redis = server.client();
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut redis).unwrap();
    let mut client = gateway.client();
    assert_eq!(client.fetch(&get("/", "x-user: new\r\n"), "").status(), 503, "there is no memory for a new lease");
    assert_eq!(redis.keys::<_, Vec<String>>("*slots*").unwrap(), [""; 0]);
}

/// Otherwise, the gateways would not know of each other, and each would admit the whole limit.
#[test]
fn gateways_are_counted_while_redis_is_full() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction", "--maxmemory", "1"]);
    let config = format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\nname = \"page\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"page\"]\n\n[limit.page]\nalgorithm = \"fixed_window\"\nrate = \"6/h\"\nkey = [\"header:x-user\"]\n",
        server.url()
    );
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    for gateway in &gateways {
        wait_until("each gateway counts both", || gateway.metric("store_gateways", &[]) == Some(2.0));
        gateway.assert_metric("store_up", &[], 1.0);
    }
    let fetch = |gateway: &Gateway| gateway.fetch(&get("/", "x-user: new\r\n")).status();
    let admitted = gateways.each_ref().map(|gateway| (0..6).filter(|_| fetch(gateway) == 200).count());
    assert_eq!(admitted, [3, 3], "to Redis the key is new: each has its share of the limit");
    assert_eq!(server.client().keys::<_, Vec<String>>("*").unwrap(), ["sg:gateways"]);
}

/// There is no memory for the mark of a used receipt. Without the mark, the receipt could be used again.
#[test]
fn a_receipt_waits_for_room() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"2s\"\n\n[[route]]\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [\"page\"]\n\n[limit.page]\nalgorithm = \"fixed_window\"\nrate = \"6/h\"\n",
        server.url()
    ));
    gateway.wait_for_store();
    let post = |path: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Client::connect(gateway.admin).fetch(&head, body)
    };
    let taken = post("/-/decide", r#"{"operation":"take","decisions":[{"limits":["page"],"cost":2}]}"#).json();
    let receipt = format!("{{\"receipt\":{}}}", taken["decisions"][0]["limits"][0]["receipt"]);
    let refund = |body: &str| post("/-/limits/page/refund", body);

    let mut redis = server.client();
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut redis).unwrap();
    let refused = refund(&receipt);
    assert_eq!(refused.status(), 503);
    assert!(
        refused.text().contains("(oom); nothing was refunded, and the receipt is still valid"),
        "{}",
        refused.text()
    );
    assert_eq!(refund(r#"{"cost":1}"#).json()["applied"], true, "a refund by units needs no mark");
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query(&mut redis).unwrap();
    assert_eq!(refund(&receipt).json()["applied"], true);
}

/// Returns the result of each decision of one call: admitted, refused, or `None` if the server has no memory for it.
fn verdicts(server: &RedisServer, decisions: &[(Op, &[Check])]) -> Vec<Option<bool>> {
    let reply = ScriptCall::new(decisions, 0).eval_command().query(&mut server.client()).unwrap();
    let found = decode_reply(reply, decisions.iter().copied()).unwrap();
    found.into_iter().map(|decision| decision.ok().map(|decision| decision.admitted)).collect()
}

#[test]
fn the_decisions_of_a_call_are_told_apart() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let limit = compile_limit("one", "rate = \"1/h\"\nburst = 1");
    let log = compile_limit("log", "algorithm = \"sliding_log\"\nrate = \"2/s\"");
    let check = |limit, key: &str| Check::new(limit, format!("{{a}}{key}"), 1);
    let spent = [check(&limit, "spent")];
    let logged = [check(&log, "log")];
    assert_eq!(verdicts(&server, &[(Op::Take, &spent), (Op::Take, &logged)]), [Some(true); 2]);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(verdicts(&server, &[(Op::Take, &logged)]), [Some(true)]);
    let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut server.client()).unwrap();

    // An error of one decision does not affect the next one.
    let new = [check(&limit, "new")];
    let new_and_spent = [check(&limit, "newer"), spent[0].clone()];
    let calls = [(Op::Take, &new[..]), (Op::Take, &new_and_spent[..]), (Op::Take, &spent[..])];
    assert_eq!(verdicts(&server, &calls), [None, Some(false), Some(false)]);

    // Removing an old charge or a key does not permit a new key in the same call.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(verdicts(&server, &[(Op::Take, &logged), (Op::Take, &new)]), [Some(true), None]);
    assert_eq!(verdicts(&server, &[(Op::Reset, &spent), (Op::Take, &new)])[1], None);
    assert_eq!(server.client().keys::<_, Vec<String>>("*").unwrap(), ["{a}log"]);
}
