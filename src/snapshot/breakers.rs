//! Metrics of circuit breakers.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::snapshot::fleet::Fleet;
use crate::telemetry::metrics::exposition::series;
use crate::upstream::breaker::machine::BreakerPhase;

/// Exports the state of all breakers.
pub struct BreakerMetrics {
    fleet: Fleet,
    families: Vec<Desc>,
}

/// Name, kind, help and further label of each metric family, in the order in which `collect` fills them.
const FAMILIES: [(&str, proto::MetricType, &str, Option<&str>); 3] = [
    (
        "breaker_state",
        proto::MetricType::GAUGE,
        "State of a circuit breaker: 0 closed, 1 half open, 2 open, 3 closed with a ramp.",
        None,
    ),
    ("breaker_transitions_total", proto::MetricType::COUNTER, "Changes of the state of a circuit breaker.", Some("to")),
    ("breaker_refused_total", proto::MetricType::COUNTER, "Requests that a circuit breaker refused.", None),
];

impl BreakerMetrics {
    pub fn new(fleet: Fleet) -> prometheus::Result<BreakerMetrics> {
        let family = |(name, _, help, label): (&str, proto::MetricType, &str, Option<&str>)| {
            let labels = ["kind", "name"].into_iter().chain(label).map(str::to_owned).collect();
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())
        };
        Ok(BreakerMetrics { fleet, families: FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for BreakerMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let [mut state, mut transitions, mut refused] = [const { Vec::new() }; 3];
        let now_ms = self.fleet.now_ms();
        for breaker in self.fleet.breakers() {
            let report = breaker.describe(now_ms);
            let labels = [("kind", breaker.kind.label()), ("name", breaker.name.as_str())];
            let code = match report.phase {
                BreakerPhase::Closed => 0,
                BreakerPhase::HalfOpen => 1,
                BreakerPhase::Open => 2,
                BreakerPhase::Ramp => 3,
            };
            state.push(series::gauge_metric(code, &labels));
            refused.push(series::counter_metric(breaker.refused(), &labels));
            let entries = report.entered;
            for (to, count) in [("closed", entries.closed), ("half_open", entries.half_open), ("open", entries.open)] {
                transitions.push(series::counter_metric(count, &[labels[0], labels[1], ("to", to)]));
            }
        }
        let families = self.families.iter().zip(FAMILIES).zip([state, transitions, refused]);
        families.map(|((desc, (_, kind, ..)), metrics)| series::build_family(desc, kind, metrics)).collect()
    }
}
