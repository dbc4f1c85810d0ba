//! The Redis store on a real redis-server: one decision for all gateways, exact under concurrency.
use std::sync::Arc;
use std::time::Duration;

use crate::support::limiting::rules::{bucket, calendar, sliding, window};
use crate::support::limiting::{DEADLINE, RedisServer, check, connect_store, kind, limit, run_on_worker};
use rand::Rng;
use redis::Commands;
use sluicegate::limiting::algorithm::ban::Ban;
use sluicegate::limiting::algorithm::calendar::CalendarUnit;
use sluicegate::limiting::algorithm::fair::FairSettings;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::{Rule, State};
use sluicegate::limiting::decision::{Check, Decision, ErrorKind, Op};
use sluicegate::limiting::limit::cost::Cost;
use sluicegate::limiting::limit::{Limit, Mode, OnError};
use sluicegate::limiting::source::Source;
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};
use sluicegate::limiting::store::redis::pipeline::lane::QUEUE_MAX;
use sluicegate::limiting::store::{Store, Stores};
use sluicegate::limiting::{Evaluation, Limiter};
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::JoinSet;

#[test]
fn decides_like_the_memory_store() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    let names = crate::support::limiting::rules::all_limit_rules();
    for _ in 0..20 {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let memory = MemoryStore::new(1_000_000);
        let mut now = 1_795_000_000_000;
        let mut receipt = 0;
        let limits: Vec<Arc<Limit>> = (0..names.len() * 2)
            .map(|i| {
                let name = format!("limit-{i}");
                let rule = minutes(crate::support::limiting::rules::random_rule(names[i % names.len()], rng), rng);
                let limit_of = |rule| match i {
                    0 => limit(&name, rule, Mode::Shadow),
                    1..4 => crate::support::limiting::forwarding(&name, rule),
                    _ => limit(&name, rule, Mode::Enforce),
                };
                let ban = minutes_of_ban(rng);
                if i % 3 == 0 { crate::support::limiting::with_ban(limit_of(rule), ban) } else { limit_of(rule) }
            })
            .collect();
        for _ in 0..100 {
            now += rng.random_range(0..10_000);
            let decisions = crate::support::limiting::random_decisions(&limits, 8, receipt, rng);
            let expected: Vec<Decision> = decisions.iter().map(|(op, checks)| memory.run(*op, checks, now)).collect();
            receipt = expected[0].answers[0].receipt;
            let slices: Vec<(Op, &[Check])> = decisions.iter().map(|(op, checks)| (*op, checks.as_slice())).collect();
            let reply = ScriptCall::new(&slices, now).eval_command().query(&mut client).unwrap();
            assert_eq!(
                decode_reply(reply, slices.iter().copied()),
                Some(expected.into_iter().map(Ok).collect()),
                "at {now}: {decisions:?}"
            );
            for check in decisions.iter().flat_map(|(_, checks)| checks) {
                assert_holds_alike(&mut client, &memory, &check.key, now);
                if let Some(ban) = &check.ban {
                    assert_holds_alike(&mut client, &memory, &ban.key, now);
                }
            }
        }
        assert_keys_expire(&mut client, 2 * 366 * 86_400_000);
    }
}

/// Returns the state of a key in the server, in the format of `State::text`.
fn stored(client: &mut redis::Connection, key: &str) -> String {
    let form: String = redis::cmd("TYPE").arg(key).query(client).unwrap();
    let mut fields: Vec<String> = match form.as_str() {
        "none" => Vec::new(),
        "list" => return crate::support::limiting::log_text(client.lrange::<_, Vec<String>>(key, 0, -1).unwrap()),
        "zset" if key.ends_with("sliding_log") => {
            return crate::support::limiting::log_text(client.zrevrange::<_, Vec<String>>(key, 0, -1).unwrap());
        }
        "zset" if key.ends_with("distinct") => {
            let set: Vec<(String, f64)> = client.zrange_withscores(key, 0, -1).unwrap();
            return crate::support::limiting::values_text(
                set.into_iter().map(|(member, score)| (score as i64, member)),
            );
        }
        "zset" if key.ends_with("fair") => {
            let set: Vec<(String, f64)> = client.zrange_withscores(key, 0, -1).unwrap();
            return crate::support::limiting::tenants_text(
                set.into_iter().map(|(member, score)| (score as i64, member)),
            );
        }
        "zset" => {
            client.zrange_withscores::<_, Vec<(String, String)>>(key, 0, -1).unwrap().into_iter().map(pair).collect()
        }
        _ => client.get::<_, Option<String>>(key).unwrap().into_iter().collect(),
    };
    if key.ends_with("concurrency") {
        fields.sort();
    }
    fields.join(" ")
}

