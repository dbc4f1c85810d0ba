//! Shows when the certificates of a config that comes into force expire.

use crate::config::Config;
use crate::metrics::Metrics;

pub fn show(config: &Config, metrics: &Metrics) {
    metrics.tls.show(config.listeners.iter().filter_map(|listener| {
        let certificates = listener.tls.as_ref()?.certificates.now();
        let terms = certificates.terms.iter().map(|term| (term.name.clone(), term.not_after_s));
        Some((listener.address.to_string(), terms.collect()))
    }));
}
