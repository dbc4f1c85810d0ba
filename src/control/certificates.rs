//! Shows when the certificates of a config that comes into force expire.

use crate::config::Config;
use crate::metrics::Metrics;

pub fn show(config: &Config, metrics: &Metrics) {
    metrics.tls.show(config.listeners.iter().filter_map(|listener| {
        let terms = &listener.tls.as_ref()?.terms;
        Some((listener.address.to_string(), terms.iter().map(|term| (&*term.name, term.not_after_s)).collect()))
    }));
}