fn pair((id, expiry): (String, String)) -> String {
    format!("{id} {expiry}")
}

/// Asserts that the state is the same and the TTL fits: the time of the walk passes faster than that of the server.
fn assert_holds_alike(client: &mut redis::Connection, memory: &MemoryStore, key: &str, now: i64) {
    let Some((state, ttl_ms)) = memory.state(key, now) else { return };
    let mut text = state.text();
    if let State::Concurrency(_) = state {
        let fields: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let mut pairs: Vec<String> = fields.chunks(2).map(|two| pair((two[0].clone(), two[1].clone()))).collect();
        pairs.sort();
        text = pairs.join(" ");
    }
    let (held, pttl) = (stored(client, key), client.pttl::<_, i64>(key).unwrap());
    if held.is_empty() && ttl_ms <= SLOWEST_MS {
        return;
    }
    assert_eq!(held, text, "{key} at {now}");
    assert!(held.is_empty() || pttl > ttl_ms - SLOWEST_MS, "{key} lives {pttl} ms, not {ttl_ms}");
}

/// Longer than a call takes.
const SLOWEST_MS: i64 = 3000;

/// Returns the same rule with periods of minutes, so that keys do not expire in real time before the time of the walk.
fn minutes(mut rule: Rule, rng: &mut impl Rng) -> Rule {
    let period = rng.random_range(60_000..600_000);
    match &mut rule {
        Rule::TokenBucket(rule) => {
            rule.per_ms = period;
            rule.rate = rule.rate.min(50);
            rule.burst = rule.burst.min(50);
            rule.debt = rule.debt.min(20);
        }
        Rule::FixedWindow(rule) => {
            rule.window_ms = period;
            rule.limit = rule.limit.min(100);
        }
        Rule::Gcra(rule) => {
            rule.per_ms = period;
            rule.rate = rule.rate.min(50);
            rule.burst = rule.burst.min(50);
        }
        Rule::SlidingWindow(_) => {
            let precision = [2, 3, 60][rng.random_range(0..3)];
            return crate::support::limiting::rules::sliding(rng.random_range(1..100), period, precision);
        }
        Rule::Calendar(rule) => rule.limit = rule.limit.min(100),
        Rule::SlidingLog(rule) => rule.window_ms = period,
        Rule::LeakyBucket(rule) => {
            rule.per_ms = period;
            rule.rate = rule.rate.min(50);
            rule.queue_ms = rng.random_range(0..20) * period / rule.rate;
        }
        Rule::Concurrency(rule) => rule.lease_ms = period,
        Rule::Ban(ban) => *ban = minutes_of_ban(rng),
        Rule::WarmUp(rule) => {
            let (rate, burst) = (rule.bucket.rate.min(50), rule.bucket.burst.min(50));
            return crate::support::limiting::rules::warm_up(rate, period, burst, rng.random_range(1..1000));
        }
        Rule::Distinct(rule) => {
            let (limit, window_ms, clock) = (rule.limit, period, rng.random_bool(0.5));
            return crate::support::limiting::rules::distinct(match rng.random_bool(0.5) {
                true => Rule::SlidingLog(SlidingLog { limit, window_ms, sorted_set: false }),
                false => Rule::FixedWindow(FixedWindow { limit, window_ms, clock }),
            });
        }
        Rule::Fair(rule) => {
            let most = FairSettings { reserve: None, active_ms: None, max_active: 4, weight: rule.weight };
            return crate::support::limiting::rules::fair(
                rule.pool.rate.min(50),
                period,
                rule.pool.burst.min(50),
                most,
            );
        }
    }
    rule
}

