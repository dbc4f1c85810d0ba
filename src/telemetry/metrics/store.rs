//! Health of the store as all workers see it. Each worker has its own connection and circuit breaker. The gauges show
//! the worst state, and only a change of the overall state is logged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::telemetry::metrics::counter::Counters;
use crate::telemetry::metrics::families::Families;

/// Gauges of how many gateways share the store. `limiting::gateways` counts them and sets the gauges.
#[derive(Clone, Debug)]
pub struct GatewayGauges {
    /// Number of gateways that currently report to the store; 0 until the first report.
    pub alive: IntGauge,
    /// Number of gateways that budgets are divided by while the store is unavailable.
    pub divisor: IntGauge,
}

impl GatewayGauges {
    pub fn new(families: &Families) -> prometheus::Result<GatewayGauges> {
        Ok(GatewayGauges {
            alive: families
                .gauge("store_gateways", "Number of gateways that share the store; 0 if none has reported.")?,
            divisor: families
                .gauge("store_local_divisor", "Number by which limits are divided while the store is unavailable.")?,
        })
    }
}

/// Families of the limit store.
#[derive(Clone)]
pub struct StoreMetrics {
    pub up: IntGauge,
    pub duration: Histogram,
    /// Time that the oldest decision of each store call waited in the queue.
    pub queue_duration: Histogram,
    pub batch_size: Histogram,
    /// Restarts of store tasks after a panic.
    pub task_restarts: IntCounter,
    /// Refunds and corrections that wait for the store.
    pub corrections_waiting: IntGauge,
    /// Refunds and corrections that were dropped because the backlog was full.
    pub corrections_dropped: IntCounter,
    /// State of the circuit breaker: 0 closed, 1 half open, 2 open.
    pub breaker_state: IntGauge,
    /// The store as each worker sees it; the two gauges show the worst state.
    pub health: Arc<StoreHealth>,
    pub evictions: IntCounterVec,
    /// Keys that have leases.
    pub hot_keys: IntGauge,
    /// Active live overrides, by limit.
    pub live_overrides: IntGaugeVec,
    /// Entries of the hashes with live overrides that have mistakes, by limit.
    pub rejected_overrides: IntGaugeVec,
    /// Active overrides of files, by limit.
    pub file_overrides: IntGaugeVec,
    /// Lines of files with overrides that have mistakes, by limit.
    pub rejected_rows: IntGaugeVec,
    /// Rows of the files of sets that are skipped.
    pub rejected_set_rows: IntGaugeVec,
    /// Decisions whose usage by day could not be kept, by limit.
    pub usage_lost: IntCounterVec,
    /// 1 if Redis may evict budgets in use.
    pub may_evict: IntGauge,
    pub(super) errors: IntCounterVec,
    pub(super) denial_cache_hits: Counters,
}

const STORE_BUCKETS: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5];
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

impl StoreMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<StoreMetrics> {
        let up = families.gauge("store_up", "1 if the limit store is available, else 0.")?;
        let breaker_state =
            families.gauge("store_breaker_state", "State of the circuit breaker: 0 closed, 1 half open, 2 open.")?;
        Ok(StoreMetrics {
            duration: families.histogram(
                "store_request_duration_seconds",
                "Duration of one store call in seconds.",
                STORE_BUCKETS,
            )?,
            queue_duration: families.histogram(
                "store_queue_duration_seconds",
                "Time that the oldest decision of a store call waited before the call was sent.",
                STORE_BUCKETS,
            )?,
            batch_size: families.histogram(
                "store_batch_size",
                "Number of decisions in one store call.",
                BATCH_BUCKETS,
            )?,
            task_restarts: families
                .counter("store_task_restarts_total", "Store tasks that panicked and were restarted.")?,
            corrections_waiting: families
                .gauge("store_corrections_waiting", "Slots, refunds and settlements waiting for the store.")?,
            corrections_dropped: families.counter(
                "store_corrections_dropped_total",
                "Slots, refunds and settlements that the store did not get: too many waited, for too long, or with an unknown outcome.",
            )?,
            health: Arc::new(StoreHealth::new(up.clone(), breaker_state.clone())),
            up,
            breaker_state,
            evictions: families.counters(
                "store_evictions_total",
                "Keys in use that were evicted because all keys in memory were used up, by the limit of the evicted key.",
                &["limit"],
            )?,
            hot_keys: families.gauge("store_hot_keys", "Keys that this gateway has leases of, or requests some.")?,
            live_overrides: families.gauges("live_overrides", "Active live overrides.", &["limit"])?,
            rejected_overrides: families.gauges(
                "live_overrides_rejected",
                "Live overrides that are not active because of an error; 1 if none of the limit can be read.",
                &["limit"],
            )?,
            file_overrides: families.gauges("override_file_rows", "Active overrides of files.", &["limit"])?,
            rejected_rows: families.gauges(
                "override_file_rejected",
                "Lines of files with overrides that are skipped because of an error; 1 if the file cannot be read.",
                &["limit"],
            )?,
            rejected_set_rows: families.gauges(
                "set_file_rejected",
                "Rows of the files of sets that are skipped because of an error.",
                &["set"],
            )?,
            usage_lost: families.counters(
                "usage_lost_total",
                "Decisions of limits with `usage` that are missing in the usage by day, because too many keys wait for the store.",
                &["limit"],
            )?,
            may_evict: families.gauge(
                "store_may_evict",
                "1 if Redis has a maxmemory-policy other than noeviction, so that it may evict budgets in use, else 0.",
            )?,
            errors: families.counters("store_errors_total", "Decisions that the store failed to make.", &["kind"])?,
            denial_cache_hits: families.sharded_counters(
                "store_denial_cache_hits_total",
                "Requests refused without a store call, because an earlier refusal still applies.",
                &[],
            )?,
        })
    }
}

