//! Redis some milliseconds away: a decision takes one round trip, and a near Redis gets no more calls.

use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::Rng;
use sluicegate::limiting::decision::ErrorKind;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::{JoinSet, yield_now};

use crate::support::limiting::rules::window;
use crate::support::limiting::slow_link::DelayLine;
use crate::support::limiting::{RedisServer, connect_store, kind, limit, run_on_worker, settings, wait_until};
use crate::support::machine::Lateness;

const EACH_WAY: Duration = Duration::from_millis(10);
/// Default of `deadline` in `[store]`.
const DEADLINE: Duration = Duration::from_millis(30);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Measures the round trip of one command at a time.
fn round_trip(port: u16) -> Duration {
    let mut client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap().get_connection().unwrap();
    let ping = || {
        let sent = Instant::now();
        let () = redis::cmd("PING").query(&mut client).unwrap();
        sent.elapsed()
    };
    median(std::iter::repeat_with(ping).take(15).collect())
}

/// Makes decisions on 50 connections for `span`. Returns how long each took, and the errors.
async fn run_load(redis: &Rc<RedisStore>, span: Duration) -> (Vec<Duration>, Vec<ErrorKind>) {
    let one = limit("one", window(1_000_000), Mode::Enforce);
    let deadline = Instant::now() + span;
    let mut clients = JoinSet::new();
    for number in 0..50 {
        let (redis, one) = (redis.clone(), one.clone());
        clients.spawn_local(async move {
            let (mut times, mut failures) = (Vec::new(), Vec::new());
            tokio::time::sleep(Duration::from_micros(number * 900)).await;
            while Instant::now() < deadline {
                let started = Instant::now();
                let failure = kind(&redis, &one).await.err();
                times.push(started.elapsed());
                if let Some(failure) = failure {
                    failures.push(failure);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            (times, failures)
        });
    }
    let (times, failures): (Vec<_>, Vec<_>) = clients.join_all().await.into_iter().unzip();
    (times.concat(), failures.concat())
}

#[test]
fn a_decision_waits_about_one_round_trip() {
    let server = RedisServer::start(&[]);
    let line = DelayLine::to(server.port, EACH_WAY);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&line.redis_url(), &metrics, DEADLINE).await);
        // The deadline leaves 10 ms, which only a machine with longer delays may sometimes exceed.
        let mut seen = Vec::new();
        for _ in 0..5 {
            let trip = {
                let port = line.port;
                tokio::task::spawn_blocking(move || round_trip(port)).await.unwrap()
            };
            let lateness = Lateness::watch();
            let (times, failures) = run_load(&redis, Duration::from_millis(700)).await;
            let (count, p50) = (times.len(), median(times));
            let own = lateness.allowance() > DEADLINE - 2 * EACH_WAY && failures.len() * 10 <= count;
            if (failures.is_empty() || own) && p50 <= trip.mul_f64(1.3) {
                assert!(count > 500, "{count} decisions");
                return;
            }
            seen.push((p50, trip, failures.len(), count));
        }
        panic!("median, round trip, failures, decisions: {seen:?}");
    });
}

