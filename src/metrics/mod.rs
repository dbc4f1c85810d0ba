//! Every metric family, registered once for the life of the process. Labels come from config names
//! and closed enums, never from request bytes, so the number of series is bounded by the config.

mod counter;
mod counts;
mod gateways;
mod labels;
mod process;
mod record;
mod routes;
mod shards;
pub(crate) mod shown;
mod store;
mod tls;

pub use counter::Counter;
use counter::Counters;
pub use counts::{Code, LimitCounts, RouteCounts};
use gateways::GatewayGauges;
pub use gateways::{Claim, GATEWAYS_MAX, GATEWAYS_REMEMBERED, Gateways};
pub use labels::{
    Cutoff, Decision, HandshakeResult, OrderResult, Protocol, Reason, Rejection, RetryReason, SpanResult,
    UpstreamOutcome,
};
use process::ProcessNumbers;
pub use record::{LimitRecord, RouteRecord};
use routes::{Routes, Scrape};
pub use shards::Shard;
pub use store::{StoreHealth, StoreView};
pub use tls::{HandshakeCounters, TlsMetrics};

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// The families. Cheap to clone: all clones count together, each thread on a clone of its own.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Whose part of the counts that workers keep for themselves.
    worker: usize,
    /// What is counted by route.
    pub routes: Arc<Routes>,
    http_rejected: IntCounterVec,
    http_would_reject: IntCounterVec,
    upstream_requests: Counters,
    upstream_retries: Counters,
    upstream_retries_over_budget: Counters,
    connections: IntGaugeVec,
    pub tls: TlsMetrics,
    /// Connections that have switched protocols.
    pub tunnels: IntGauge,
    config_info: IntGaugeVec,
    config_reloads: IntCounterVec,
    store_errors: IntCounterVec,
    /// Lines of the access log that found no room.
    pub access_log_dropped: IntCounter,
    /// And such that could not be written.
    pub access_log_write_errors: IntCounter,
    spans: IntCounterVec,
    /// 1 while the last config load succeeded.
    pub reload_successful: IntGauge,
    pub reload_success_timestamp: Gauge,
    pub store_up: IntGauge,
    pub store_duration: Histogram,
    /// Of the oldest decision of each call.
    pub store_queue_duration: Histogram,
    pub store_batch_size: Histogram,
    /// Tasks that failed and were started anew.
    pub store_task_restarts: IntCounter,
    /// What could not be given back yet.
    pub store_corrections_waiting: IntGauge,
    /// And what found no room to wait.
    pub store_corrections_dropped: IntCounter,
    /// 0 closed, 1 half open, 2 open.
    pub store_breaker_state: IntGauge,
    /// What each worker sees of the store; the two gauges show the worst of it.
    pub store_health: Arc<StoreHealth>,
    store_denial_cache_hits: Counters,
    pub store_evictions: IntCounterVec,
    /// By listener.
    forwarding_ignored: Counters,
    /// How many gateways share the store.
    pub gateways: Arc<Gateways>,
}

const STORE_BUCKETS: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5];
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

