//! Families with a `limit` label and no route: what limits leave to keys, how large they are, and how many keys they
//! refuse. `snapshot` creates the records of the configured limits, workers count decisions in them, and the control
//! thread sets the gauges.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use prometheus::proto::MetricType::{COUNTER, GAUGE};

use crate::labels::labels;
use crate::telemetry::metrics::record_families::{FamilyRow, RecordCollector, Series};
use crate::telemetry::metrics::shards::{Count, Shards};

labels! {
    /// How much of its quota a decision left to the key; the `left` label of `limit_headroom_total`.
    LeftOver:
    /// Refused, or nothing left.
    Nothing = "none",
    /// Keys have at most a tenth left.
    Tenth = "10",
    /// Keys have at most a fifth left: envoyproxy/ratelimit counts that as near the limit.
    Fifth = "20",
    Quarter = "25",
    Half = "50",
    /// More than half.
    Most = "all",
}

/// The families with the label `limit` and no route.
const FAMILIES: [FamilyRow<LimitGauges>; 11] = [
    FamilyRow {
        name: "limit_headroom_total",
        help: "Decisions by the percentage of the quota that they left to the key.",
        kind: COUNTER,
        labels: &["left"],
        collect: |limit, series| {
            let sums = limit.sum_headroom();
            for (left, admitted) in LeftOver::ALL.iter().zip(sums.admitted) {
                let refusals = if *left == LeftOver::Nothing { sums.refused } else { 0 };
                series.add_counter(admitted + refusals, &[left.label()]);
            }
        },
    },
    FamilyRow {
        name: "limit_quota",
        help: "Units that a key can use at once.",
        kind: GAUGE,
        labels: &[],
        collect: |limit, series| series.add_gauge(load_gauge(&limit.quota)),
    },
    FamilyRow {
        name: "limit_window_seconds",
        help: "Time in which an exhausted quota is available again.",
        kind: GAUGE,
        labels: &[],
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of at most years")]
        collect: |limit, series| series.add_number(load_gauge(&limit.window_ms) as f64 / 1000.0),
    },
    FamilyRow {
        name: "limit_keys_refused",
        help: "Estimated number of keys that were refused in the last minute.",
        kind: GAUGE,
        labels: &[],
        collect: |limit, series| series.add_gauge(load_gauge(&limit.keys_refused)),
    },
    FamilyRow {
        name: "lease_requests_total",
        help: "Requests to the store for a lease of a hot key.",
        kind: COUNTER,
        labels: &["result"],
        collect: |limit, series| {
            let Some(leases) = limit.configured_leases() else { return };
            add_counters(
                series,
                [("failed", &leases.failed), ("granted", &leases.grants), ("refused", &leases.refused)],
            );
        },
    },
    FamilyRow {
        name: "lease_units_total",
        help: "Units of leases, by outcome.",
        kind: COUNTER,
        labels: &["outcome"],
        collect: |limit, series| {
            let Some(leases) = limit.configured_leases() else { return };
            let LeaseCounts { expired, granted, returned, spent, .. } = leases;
            add_counters(
                series,
                [("expired", expired), ("granted", granted), ("returned", returned), ("spent", spent)],
            );
        },
    },
    FamilyRow {
        name: "lease_decisions_total",
        help: "Decisions of limits made from a lease, without the store.",
        kind: COUNTER,
        labels: &[],
        collect: |limit, series| {
            let Some(leases) = limit.configured_leases() else { return };
            series.add_counter(leases.decisions.load(Ordering::Relaxed), &[]);
        },
    },
    FamilyRow {
        name: "limit_bans_total",
        help: "Bans that refusals of the limit began.",
        kind: COUNTER,
        labels: &[],
        collect: |limit, series| {
            let Some(bans) = limit.bans.get() else { return };
            series.add_counter(bans.load(Ordering::Relaxed), &[]);
        },
    },
    FamilyRow {
        name: "fair_active_tenants",
        help: "Active tenants of the budget that was decided last.",
        kind: GAUGE,
        labels: &[],
        collect: |limit, series| {
            let Some(fair) = limit.fair.get() else { return };
            series.add_gauge(load_gauge(&fair.active));
        },
    },
    FamilyRow {
        name: "fair_folded_total",
        help: "Decisions for tenants beyond `max_active`, which share a backlog.",
        kind: COUNTER,
        labels: &[],
        collect: |limit, series| {
            let Some(fair) = limit.fair.get() else { return };
            series.add_counter(fair.folded.load(Ordering::Relaxed), &[]);
        },
    },
    FamilyRow {
        name: "fair_refused_within_share_total",
        help: "Refusals of requests within the guaranteed share.",
        kind: COUNTER,
        labels: &[],
        collect: |limit, series| {
            let Some(fair) = limit.fair.get() else { return };
            series.add_counter(fair.within_share.load(Ordering::Relaxed), &[]);
        },
    },
];

