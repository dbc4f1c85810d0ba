//! How many gateways share the store, as this process knows it. The Redis handle whose [`Claim`]
//! holds finds out; every worker reads it when it has to decide alone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;

pub struct Gateways {
    /// This process, among those that share a store.
    name: String,
    known: AtomicI64,
    claims: Mutex<BTreeSet<u64>>,
    holder: AtomicU64,
    gauge: IntGauge,
}

/// The right to say how many there are; the latest claim that is alive holds.
pub struct Claim {
    gateways: Arc<Gateways>,
    number: u64,
}

/// More gateways than this share a limit as if they were this many.
const MOST: i64 = 1000;

impl Gateways {
    pub fn new(gauge: IntGauge) -> Gateways {
        Gateways {
            name: format!("{:032x}", rand::random::<u128>()),
            known: AtomicI64::new(1),
            claims: Mutex::default(),
            holder: AtomicU64::new(0),
            gauge,
        }
    }

    /// At least 1: this one.
    pub fn known(&self) -> i64 {
        self.known.load(Ordering::Relaxed)
    }

    pub fn claim(self: &Arc<Self>) -> Claim {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let number = claims.last().map_or(1, |last| last + 1);
        claims.insert(number);
        self.holder.store(number, Ordering::Relaxed);
        Claim { gateways: self.clone(), number }
    }
}

impl Claim {
    pub fn gateway(&self) -> &str {
        &self.gateways.name
    }

    pub fn holds(&self) -> bool {
        self.gateways.holder.load(Ordering::Relaxed) == self.number
    }

    /// Takes a count over; a lower one only once the store has had time to hear from all.
    pub fn count(&self, count: i64, certain: bool) {
        let count = count.clamp(1, MOST);
        if self.holds() && (certain || count > self.gateways.known()) {
            self.gateways.known.store(count, Ordering::Relaxed);
        }
        self.gateways.gauge.set(self.gateways.known());
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.gateways.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.remove(&self.number);
        self.gateways.holder.store(claims.last().copied().unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateways() -> Arc<Gateways> {
        Arc::new(Gateways::new(IntGauge::new("gateways", "test").unwrap()))
    }

    #[test]
    fn the_latest_claim_alive_holds() {
        let gateways = gateways();
        let (first, second) = (gateways.claim(), gateways.claim());
        assert!(!first.holds() && second.holds());
        let third = gateways.claim();
        drop(second);
        assert!(!first.holds() && third.holds());
        drop(third);
        assert!(first.holds());
    }

    #[test]
    fn a_lower_count_is_believed_once_all_had_time_to_report() {
        let gateways = gateways();
        let claim = gateways.claim();
        for (count, certain, known) in
            [(0, true, 1), (3, false, 3), (2, false, 3), (2, true, 2), (1 << 40, false, MOST)]
        {
            claim.count(count, certain);
            assert_eq!(gateways.known(), known);
        }
    }
}
