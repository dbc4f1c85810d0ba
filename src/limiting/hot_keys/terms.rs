//! The size of a lease. Pure arithmetic.

use crate::limiting::algorithm::lease_basis::{LeaseBasis, LeaseTerms};
use crate::limiting::integers::COST_MAX;

/// Maximum number of units of a lease: as many as 20 bits hold.
pub const UNITS_MAX: u64 = (1 << 20) - 1;

/// A smaller lease would save nothing: one unit is an ordinary decision.
pub const SIZE_MIN: i64 = 2;

impl LeaseTerms {
    /// Returns the size of the next lease of a key. `None` means that a lease is not worth it.
    pub fn size(&self, basis: &LeaseBasis, key: &KeyUse) -> Option<LeaseSize> {
        let by_rate = basis.units_in(self.horizon_ms);
        let by_demand = key.demand.saturating_mul(self.horizon_ms) / 1000 + 1;
        let share = key.left / key.gateways.max(1).saturating_mul(2) - key.unspent;
        let units = (by_rate - key.unspent).min(by_demand).min(share).min(i64::try_from(UNITS_MAX).unwrap_or(i64::MAX));
        if units < SIZE_MIN {
            return None;
        }
        // A lease of a bucket lasts as long as enough is in use. The units that are missing for the horizon are debited
        // as well.
        let missing = if basis.has_reserve(self.horizon_ms) { by_rate - basis.units_in(key.full_in_ms) } else { 0 };
        let debit = units.saturating_add(missing.max(0)).min(share).min(COST_MAX);
        Some(LeaseSize { debit, units })
    }
}

/// The recent use of a key, which decides the size of its next lease.
#[derive(Clone, Copy, Debug)]
pub struct KeyUse {
    /// Units per second in this gateway.
    pub demand: i64,
    /// Units that the limit had left when the store last answered.
    pub left: i64,
    /// Time until the whole quota would be available again.
    pub full_in_ms: i64,
    /// Units of earlier leases that this gateway can still spend.
    pub unspent: i64,
    /// Number of gateways that share the limit.
    pub gateways: i64,
}

/// How many units to debit for a lease, and how many of them may be spent at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSize {
    pub debit: i64,
    pub units: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::algorithm::gcra::Gcra;

    const TERMS: LeaseTerms = LeaseTerms { horizon_ms: 100, hot_after: 200 };

    fn sizes(rule: &Rule, cases: &[(i64, i64, i64, i64, i64)]) -> Vec<Option<(i64, i64)>> {
        let basis = rule.lease_basis().unwrap();
        let size = |&(demand, left, full_in_ms, unspent, gateways)| {
            let size = TERMS.size(&basis, &KeyUse { demand, left, full_in_ms, unspent, gateways })?;
            Some((size.debit, size.units))
        };
        cases.iter().map(size).collect()
    }

    #[test]
    fn a_lease_is_as_large_as_demand_rate_and_share_allow() {
        let window = Rule::FixedWindow(FixedWindow { limit: 60_000, window_ms: 60_000, clock: true });
        let cases = [
            (500, 60_000, 0, 0, 1),
            (5000, 60_000, 0, 0, 1),
            (5000, 60_000, 0, 40, 1),
            (5000, 60, 0, 0, 1),
            (5000, 60, 0, 0, 4),
            (5000, 3, 0, 0, 1),
            (5000, 60, 0, 29, 1),
        ];
        let sized = [Some(51), Some(100), Some(60), Some(30), Some(7), None, None];
        assert_eq!(sizes(&window, &cases), sized.map(|units| units.map(|units| (units, units))));
    }

    #[test]
    fn a_bucket_is_debited_what_keeps_the_lease_alive() {
        let bucket = Rule::Gcra(Gcra { rate: 1000, per_ms: 1000, burst: 1000, refunds: false });
        let cases = [(500, 1000, 0, 0, 1), (500, 1000, 70, 0, 1), (500, 500, 500, 0, 1), (500, 200, 0, 0, 1)];
        assert_eq!(sizes(&bucket, &cases), [Some((151, 51)), Some((81, 51)), Some((51, 51)), Some((100, 51))]);
    }
}