/// A ban whose times are minutes.
fn minutes_of_ban(rng: &mut impl Rng) -> Ban {
    let [within_ms, for_ms] = [(); 2].map(|()| rng.random_range(60_000..600_000));
    Ban { after: rng.random_range(1..4), within_ms, for_ms, grow: rng.random_range(1..4), at_most_ms: 4 * for_ms }
}

fn assert_keys_expire(client: &mut redis::Connection, most_ms: i64) -> usize {
    let keys: Vec<String> = client.keys("sg:*").unwrap();
    for key in &keys {
        let ttl: i64 = client.pttl(key).unwrap();
        // -2: it has just expired; -1 would be forever.
        assert!(ttl != -1 && ttl <= most_ms, "{key} lives for {ttl} ms");
    }
    keys.iter().filter(|key| !key.ends_with(":gateways")).count()
}

/// Two gateways, each with its own thread and connection, and all requests at once.
fn two_gateways(server: &RedisServer, limits: &[Arc<Limit>], tasks: usize, rounds: usize) -> (i64, i64) {
    let url = server.url();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (url, limits) = (url.clone(), limits.to_vec());
            std::thread::spawn(move || run_on_worker(hammer(url, limits, tasks, rounds)))
        })
        .collect();
    let counts = threads.into_iter().map(|thread| thread.join().unwrap());
    counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

/// Admitted and refused.
async fn hammer(url: String, limits: Vec<Arc<Limit>>, tasks: usize, rounds: usize) -> (i64, i64) {
    let metrics = Metrics::new().unwrap();
    let redis = std::rc::Rc::new(connect_store(&url, &metrics, Duration::from_secs(5)).await);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (redis, limits) = (redis.clone(), limits.clone());
        running.spawn_local(async move {
            let mut admitted = 0;
            for _ in 0..rounds {
                let checks: Vec<_> = limits.iter().map(|limit| check(limit, "all", 1)).collect();
                let decision = redis.run(Op::Take, &checks.into()).await.unwrap();
                assert_eq!(decision.admitted, decision.answers.iter().all(|answer| answer.admitted));
                admitted += i64::from(decision.admitted);
            }
            admitted
        });
    }
    let admitted = running.join_all().await.into_iter().sum();
    assert_eq!(metrics.store.up.get(), 1);
    (admitted, (tasks * rounds) as i64 - admitted)
}

#[test]
fn two_gateways_admit_exactly_the_limit() {
    let server = RedisServer::start(&[]);
    let rules = [
        bucket(1, 1000),
        window(1000),
        Rule::Gcra(Gcra { rate: 1, per_ms: 3_600_000, burst: 1000, refunds: false }),
        sliding(1000, 3_600_000, 2),
        sliding(1000, 3_600_000, 60),
        calendar(1000, CalendarUnit::Year),
        crate::support::limiting::rules::log(1000, false),
        crate::support::limiting::rules::log(1000, true),
        crate::support::limiting::rules::leaky(1000, false),
        crate::support::limiting::rules::leaky(1000, true),
        crate::support::limiting::rules::leases(1000, 3_600_000),
    ];
    for rule in rules {
        let () = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
        let limits = [limit("one", rule, Mode::Enforce)];
        assert_eq!(two_gateways(&server, &limits, 100, 20), (1000, 3000));
    }
    assert_keys_expire(&mut server.client(), 1000 * 3_600_000 + 1);
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    let server = RedisServer::start(&[]);
    let limits = [
        limit("wide", window(5000), Mode::Enforce),
        limit("narrow", window(300), Mode::Enforce),
        limit("middle", bucket(1, 400), Mode::Enforce),
    ];
    assert_eq!(two_gateways(&server, &limits, 50, 20), (300, 1700));
    let mut client = server.client();
    for limit in &limits {
        let text: String = client.get(check(limit, "all", 1).key).unwrap();
        let charged: i64 = text.split(' ').next().unwrap().parse().unwrap();
        match &*limit.rule {
            Rule::FixedWindow(_) => assert_eq!(charged, 300, "{}", limit.name),
            // One token an hour comes back: at most its first few thousandths.
            Rule::TokenBucket(rule) => assert_eq!((charged + rule.per_ms - 1) / rule.per_ms, 300, "{}", limit.name),
            other => panic!("{other:?} is none of the three"),
        }
    }
    assert_eq!(assert_keys_expire(&mut client, 1000 * 3_600_000 + 1), 4);
}

