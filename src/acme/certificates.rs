//! Exports the expiry of the certificates of a config that comes into force.

use crate::config::Config;
use crate::telemetry::metrics::Metrics;

pub fn export_expiry(config: &Config, metrics: &Metrics) {
    metrics.tls.export_listeners(config.listeners.iter().filter_map(|listener| {
        let certificates = listener.tls.as_ref()?.certificates.current();
        let terms = certificates.validities.iter().map(|term| (term.name.clone(), term.not_after_s));
        Some((listener.address.to_string(), terms.collect()))
    }));
}
