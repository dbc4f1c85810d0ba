//! Creates metric families with the prefix `sluicegate_` and registers them. Used by `Metrics::new`.

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result,
};

use crate::telemetry::metrics::counter::Counters;

/// A registry in the making. Every method creates a family, registers it and returns a handle.
///
/// # Errors
/// All methods fail if the name is invalid or declared twice.
pub struct Families(Registry);

impl Families {
    pub fn new() -> Families {
        Families(Registry::new())
    }

    pub fn registry(&self) -> &Registry {
        &self.0
    }

    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.register(IntCounter::with_opts(metric_opts(name, help))?)
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.register(IntCounterVec::new(metric_opts(name, help), labels)?)
    }

    /// Counters that each worker counts in its own shard.
    pub fn sharded_counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<Counters> {
        self.register(Counters::new(name, help, labels)?)
    }

    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.register(IntGauge::with_opts(metric_opts(name, help))?)
    }

    pub fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.register(Gauge::with_opts(metric_opts(name, help))?)
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(metric_opts(name, help), labels)?)
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts::new(name, help).namespace("sluicegate").buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }

    fn register<C: Collector + Clone + 'static>(&self, family: C) -> Result<C> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

fn metric_opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("sluicegate")
}
