//! Denials that the gateway caches: they are exact, and need no call to Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use sluicegate::limiting::answer::NEVER;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::{Limit, Mode};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::denials::{DenialCache, ENTRIES_MAX, Invalidations};

use crate::support::WAIT_MAX;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::rules::{bucket, random_rule};
use crate::support::limiting::{RedisServer, check, limit, seeded};
use crate::support::machine::Stopwatch;
use crate::support::scenario::scenario;

fn start(server: &RedisServer, limits: &[(&str, &str)]) -> Gateway {
    let gateway = scenario().store(Some(server));
    limits.iter().fold(gateway, |gateway, (name, lines)| gateway.limit_of(name, lines)).start()
}

fn calls(gateway: &Gateway) -> f64 {
    gateway.metric("store_request_duration_seconds_count", &[]).unwrap()
}

#[test]
fn a_remembered_refusal_costs_no_store_call() {
    let server = RedisServer::start(&[]);
    let gateway = start(&server, &[("one", "rate = \"1/h\"\nkey = \"ip\"\ncost = \"header:x-cost\"")]);
    let mut client = gateway.client();
    let start = Instant::now();
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    for _ in 0..100 {
        let refused = client.fetch(&get("/", ""), "");
        assert_eq!(refused.status(), 429);
        let wait: i64 = refused.get("retry-after").unwrap().parse().unwrap();
        assert!((3595..=3600).contains(&wait), "{wait}");
    }
    let seconds = start.elapsed().as_secs() as f64 + 1.0;
    assert!(calls(&gateway) <= 1.0 + seconds, "{} calls in {seconds} s", calls(&gateway));
    assert!(gateway.metric("store_denial_cache_hits_total", &[]).unwrap() >= 100.0 - seconds);
    let denied = [("route", "app"), ("limit", "one"), ("decision", "deny")];
    gateway.assert_metric("limit_decisions_total", &denied, 100.0);
    // Other decisions are made by the store: those of another client, and those without a cost.
    assert_eq!(gateway.client_from([127, 0, 0, 9]).fetch(&get("/", ""), "").status(), 200);
    assert_eq!(client.fetch(&get("/", "x-cost: 0\r\n"), "").status(), 200);
}

#[test]
fn the_wait_of_a_known_refusal_is_exact() {
    let server = RedisServer::start(&[]);
    let gateway = start(&server, &[("one", "rate = \"1/400ms\"\nburst = 1\nkey = \"ip\"")]);
    let mut client = gateway.client();
    for _ in 0..3 {
        let (watch, start) = (Stopwatch::start(), Instant::now());
        while client.fetch(&get("/", ""), "").status() == 429 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(start.elapsed() < WAIT_MAX);
        }
        watch.assert_ms(0..600);
    }
}

/// One limit refuses a request from memory, although by now another limit would refuse it too, and for longer.
#[test]
fn the_longer_wait_of_another_limit_is_reported() {
    let server = RedisServer::start(&[]);
    let own = ("own", "rate = \"1/20s\"\nkey = \"header:x-user\"");
    let gateway = start(&server, &[own, ("all", "algorithm = \"fixed_window\"\nrate = \"2/h\"\nkey = \"all\"")]);
    let (mut one, mut two) = (gateway.client(), gateway.client());
    let mut fetch = |user: usize| {
        let client = if user == 1 { &mut one } else { &mut two };
        let answer = client.fetch(&get("/", &format!("x-user: {user}\r\n")), "");
        let wait = answer.get("retry-after").map_or(0, |wait| wait.parse::<i64>().unwrap());
        (answer.status(), wait, answer.get("ratelimit").unwrap_or_default().to_owned())
    };
    assert_eq!(fetch(1).0, 200);
    let (status, wait, _) = fetch(1);
    assert!(status == 429 && (15..=20).contains(&wait), "{status} {wait}");
    assert_eq!(fetch(2).0, 200);
    for _ in 0..20 {
        let (status, wait, fields) = fetch(1);
        assert!(status == 429 && wait > 3500, "{status} {wait}");
        assert!(fields.contains("\"own\";r=0") && fields.contains("\"all\";r=0"), "{fields}");
    }
    // The gateway knows by now that both limits refuse.
    let calls = calls(&gateway);
    assert!(calls <= 8.0, "{calls} calls");
}

