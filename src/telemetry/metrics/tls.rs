//! TLS metrics of listeners. Workers count handshakes; the control thread exports certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use crate::telemetry::metrics::families::Families;
use crate::telemetry::metrics::labels::{HandshakeResult, OrderResult};

#[derive(Clone)]
pub struct TlsMetrics {
    handshakes: IntCounterVec,
    not_after: IntGaugeVec,
    orders: IntCounterVec,
    /// Listeners whose series are exported.
    shown: Arc<Mutex<BTreeSet<String>>>,
}

/// A name of a listener's certificates, and when the first of them expires.
pub struct CertExpiry {
    pub listener: String,
    pub name: String,
    /// Unix time in seconds.
    pub not_after: i64,
}

/// Handshake counters, in the order of the results.
pub struct HandshakeCounters(Vec<IntCounter>);

impl HandshakeCounters {
    pub fn count_handshake(&self, result: HandshakeResult) {
        self.0[result as usize].inc();
    }
}

impl TlsMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<TlsMetrics> {
        Ok(TlsMetrics {
            handshakes: families.counters(
                "tls_handshakes_total",
                "TLS handshakes by how they ended.",
                &["listener", "result"],
            )?,
            not_after: families.gauges(
                "tls_cert_not_after_timestamp_seconds",
                "Expiry of a listener certificate, Unix time in seconds; the earliest of each name.",
                &["listener", "name"],
            )?,
            orders: families.counters(
                "acme_orders_total",
                "Certificate orders at the ACME server, by result.",
                &["result"],
            )?,
            shown: Arc::default(),
        })
    }

    /// Returns the handshake counters of a listener. Counters of a removed listener still count, but are not exported.
    pub fn handshake_counters(&self, listener: &str) -> HandshakeCounters {
        let of = |result: &HandshakeResult| self.handshakes.with_label_values(&[listener, result.label()]);
        HandshakeCounters(HandshakeResult::ALL.iter().map(of).collect())
    }

    pub fn order_counter(&self, result: OrderResult) -> IntCounter {
        self.orders.with_label_values(&[result.label()])
    }

    /// Returns the exported expiry of all certificates, the earliest first.
    pub fn list_expiries(&self) -> Vec<CertExpiry> {
        let families = self.not_after.collect();
        let mut expiries: Vec<CertExpiry> = families
            .iter()
            .flat_map(|family| family.get_metric())
            .map(|metric| {
                let label = |name: &str| {
                    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
                    pair.map_or_else(String::new, |pair| pair.value().to_owned())
                };
                #[expect(clippy::cast_possible_truncation, reason = "whole seconds of Unix time")]
                let not_after = metric.get_gauge().get_value() as i64;
                CertExpiry { listener: label("listener"), name: label("name"), not_after }
            })
            .collect();
        expiries.sort_by(|a, b| (a.not_after, &a.name, &a.listener).cmp(&(b.not_after, &b.name, &b.listener)));
        expiries
    }

    /// Exports exactly these listeners, each with the names of its certificates and their expiry in seconds of Unix
    /// time.
    pub fn export_listeners(&self, listeners: impl Iterator<Item = (String, Vec<(String, i64)>)>) {
        let mut current = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stale = std::mem::take(&mut *current);
        self.not_after.reset();
        for (listener, certificates) in listeners {
            let mut first = BTreeMap::<String, i64>::new();
            for (name, not_after) in certificates {
                first.entry(name).and_modify(|first| *first = not_after.min(*first)).or_insert(not_after);
            }
            for (name, not_after) in first {
                self.not_after.with_label_values(&[&*listener, &*name]).set(not_after);
            }
            self.handshake_counters(&listener);
            stale.remove(&listener);
            current.insert(listener);
        }
        for listener in stale {
            for result in HandshakeResult::ALL {
                // The label set has exactly one series per result.
                let _ = self.handshakes.remove_label_values(&[&*listener, result.label()]);
            }
        }
    }
}
