//! Prometheus metrics: every family, registered once for the life of the process.
//!
//! Label values come from config names and closed enums (`labels`), never from request bytes, so the config bounds the
//! number of series. Input: workers count into per-worker shards (`shards`, `counter`, `counts`) without locks;
//! `routes` and `limits` hold the series of routes and limits (`record_families`), and `traffic` adds them up; `store`,
//! `tls`, `passwords`, `tokens`, `settlements` and `process` hold those of the parts they are named after. Output:
//! [`Metrics::render`] adds the shards up (`exposition`).
//!
//! To add a metric, add a field to [`Metrics`], create and register it in [`Metrics::new`], count it where the event
//! happens, and describe it in `docs/reference/metrics.md`. A metric of each route or limit is a row in `routes` or
//! `limits` instead.

mod admin;
mod compression;
mod counter;
mod counts;
pub(crate) mod exposition;
mod families;
mod labels;
mod limits;
mod overhead;
mod passwords;
mod process;
mod record_families;
mod routes;
mod services;
mod settlements;
mod shards;
mod store;
mod tls;
mod tokens;
mod traffic;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder};

use crate::ends::{End, UpstreamOutcome};
use crate::labels::Label;
pub use crate::telemetry::metrics::admin::{AdminMetrics, TapMetrics};
pub use crate::telemetry::metrics::compression::CompressionCounters;
use crate::telemetry::metrics::compression::CompressionMetrics;
pub use crate::telemetry::metrics::counter::Counter;
use crate::telemetry::metrics::counter::Counters;
pub use crate::telemetry::metrics::counts::Code;
pub use crate::telemetry::metrics::exposition::unused::ShownSeries;
use crate::telemetry::metrics::exposition::unused::UsedGauges;
use crate::telemetry::metrics::families::Families;
pub use crate::telemetry::metrics::labels::{
    CandidateEffect, Decision, ForwardAuthOutcome, HandshakeResult, MirrorOutcome, OrderResult, PasswordCheck,
    Protocol, SpanResult,
};
pub use crate::telemetry::metrics::limits::{
    FairGauges, HeadroomCounts, HeadroomSums, LeaseCounts, LeftOver, LimitGauges, LimitRegistry,
};
use crate::telemetry::metrics::overhead::OverheadCollector;
pub use crate::telemetry::metrics::overhead::OverheadCounts;
pub use crate::telemetry::metrics::passwords::PasswordMetrics;
use crate::telemetry::metrics::process::ProcessCollector;
use crate::telemetry::metrics::routes::Routes;
pub use crate::telemetry::metrics::routes::branches::{BranchCounts, BranchRecord};
pub use crate::telemetry::metrics::routes::{LimitCounts, LimitRecord, RouteCounts, RouteRecord};
use crate::telemetry::metrics::services::DecideMetrics;
pub use crate::telemetry::metrics::services::{
    DescriptorResult, QuestionCounters, QuestionResult, RpcMethod, RpcMetrics,
};
pub use crate::telemetry::metrics::settlements::{ScanFault, SettlementMetrics, SettlementResult};
pub use crate::telemetry::metrics::shards::{Count, Shard, Shards};
pub use crate::telemetry::metrics::store::{GatewayGauges, StoreHealth, StoreMetrics, StoreView};
pub use crate::telemetry::metrics::tls::{HandshakeCounters, TlsMetrics};
pub use crate::telemetry::metrics::tokens::TokenMetrics;
pub use crate::telemetry::metrics::traffic::{LimitTraffic, Traffic};

