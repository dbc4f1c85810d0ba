//! The facts that the pages on algorithms state: counts, waits, changed settings, refunds.

use std::time::{Duration, Instant, SystemTime};

use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};
use serde_json::{Value, json};

use super::{admitted, algorithms, policy, post, state};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::manual::{Page, app};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const HOUR_MS: i64 = 3_600_000;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// Returns the time until the next month begins in Madrid, in ms.
fn month_left_ms() -> i64 {
    let now = Zoned::now().with_time_zone(TimeZone::get("Europe/Madrid").unwrap());
    let next = now.first_of_month().unwrap().start_of_day().unwrap().checked_add(1.month()).unwrap();
    next.timestamp().as_millisecond() - now.timestamp().as_millisecond()
}

#[test]
fn each_algorithm_admits_its_count_and_reports_the_wait() {
    let page = algorithms();
    let app = app();
    let to_midnight = |now: i64| 24 * HOUR_MS - now % (24 * HOUR_MS);
    // In the window after this one, the weight of the five requests falls below one.
    let weighted = |now: i64| HOUR_MS - now % HOUR_MS + HOUR_MS / 5;
    let parts = |now: i64| 6000 - now % 6000 + 60_000;
    type Wait = Box<dyn Fn(i64) -> i64>;
    let wait = |ms: i64| -> Wait { Box::new(move |_| ms) };
    let month: Wait = Box::new(|_| month_left_ms());
    let cases: [(&str, usize, &str, usize, &str, Wait); 8] = [
        ("token_bucket", 0, "", 5, "q=5;w=30", wait(6000)),
        ("gcra", 0, "", 5, "q=5;w=30", wait(6000)),
        ("fixed_window", 0, "", 5, "q=5;w=3600", wait(HOUR_MS)),
        ("fixed_window", 1, "", 3, "q=3;w=86400", Box::new(to_midnight)),
        ("sliding_log", 0, "", 3, "q=3;w=3600", wait(HOUR_MS)),
        ("sliding_window", 0, "", 5, "q=5;w=3600", Box::new(weighted)),
        ("sliding_window", 1, "", 5, "q=5;w=60", Box::new(parts)),
        ("leaky_bucket", 1, "", 3, "q=3;w=30", wait(10_000)),
    ];
    // The header names it before the bucket beside it.
    let calendar = ("calendar", 0, "10000/month", 2, "00, \"burst\";q=3;w=18", month);
    for (title, index, change, count, policy, wait) in cases.into_iter().chain([calendar]) {
        let part = page.under(title)[index];
        let gateway = match change {
            "" => part.start(&app, None),
            from => part.start_changed(&app, None, &[(from, "2/month")]),
        };
        let mut client = gateway.client();
        let mut fetch = || client.fetch(&get("/", ""), "");
        for number in 1..=count {
            let response = fetch();
            assert_eq!(response.status(), 200, "{title} {index}, request {number}");
        }
        let before = wait(now_ms());
        let refused = fetch();
        let after = wait(now_ms());
        assert_eq!(refused.status(), 429, "{title} {index}");
        let retry_ms = refused.json()["retry-after-ms"].as_i64().unwrap();
        let (least, most) = (before.min(after) - 1500, before.max(after));
        assert!((least..=most).contains(&retry_ms), "{title} {index}: {retry_ms}, not {least} to {most}");
        let seconds = (retry_ms + 999) / 1000;
        assert_eq!(refused.get("retry-after"), Some(seconds.to_string().as_str()), "{title} {index}");
        assert!(refused.get("ratelimit-policy").unwrap().contains(policy), "{title} {index}:\n{}", refused.head);
        // Refusals are not charged, so the wait decreases.
        let later = fetch().json()["retry-after-ms"].as_i64().unwrap();
        assert!(later <= retry_ms, "{title} {index}: {later} after {retry_ms}");
    }
}

