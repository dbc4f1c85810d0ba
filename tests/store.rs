//! The Redis store against a real redis-server: exact under concurrency, honest under failure.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use redis::Commands;
use sluicegate::config::{StoreKind, StoreSettings};
use sluicegate::limit::algo::NAMES;
use sluicegate::limit::algo::{Rule, fixed_window::FixedWindow, token_bucket::TokenBucket};
use sluicegate::limit::rule::{Limit, Mode, OnError};
use sluicegate::limit::store::memory::Memory;
use sluicegate::limit::store::redis::Redis;
use sluicegate::limit::store::redis::wire::{Call, decode};
use sluicegate::limit::store::{Check, Decision, ErrorKind, StoreError};
use sluicegate::metrics::Metrics;
use support::{RedisServer, check, limit};
use tokio::task::JoinSet;

/// What a decision may take beyond its deadline on a busy machine.
const SLACK: Duration = Duration::from_millis(60);
const DEADLINE: Duration = Duration::from_millis(100);

fn settings(deadline: Duration) -> StoreSettings {
    StoreSettings {
        kind: StoreKind::Redis(String::new()),
        prefix: "sg".to_owned(),
        deadline,
        on_error: OnError::Local,
        max_keys: 1000,
    }
}

/// Runs `work` as a worker does: one thread, one runtime.
fn worker<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(work)
}

/// A handle that has connected.
async fn connected(url: &str, metrics: &Metrics, deadline: Duration) -> Redis {
    let redis = Redis::connect(&settings(deadline), url, metrics);
    recovered(&redis).await;
    redis
}

/// Waits until decisions are answered again, and says how long that took.
async fn recovered(redis: &Redis) -> Duration {
    let since = Instant::now();
    let probe = limit("probe", bucket(1000, 1000), Mode::Enforce);
    while let Err(error) = redis.decide(vec![check(&probe, "all", 1)]).await {
        assert!(since.elapsed() < Duration::from_secs(10), "still {:?}", error.kind);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// `burst` tokens that come back over an hour.
fn bucket(rate: i64, burst: i64) -> Rule {
    Rule::TokenBucket(TokenBucket { rate, per_ms: 3_600_000, burst, debt: 0, interval: false, empty: false })
}

fn window(limit: i64) -> Rule {
    Rule::FixedWindow(FixedWindow { limit, window_ms: 3_600_000, clock: false })
}

async fn kind(redis: &Redis, limit: &Arc<Limit>) -> Result<Decision, ErrorKind> {
    redis.decide(vec![check(limit, "all", 1)]).await.map_err(|error: StoreError| {
        assert_eq!(error.checks.len(), 1, "the checks come back");
        error.kind
    })
}

#[test]
fn decides_like_the_memory_store() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let mut seeded = support::seeded();
    let rng = &mut seeded.rng;
    for _ in 0..20 {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let memory = Memory::new(1_000_000);
        let mut now = 1_795_000_000_000;
        let limits: Vec<Arc<Limit>> = (0..NAMES.len() * 2)
            .map(|i| {
                let mode = if i == 0 { Mode::Shadow } else { Mode::Enforce };
                limit(&format!("limit-{i}"), minutes(support::random_rule(NAMES[i % NAMES.len()], rng), rng), mode)
            })
            .collect();
        for _ in 0..100 {
            now += rng.random_range(0..10_000);
            let decisions = support::random_decisions(&limits, 8, rng);
            let expected: Vec<Decision> = decisions.iter().map(|checks| memory.decide(checks, now)).collect();
            let slices: Vec<&[Check]> = decisions.iter().map(Vec::as_slice).collect();
            let reply = Call::new(&slices, now).eval().query(&mut client).unwrap();
            assert_eq!(decode(reply, decisions.iter().map(Vec::len)), Some(expected), "at {now}: {decisions:?}");
        }
        assert_keys_expire(&mut client, 2 * 86_400_000);
    }
}

/// The same rule over minutes: real time must not expire what the walk's time has not.
fn minutes(mut rule: Rule, rng: &mut impl Rng) -> Rule {
    let period = rng.random_range(60_000..600_000);
    match &mut rule {
        Rule::TokenBucket(rule) => {
            rule.per_ms = period;
            rule.burst = rule.burst.min(50);
            rule.debt = rule.debt.min(20);
        }
        Rule::FixedWindow(rule) => {
            rule.window_ms = period;
            rule.limit = rule.limit.min(100);
        }
    }
    rule
}

fn assert_keys_expire(client: &mut redis::Connection, most_ms: i64) -> usize {
    let keys: Vec<String> = client.keys("sg:*").unwrap();
    for key in &keys {
        let ttl: i64 = client.pttl(key).unwrap();
        assert!(ttl > 0 && ttl <= most_ms, "{key} lives for {ttl} ms");
    }
    keys.len()
}

/// Two gateways, each with its own thread and connection, and all requests at once.
fn two_gateways(server: &RedisServer, limits: &[Arc<Limit>], tasks: usize, rounds: usize) -> (i64, i64) {
    let url = server.url();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (url, limits) = (url.clone(), limits.to_vec());
            std::thread::spawn(move || worker(hammer(url, limits, tasks, rounds)))
        })
        .collect();
    let counts = threads.into_iter().map(|thread| thread.join().unwrap());
    counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

