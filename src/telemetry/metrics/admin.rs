//! Metrics of the admin listener: refused requests, lines missing in its audit log, and events of taps.

use prometheus::{IntCounter, IntCounterVec};

use crate::labels::{Label, labels};
use crate::telemetry::metrics::families::Families;

#[derive(Clone)]
pub struct AdminMetrics {
    refused: IntCounterVec,
    /// Audit lines that were dropped because the queue was full, or could not be written.
    pub audit_lines_lost: IntCounter,
}

impl AdminMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<AdminMetrics> {
        Ok(AdminMetrics {
            refused: families.counters(
                "admin_refused_total",
                "Requests to the admin listener that access control refused.",
                &["reason"],
            )?,
            audit_lines_lost: families.counter(
                "admin_audit_lines_lost_total",
                "Lines missing in the audit log because the file is too slow or could not be written.",
            )?,
        })
    }

    /// Returns the counter of requests that were refused for `reason`.
    pub fn refused_counter(&self, reason: impl Label) -> IntCounter {
        self.refused.with_label_values(&[reason.label()])
    }
}

labels! {
    /// Result for a request that matched a tap.
    TapResult:
    Sent = "sent",
    SampledOut = "sampled_out",
    Lost = "lost",
}

#[derive(Clone)]
pub struct TapMetrics {
    pub sent: IntCounter,
    pub sampled_out: IntCounter,
    pub lost: IntCounter,
}

impl TapMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<TapMetrics> {
        let help = "Requests that matched a tap, by what happened to their event.";
        let events = families.counters("tap_events_total", help, &["result"])?;
        let counter = |result: TapResult| events.with_label_values(&[result.label()]);
        Ok(TapMetrics {
            sent: counter(TapResult::Sent),
            sampled_out: counter(TapResult::SampledOut),
            lost: counter(TapResult::Lost),
        })
    }
}
