//! Exports the adaptive limits and queues of upstreams as metrics.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto;
use prometheus::proto::MetricType;

use crate::snapshot::fleet::Fleet;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::exposition::series;

/// Collects the metrics of overloaded upstreams.
pub struct AdaptiveMetrics {
    fleet: Fleet,
    families: Vec<Desc>,
}

/// Name, kind, help and labels of each metric family, in the order in which `collect` fills them.
const FAMILIES: [(&str, MetricType, &str, &[&str]); 6] = [
    (
        "upstream_adaptive_limit",
        MetricType::GAUGE,
        "Requests that an upstream with `adaptive` gets at once.",
        &["upstream"],
    ),
    (
        "upstream_adaptive_in_flight",
        MetricType::GAUGE,
        "Requests that wait for the head of their response, of an upstream with `adaptive`.",
        &["upstream"],
    ),
    (
        "upstream_adaptive_baseline_seconds",
        MetricType::GAUGE,
        "Response time of servers without a queue, of an upstream with `adaptive`; 0 = unknown yet.",
        &["upstream"],
    ),
    (
        "upstream_adaptive_response_seconds",
        MetricType::GAUGE,
        "Recent response time of an upstream with `adaptive`; 0 = unknown yet.",
        &["upstream"],
    ),
    (
        "upstream_newest_first",
        MetricType::GAUGE,
        "1 while the newest request of the queue goes first, because the queue does not become empty.",
        &["upstream"],
    ),
    (
        "upstream_refused_total",
        MetricType::COUNTER,
        "Requests refused because the upstream had no capacity, by their priority.",
        &["priority", "upstream"],
    ),
];

impl AdaptiveMetrics {
    /// Exports the metrics of `fleet`.
    ///
    /// # Errors
    /// If these series are exported already.
    pub fn export(fleet: &Fleet, metrics: &Metrics) -> prometheus::Result<()> {
        metrics.export(AdaptiveMetrics::new(fleet.clone())?)
    }

    fn new(fleet: Fleet) -> prometheus::Result<AdaptiveMetrics> {
        let family = |(name, _, help, labels): (&str, MetricType, &str, &[&str])| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())
        };
        let families = FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()?;
        Ok(AdaptiveMetrics { fleet, families })
    }
}

impl Collector for AdaptiveMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let mut metrics = [const { Vec::new() }; FAMILIES.len()];
        for upstream in self.fleet.upstreams() {
            let labels = [("upstream", upstream.settings.name.as_str())];
            let load = upstream.load();
            if let Some(report) = load.adaptive.as_ref().map(|adaptive| adaptive.report()) {
                metrics[0].push(series::gauge_metric(i64::from(report.limit), &labels));
                metrics[1].push(series::gauge_metric(i64::from(report.in_flight), &labels));
                metrics[2].push(series::number_metric(report.baseline_ms / 1e3, &labels));
                metrics[3].push(series::number_metric(report.recent_ms / 1e3, &labels));
            }
            let Some(caps) = &upstream.settings.caps else { continue };
            if caps.newest_first.is_some() {
                metrics[4].push(series::gauge_metric(i64::from(load.queue.is_newest_first()), &labels));
            }
            for (priority, count) in load.refused().into_iter().enumerate() {
                let priority = priority.to_string();
                metrics[5].push(series::counter_metric(count, &[("priority", &priority), labels[0]]));
            }
        }
        let families = self.families.iter().zip(FAMILIES).zip(metrics);
        families.map(|((desc, (_, kind, ..)), metrics)| series::build_family(desc, kind, metrics)).collect()
    }
}