/// Admitted and refused.
async fn hammer(url: String, limits: Vec<Arc<Limit>>, tasks: usize, rounds: usize) -> (i64, i64) {
    let metrics = Metrics::new().unwrap();
    let redis = std::rc::Rc::new(connected(&url, &metrics, Duration::from_secs(5)).await);
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (redis, limits) = (redis.clone(), limits.clone());
        running.spawn_local(async move {
            let mut admitted = 0;
            for _ in 0..rounds {
                let checks = limits.iter().map(|limit| check(limit, "all", 1)).collect();
                let decision = redis.decide(checks).await.unwrap();
                assert_eq!(decision.admitted, decision.answers.iter().all(|answer| answer.admitted));
                admitted += i64::from(decision.admitted);
            }
            admitted
        });
    }
    let admitted = running.join_all().await.into_iter().sum();
    assert_eq!(metrics.store_up.get(), 1);
    (admitted, (tasks * rounds) as i64 - admitted)
}

#[test]
fn two_gateways_admit_exactly_the_limit() {
    let server = RedisServer::start(&[]);
    for rule in [bucket(1, 1000), window(1000)] {
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
        match &limit.rule {
            Rule::FixedWindow(_) => assert_eq!(charged, 300, "{}", limit.name),
            // One token an hour comes back: at most its first few thousandths.
            Rule::TokenBucket(rule) => assert_eq!((charged + rule.per_ms - 1) / rule.per_ms, 300, "{}", limit.name),
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
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connected(&server.url(), &metrics, Duration::from_secs(5)).await);
        let calls = metrics.store_batch_size.get_sample_count();
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let mut running = JoinSet::new();
        for _ in 0..1280 {
            let (redis, one) = (redis.clone(), one.clone());
            running.spawn_local(async move { redis.decide(vec![check(&one, "all", 1)]).await.unwrap() });
        }
        let mut left: Vec<i64> =
            running.join_all().await.iter().map(|decision| decision.answers[0].remaining).collect();
        left.sort_unstable();
        assert_eq!(left, (1_000_000 - 1280..1_000_000).collect::<Vec<i64>>());
        let calls = metrics.store_batch_size.get_sample_count() - calls;
        assert!((10..=11).contains(&calls), "{calls} calls");
    });
}

#[test]
fn a_full_queue_and_a_long_decision_are_bounded() {
    let server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connected(&server.url(), &metrics, Duration::from_secs(5)).await);
        let wide: Vec<Check> =
            (0..700).map(|i| check(&limit(&format!("l{i}"), window(9), Mode::Enforce), "all", 1)).collect();
        let (a, b) = tokio::join!(redis.decide(wide.clone()), redis.decide(wide));
        assert!(a.unwrap().admitted && b.unwrap().admitted);

        let one = limit("one", window(1_000_000), Mode::Enforce);
        let mut running = JoinSet::new();
        for _ in 0..6000 {
            let (redis, one) = (redis.clone(), one.clone());
            running.spawn_local(async move { kind(&redis, &one).await.map(|_| ()) });
        }
        let outcomes = running.join_all().await;
        let refused = outcomes.iter().filter(|outcome| **outcome == Err(ErrorKind::Overloaded)).count();
        assert_eq!(refused, 6000 - sluicegate::limit::store::redis::QUEUE_MAX);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(ErrorKind::Overloaded))));
        assert_eq!(metrics.store_error(ErrorKind::Overloaded).get(), refused as u64);
    });
}