fn load_gauge(value: &AtomicU64) -> i64 {
    i64::try_from(value.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
}

fn add_counters<const N: usize>(series: &mut Series, counts: [(&str, &AtomicU64); N]) {
    for (value, count) in counts {
        series.add_counter(count.load(Ordering::Relaxed), &[value]);
    }
}

/// Decisions of one limit in one worker, by what they left: one cache line.
#[derive(Default)]
#[repr(C, align(64))]
pub struct HeadroomCounts {
    /// Requests that the limit charged, indexed by [`LeftOver`].
    admitted: [Count; LeftOver::ALL.len()],
    refused: Count,
    /// Requests in `refused` that another limit refused as well.
    refused_by_others: Count,
}

/// Decisions of one limit in all workers since the start, by what they left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadroomSums {
    /// Requests that the limit charged, indexed by [`LeftOver`].
    pub admitted: [u64; LeftOver::ALL.len()],
    pub refused: u64,
    pub refused_by_others: u64,
}

/// Leases of one limit. Workers that share a hot key already share its atomics, so these counts are not sharded.
#[derive(Debug, Default)]
pub struct LeaseCounts {
    /// The limit has the option, so its series exist.
    pub is_configured: AtomicBool,
    /// Leases that the store granted.
    pub grants: AtomicU64,
    /// Leases that it refused, because the limit had too little left.
    pub refused: AtomicU64,
    /// Requests for a lease that failed.
    pub failed: AtomicU64,
    /// Units of all leases.
    pub granted: AtomicU64,
    pub spent: AtomicU64,
    /// Units returned to the store unspent.
    pub returned: AtomicU64,
    /// Units that were neither spent nor returned.
    pub expired: AtomicU64,
    /// Decisions of the limit made from a lease.
    pub decisions: AtomicU64,
}

/// Counts and gauges of one limit over all routes. They survive a reload that keeps the limit.
#[derive(Default)]
pub struct LimitGauges {
    pub headroom: Shards<HeadroomCounts>,
    quota: AtomicU64,
    window_ms: AtomicU64,
    keys_refused: AtomicU64,
    pub leases: Arc<LeaseCounts>,
    /// Number of bans. Exists if the limit has `ban`.
    bans: OnceLock<Arc<AtomicU64>>,
    /// Exists if tenants share the budgets of the limit.
    fair: OnceLock<Arc<FairGauges>>,
}

/// Counts of a limit whose tenants share its budgets.
#[derive(Default)]
pub struct FairGauges {
    /// Active tenants of the budget that was decided last.
    active: AtomicU64,
    /// Decisions for tenants that share a backlog with others.
    folded: AtomicU64,
    /// Refusals of requests within the guaranteed share.
    within_share: AtomicU64,
}

/// The records of the configured limits, by name.
#[derive(Default)]
pub struct LimitRegistry(Mutex<BTreeMap<String, Arc<LimitGauges>>>);

impl HeadroomCounts {
    /// Counts a charge that left `remaining` of `quota` units, which is below 2^53.
    pub fn count_admission(&self, remaining: i64, quota: i64) {
        self.admitted[classify_left(remaining, quota) as usize].inc();
    }

    /// Counts a refusal. `is_shared`: another limit refused the request as well.
    pub fn count_refusal(&self, is_shared: bool) {
        self.refused.inc();
        if is_shared {
            self.refused_by_others.inc();
        }
    }
}

fn classify_left(remaining: i64, quota: i64) -> LeftOver {
    match remaining {
        ..=0 => LeftOver::Nothing,
        _ if remaining * 10 <= quota => LeftOver::Tenth,
        _ if remaining * 5 <= quota => LeftOver::Fifth,
        _ if remaining * 4 <= quota => LeftOver::Quarter,
        _ if remaining * 2 <= quota => LeftOver::Half,
        _ => LeftOver::Most,
    }
}

impl LeftOver {
    /// Returns the least units left of `quota` with which an admission counts as this; 0 for [`LeftOver::Nothing`].
    pub fn least_units(self, quota: u64) -> u64 {
        match self {
            LeftOver::Nothing => 0,
            LeftOver::Tenth => 1,
            LeftOver::Fifth => quota / 10 + 1,
            LeftOver::Quarter => quota / 5 + 1,
            LeftOver::Half => quota / 4 + 1,
            LeftOver::Most => quota / 2 + 1,
        }
    }
}