impl Metrics {
    /// Registers every family in a registry of its own.
    pub fn new() -> prometheus::Result<Metrics> {
        let r = Registry::new();
        let store_up = registered(&r, IntGauge::with_opts(opts("store_up", "1 if the limit store answers, else 0."))?)?;
        let store_breaker_state =
            registered(&r, IntGauge::with_opts(opts("store_breaker_state", "0 closed, 1 half open, 2 open."))?)?;
        let routes = Arc::<Routes>::default();
        r.register(Box::new(Scrape::new(routes.clone())?))?;
        r.register(Box::new(ProcessNumbers::new()?))?;
        let metrics = Metrics {
            routes,
            worker: 0,
            http_rejected: counters(
                &r,
                "http_rejected_total",
                "Requests and connections refused before routing.",
                &["reason"],
            )?,
            http_would_reject: counters(
                &r,
                "http_would_reject_total",
                "Requests that only strictness = \"monitor\" let pass.",
                &["reason"],
            )?,
            upstream_requests: registered(
                &r,
                Counters::new(
                    "upstream_requests_total",
                    "Requests to upstreams, by outcome.",
                    &["outcome", "upstream"],
                )?,
            )?,
            upstream_retries: registered(
                &r,
                Counters::new(
                    "upstream_retries_total",
                    "Requests sent to an upstream once more.",
                    &["reason", "upstream"],
                )?,
            )?,
            upstream_retries_over_budget: registered(
                &r,
                Counters::new(
                    "upstream_retries_over_budget_total",
                    "Requests not sent to an upstream once more because too many were.",
                    &["upstream"],
                )?,
            )?,
            connections: gauges(&r, "connections", "Open client connections.", &["listener", "protocol"])?,
            tls: TlsMetrics::new(&r)?,
            tunnels: registered(
                &r,
                IntGauge::with_opts(opts("tunnels", "Open connections that have switched protocols."))?,
            )?,
            config_info: gauges(&r, "config_info", "The config in force.", &["hash", "generation"])?,
            config_reloads: counters(
                &r,
                "config_reloads_total",
                "Config loads after the start.",
                &["result", "trigger"],
            )?,
            store_errors: counters(&r, "store_errors_total", "Decisions the store did not answer.", &["kind"])?,
            access_log_dropped: registered(
                &r,
                IntCounter::with_opts(opts(
                    "access_log_dropped_total",
                    "Lines of the access log dropped because its file or standard output is too slow.",
                ))?,
            )?,
            spans: counters(&r, "spans_total", "Spans of sampled requests by what became of them.", &["result"])?,
            access_log_write_errors: registered(
                &r,
                IntCounter::with_opts(opts(
                    "access_log_write_errors_total",
                    "Lines of the access log lost because its file or standard output could not be written.",
                ))?,
            )?,
            reload_successful: registered(
                &r,
                IntGauge::with_opts(opts(
                    "config_last_reload_successful",
                    "1 if the last config load succeeded, else 0.",
                ))?,
            )?,
            reload_success_timestamp: registered(
                &r,
                Gauge::with_opts(opts(
                    "config_last_reload_success_timestamp_seconds",
                    "When a config was last loaded, Unix time.",
                ))?,
            )?,
            store_duration: registered(
                &r,
                Histogram::with_opts(histogram(
                    "store_request_duration_seconds",
                    "Time of one store call.",
                    STORE_BUCKETS,
                ))?,
            )?,
            store_queue_duration: registered(
                &r,
                Histogram::with_opts(histogram(
                    "store_queue_duration_seconds",
                    "Wait of the oldest decision of a store call before the call leaves.",
                    STORE_BUCKETS,
                ))?,
            )?,
            store_task_restarts: registered(
                &r,
                IntCounter::with_opts(opts(
                    "store_task_restarts_total",
                    "Tasks around the store that failed by a fault of ours and were started anew.",
                ))?,
            )?,
            store_corrections_waiting: registered(
                &r,
                IntGauge::with_opts(opts(
                    "store_corrections_waiting",
                    "Slots and refunds that wait to be given back to the store.",
                ))?,
            )?,
            store_corrections_dropped: registered(
                &r,
                IntCounter::with_opts(opts(
                    "store_corrections_dropped_total",
                    "Slots and refunds not given back because too many waited for the store.",
                ))?,
            )?,
            store_batch_size: registered(
                &r,
                Histogram::with_opts(histogram(
                    "store_batch_size",
                    "Decisions carried by one store call.",
                    BATCH_BUCKETS,
                ))?,
            )?,
            store_health: Arc::new(StoreHealth::new(store_up.clone(), store_breaker_state.clone())),
            store_up,
            store_breaker_state,
            store_denial_cache_hits: registered(
                &r,
                Counters::new(
                    "store_denial_cache_hits_total",
                    "Requests refused without a store call, by a refusal that still holds.",
                    &[],
                )?,
            )?,
            forwarding_ignored: registered(
                &r,
                Counters::new(
                    "forwarding_ignored_total",
                    "Requests with forwarding fields from peers that trusted_proxies does not name.",
                    &["listener"],
                )?,
            )?,
            store_evictions: counters(
                &r,
                "store_evictions_total",
                "Keys in use that had to go from memory to make room for others of their limit.",
                &["limit"],
            )?,
            gateways: Arc::new(Gateways::new(GatewayGauges {
                alive: registered(
                    &r,
                    IntGauge::with_opts(opts(
                        "store_gateways",
                        "Gateways that share the store, 0 if none has reported.",
                    ))?,
                )?,
                divisor: registered(
                    &r,
                    IntGauge::with_opts(opts(
                        "store_local_divisor",
                        "Gateways that limits are divided by while the store is unavailable.",
                    ))?,
                )?,
            })),
            registry: r,
        };
        let build = gauges(&metrics.registry, "build_info", "The running build.", &["version", "revision"])?;
        build
            .with_label_values(&[env!("CARGO_PKG_VERSION"), option_env!("SLUICEGATE_REVISION").unwrap_or("unknown")])
            .set(1);
        Ok(metrics)
    }