/// All metric families. Clones are cheap and share their counts; each thread uses a clone of its own.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Gauges that texts without unused series have had.
    used_gauges: Arc<Mutex<UsedGauges>>,
    /// Index of the worker whose shards this clone writes; 0 is the control thread.
    worker: usize,
    /// Families with a `route` label.
    pub routes: Arc<Routes>,
    /// Families with a `limit` label and no route.
    pub limits: Arc<LimitRegistry>,
    overhead: Arc<Shards<OverheadCounts>>,
    admin_requests: IntCounterVec,
    http_rejected: IntCounterVec,
    http_would_reject: IntCounterVec,
    upstream_requests: Counters,
    upstream_retries: Counters,
    upstream_retries_over_budget: Counters,
    connections: IntGaugeVec,
    pub tls: TlsMetrics,
    pub passwords: PasswordMetrics,
    pub tokens: TokenMetrics,
    pub taps: TapMetrics,
    decide: DecideMetrics,
    pub rpc: RpcMetrics,
    /// Number of upgraded connections, such as WebSocket.
    pub tunnels: IntGauge,
    config_info: IntGaugeVec,
    config_reloads: IntCounterVec,
    /// Access log lines that were dropped because the queue was full.
    pub access_log_dropped: IntCounter,
    /// Access log lines that could not be written.
    pub access_log_write_errors: IntCounter,
    spans: IntCounterVec,
    pub compression: CompressionMetrics,
    pub settlements: SettlementMetrics,
    /// 1 if the last config load succeeded, else 0.
    pub reload_successful: IntGauge,
    pub reload_success_timestamp: Gauge,
    /// 1 while a rollback holds the active config, else 0.
    pub config_pinned: IntGauge,
    /// Number of parts of the active config that could not be applied.
    pub config_unapplied: IntGauge,
    /// Forwarding headers ignored because the peer is not trusted, by listener.
    forwarding_ignored: Counters,
    /// Requests of trusted proxies that name no client, by listener.
    client_unnamed: Counters,
    /// Headers removed because of their names, by listener.
    ambiguous_headers: Counters,
    /// Number of gateways that share the store.
    pub gateways: GatewayGauges,
    pub store: StoreMetrics,
    pub admin: AdminMetrics,
}

/// Records that collectors export: of routes, of limits, and of the time in the gateway.
type CollectedRecords = (Arc<Routes>, Arc<LimitRegistry>, Arc<Shards<OverheadCounts>>);

fn count_unapplied(families: &Families) -> prometheus::Result<IntGauge> {
    families.gauge(
        "config_unapplied",
        "Parts of the active config that could not be applied, such as the mode of a socket.",
    )
}

fn count_ignored_forwarding(families: &Families) -> prometheus::Result<Counters> {
    families.sharded_counters(
        "forwarding_ignored_total",
        "Requests whose forwarding headers were ignored because trusted_proxies does not list the peer.",
        &["listener"],
    )
}

fn count_unnamed_clients(families: &Families) -> prometheus::Result<Counters> {
    families.sharded_counters(
        "client_unnamed_total",
        "Requests of trusted proxies that do not name their client.",
        &["listener"],
    )
}

fn count_ambiguous_headers(families: &Families) -> prometheus::Result<Counters> {
    families.sharded_counters(
        "ambiguous_headers_total",
        "Request headers removed because servers could confuse their names, such as a_b, with others.",
        &["listener"],
    )
}

/// Exports the version of the running program.
fn record_build(families: &Families) -> prometheus::Result<()> {
    let build = families.gauges("build_info", "The running build.", &["version", "revision"])?;
    let revision = option_env!("SLUICEGATE_REVISION").unwrap_or("unknown");
    build.with_label_values(&[env!("CARGO_PKG_VERSION"), revision]).set(1);
    Ok(())
}

/// Registers the families that collect records with shards per worker, and returns the records.
fn register_collectors(registry: &Registry) -> prometheus::Result<CollectedRecords> {
    let records = CollectedRecords::default();
    registry.register(Box::new(records.0.clone().collector()?))?;
    registry.register(Box::new(records.1.clone().collector()?))?;
    registry.register(Box::new(OverheadCollector::new(records.2.clone())?))?;
    registry.register(Box::new(ProcessCollector::new()?))?;
    Ok(records)
}

fn count_admin_requests(families: &Families) -> prometheus::Result<IntCounterVec> {
    families.counters("admin_requests_total", "Requests to the admin listener.", &["page", "status"])
}

