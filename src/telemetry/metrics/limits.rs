//! Families with a `limit` label and no route: what limits leave to keys, how large they are, and how many keys they
//! refuse. `snapshot` creates the records of the configured limits, workers count decisions in them, and the control
//! thread sets the gauges.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::labels::labels;
use crate::telemetry::metrics::exposition::series::{build_family, counter_metric, gauge_metric, number_metric};
use crate::telemetry::metrics::shards::{Count, Shards};

labels! {
    /// How much of its quota a decision left to the key; the `left` label of `limit_headroom_total`.
    LeftOver:
    /// Refused, or nothing left.
    Nothing = "none",
    /// At most a tenth is left.
    Tenth = "10",
    Quarter = "25",
    Half = "50",
    /// More than half.
    Most = "all",
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

impl LeaseCounts {
    /// Returns the requests for leases by their result.
    fn requests(&self) -> [(&'static str, &AtomicU64); 3] {
        [("failed", &self.failed), ("granted", &self.grants), ("refused", &self.refused)]
    }

    /// Returns the units by their outcome.
    fn units(&self) -> [(&'static str, &AtomicU64); 4] {
        [("expired", &self.expired), ("granted", &self.granted), ("returned", &self.returned), ("spent", &self.spent)]
    }
}

fn classify_left(remaining: i64, quota: i64) -> LeftOver {
    match remaining {
        ..=0 => LeftOver::Nothing,
        _ if remaining * 10 <= quota => LeftOver::Tenth,
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
            LeftOver::Quarter => quota / 10 + 1,
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

    /// Removes the limits for which `kept` returns false, with all their series.
    pub fn retain(&self, kept: impl Fn(&str) -> bool) {
        self.lock().retain(|name, _| kept(name));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<LimitGauges>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exports the records as metric families.
pub struct LimitCollector {
    limits: Arc<LimitRegistry>,
    families: Vec<Desc>,
}

/// Name, help and labels of each family, in the order in which [`LimitCollector::collect`] fills them.
const FAMILIES: [(&str, &str, &[&str]); 10] = [
    ("limit_headroom_total", "Decisions by the percentage of the quota that they left to the key.", &["limit", "left"]),
    ("limit_quota", "Units that a key can use at once.", &["limit"]),
    ("limit_window_seconds", "Time in which an exhausted quota is available again.", &["limit"]),
    ("limit_keys_refused", "Estimated number of keys that were refused in the last minute.", &["limit"]),
    ("lease_requests_total", "Requests to the store for a lease of a hot key.", &["limit", "result"]),
    ("lease_units_total", "Units of leases, by outcome.", &["limit", "outcome"]),
    ("lease_decisions_total", "Decisions of limits made from a lease, without the store.", &["limit"]),
    ("fair_active_tenants", "Active tenants of the budget that was decided last.", &["limit"]),
    ("fair_folded_total", "Decisions for tenants beyond `max_active`, which share a backlog.", &["limit"]),
    ("fair_refused_within_share_total", "Refusals of requests within the guaranteed share.", &["limit"]),
];

impl LimitCollector {
    pub fn new(limits: Arc<LimitRegistry>) -> prometheus::Result<LimitCollector> {
        let family = |(name, help, labels): (&str, &str, &[&str])| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())
        };
        Ok(LimitCollector { limits, families: FAMILIES.into_iter().map(family).collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for LimitCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let [mut headroom, mut quotas, mut windows, mut keys] = [const { Vec::new() }; 4];
        let [mut requests, mut units, mut decisions] = [const { Vec::new() }; 3];
        let [mut active, mut folded, mut within] = [const { Vec::new() }; 3];
        let gauge = |value: &AtomicU64| i64::try_from(value.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        // Requests never take this lock; only config loads and scrapes do.
        for (name, record) in self.limits.lock().iter() {
            let sums = record.sum_headroom();
            for (left, admitted) in LeftOver::ALL.iter().zip(sums.admitted) {
                let refusals = if *left == LeftOver::Nothing { sums.refused } else { 0 };
                headroom.push(counter_metric(admitted + refusals, &[("left", left.label()), ("limit", name)]));
            }
            let labels = [("limit", name.as_str())];
            quotas.push(gauge_metric(gauge(&record.quota), &labels));
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of at most years")]
            windows.push(number_metric(gauge(&record.window_ms) as f64 / 1000.0, &labels));
            keys.push(gauge_metric(gauge(&record.keys_refused), &labels));
            let leases = &record.leases;
            if leases.is_configured.load(Ordering::Relaxed) {
                let counter = |count: &AtomicU64, own| {
                    let labels: Vec<_> = [("limit", name.as_str())].into_iter().chain(own).collect();
                    counter_metric(count.load(Ordering::Relaxed), &labels)
                };
                requests.extend(leases.requests().map(|(result, count)| counter(count, Some(("result", result)))));
                units.extend(leases.units().map(|(outcome, count)| counter(count, Some(("outcome", outcome)))));
                decisions.push(counter(&leases.decisions, None));
            }
            let Some(fair) = record.fair.get() else { continue };
            active.push(gauge_metric(gauge(&fair.active), &labels));
            folded.push(counter_metric(fair.folded.load(Ordering::Relaxed), &labels));
            within.push(counter_metric(fair.within_share.load(Ordering::Relaxed), &labels));
        }
        use proto::MetricType::{COUNTER, GAUGE};
        let kinds = [COUNTER, GAUGE, GAUGE, GAUGE, COUNTER, COUNTER, COUNTER, GAUGE, COUNTER, COUNTER];
        let metrics = [headroom, quotas, windows, keys, requests, units, decisions, active, folded, within];
        let families = self.families.iter().zip(kinds).zip(metrics);
        families.map(|((desc, kind), metrics)| build_family(desc, kind, metrics)).collect()
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
            [0, 1, 10, 11, 25, 26, 50, 51, 100].map(left),
            ["none", "10", "10", "25", "25", "50", "50", "all", "all"]
        );
        assert_eq!([1, 0].map(|remaining| classify_left(remaining, 1).label()), ["all", "none"]);
    }
}