    /// For the thread of one worker; 0 is the control thread.
    pub fn of_worker(&self, worker: usize) -> Metrics {
        Metrics { worker, ..self.clone() }
    }

    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Shows what `collector` collects, too.
    ///
    /// # Errors
    /// When another shows the same already.
    pub fn show(&self, collector: impl Collector + 'static) -> prometheus::Result<()> {
        self.registry.register(Box::new(collector))
    }

    /// The text exposition format, version 0.0.4.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Announces the config in force, loaded at `since`.
    pub fn config_loaded(&self, hash: &str, generation: u64, since: SystemTime) {
        self.config_info.reset();
        self.config_info.with_label_values(&[hash, &generation.to_string()]).set(1);
        self.reload_successful.set(1);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.reload_success_timestamp.set(since.as_secs_f64());
    }

    /// `result`: `success`, `failure` or `unchanged`; `trigger`: `file`, `signal` or `api`.
    pub fn config_reload(&self, result: &'static str, trigger: &'static str) -> IntCounter {
        self.config_reloads.with_label_values(&[result, trigger])
    }

    pub fn spans(&self, result: SpanResult) -> IntCounter {
        self.spans.with_label_values(&[result.label()])
    }

    pub fn http_rejected(&self, reason: impl Rejection) -> IntCounter {
        self.http_rejected.with_label_values(&[reason.label()])
    }

    pub fn http_would_reject(&self, reason: impl Rejection) -> IntCounter {
        self.http_would_reject.with_label_values(&[reason.label()])
    }

    pub fn upstream_requests(&self, upstream: &str, outcome: UpstreamOutcome) -> Counter {
        self.upstream_requests.of(self.worker, &[outcome.label(), upstream])
    }

    pub fn upstream_retries(&self, upstream: &str, reason: RetryReason) -> Counter {
        self.upstream_retries.of(self.worker, &[reason.label(), upstream])
    }

    pub fn upstream_retries_over_budget(&self, upstream: &str) -> Counter {
        self.upstream_retries_over_budget.of(self.worker, &[upstream])
    }

    pub fn connections(&self, listener: &str, protocol: Protocol) -> IntGauge {
        self.connections.with_label_values(&[listener, protocol.label()])
    }

    pub fn forwarding_ignored(&self, listener: &str) -> Counter {
        self.forwarding_ignored.of(self.worker, &[listener])
    }

    pub fn store_denial_cache_hits(&self) -> Counter {
        self.store_denial_cache_hits.of(self.worker, &[])
    }

    pub fn store_error(&self, kind: &'static str) -> IntCounter {
        self.store_errors.with_label_values(&[kind])
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("sluicegate")
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).namespace("sluicegate").buckets(buckets.to_vec())
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(opts(name, help), labels)?)
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    registered(registry, IntGaugeVec::new(opts(name, help), labels)?)
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> prometheus::Result<C> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}