/// Decides all the time for `span` from many tasks, and returns the longest wait with each outcome.
async fn under_load(redis: &std::rc::Rc<Redis>, span: Duration) -> (Duration, Vec<Result<(), ErrorKind>>) {
    let one = limit("load", window(1_000_000), Mode::Enforce);
    let mut running = JoinSet::new();
    for i in 0..20 {
        let (redis, one) = (redis.clone(), one.clone());
        running.spawn_local(async move {
            let (until, mut longest, mut outcomes) = (Instant::now() + span, Duration::ZERO, Vec::new());
            tokio::time::sleep(Duration::from_millis(3 * i)).await;
            while Instant::now() < until {
                let asked = Instant::now();
                outcomes.push(kind(&redis, &one).await.map(|_| ()));
                longest = longest.max(asked.elapsed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (longest, outcomes)
        });
    }
    let all = running.join_all().await;
    let longest = all.iter().map(|(longest, _)| *longest).max().unwrap();
    (longest, all.into_iter().flat_map(|(_, outcomes)| outcomes).collect())
}

fn kinds(outcomes: &[Result<(), ErrorKind>]) -> Vec<ErrorKind> {
    let mut kinds: Vec<ErrorKind> = outcomes.iter().filter_map(|outcome| outcome.err()).collect();
    kinds.sort_by_key(|kind| *kind as usize);
    kinds.dedup();
    kinds
}

#[test]
fn a_killed_server_is_noticed_at_once_and_found_again() {
    let mut server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connected(&server.url(), &metrics, DEADLINE).await);
        let before = metrics.store_error(ErrorKind::Disconnected).get();
        server.kill();
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(300)).await;
        assert!(longest < Duration::from_millis(30), "a decision waited {longest:?}");
        assert_eq!(kinds(&outcomes), [ErrorKind::Disconnected]);
        assert!(outcomes.iter().all(Result::is_err));
        assert_eq!(metrics.store_up.get(), 0);
        assert_eq!(metrics.store_error(ErrorKind::Disconnected).get(), before + outcomes.len() as u64);
        server.restart();
        let took = recovered(&redis).await;
        assert!(took < Duration::from_secs(2), "recovery took {took:?}");
        assert_eq!((metrics.store_up.get(), metrics.store_breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_stopped_server_delays_nobody_beyond_the_deadline() {
    let server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connected(&server.url(), &metrics, DEADLINE).await);
        server.signal("STOP");
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(1500)).await;
        assert!(longest < DEADLINE + SLACK, "a decision waited {longest:?}");
        assert_eq!(kinds(&outcomes)[0], ErrorKind::Timeout);
        assert!(outcomes.iter().all(Result::is_err));
        let timeouts = outcomes.iter().filter(|outcome| **outcome == Err(ErrorKind::Timeout)).count();
        assert!(timeouts < outcomes.len() / 10, "{timeouts} of {} waited in vain", outcomes.len());
        // The connection was given up: reconnecting goes on, and fails, without anyone waiting.
        assert_eq!(kind(&redis, &limit("one", window(9), Mode::Enforce)).await, Err(ErrorKind::Disconnected));
        server.signal("CONT");
        let took = recovered(&redis).await;
        assert!(took < Duration::from_millis(2500), "recovery took {took:?}");
        assert_eq!((metrics.store_up.get(), metrics.store_breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_short_pause_times_out_and_passes() {
    let server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = std::rc::Rc::new(connected(&server.url(), &metrics, DEADLINE).await);
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(250).arg("ALL").query(&mut server.client()).unwrap();
        let (longest, outcomes) = under_load(&redis, Duration::from_millis(230)).await;
        assert!(longest < DEADLINE + SLACK, "a decision waited {longest:?}");
        assert_eq!(kinds(&outcomes)[0], ErrorKind::Timeout);
        let took = recovered(&redis).await;
        assert!(took < Duration::from_secs(2), "recovery took {took:?}");
    });
}

/// The first outcome must be `expected`; the breaker then opens, and lets nobody wait.
async fn fails_with(redis: &Redis, expected: ErrorKind) {
    let one = limit("one", window(1_000_000), Mode::Enforce);
    for _ in 0..3 {
        assert_eq!(kind(redis, &one).await, Err(expected));
    }
    let next = kind(redis, &one).await;
    assert!(next == Err(ErrorKind::BreakerOpen) || next == Err(ErrorKind::Disconnected), "{next:?}");
}

#[test]
fn out_of_memory() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connected(&server.url(), &metrics, DEADLINE).await;
        let mut client = server.client();
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut client).unwrap();
        fails_with(&redis, ErrorKind::OutOfMemory).await;
        assert_eq!((metrics.store_up.get(), metrics.store_breaker_state.get()), (0, 2));
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).query(&mut client).unwrap();
        assert!(recovered(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn blocked_by_a_script() {
    let server = RedisServer::start(&["--busy-reply-threshold", "5"]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connected(&server.url(), &metrics, Duration::from_secs(2)).await;
        let mut client = server.client();
        let blocker = std::thread::spawn(move || {
            redis::cmd("EVAL").arg("while true do end").arg(0).query::<redis::Value>(&mut client).unwrap_err()
        });
        let one = limit("one", window(1_000_000), Mode::Enforce);
        while kind(&redis, &one).await.is_ok() {}
        let next = kind(&redis, &one).await;
        assert_eq!(next, Err(ErrorKind::Busy));
        let mut client = server.client();
        let () = redis::cmd("SCRIPT").arg("KILL").query(&mut client).unwrap();
        blocker.join().unwrap();
        assert_eq!(metrics.store_error(ErrorKind::Busy).get(), 2);
        assert!(recovered(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn a_replica_takes_no_charge() {
    let server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connected(&server.url(), &metrics, DEADLINE).await;
        let mut client = server.client();
        let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut client).unwrap();
        fails_with(&redis, ErrorKind::Readonly).await;
        let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut client).unwrap();
        assert!(recovered(&redis).await < Duration::from_secs(2));
    });
}

#[test]
fn missing_and_wrong_passwords() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    worker(async {
        let with = |login: &str| server.url().replace("//", &format!("//{login}"));
        for url in [server.url(), with(":wrong@"), with("nobody:right@")] {
            let metrics = Metrics::new().unwrap();
            let redis = Redis::connect(&settings(DEADLINE), &url, &metrics);
            let one = limit("one", window(9), Mode::Enforce);
            let until = Instant::now() + Duration::from_secs(5);
            while kind(&redis, &one).await != Err(ErrorKind::Denied) {
                assert!(Instant::now() < until, "never denied");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(metrics.store_up.get(), i64::from(url == server.url()));
        }
        connected(&with(":right@"), &Metrics::new().unwrap(), DEADLINE).await;
    });
}

#[test]
fn loading_its_data() {
    let mut server = RedisServer::start(&[]);
    worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = connected(&server.url(), &metrics, Duration::from_millis(500)).await;
        let mut client = server.client();
        let () = redis::cmd("DEBUG").arg("POPULATE").arg(20_000).query(&mut client).unwrap();
        let () = redis::cmd("SAVE").query(&mut client).unwrap();
        server.kill();
        server.restart_with(&["--key-load-delay", "100", "--loading-process-events-interval-bytes", "2048"]);
        let one = limit("one", window(9), Mode::Enforce);
        let until = Instant::now() + Duration::from_secs(10);
        while kind(&redis, &one).await != Err(ErrorKind::Loading) {
            assert!(Instant::now() < until, "never seen loading");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        recovered(&redis).await;
    });
}

#[test]
fn state_of_another_form_counts_as_none() {
    let server = RedisServer::start(&[]);
    worker(async {
        let redis = connected(&server.url(), &Metrics::new().unwrap(), DEADLINE).await;
        let mut client = server.client();
        let one = limit("one", window(10), Mode::Enforce);
        let two = limit("two", bucket(1, 10), Mode::Enforce);
        for text in ["", "x", "1", "-1 5 9", "1 2 3 4", "1e3 2 3", "0x1 2 3", "5 5 0", "nan 1 1", "1 2 3\n", "1  2"] {
            for limit in [&one, &two] {
                let key = check(limit, "all", 1).key;
                let () = client.set(&key, text).unwrap();
                let decision = redis.decide(vec![check(limit, "all", 1)]).await.unwrap();
                assert_eq!((decision.admitted, decision.answers[0].remaining), (true, 9), "{text:?}");
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
fn an_address_that_cannot_be_read_or_reached() {
    worker(async {
        let metrics = Metrics::new().unwrap();
        for url in ["no url", "redis://127.0.0.1:1/"] {
            let redis = Redis::connect(&settings(DEADLINE), url, &metrics);
            let one = limit("one", window(9), Mode::Enforce);
            assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Disconnected));
            assert_eq!(metrics.store_up.get(), 0);
        }
    });
}