/// Makes 50 decisions at once, and returns the errors.
async fn round(redis: &Rc<RedisStore>) -> Vec<ErrorKind> {
    let one = limit("one", window(1_000_000), Mode::Enforce);
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let (redis, one) = (redis.clone(), one.clone());
        clients.spawn_local(async move { kind(&redis, &one).await.err() });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// A Redis server without the script gets it with the next round trip, and two round trips exceed the deadline.
#[test]
fn a_server_gets_the_script_before_the_first_decision() {
    // All times are five times as long as above, to tolerate a busy machine.
    let (each_way, deadline) = (EACH_WAY * 5, DEADLINE * 5);
    let server = RedisServer::start(&[]);
    let line = DelayLine::to(server.port, each_way);
    let flush = || redis::cmd("SCRIPT").arg("FLUSH").query::<()>(&mut server.client()).unwrap();
    run_on_worker(async {
        let mut seen = Vec::new();
        for _ in 0..3 {
            flush();
            let metrics = Metrics::new().unwrap();
            let redis = RedisStore::connect(&settings(deadline), &line.redis_url(), &metrics, &Default::default());
            redis.wait_first_attempt().await;
            assert_eq!(metrics.store.up.get(), 1);
            let (redis, lateness) = (Rc::new(redis), Lateness::watch());
            let first = round(&redis).await;
            // If the server loses the script later, the decisions that fail for this reason send it again.
            flush();
            let (late, next) = (round(&redis).await, round(&redis).await);
            if first.is_empty() && next.is_empty() {
                assert!(late.iter().all(|kind| *kind == ErrorKind::Timeout), "{late:?}");
                return;
            }
            assert!(lateness.allowance() > deadline - 2 * each_way, "{first:?}, then {next:?}");
            seen.push((first, next));
        }
        panic!("failures at the first round, and after one that was late: {seen:?}");
    });
}

#[test]
fn decisions_share_calls_to_a_near_redis() {
    const CLIENTS: u64 = 64;
    const EACH: u64 = 100;
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(5)).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let calls = metrics.store.batch_size.get_sample_count();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (redis, one) = (redis.clone(), one.clone());
            clients.spawn_local(async move {
                for _ in 0..EACH {
                    kind(&redis, &one).await.unwrap();
                    // They do not start in step.
                    for _ in 0..rand::rng().random_range(0..20) {
                        yield_now().await;
                    }
                }
            });
        }
        clients.join_all().await;
        let calls = metrics.store.batch_size.get_sample_count() - calls;
        let per_decision = calls as f64 / (CLIENTS * EACH) as f64;
        assert!(per_decision < 0.2, "{per_decision} calls per decision");
    });
}

/// The metric that distinguishes a slow server from a gateway that waits for it.
#[test]
fn the_wait_before_a_call_is_shown_apart_from_the_call() {
    // Maximum number of concurrent calls.
    const CALLS: u64 = 32;
    const WAIT: Duration = Duration::from_millis(100);
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(10)).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        kind(&redis, &one).await.unwrap();
        let queue = &metrics.store.queue_duration;
        let fetch = || {
            let (redis, one) = (redis.clone(), one.clone());
            tokio::task::spawn_local(async move { kind(&redis, &one).await.unwrap() })
        };
        let client = |words: &[&str]| redis::cmd("CLIENT").arg(words).query::<()>(&mut server.client()).unwrap();
        client(&["PAUSE", "20000", "WRITE"]);
        let (before, mut decisions) = (queue.get_sample_count(), Vec::new());
        for call in 1..=CALLS {
            decisions.push(fetch());
            wait_until("a call has left", || queue.get_sample_count() == before + call).await;
        }
        let (waited, last) = (queue.get_sample_sum(), fetch());
        tokio::time::sleep(WAIT).await;
        assert_eq!(queue.get_sample_count(), before + CALLS, "the last one waits");
        client(&["UNPAUSE"]);
        for decision in decisions.into_iter().chain([last]) {
            decision.await.unwrap();
        }
        let waited = queue.get_sample_sum() - waited;
        assert!(queue.get_sample_count() == before + CALLS + 1 && waited >= WAIT.as_secs_f64(), "{waited} s");
    });
}

#[test]
fn a_full_call_does_not_wait_for_the_one_before() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, Duration::from_secs(10)).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(500).arg("ALL").query(&mut server.client()).unwrap();
        let (answered, left) =
            (|| metrics.store.duration.get_sample_count(), || metrics.store.batch_size.get_sample_count());
        let (before, before_left) = (answered(), left());
        let mut clients = JoinSet::new();
        for _ in 0..1280 {
            let (redis, one) = (redis.clone(), one.clone());
            clients.spawn_local(async move { kind(&redis, &one).await.unwrap() });
        }
        yield_now().await;
        // All of them are sent, and no response has arrived.
        let deadline = Instant::now() + Duration::from_millis(400);
        while left() < before_left + 10 && Instant::now() < deadline {
            yield_now().await;
        }
        assert_eq!((left() - before_left, answered()), (10, before));
        clients.join_all().await;
    });
}