impl Metrics {
    /// Registers every family in a new registry.
    ///
    /// # Errors
    /// If a family is declared twice or has an invalid name.
    pub fn new() -> prometheus::Result<Metrics> {
        let families = Families::new();
        let (routes, limits, overhead) = register_collectors(families.registry())?;
        let metrics = Metrics {
            routes,
            limits,
            overhead,
            admin_requests: count_admin_requests(&families)?,
            worker: 0,
            http_rejected: families.counters(
                "http_rejected_total",
                "Requests and connections rejected independently of limits.",
                &["reason"],
            )?,
            http_would_reject: families.counters(
                "http_would_reject_total",
                "Requests that strictness = \"strict\" would have rejected, passed because of \"monitor\".",
                &["reason"],
            )?,
            upstream_requests: families.sharded_counters(
                "upstream_requests_total",
                "Requests to upstreams, by outcome.",
                &["outcome", "upstream"],
            )?,
            upstream_retries: families.sharded_counters(
                "upstream_retries_total",
                "Requests sent to an upstream again (retries).",
                &["reason", "upstream"],
            )?,
            upstream_retries_over_budget: families.sharded_counters(
                "upstream_retries_over_budget_total",
                "Retries skipped because the retry budget was used up.",
                &["upstream"],
            )?,
            connections: families.gauges("connections", "Open client connections.", &["listener", "protocol"])?,
            tls: TlsMetrics::new(&families)?,
            passwords: PasswordMetrics::new(&families)?,
            tokens: TokenMetrics::new(&families)?,
            taps: TapMetrics::new(&families)?,
            decide: DecideMetrics::new(&families)?,
            rpc: RpcMetrics::new(&families)?,
            tunnels: families.gauge("tunnels", "Open upgraded connections, such as WebSocket.")?,
            config_info: families.gauges("config_info", "The active config.", &["hash", "generation"])?,
            config_reloads: families.counters(
                "config_reloads_total",
                "Config loads after the start.",
                &["result", "trigger"],
            )?,
            access_log_dropped: families.counter(
                "access_log_dropped_total",
                "Access log lines dropped because the file or standard output is too slow.",
            )?,
            compression: CompressionMetrics::new(&families)?,
            settlements: SettlementMetrics::new(&families)?,
            spans: families.counters("spans_total", "Spans of sampled requests, by result.", &["result"])?,
            access_log_write_errors: families.counter(
                "access_log_write_errors_total",
                "Access log lines lost because the file or standard output could not be written.",
            )?,
            reload_successful: families
                .gauge("config_last_reload_successful", "1 if the last config load succeeded, else 0.")?,
            reload_success_timestamp: families.float_gauge(
                "config_last_reload_success_timestamp_seconds",
                "Time of the last successful config load, Unix time in seconds.",
            )?,
            config_pinned: families
                .gauge("config_pinned", "1 while a config of the history is active in place of the files, else 0.")?,
            config_unapplied: count_unapplied(&families)?,
            forwarding_ignored: count_ignored_forwarding(&families)?,
            client_unnamed: count_unnamed_clients(&families)?,
            ambiguous_headers: count_ambiguous_headers(&families)?,
            gateways: GatewayGauges::new(&families)?,
            store: StoreMetrics::new(&families)?,
            admin: AdminMetrics::new(&families)?,
            registry: families.registry().clone(),
            used_gauges: Arc::default(),
        };
        record_build(&families)?;
        Ok(metrics)
    }

    /// Returns a clone for the thread of `worker`; 0 is the control thread.
    pub fn for_worker(&self, worker: usize) -> Metrics {
        Metrics { worker, ..self.clone() }
    }

    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Exports the metrics of `collector` as well.
    ///
    /// # Errors
    /// If another collector already exports one of its families.
    pub fn export(&self, collector: impl Collector + 'static) -> prometheus::Result<()> {
        self.registry.register(Box::new(collector))
    }

