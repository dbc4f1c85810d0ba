//! Floods of requests: a worker that cannot keep up makes decisions later, but by the limits, because Redis is healthy.

use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use sluicegate::limiting::decision::ErrorKind;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::{JoinSet, yield_now};

use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, get, read};
use crate::support::limiting::rules::window;
use crate::support::limiting::{RedisServer, connect_store, kind, limit, run_on_worker};

/// Default of `deadline` in `[store]`.
const DEADLINE: Duration = Duration::from_millis(30);

/// Makes each turn of the worker's event loop take `turn`.
fn keep_busy(turn: Duration) -> JoinSet<()> {
    let mut busy = JoinSet::new();
    busy.spawn_local(async move {
        loop {
            thread::sleep(turn);
            yield_now().await;
        }
    });
    busy
}

/// Makes `count` decisions at once. Returns whether each was admitted.
async fn decide_at_once(redis: &Rc<RedisStore>, count: usize) -> Vec<Result<bool, ErrorKind>> {
    let one = limit("one", window(50), Mode::Enforce);
    let mut running = JoinSet::new();
    for _ in 0..count {
        let (redis, one) = (redis.clone(), one.clone());
        running.spawn_local(async move { kind(&redis, &one).await.map(|decision| decision.admitted) });
    }
    running.join_all().await
}

#[test]
fn a_worker_that_is_late_does_not_blame_redis() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        // The next turn of the event loop is always later than the deadline of every decision.
        let _busy = keep_busy(DEADLINE * 2);
        let (first, second) = tokio::join!(decide_at_once(&redis, 500), async {
            yield_now().await;
            decide_at_once(&redis, 500).await
        });
        let outcomes = [first, second].concat();
        assert_eq!(outcomes.iter().find(|outcome| outcome.is_err()), None);
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(true)).count(), 50);
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
    });
}

#[test]
fn a_worker_that_is_late_still_finds_that_redis_hangs() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        let _busy = keep_busy(DEADLINE / 3);
        server.signal("STOP");
        let started = Instant::now();
        while metrics.store.up.get() == 1 {
            let outcomes = decide_at_once(&redis, 300).await;
            assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
            assert!(started.elapsed() < Duration::from_secs(10), "the breaker is still closed");
        }
        server.signal("CONT");
    });
}

/// Sends requests on one connection, a hundred at a time. Returns how many were admitted.
fn flood(address: SocketAddr) -> usize {
    let client = H2Client::connect(address);
    let mut sender = client.sender();
    client.run(async {
        let mut admitted = 0;
        for _ in 0..3 {
            let mut responses = Vec::new();
            for _ in 0..100 {
                sender = sender.ready().await.unwrap();
                responses.push(sender.send_request(get("/"), true).unwrap().0);
            }
            for response in responses {
                let status = read(response).await.unwrap().status();
                assert!(status == 200 || status == 429, "{status}");
                admitted += usize::from(status == 200);
            }
        }
        admitted
    })
}

#[test]
fn a_flood_of_requests_gets_no_more_than_the_limit() {
    let server = RedisServer::start(&[]);
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\non_error = \"open\"\n\n[[route]]\nrespond = {{ body = \"in\" }}\n\
         limits = [\"all\", \"each\"]\n\n[limit.all]\nalgorithm = \"fixed_window\"\nrate = \"50/day\"\n\
         key = \"all\"\n\n[limit.each]\nalgorithm = \"fixed_window\"\nrate = \"1000000/day\"\nkey = \"ip\"\n",
        server.url()
    ));
    gateway.wait_for_store();
    let address = gateway.listeners()[0];
    let clients: Vec<_> = (0..20).map(|_| thread::spawn(move || flood(address))).collect();
    let admitted: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(admitted, 50, "{}", gateway.metrics());
    gateway.assert_metric("store_breaker_state", &[], 0.0);
}
