//! Tasks of the gateway that panic: nothing is admitted because of that, and they are restarted.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sluicegate::limiting::decision::{ErrorKind, LimitRef, Op};
use sluicegate::limiting::limit::charge_rules::ChargeRules;
use sluicegate::limiting::limit::{Limit, Mode, OnError};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::{Store, Stores};
use sluicegate::limiting::{Evaluation, Limiter};
use sluicegate::telemetry::metrics::Metrics;
use tokio::task::LocalSet;

use crate::support::limiting::rules::{leases, window};
use crate::support::limiting::{RedisServer, check, connect_store, kind, limit, run_on_worker};

const DEADLINE: Duration = Duration::from_secs(10);

/// A client of the store that fails in the task which brings its response.
struct Poison;

impl Wake for Poison {
    fn wake(self: Arc<Self>) {
        panic!("a panic of the test");
    }
}

#[test]
fn a_failed_pump_is_restarted() {
    let server = RedisServer::start(&[]);
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let redis = Rc::new(connect_store(&server.url(), &metrics, DEADLINE).await);
        let one = limit("one", window(1_000_000), Mode::Enforce);
        for round in 1..=5 {
            let poisoned = vec![check(&one, "all", 1)].into();
            let mut poisoned = pin!(redis.run(Op::Take, &poisoned));
            let waker = Waker::from(Arc::new(Poison));
            assert!(poisoned.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            // A decision in the same call fails at once, with any error.
            let started = Instant::now();
            let beside = kind(&redis, &one).await;
            assert!(beside.is_ok() || beside == Err(ErrorKind::Internal), "{beside:?}");
            assert!(started.elapsed() < DEADLINE / 2, "{:?}", started.elapsed());
            let next = kind(&redis, &one).await;
            assert!(next.is_ok(), "{next:?}");
            assert_eq!(metrics.store.task_restarts.get(), round);
        }
        assert_eq!((metrics.store.up.get(), metrics.store.breaker_state.get()), (1, 0));
    });
}

fn held(name: &str, on_error: OnError) -> Arc<Limit> {
    let rule = leases(5, 60_000);
    let wanted = ChargeRules::for_rule(&rule).unless_default();
    let mut held = Arc::into_inner(limit(name, rule, Mode::Enforce)).unwrap();
    (held.on_error, held.charge_rules) = (on_error, wanted.map(Arc::new));
    held.store_ref = LimitRef::new(name, &held.cost, held.charge_rules.as_ref(), None);
    Arc::new(held)
}

#[test]
fn a_decision_whose_task_is_lost_follows_on_error() {
    let server = RedisServer::start(&[]);
    let metrics = Metrics::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let worker = LocalSet::new();
    let redis = Rc::new(runtime.block_on(worker.run_until(connect_store(&server.url(), &metrics, DEADLINE))));
    let memory = Arc::new(MemoryStore::new(1000));
    let limiter = Limiter::new(Store::Redis(redis), None, &Stores::new(memory.clone(), &metrics), "sg");
    let internal = metrics.store_error_counter(ErrorKind::Internal.label());
    for (lost, (on_error, refused)) in
        [(OnError::Closed, true), (OnError::Open, false), (OnError::Local, false)].into_iter().enumerate()
    {
        let limits = [held("lost", on_error)];
        let checks = vec![Evaluation::Check(check(&limits[0], "all", 1))];
        let mut decision = pin!(limiter.decide(Op::Take, &limits, checks, true));
        // The blocking task is lost together with the set in which it runs.
        let tasks = LocalSet::new();
        let begun = poll_fn(|cx| Poll::Ready(decision.as_mut().poll(cx)));
        assert!(runtime.block_on(tasks.run_until(begun)).is_pending());
        drop(tasks);
        let verdict = runtime.block_on(worker.run_until(decision));
        assert_eq!((verdict.refused, verdict.checks.len()), (refused, 1), "{on_error:?}: {verdict:?}");
        assert_eq!(internal.get(), lost as u64 + 1);
    }
}
