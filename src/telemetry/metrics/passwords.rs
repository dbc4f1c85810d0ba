//! Metrics of password verification (`auth = { basic = FILE }`).

use prometheus::{IntCounter, IntCounterVec};

use crate::telemetry::metrics::families::Families;
use crate::telemetry::metrics::labels::PasswordCheck;

/// Counters of password checks, in the order of the results.
#[derive(Clone)]
pub struct PasswordMetrics(Vec<IntCounter>);

impl PasswordMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<PasswordMetrics> {
        let checks: IntCounterVec = families.counters(
            "password_checks_total",
            "Passwords of clients that were checked, by result. Only match and mismatch cost a hash.",
            &["result"],
        )?;
        let of = |result: &PasswordCheck| checks.with_label_values(&[result.label()]);
        Ok(PasswordMetrics(PasswordCheck::ALL.iter().map(of).collect()))
    }

    pub fn count(&self, result: PasswordCheck) {
        self.0[result as usize].inc();
    }
}