pub struct StoreHealth {
    views: Mutex<Views>,
    up: IntGauge,
    breaker: IntGauge,
}

/// Maximum number of different reasons logged per outage.
const REASONS_MAX: usize = 8;

#[derive(Default)]
struct Views {
    next: u64,
    workers: HashMap<u64, HealthView>,
    /// The state that was logged last.
    announced: Option<bool>,
    /// Reasons logged since the store became unavailable, at most [`REASONS_MAX`].
    reasons: Vec<String>,
    /// The last reason for which a worker could not use the store.
    last_reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
struct HealthView {
    up: bool,
    breaker: i64,
}

/// One worker's view of the store. It no longer counts once dropped.
pub struct StoreView {
    health: Arc<StoreHealth>,
    id: u64,
}

impl StoreHealth {
    pub fn new(up: IntGauge, breaker: IntGauge) -> StoreHealth {
        let health = StoreHealth { views: Mutex::default(), up, breaker };
        health.update_gauges(&Views::default());
        health
    }

    /// Adds a worker, whose view is "connecting" until it reports another.
    pub fn add_view(self: &Arc<Self>) -> StoreView {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.next += 1;
        let id = views.next;
        views.workers.insert(id, HealthView { up: false, breaker: 0 });
        self.update_gauges(&views);
        StoreView { health: self.clone(), id }
    }

    /// Returns the last reason for which a worker could not use the store, without secrets.
    pub fn last_reason(&self) -> Option<String> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).last_reason.clone()
    }

    /// Updates the gauges. Without any worker, the store is the embedded one, which is always available.
    fn update_gauges(&self, views: &Views) {
        self.up.set(i64::from(views.workers.values().all(|view| view.up)));
        self.breaker.set(views.workers.values().map(|view| view.breaker).max().unwrap_or(0));
    }
}

impl Views {
    /// Returns whether this reason is new in this outage, and remembers it. The first error of an interrupted
    /// connection often hides the cause, such as a wrong password, which the next attempt reports.
    fn is_new_reason(&mut self, why: &str) -> bool {
        let is_news =
            !why.is_empty() && self.reasons.len() < REASONS_MAX && self.reasons.iter().all(|reported| reported != why);
        if is_news {
            self.reasons.push(why.to_owned());
        }
        is_news
    }
}

impl StoreView {
    /// Reports this worker's view. `why` is the error, without secrets.
    pub fn report(&self, up: bool, breaker: i64, why: &str) {
        let mut views = self.health.views.lock().unwrap_or_else(PoisonError::into_inner);
        if !up && !why.is_empty() && views.last_reason.as_deref() != Some(why) {
            views.last_reason = Some(why.to_owned());
        }
        if views.announced == Some(false) && !up && views.is_new_reason(why) {
            tracing::warn!(error = why, "the limit store is still unavailable, for another reason");
        }
        // A handle that was opened with a new config may fail from its first attempt on.
        let is_news = views.announced == Some(true) && !up && !why.is_empty();
        if views.workers.insert(self.id, HealthView { up, breaker }) == Some(HealthView { up, breaker })
            && views.announced.is_some()
            && !is_news
        {
            return;
        }
        self.health.update_gauges(&views);
        let all_up = views.workers.values().all(|view| view.up);
        // A worker that is still connecting does not make the store unavailable.
        if views.announced == Some(all_up) || (up && !all_up) {
            return;
        }
        views.announced = Some(all_up);
        if all_up {
            views.reasons.clear();
            tracing::info!("the limit store is available");
        } else {
            views.is_new_reason(why);
            tracing::warn!(
                error = why,
                "the limit store is unavailable: limits follow their on_error until it recovers"
            );
        }
    }
}

impl Drop for StoreView {
    fn drop(&mut self) {
        let mut views = self.health.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.workers.remove(&self.id);
        self.health.update_gauges(&views);
    }
}
