//! Samples the load of the process for `[server.overload]`, logs its changes and exports them as metrics. Run by the
//! control thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto;
use tokio::time::{MissedTickBehavior, interval};

use crate::overload::cpu::{CpuMeter, read_load_average};
use crate::overload::process_load::ProcessLoad;
use crate::overload::sampler::{LoadSampler, Measurement, SAMPLE_MS, Sample};
use crate::overload::{OverloadCondition, OverloadRule};
use crate::snapshot::{CurrentSnapshot, Fleet};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::exposition::series;

/// An overload is over, and its end is logged, once nothing was refused for this long.
const QUIET_TIME: Duration = Duration::from_secs(10);

/// State that the sampler shares with the metrics.
#[derive(Clone)]
pub struct OverloadMonitor {
    load: Arc<ProcessLoad>,
    current: CurrentSnapshot,
    last: Arc<Mutex<Sample>>,
}

/// Refusals of the current overload, for the log.
#[derive(Default)]
struct OverloadLog {
    /// Refusals so far, indexed by condition.
    seen: [u64; OverloadCondition::ALL.len()],
    /// Refusals of this overload, and when the last of them was counted.
    current: Option<(u64, u64)>,
}

impl OverloadMonitor {
    /// Creates the monitor and registers its metrics.
    ///
    /// # Errors
    /// The metrics are registered already.
    pub fn new(
        load: &Arc<ProcessLoad>,
        current: &CurrentSnapshot,
        metrics: &Metrics,
    ) -> prometheus::Result<OverloadMonitor> {
        let monitor = OverloadMonitor { load: load.clone(), current: current.clone(), last: Arc::default() };
        metrics.export(OverloadMetrics::new(monitor.clone())?)?;
        Ok(monitor)
    }

    /// Samples while the config has the rule. Never returns.
    pub async fn run(self, fleet: Fleet) {
        let mut ticks = interval(Duration::from_millis(SAMPLE_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut sampler, mut meter, mut log) = (LoadSampler::default(), None, OverloadLog::default());
        let mut rule_before = OverloadRule::default();
        loop {
            ticks.tick().await;
            let snapshot = self.current.load();
            let Some(rule) = &snapshot.config.server.overload else {
                if meter.take().is_some() {
                    sampler = LoadSampler::default();
                    self.load.apply_sample(0, 0, None);
                }
                rule_before = OverloadRule::default();
                continue;
            };
            let meter = meter.get_or_insert_with(CpuMeter::find);
            let measurement = Measurement {
                at_ms: fleet.now_ms(),
                served: self.load.served(),
                cpu: rule.cpu.and_then(|_| meter.read()),
                load: rule.load_thousandths.and_then(|_| read_load_average()),
            };
            if *rule != rule_before {
                warn_of_idle_conditions(rule, &measurement);
                rule_before = rule.clone();
            }
            let sample = sampler.add_measurement(rule, measurement);
            self.load.apply_sample(sample.latency_share, sample.cpu_share, sample.capacity);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = sample;
            log.add_refusals(&self.load, &sample, measurement.at_ms);
        }
    }

    /// Returns the value that a condition compares, in the unit of the metric.
    fn value(&self, condition: OverloadCondition) -> Option<f64> {
        let sample = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match condition {
            OverloadCondition::Qps => Some(sample.qps),
            #[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
            OverloadCondition::InFlight => Some(self.load.in_flight() as f64),
            OverloadCondition::Latency => Some(sample.latency_ms.unwrap_or(0.0) / 1000.0),
            OverloadCondition::Load => sample.load,
            OverloadCondition::Cpu => sample.cpu,
        }
    }
}

/// Warns of conditions that this system does not report: they have no effect.
fn warn_of_idle_conditions(rule: &OverloadRule, measurement: &Measurement) {
    for (condition, is_idle) in [
        (OverloadCondition::Cpu, rule.cpu.is_some() && measurement.cpu.is_none()),
        (OverloadCondition::Load, rule.load_thousandths.is_some() && measurement.load.is_none()),
    ] {
        if is_idle {
            let name = condition.label();
            tracing::warn!(
                "server.overload.{name} is inactive: this system does not report it; mount /proc, or remove the option"
            );
        }
    }
}

impl OverloadLog {
    /// Logs the beginning and the end of an overload.
    fn add_refusals(&mut self, load: &ProcessLoad, sample: &Sample, now_ms: u64) {
        let mut refusals = 0;
        let mut conditions = Vec::new();
        for (condition, seen) in OverloadCondition::ALL.iter().zip(&mut self.seen) {
            let total = load.refused(*condition);
            if total > *seen {
                refusals += total - *seen;
                conditions.push(condition.label());
            }
            *seen = total;
        }
        match (&mut self.current, refusals) {
            (None, 1..) => {
                tracing::warn!(
                    conditions = conditions.join(", "),
                    cpu = sample.cpu,
                    load = sample.load,
                    latency_ms = sample.latency_ms,
                    qps = sample.qps,
                    in_flight = load.in_flight(),
                    "process overloaded: refusing requests ({})",
                    conditions.join(", ")
                );
                self.current = Some((refusals, now_ms));
            }
            (Some((total, last_ms)), 1..) => (*total, *last_ms) = (*total + refusals, now_ms),
            (Some((total, last_ms)), 0) if u128::from(now_ms.saturating_sub(*last_ms)) >= QUIET_TIME.as_millis() => {
                tracing::info!(refused = *total, "process no longer overloaded; {total} requests were refused");
                self.current = None;
            }
            _ => {}
        }
    }
}

/// Exports the process rule as metrics, while the config has it.
struct OverloadMetrics {
    monitor: OverloadMonitor,
    families: Vec<Desc>,
}

/// Name, kind and help of each metric family, in the order in which `collect` fills them.
const FAMILIES: [(&str, proto::MetricType, &str); 2] = [
    ("overload_refused_total", proto::MetricType::COUNTER, "Requests that the process rule refused."),
    (
        "overload_value",
        proto::MetricType::GAUGE,
        "Value that a condition of the process rule compares; seconds for `latency`, a share for `cpu`.",
    ),
];

impl OverloadMetrics {
    fn new(monitor: OverloadMonitor) -> prometheus::Result<OverloadMetrics> {
        let family = |(name, _, help): (&str, proto::MetricType, &str)| {
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), vec!["condition".to_owned()], HashMap::new())
        };
        Ok(OverloadMetrics { monitor, families: FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for OverloadMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let (mut refused, mut values) = (Vec::new(), Vec::new());
        let snapshot = self.monitor.current.load();
        for condition in snapshot.config.server.overload.iter().flat_map(OverloadRule::conditions) {
            let labels = [("condition", condition.label())];
            refused.push(series::counter_metric(self.monitor.load.refused(condition), &labels));
            if let Some(value) = self.monitor.value(condition) {
                values.push(series::number_metric(value, &labels));
            }
        }
        let families = self.families.iter().zip(FAMILIES).zip([refused, values]);
        families.map(|((desc, (_, kind, _)), metrics)| series::build_family(desc, kind, metrics)).collect()
    }
}