    /// Renders all families in the Prometheus text format, version 0.0.4.
    ///
    /// # Errors
    /// If a family cannot be encoded.
    pub fn render(&self, which: ShownSeries) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.gather(which), &mut text)?;
        Ok(text)
    }

    /// Renders all families in the OpenMetrics text format, version 1.0, with exemplars.
    pub fn render_openmetrics(&self, which: ShownSeries) -> String {
        exposition::openmetrics::encode(&self.gather(which), &self.routes.latest_exemplars())
    }

    fn gather(&self, which: ShownSeries) -> Vec<MetricFamily> {
        let mut families = self.registry.gather();
        if which == ShownSeries::Used {
            let mut used = self.used_gauges.lock().unwrap_or_else(PoisonError::into_inner);
            families.iter_mut().for_each(|family| used.drop_unused(family));
        }
        families
    }

    /// Exports the active config, loaded at `since`.
    pub fn record_config(&self, hash: &str, generation: u64, since: SystemTime) {
        self.config_info.reset();
        self.config_info.with_label_values(&[hash, &generation.to_string()]).set(1);
        self.reload_successful.set(1);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.reload_success_timestamp.set(since.as_secs_f64());
    }

    /// Returns the reload counter for a `result` (`success`, `failure`, `unchanged`) and a `trigger` (`file`,
    /// `signal`, `api`).
    pub fn reload_counter(&self, result: &'static str, trigger: &'static str) -> IntCounter {
        self.config_reloads.with_label_values(&[result, trigger])
    }

    pub fn span_counter(&self, result: SpanResult) -> IntCounter {
        self.spans.with_label_values(&[result.label()])
    }

    pub fn compression_counters(&self, algorithm: impl Label) -> CompressionCounters {
        self.compression.counters_for(self.worker, algorithm)
    }

    /// Returns this worker's counters of questions that other proxies ask.
    pub fn question_counters(&self) -> QuestionCounters {
        self.decide.for_worker(self.worker)
    }

    /// Returns this worker's counts of the time that requests spend in the gateway.
    pub fn overhead_counts(&self) -> Arc<Shard<OverheadCounts>> {
        self.overhead.shard_for(self.worker)
    }

    /// Returns the counter of responses of the admin listener with this `status`, for a `page` of its table.
    pub fn admin_request_counter(&self, page: &str, status: StatusCode) -> IntCounter {
        self.admin_requests.with_label_values(&[page, status.as_str()])
    }

    pub fn rejected_counter(&self, end: End) -> IntCounter {
        self.http_rejected.with_label_values(&[end.label()])
    }

    pub fn would_reject_counter(&self, end: End) -> IntCounter {
        self.http_would_reject.with_label_values(&[end.label()])
    }

    pub fn upstream_request_counter(&self, upstream: &str, outcome: UpstreamOutcome) -> Counter {
        self.upstream_requests.shard_for(self.worker, &[outcome.label(), upstream])
    }

    pub fn upstream_retry_counter(&self, upstream: &str, reason: impl Label) -> Counter {
        self.upstream_retries.shard_for(self.worker, &[reason.label(), upstream])
    }

    pub fn over_budget_counter(&self, upstream: &str) -> Counter {
        self.upstream_retries_over_budget.shard_for(self.worker, &[upstream])
    }

    pub fn connection_gauge(&self, listener: &str, protocol: Protocol) -> IntGauge {
        self.connections.with_label_values(&[listener, protocol.label()])
    }

    pub fn forwarding_ignored_counter(&self, listener: &str) -> Counter {
        self.forwarding_ignored.shard_for(self.worker, &[listener])
    }

    pub fn ambiguous_headers_counter(&self, listener: &str) -> Counter {
        self.ambiguous_headers.shard_for(self.worker, &[listener])
    }

    pub fn client_unnamed_counter(&self, listener: &str) -> Counter {
        self.client_unnamed.shard_for(self.worker, &[listener])
    }

    pub fn denial_cache_counter(&self) -> Counter {
        self.store.denial_cache_hits.shard_for(self.worker, &[])
    }

    pub fn store_error_counter(&self, kind: &'static str) -> IntCounter {
        self.store.errors.with_label_values(&[kind])
    }
}