#[test]
fn a_shadow_limit_counts_on_behind_an_exhausted_one() {
    let server = RedisServer::start(&[]);
    let shadow = ("shadow", "rate = \"3/h\"\nkey = \"all\"\nmode = \"shadow\"");
    let gateway = start(&server, &[("one", "rate = \"1/h\"\nkey = \"all\""), shadow]);
    for _ in 0..6 {
        gateway.get("/");
    }
    let shadow = [("route", "app"), ("limit", "shadow"), ("decision", "shadow_deny")];
    gateway.assert_metric("limit_decisions_total", &shadow, 3.0);
}

/// A distant store decides a little after the request by a clock of whole milliseconds, and its response takes a while.
/// A cache of refusals in front of it never refuses what the store would admit, and never reports a shorter wait.
#[test]
fn nothing_is_refused_that_the_store_would_admit() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    let mut known = 0;
    // Windows of the calendar are too long to pass in a walk.
    let names: Vec<&str> =
        crate::support::limiting::rules::limit_rules().into_iter().filter(|name| *name != "calendar").collect();
    for round in 0..300 {
        let (store, invalidations) = (MemoryStore::new(100_000), Invalidations::default());
        let mut denials = DenialCache::new(invalidations.clone());
        let base = Instant::now();
        let mut limits: Vec<Arc<Limit>> = (0..3).map(|i| rule_of(names[(round + i) % names.len()], i, rng)).collect();
        let mut seen = vec![limits[0].rule.clone()];
        let mut now_us: i64 = 1_795_000_000_000_000;
        let at = |us: i64| base + Duration::from_micros((us - 1_795_000_000_000_000) as u64);
        for _ in 0..300 {
            now_us += match rng.random_range(0..4) {
                0 => rng.random_range(0..500),
                1 => rng.random_range(0..20_000),
                2 => rng.random_range(0..200),
                _ => rng.random_range(0..300_000),
            };
            if rng.random_bool(0.01) {
                // Charges under another rule may be forgotten earlier than this rule would, so each rule starts with
                // empty state and none occurs twice.
                while seen.contains(&limits[0].rule) {
                    limits[0] = rule_of(names[round % names.len()], 0, rng);
                }
                seen.push(limits[0].rule.clone());
                let keys: Vec<Check> = (0..3).map(|key| check(&limits[0], &format!("k{key}"), 1)).collect();
                store.run(Op::Reset, &keys, now_us / 1000);
            }
            let key = format!("k{}", rng.random_range(0..3));
            let cost = if rng.random_bool(0.6) { 1 } else { rng.random_range(0..4) };
            // Routes have some of the limits in common.
            let some = if rng.random_bool(0.5) { &limits[rng.random_range(0..3)..][..1] } else { &limits[..] };
            let checks: Vec<Check> = some.iter().map(|limit| check(limit, &key, cost)).collect();
            if rng.random_bool(0.02) {
                let op = if rng.random_bool(0.5) { Op::Reset } else { Op::Adjust };
                let back: Vec<Check> = checks.iter().map(|check| Check { cost: -3, ..check.clone() }).collect();
                store.run(op, &back, now_us / 1000);
                invalidations.invalidate_all();
                continue;
            }
            if let Some(refused) = denials.known_refusals(&checks, || at(now_us)) {
                known += 1;
                let decision = store.run(Op::Peek, &checks, now_us / 1000);
                for ((answer, truth), check) in refused.into_iter().zip(decision.answers).zip(&checks) {
                    assert!(!truth.admitted, "{check:?} {answer:?} is admitted: {truth:?}");
                    assert_eq!(answer.retry_ms == NEVER, truth.retry_ms == NEVER);
                    // For requests that never fit, the remaining units may differ.
                    assert!(answer.remaining == truth.remaining || answer.retry_ms == NEVER, "{check:?}");
                    // The difference is at most the time of the response and a rounding.
                    let late = answer.retry_ms - truth.retry_ms;
                    assert!((0..=8).contains(&late), "{check:?}: {answer:?} for {truth:?}");
                }
                continue;
            }
            let sent = denials.sent_at(at(now_us));
            now_us += rng.random_range(0..3000);
            let decision = store.run(Op::Take, &checks, now_us / 1000);
            now_us += rng.random_range(0..3000);
            if !decision.admitted {
                for (check, answer) in checks.iter().zip(decision.answers) {
                    denials.remember_refusal(check, answer, sent, at(now_us));
                }
            }
        }
    }
    assert!(known > 1000, "only {known} known refusals");
}

