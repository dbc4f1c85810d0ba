//! The threads that fetch what a config names elsewhere: certificates from ACME servers, and the keys of token issuers.

use crate::acme::AcmeThread;
use crate::jwks::JwksThread;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::Metrics;

/// Handles of the threads, which end with this value.
pub struct Fetchers {
    pub acme: AcmeThread,
    jwks: JwksThread,
}

impl Fetchers {
    pub fn new(metrics: &Metrics) -> Fetchers {
        Fetchers { acme: AcmeThread::new(metrics), jwks: JwksThread::new(metrics) }
    }

    /// Has the threads serve the config that has come into force.
    pub fn update(&mut self, current: &CurrentSnapshot) {
        self.acme.update(current);
        self.jwks.update(current);
    }
}
