//! Metrics of the keys that verify tokens (`[jwt]` with `issuer` or the URL of `jwks`).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounterVec, IntGaugeVec};

use crate::telemetry::metrics::families::Families;

/// Values of the label `result`.
const OK: &str = "ok";
const FAILED: &str = "failed";

#[derive(Clone)]
pub struct TokenMetrics {
    keys: IntGaugeVec,
    fetched: IntGaugeVec,
    fetches: IntCounterVec,
    /// Sections whose series are exported.
    shown: Arc<Mutex<BTreeSet<String>>>,
}

impl TokenMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<TokenMetrics> {
        Ok(TokenMetrics {
            keys: families.gauges("jwt_keys", "Usable keys of an issuer; 0 until they are fetched.", &["section"])?,
            fetched: families.gauges(
                "jwt_keys_fetched_timestamp_seconds",
                "When the keys of an issuer were last fetched, Unix time in seconds; 0 before that.",
                &["section"],
            )?,
            fetches: families.counters(
                "jwt_key_fetches_total",
                "Attempts to fetch the keys of an issuer, by result.",
                &["section", "result"],
            )?,
            shown: Arc::default(),
        })
    }

    /// Exports the series of a section from now on.
    pub fn export_section(&self, section: &str) {
        self.keys.with_label_values(&[section]);
        self.fetched.with_label_values(&[section]);
        [OK, FAILED].iter().for_each(|result| drop(self.fetches.with_label_values(&[section, result])));
        self.lock().insert(section.to_owned());
    }

    pub fn record_keys(&self, section: &str, keys: usize, now_s: i64) {
        self.keys.with_label_values(&[section]).set(i64::try_from(keys).unwrap_or(i64::MAX));
        self.fetched.with_label_values(&[section]).set(now_s);
        self.fetches.with_label_values(&[section, OK]).inc();
    }

    pub fn count_failure(&self, section: &str) {
        self.fetches.with_label_values(&[section, FAILED]).inc();
    }

    /// Removes the series of sections that no config has any more.
    pub fn keep_sections(&self, is_kept: impl Fn(&str) -> bool) {
        self.lock().retain(|section| {
            let keeps = is_kept(section);
            if !keeps {
                let section = section.as_str();
                // An error means that the series does not exist.
                let _ = self.keys.remove_label_values(&[section]);
                let _ = self.fetched.remove_label_values(&[section]);
                [OK, FAILED].iter().for_each(|result| drop(self.fetches.remove_label_values(&[section, *result])));
            }
            keeps
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