fn rule_of(name: &str, number: usize, rng: &mut rand::rngs::StdRng) -> Arc<Limit> {
    loop {
        let rule = random_rule(name, rng);
        if rule.policy().quota < 50 && rule.policy().window_ms < 10_000 {
            return limit(&format!("limit-{number}"), rule, Mode::Enforce);
        }
    }
}

#[test]
fn the_denial_cache_is_bounded() {
    let mut denials = DenialCache::new(Invalidations::default());
    let store = MemoryStore::new(1_000_000);
    let one = limit("one", bucket(1, 1), Mode::Enforce);
    let now = Instant::now();
    let sent = denials.sent_at(now);
    let checks: Vec<Check> = (0..ENTRIES_MAX * 3).map(|i| check(&one, &i.to_string(), 2)).collect();
    for check in &checks {
        let answer = store.run(Op::Take, std::slice::from_ref(check), 1_795_000_000_000).answers[0];
        denials.remember_refusal(check, answer, sent, now);
        assert!(denials.len() <= ENTRIES_MAX);
    }
    let known = checks.chunks(1).filter(|check| denials.known_refusals(check, || now).is_some()).count();
    assert_eq!((known, denials.len()), (ENTRIES_MAX, ENTRIES_MAX));
    // The most recent refusals are among them.
    assert!(denials.known_refusals(&checks[checks.len() - 1..], || now).is_some());
}

/// A refund while the response of the store was on its way may make the refused request admissible.
#[test]
fn a_refusal_from_before_a_refund_is_not_remembered() {
    let invalidations = Invalidations::default();
    let mut denials = DenialCache::new(invalidations.clone());
    let now = Instant::now();
    let spent = check(&limit("one", bucket(1, 1), Mode::Enforce), "k", 2);
    let answer = MemoryStore::new(10).run(Op::Take, std::slice::from_ref(&spent), 1_795_000_000_000).answers[0];
    let sent = denials.sent_at(now);
    invalidations.invalidate_all();
    denials.remember_refusal(&spent, answer, sent, now);
    assert!(denials.is_empty(), "the refusal was cached although units were refunded");
    let sent = denials.sent_at(now);
    denials.remember_refusal(&spent, answer, sent, now);
    assert_eq!((denials.len(), denials.is_empty()), (1, false));
}

/// Another request of the key may be admitted while one is refused, and then the wait grows.
#[test]
fn limits_whose_refusals_vary_ask_the_store() {
    let server = RedisServer::start(&[]);
    let stated = ("stated", "key = \"query:k\"\nrate = \"header:r\"\nrate_within = [\"1/h\", \"6/h\"]");
    let gateway = start(&server, &[stated]);
    let mut client = gateway.client();
    let mut fetch = |rate: u32| {
        let response = client.fetch(&get("/?k=a", &format!("r: {rate}\r\n")), "");
        response.get("retry-after").map_or(0, |wait| wait.parse::<i64>().unwrap())
    };
    assert_eq!([fetch(1), fetch(1)], [0, 3600]);
    assert_eq!([fetch(3), fetch(3)], [0, 0]);
    let wait = fetch(1);
    assert!(wait > 10_700, "{wait}");

    let distinct = ("distinct", "key = \"query:k\"\ndistinct = \"header:v\"\nrate = \"1/2s\"");
    let gateway = start(&server, &[distinct]);
    let mut client = gateway.client();
    let mut fetch = |value: &str| {
        let response = client.fetch(&get("/?k=a", &format!("v: {value}\r\n")), "");
        response.get("retry-after").map_or(0, |wait| wait.parse::<i64>().unwrap())
    };
    assert_eq!(fetch("a"), 0);
    std::thread::sleep(Duration::from_millis(1200));
    let waits = [fetch("b"), fetch("a"), fetch("b")];
    assert!(waits[0] == 1 && waits[1] == 0 && waits[2] >= 2, "{waits:?}");
    gateway.assert_metric("store_denial_cache_hits_total", &[], 0.0);
}