#[test]
fn a_client_that_waits_as_told_is_admitted() {
    let page = algorithms();
    let app = app();
    for (title, index, from, to) in [
        ("token_bucket", 0, "10/min", "10/5s"),
        ("Refill at the end of each period", 0, "2/4s", "2/600ms"),
        ("gcra", 0, "10/min", "10/5s"),
        ("fixed_window", 0, "5/h", "5/600ms"),
        ("fixed_window", 1, "3/day", "3/600ms"),
        ("sliding_log", 0, "3/h", "3/600ms"),
        ("sliding_window", 0, "5/h", "5/400ms"),
        ("sliding_window", 1, "5/min", "5/600ms"),
        ("leaky_bucket", 1, "6/min", "6/3s"),
    ] {
        let gateway = page.under(title)[index].start_changed(&app, None, &[(from, to)]);
        let mut client = gateway.client();
        let refused = (0..100).map(|_| client.fetch(&get("/", ""), "")).find(|response| response.status() == 429);
        let wait_ms =
            refused.unwrap_or_else(|| panic!("{title} {index} refuses nobody")).json()["retry-after-ms"].as_u64();
        std::thread::sleep(Duration::from_millis(wait_ms.unwrap()));
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200, "{title} {index} after {wait_ms:?} ms");
    }
}

#[test]
fn a_debt_is_repaid_before_the_next_is_admitted() {
    let page = algorithms();
    let app = app();
    let gateway = page.under("Debt")[0].start(&app, None);
    let one = |cost: i64| json!({ "limits": ["units"], "key": { "ip": "10.0.0.1" }, "cost": cost });
    let order = json!({ "operation": "take", "decisions": [one(40), one(160), one(1), one(200), one(201)] });
    let response = post(&gateway, "/-/decide", &order).json();
    let [first, all, next, most, never] = [0, 1, 2, 3, 4].map(|i| &response["decisions"][i]["limits"][0]);
    assert_eq!((&first["remaining"], &all["remaining"]), (&json!(60), &json!(0)));
    assert_eq!(first["policy"], json!({ "quota": 100, "window_ms": 60_000 }));
    // One unit is admitted when the bucket has any token, 200 when it is full.
    for (refused, wait_ms) in [(next, 60_001), (most, 120_000)] {
        let retry_ms = refused["retry_after_ms"].as_i64().unwrap();
        assert!((wait_ms - 200..=wait_ms).contains(&retry_ms), "{refused}");
    }
    assert_eq!((&never["reason"], &never["retry_after_ms"]), (&json!("never_fits"), &Value::Null));
}

#[test]
fn a_queue_releases_requests_evenly() {
    let queues = Page::read("docs/reference/queues.md");
    // The wait of each admitted request in turns of two seconds.
    for (page, title, limit, quota, waits) in [
        (&algorithms(), "leaky_bucket", "even", [3, 6000], [0, 1, 2].as_slice()),
        (&queues, "A burst at once, the rest evenly", "pages", [5, 10_000], &[0, 0, 0, 1, 2]),
    ] {
        let app = Upstream::text("in");
        let gateway = page.under(title)[0].start(&app, None);
        assert_eq!(policy(&gateway, limit), quota);
        let start = Instant::now();
        let mut clients: Vec<_> = (0..waits.len() + 2).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send(get("/", "")));
        for turn in waits {
            app.request();
            let took = start.elapsed().as_millis();
            assert!((2000 * turn..2000 * turn + 1500).contains(&took), "{title}: a request came after {took} ms");
        }
        let mut statuses: Vec<u16> = clients.iter_mut().map(|client| client.read_response("GET").status()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [vec![200; waits.len()], vec![429; 2]].concat(), "{title}");
    }
}