impl FairGauges {
    /// Counts a decision for a tenant. `active` is the number of active tenants; `None` if the tenant shares a backlog.
    pub fn count_decision(&self, active: Option<i64>, is_refused_within_share: bool) {
        match active {
            Some(active) => self.active.store(active.unsigned_abs(), Ordering::Relaxed),
            None => drop(self.folded.fetch_add(1, Ordering::Relaxed)),
        }
        if is_refused_within_share {
            self.within_share.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl HeadroomSums {
    /// Returns the decisions since `then`.
    pub fn since(mut self, then: HeadroomSums) -> HeadroomSums {
        self.admitted.iter_mut().zip(then.admitted).for_each(|(sum, then)| *sum = sum.saturating_sub(then));
        self.refused = self.refused.saturating_sub(then.refused);
        self.refused_by_others = self.refused_by_others.saturating_sub(then.refused_by_others);
        self
    }
}

impl LimitGauges {
    /// Returns the decisions of all workers.
    pub fn sum_headroom(&self) -> HeadroomSums {
        let mut sums = HeadroomSums::default();
        for part in self.headroom.iter() {
            sums.admitted.iter_mut().zip(&part.admitted).for_each(|(sum, count)| *sum += count.get());
            // Read in this order, a shared refusal is never counted without the refusal.
            sums.refused_by_others += part.refused_by_others.get();
            sums.refused += part.refused.get();
        }
        sums
    }

    /// Sets the size of the limit.
    pub fn set_policy(&self, quota: i64, window_ms: i64) {
        self.quota.store(quota.unsigned_abs(), Ordering::Relaxed);
        self.window_ms.store(window_ms.unsigned_abs(), Ordering::Relaxed);
    }

    /// Returns the counts of leases if the limit has the option.
    fn configured_leases(&self) -> Option<&LeaseCounts> {
        Some(&*self.leases).filter(|leases| leases.is_configured.load(Ordering::Relaxed))
    }

    /// Returns the number of bans, creating it if there is none.
    pub fn bans(&self) -> &Arc<AtomicU64> {
        self.bans.get_or_init(Arc::default)
    }

    /// Returns the counts for tenants, creating them if there are none.
    pub fn fair(&self) -> &Arc<FairGauges> {
        self.fair.get_or_init(Arc::default)
    }

    /// Sets the estimate of how many keys were refused recently.
    pub fn set_keys_refused(&self, count: u64) {
        self.keys_refused.store(count, Ordering::Relaxed);
    }
}

impl LimitRegistry {
    /// Returns the record of the limit `name`, creating it if it is new.
    pub fn get_or_create(&self, name: &str) -> Arc<LimitGauges> {
        let mut records = self.lock();
        if let Some(record) = records.get(name) {
            return record.clone();
        }
        records.entry(name.to_owned()).or_default().clone()
    }

    /// Returns the record of the limit `name`.
    pub fn find(&self, name: &str) -> Option<Arc<LimitGauges>> {
        self.lock().get(name).cloned()
    }

    /// Returns the decisions of all limits by name.
    pub fn sum_all(&self) -> HashMap<String, HeadroomSums> {
        self.lock().iter().map(|(name, record)| (name.clone(), record.sum_headroom())).collect()
    }

    /// Returns how many bans the limits began.
    pub fn count_bans(&self) -> u64 {
        let records = self.lock();
        records.values().filter_map(|record| record.bans.get()).map(|bans| bans.load(Ordering::Relaxed)).sum()
    }

    /// Removes the limits for which `kept` returns false, with all their series.
    pub fn retain(&self, kept: impl Fn(&str) -> bool) {
        self.lock().retain(|name, _| kept(name));
    }

    /// Returns a collector of the families of all limits. Requests never wait for it; only config loads do.
    pub fn collector(self: Arc<LimitRegistry>) -> prometheus::Result<RecordCollector<LimitGauges>> {
        RecordCollector::new("limit", &FAMILIES, move |visit| {
            self.lock().iter().for_each(|(name, record)| visit(name, record));
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<LimitGauges>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_units_are_classified_by_their_share_of_the_quota() {
        for quota in [1, 2, 3, 7, 10, 19, 20, 100, 1 << 52] {
            for remaining in [-1, 0, 1, 2, 3, 5, 9, 10, 11, 25, 26, 50, 51, quota / 2, quota] {
                let left = classify_left(remaining, quota);
                let units = u64::try_from(remaining).unwrap_or(0);
                assert!(units >= left.least_units(quota.unsigned_abs()), "{remaining} of {quota}");
                let above = LeftOver::ALL[left as usize + 1..].iter();
                assert!(above.map(|more| more.least_units(quota.unsigned_abs())).all(|least| units < least));
            }
        }
        let left = |remaining| classify_left(remaining, 100).label();
        assert_eq!(
            [0, 1, 10, 11, 20, 21, 25, 26, 50, 51, 100].map(left),
            ["none", "10", "10", "20", "20", "25", "25", "50", "50", "all", "all"]
        );
        assert_eq!([1, 0].map(|remaining| classify_left(remaining, 1).label()), ["all", "none"]);
    }
}
