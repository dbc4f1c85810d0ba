//! Metrics of charges that settle by the usage that responses report.

use prometheus::{IntCounter, IntCounterVec};

use crate::labels::labels;
use crate::telemetry::metrics::families::Families;

labels! {
    /// How a charge settled; the `result` label of `usage_settlements_total`.
    SettlementResult:
    /// The charge became the usage that the response reported.
    Settled = "settled",
    /// Not at all: the response did not report its whole usage. The estimate remains, or more if more was reported.
    Unproven = "unproven",
    /// The outcome of the request refunded the charge.
    Refunded = "refunded",
}

labels! {
    /// Why usage could not be read; the `reason` label of `usage_scan_failures_total`. A response counts each at most
    /// once.
    ScanFault:
    /// The response is neither JSON nor an event stream.
    ContentType = "content_type",
    /// The response has another content coding than gzip.
    Encoding = "encoding",
    /// A partial response (206).
    Partial = "partial",
    /// The gzip data is damaged, or data follows it.
    Gzip = "gzip",
    /// The gzip data expands beyond the bounds.
    TooLarge = "too_large",
    /// The JSON is not valid, or it is cut short.
    Malformed = "malformed",
    /// A usage value is not an integer from 0 to 2^53.
    NotInteger = "not_integer",
}

/// Families of settled charges.
#[derive(Clone)]
pub struct SettlementMetrics {
    results: IntCounterVec,
    faults: IntCounterVec,
    /// Responses whose model is not named or has no weights of its own.
    pub unknown_models: IntCounter,
}

impl SettlementMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<SettlementMetrics> {
        let results = families.counters(
            "usage_settlements_total",
            "Charges that settle by the usage in a response, by result.",
            &["result"],
        )?;
        let faults = families.counters(
            "usage_scan_failures_total",
            "Responses whose usage could not be read, or not completely.",
            &["reason"],
        )?;
        // All series exist from the start.
        SettlementResult::ALL.iter().for_each(|result| drop(results.with_label_values(&[result.label()])));
        ScanFault::ALL.iter().for_each(|fault| drop(faults.with_label_values(&[fault.label()])));
        Ok(SettlementMetrics {
            results,
            faults,
            unknown_models: families.counter(
                "usage_unknown_models_total",
                "Charges settled by default or largest weights, because the model has none of its own.",
            )?,
        })
    }

    pub fn count_result(&self, result: SettlementResult) {
        self.results.with_label_values(&[result.label()]).inc();
    }

    /// Counts why usage could not be read.
    pub fn count_fault(&self, fault: ScanFault) {
        self.faults.with_label_values(&[fault.label()]).inc();
    }
}