#[test]
fn a_forgotten_script_costs_nothing() {
    let server = RedisServer::start(&[]);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut client = server.client();
    let flusher = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut client).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let limits = [limit("one", window(1000), Mode::Enforce)];
    let counts = two_gateways(&server, &limits, 40, 50);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    flusher.join().unwrap();
    assert_eq!(counts, (1000, 3000));
}

#[test]
fn many_decisions_share_a_call() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(5)).await);
        let calls = metrics.store.batch_size.get_sample_count();
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let mut running = JoinSet::new();
        for _ in 0..1280 {
            let (redis, one) = (redis.clone(), one.clone());
            running.spawn_local(async move { redis.run(Op::Take, &vec![check(&one, "all", 1)].into()).await.unwrap() });
        }
        let mut left: Vec<i64> =
            running.join_all().await.iter().map(|decision| decision.answers[0].remaining).collect();
        left.sort_unstable();
        assert_eq!(left, (1_000_000 - 1280..1_000_000).collect::<Vec<i64>>());
        let calls = metrics.store.batch_size.get_sample_count() - calls;
        assert!((10..=11).contains(&calls), "{calls} calls");
    });
}

#[test]
fn a_call_carries_no_more_work_than_its_bound() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(5)).await);
        // A refunded charge is searched along a list; a sorted set, or a short list, is searched at once. Slots of
        // different weights are counted by weight, but a correction needs no end of a lease.
        for (rule, cost, calls_of_20) in [
            (crate::support::limiting::rules::log(100_000, false), Cost::Fixed(1), 20..=20),
            (crate::support::limiting::rules::log(100_000, true), Cost::Fixed(1), 3..=4),
            (crate::support::limiting::rules::log(100, false), Cost::Fixed(1), 1..=2),
            (crate::support::limiting::rules::leases(999, 15_000), Cost::Stated(Source::Query("n".to_owned())), 1..=1),
            (crate::support::limiting::rules::leases(999, 15_000), Cost::Fixed(1), 1..=1),
        ] {
            let mut log = Arc::into_inner(limit("log", rule, Mode::Enforce)).unwrap();
            log.cost = cost;
            let log = Arc::new(log);
            let calls = metrics.store.batch_size.get_sample_count();
            let mut running = JoinSet::new();
            for tag in 0..20 {
                let (redis, back) = (redis.clone(), Check { tag, ..check(&log, "all", -1) });
                running.spawn_local(async move { redis.run(Op::Adjust, &vec![back].into()).await.unwrap() });
            }
            running.join_all().await;
            let calls = metrics.store.batch_size.get_sample_count() - calls;
            assert!(calls_of_20.contains(&calls), "{calls} calls, {:?}", log.rule);
        }
    });
}

#[test]
fn a_full_queue_and_a_long_decision_are_bounded() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(5)).await);
        let wide = (0..700).map(|i| check(&limit(&format!("l{i}"), window(9), Mode::Enforce), "all", 1));
        let wide = std::rc::Rc::new(wide.collect());
        let (a, b) = tokio::join!(redis.run(Op::Take, &wide), redis.run(Op::Take, &wide));
        assert!(a.unwrap().admitted && b.unwrap().admitted);

        let one = limit("one", window(1_000_000), Mode::Enforce);
        let mut running = JoinSet::new();
        for _ in 0..QUEUE_MAX + 10 {
            let (redis, one) = (redis.clone(), one.clone());
            running.spawn_local(async move { kind(&redis, &one).await.map(|_| ()) });
        }
        // A flood must not lift a limit, so a full queue refuses whatever `on_error` says.
        let mut open = Arc::into_inner(limit("open", window(1_000_000), Mode::Enforce)).unwrap();
        open.on_error = OnError::Open;
        let (open, store) = ([Arc::new(open)], Store::Redis(redis.clone()));
        let stores = Stores::new(Arc::new(MemoryStore::new(1000)), &metrics);
        let beyond = tokio::task::spawn_local(async move {
            let checks = vec![Evaluation::Check(check(&open[0], "all", 1))];
            Limiter::new(store, None, &stores, "sg").decide(Op::Take, &open, checks, true).await.refused
        });
        let outcomes = running.join_all().await;
        assert!(beyond.await.unwrap());
        let refused = outcomes.iter().filter(|outcome| **outcome == Err(ErrorKind::Overloaded)).count();
        assert_eq!(refused, 10);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(ErrorKind::Overloaded))));
        assert_eq!(metrics.store_error_counter(ErrorKind::Overloaded.label()).get(), refused as u64 + 1);
    });
}

