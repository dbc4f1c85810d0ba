//! Metrics of charges that settle by the usage that responses report.

use prometheus::{IntCounter, IntCounterVec};

use crate::labels::{Label, labels};
use crate::telemetry::metrics::families::Families;

labels! {
    /// How a charge settled; the `result` label of `usage_settlements_total`.
    SettlementResult:
    /// To the usage that the response reported.
    Settled = "settled",
    /// Not at all: the response did not report its whole usage. The estimate remains, or more if more was reported.
    Unproven = "unproven",
    /// The outcome of the request refunded the charge.
    Refunded = "refunded",
}

/// Families of settled charges.
#[derive(Clone)]
pub struct SettlementMetrics {
    results: IntCounterVec,
    faults: IntCounterVec,
    /// Responses whose model has no weights of its own.
    pub unknown_models: IntCounter,
}

impl SettlementMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<SettlementMetrics> {
        Ok(SettlementMetrics {
            results: families.counters(
                "usage_settlements_total",
                "Charges that settle by the usage in a response, by result.",
                &["result"],
            )?,
            faults: families.counters(
                "usage_scan_failures_total",
                "Responses whose usage could not be read, or not completely.",
                &["reason"],
            )?,
            unknown_models: families.counter(
                "usage_unknown_models_total",
                "Charges settled by the default weights, because the model has none of its own.",
            )?,
        })
    }

    pub fn count_result(&self, result: SettlementResult) {
        self.results.with_label_values(&[result.label()]).inc();
    }

    /// Counts why usage could not be read.
    pub fn count_fault(&self, fault: impl Label) {
        self.faults.with_label_values(&[fault.label()]).inc();
    }
}
