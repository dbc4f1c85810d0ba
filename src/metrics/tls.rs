//! What is counted and told of listeners with TLS. Shown by the control thread, counted by the workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::labels::{HandshakeResult, OrderResult};
use super::{counters, gauges};

#[derive(Clone)]
pub struct TlsMetrics {
    handshakes: IntCounterVec,
    not_after: IntGaugeVec,
    orders: IntCounterVec,
    /// The listeners that have series.
    shown: Arc<Mutex<BTreeSet<String>>>,
}

/// In the order of the results.
pub struct HandshakeCounters(Vec<IntCounter>);

impl HandshakeCounters {
    pub fn count(&self, result: HandshakeResult) {
        self.0[result as usize].inc();
    }
}

impl TlsMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<TlsMetrics> {
        Ok(TlsMetrics {
            handshakes: counters(
                registry,
                "tls_handshakes_total",
                "TLS handshakes by how they ended.",
                &["listener", "result"],
            )?,
            not_after: gauges(
                registry,
                "tls_cert_not_after_timestamp_seconds",
                "When the certificate of a listener expires, Unix time; the first to expire of each name.",
                &["listener", "name"],
            )?,
            orders: counters(
                registry,
                "acme_orders_total",
                "Certificates ordered at the ACME server by how that ended.",
                &["result"],
            )?,
            shown: Arc::default(),
        })
    }

    /// Those of a listener. One that is gone goes on counting, and is not shown.
    pub fn handshakes(&self, listener: &str) -> HandshakeCounters {
        let of = |result: &HandshakeResult| self.handshakes.with_label_values(&[listener, result.label()]);
        HandshakeCounters(HandshakeResult::ALL.iter().map(of).collect())
    }

    pub fn order(&self, result: OrderResult) -> IntCounter {
        self.orders.with_label_values(&[result.label()])
    }

    /// Shows these listeners and no others, each with the names of its certificates and when these expire, in
    /// seconds of Unix time.
    pub fn show(&self, listeners: impl Iterator<Item = (String, Vec<(String, i64)>)>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = std::mem::take(&mut *shown);
        self.not_after.reset();
        for (listener, certificates) in listeners {
            let mut first = BTreeMap::<String, i64>::new();
            for (name, not_after) in certificates {
                first.entry(name).and_modify(|first| *first = not_after.min(*first)).or_insert(not_after);
            }
            for (name, not_after) in first {
                self.not_after.with_label_values(&[&*listener, &*name]).set(not_after);
            }
            self.handshakes(&listener);
            gone.remove(&listener);
            shown.insert(listener);
        }
        for listener in gone {
            for result in HandshakeResult::ALL {
                // There is one of each.
                let _ = self.handshakes.remove_label_values(&[&*listener, result.label()]);
            }
        }
    }
}
