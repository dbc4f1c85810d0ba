//! Metrics of the admin listener: refused requests, and lines missing in its audit log.

use prometheus::{IntCounter, IntCounterVec};

use crate::labels::Label;
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