#[test]
fn slots_are_named_and_their_wait_is_at_most_their_lifetime() {
    let app = app();
    let page = algorithms();
    let gateway = page.under("Concurrency")[0].start(&app, None);
    let mut clients = [gateway.client(), gateway.client()];
    clients.iter_mut().for_each(|client| client.send(get("/slow", "")));
    wait_until("both run", || state(&gateway, "at-once", "key=127.0.0.1&cost=0")["remaining"] == 0);
    let refused = gateway.get("/");
    assert_eq!(refused.get("ratelimit-policy"), Some("\"at-once\";q=2;qu=\"concurrent-requests\""));
    let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    // With the default `lease` of 15 s, Redis keeps a slot for 22.7 s.
    assert!((10..=23).contains(&wait), "{wait}");
    assert_eq!(clients.each_mut().map(|client| client.read_response("GET").status()), [200, 200]);
    wait_until("the slots are free", || state(&gateway, "at-once", "key=127.0.0.1&cost=0")["remaining"] == 2);
}

/// Puts the config with `to` in place of `from` in force.
fn change(gateway: &Gateway, from: &str, to: &str) {
    gateway.reload_with(from, to);
}

#[test]
fn new_numbers_keep_the_usage() {
    let page = algorithms();
    let app = app();
    for (title, index, used, from, to, left) in [
        ("token_bucket", 0, 3, "burst = 5", "burst = 9", 6),
        ("token_bucket", 0, 3, "burst = 5", "burst = 2", 0),
        ("token_bucket", 0, 3, "10/min", "20/2min", 2),
        ("gcra", 0, 3, "burst = 5", "burst = 9", 6),
        ("gcra", 0, 3, "10/min", "30/5min", 2),
        ("fixed_window", 0, 3, "5/h", "8/h", 5),
        ("fixed_window", 0, 3, "5/h", "5/2h", 2),
        ("fixed_window", 1, 2, "3/day", "9/day", 7),
        ("calendar", 0, 1, "10000/month", "20000/month", 19_999),
        ("calendar", 0, 1, "10000/month", "10000/year", 9999),
        ("sliding_log", 0, 2, "3/h", "6/h", 4),
        ("sliding_log", 0, 2, "3/h", "3/2h", 1),
        ("sliding_window", 0, 3, "5/h", "8/h", 5),
        ("sliding_window", 1, 3, "precision = 10", "precision = 20", 2),
        ("leaky_bucket", 1, 2, "20s", "40s", 3),
    ] {
        let gateway = page.under(title)[index].start(&app, None);
        assert_eq!(admitted(&gateway, used, "/", "x-api-key: k\r\n"), used, "{title} {index}");
        change(&gateway, from, to);
        let (limit, key) = match title {
            "calendar" => ("monthly", "key=k&"),
            "leaky_bucket" => ("even", ""),
            "sliding_window" => (["hourly", "any-minute"][index], "key=127.0.0.1&"),
            _ => ("per-ip", "key=127.0.0.1&"),
        };
        let state = state(&gateway, limit, &format!("{key}cost=0"));
        assert_eq!(state["remaining"], left, "{title} {index}, {from} to {to}");
        if to == "5/2h" {
            let reset_ms = state["reset_ms"].as_i64().unwrap();
            assert!((2 * HOUR_MS - 5000..=2 * HOUR_MS).contains(&reset_ms), "the window keeps its start: {reset_ms}");
        }
    }

    let gateway = page.under("Concurrency")[0].start(&app, None);
    let mut clients = [gateway.client(), gateway.client()];
    clients.iter_mut().for_each(|client| client.send(get("/slow", "")));
    wait_until("both run", || state(&gateway, "at-once", "key=127.0.0.1&cost=0")["remaining"] == 0);
    change(&gateway, "in_flight = 2", "in_flight = 3");
    assert_eq!(state(&gateway, "at-once", "key=127.0.0.1&cost=0")["remaining"], 1);
}