#[test]
fn state_of_another_form_counts_as_none() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let redis = connect_store(&server.url(), &Metrics::new().unwrap(), DEADLINE).await;
        let mut client = server.client();
        let one = limit("one", window(10), Mode::Enforce);
        let two = limit("two", bucket(1, 10), Mode::Enforce);
        for text in ["", "x", "1", "-1 5 9", "1 2 3 4", "1e3 2 3", "0x1 2 3", "5 5 0", "nan 1 1", "1 2 3\n", "1  2"] {
            for limit in [&one, &two] {
                let key = check(limit, "all", 1).key;
                let () = client.set(&key, text).unwrap();
                let decision = redis.run(Op::Take, &vec![check(limit, "all", 1)].into()).await.unwrap();
                assert_eq!((decision.admitted, decision.answers[0].remaining), (true, 9), "{text:?}");
                let () = client.del(&key).unwrap();
            }
        }
        for rule in [
            Rule::Gcra(Gcra { rate: 1, per_ms: 9, burst: 10, refunds: false }),
            sliding(10, 9000, 2),
            calendar(10, CalendarUnit::Year),
        ] {
            let limit = limit("other", rule, Mode::Enforce);
            let key = check(&limit, "all", 1).key;
            for text in
                ["", "x", "1", "-1 5 9 1", "1e3 2 3 4", "0 5 5 5", "1 2 3\n", "9000 1", "1 1 1 0", " ", "0 0 0 0"]
            {
                let () = client.set(&key, text).unwrap();
                let decision = redis.run(Op::Take, &vec![check(&limit, "all", 1)].into()).await.unwrap();
                assert_eq!((decision.admitted, decision.answers[0].remaining), (true, 9), "{text:?} {limit:?}");
                let () = client.del(&key).unwrap();
            }
        }
        let key = check(&one, "all", 1).key;
        let () = client.rpush(&key, 7).unwrap();
        assert!(kind(&redis, &one).await.unwrap().admitted);
        assert!(client.pttl::<_, i64>(&key).unwrap() > 0);
    });
}

#[test]
fn a_client_that_left_is_not_charged() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(5)).await);
        let one = limit("one", window(10_000), Mode::Enforce);
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(400).arg("ALL").query(&mut server.client()).unwrap();
        let mut running = JoinSet::new();
        let fetch = |set: &mut JoinSet<_>| {
            let (redis, one) = (redis.clone(), one.clone());
            set.spawn_local(async move { kind(&redis, &one).await });
        };
        // The more calls are in progress, the longer the next one waits for decisions to join it.
        for _ in 0..100 {
            fetch(&mut running);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let left = metrics.store.batch_size.get_sample_count();
        while metrics.store.batch_size.get_sample_count() == left {
            fetch(&mut running);
            tokio::task::yield_now().await;
        }
        let mut leaving = JoinSet::new();
        (0..20).for_each(|_| fetch(&mut leaving));
        tokio::task::yield_now().await;
        leaving.shutdown().await;
        let stayed = running.len() as i64;
        assert!(running.join_all().await.iter().all(Result::is_ok));
        assert_eq!(kind(&redis, &one).await.unwrap().answers[0].remaining, 10_000 - stayed - 1);
    });
}