#[test]
fn a_charge_is_refunded_once() {
    let page = algorithms();
    let (app, redis) = (app(), RedisServer::start(&[]));
    for (title, index, limit) in [
        ("token_bucket", 0, "per-ip"),
        ("gcra", 0, "per-ip"),
        ("fixed_window", 0, "per-ip"),
        ("fixed_window", 1, "per-ip"),
        ("calendar", 0, "monthly"),
        ("sliding_log", 0, "per-ip"),
        ("sliding_log", 1, "per-ip"),
        ("sliding_window", 0, "hourly"),
        ("sliding_window", 1, "any-minute"),
        ("leaky_bucket", 0, "even"),
        ("leaky_bucket", 1, "even"),
        ("Concurrency", 0, "at-once"),
    ] {
        let part = page.under(title)[index];
        let gateway = part.start(&app, part.needs_redis().then_some(redis.port));
        let key = match title {
            "calendar" => json!({ "header:x-api-key": "k" }),
            "leaky_bucket" => json!({}),
            _ => json!({ "ip": "10.0.0.1" }),
        };
        let one = json!({ "limits": [limit], "key": key, "cost": 1 });
        let order =
            |operation: &str, count: usize| json!({ "operation": operation, "decisions": vec![one.clone(); count] });
        // The admin listener may connect to the store later than the workers.
        wait_until("the store is reached", || {
            let peek = post(&gateway, "/-/decide", &order("peek", 1)).json();
            peek["decisions"][0]["limits"][0]["source"] == "store"
        });
        let taken = post(&gateway, "/-/decide", &order("take", 2)).json();
        let [first, second] = [0, 1].map(|i| taken["decisions"][i]["limits"][0].clone());
        assert_eq!([&first["admitted"], &second["admitted"]], [true, true], "{title} {index}: {taken}");
        let refund = |receipt: &Value| {
            let response = post(&gateway, &format!("/-/limits/{limit}/refund"), &json!({ "receipt": receipt })).json();
            response["applied"].as_bool().unwrap()
        };
        // In a queue, only the last position can be refunded.
        let queue = title == "leaky_bucket" && index == 0;
        let applied = [refund(&first["receipt"]), refund(&second["receipt"]), refund(&second["receipt"])];
        assert_eq!(applied, [!queue, true, false], "{title} {index}");
        let all = first["remaining"].as_i64().unwrap();
        // Units that were refilled between the charge and its refund are not refunded, and are refilled again.
        wait_until("the refunded units are available", || {
            let peek = post(&gateway, "/-/decide", &order("peek", 1)).json();
            peek["decisions"][0]["limits"][0]["remaining"].as_i64().unwrap() == all - i64::from(queue)
        });
    }
}

#[test]
fn a_window_that_is_over_gives_nothing_back() {
    let app = app();
    let page = algorithms();
    let gateway = page.under("fixed_window")[0].start_changed(&app, None, &[("5/h", "5/300ms")]);
    let order = json!({ "operation": "take", "decisions": [{ "limits": ["per-ip"], "key": { "ip": "10.0.0.1" } }] });
    let taken = post(&gateway, "/-/decide", &order).json();
    std::thread::sleep(Duration::from_millis(300));
    let receipt = &taken["decisions"][0]["limits"][0]["receipt"];
    let refund = post(&gateway, "/-/limits/per-ip/refund", &json!({ "receipt": receipt })).json();
    let expected =
        json!({ "limit": "per-ip", "key": "ip=10.0.0.1", "applied": false, "reason": "expired", "units": 0 });
    assert_eq!(refund, expected);
}

#[test]
fn both_representations_of_a_log_match_their_names() {
    let page = algorithms();
    let (app, redis) = (app(), RedisServer::start(&[]));
    let part = page.under("sliding_log")[1];
    for (state, kind) in [("sorted_set", "zset"), ("list", "list")] {
        let changes = [("\"sorted_set\"", &*format!("\"{state}\"")), ("per-ip", &*format!("with-{state}"))];
        let gateway = part.start_changed(&app, Some(redis.port), &changes);
        assert_eq!(admitted(&gateway, 5, "/", ""), 3);
        let key = format!("sg:{{ip=127.0.0.1}}:with-{state}:sliding_log");
        let found: String = redis::cmd("TYPE").arg(key).query(&mut redis.client()).unwrap();
        assert_eq!(found, kind);
    }
}
