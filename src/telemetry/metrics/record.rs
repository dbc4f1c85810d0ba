//! Counts of one route: one shard per worker that served it, plus the values that all workers share. `snapshot` binds
//! requests to them; `routes` exports them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::telemetry::exemplars::Exemplars;
use crate::telemetry::metrics::counts::{
    BucketExemplars, Code, Codes, Histogram, LabelCounts, LimitCounts, RouteCounts,
};
use crate::telemetry::metrics::shards::{Count, Shards};

/// Counts of one route. They survive a reload that keeps the route.
#[derive(Default)]
pub struct RouteRecord {
    pub shards: Shards<RouteCounts>,
    pub rejections: ExportedSeries,
    pub forward_auth: ExportedSeries,
    /// Requests in progress while the route has `max_in_flight`; exact over all workers.
    capped: AtomicI64,
    codes: Mutex<Vec<Code>>,
    limits: Mutex<Vec<Arc<LimitRecord>>>,
}

/// Counts of one limit on one route.
pub struct LimitRecord {
    pub name: String,
    pub shards: Shards<LimitCounts>,
    pub decisions: ExportedSeries,
    pub rejections: ExportedSeries,
    pub effects: ExportedSeries,
}

/// Series of a closed label set that are exported before anything was counted, so that rates start at 0.
#[derive(Default)]
pub struct ExportedSeries(AtomicU32);

impl ExportedSeries {
    pub fn export_series(&self, index: usize) {
        self.0.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// Exports no series before it is exported again.
    fn hide(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn is_hidden(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Returns the series that exist: index and count.
    fn exported_series<'a, const N: usize>(
        &self,
        parts: impl Iterator<Item = &'a LabelCounts<N>>,
    ) -> Vec<(usize, u64)> {
        let mut counts = [0; N];
        for part in parts {
            counts.iter_mut().enumerate().for_each(|(index, count)| *count += part.get(index));
        }
        let exported_bits = self.0.load(Ordering::Relaxed);
        let series = counts.into_iter().enumerate();
        series.filter(|(index, count)| *count > 0 || exported_bits & (1 << index) != 0).collect()
    }
}

impl RouteRecord {
    /// Returns the record of the route's limit `name`, creating it if it is new.
    pub fn get_or_create_limit(&self, name: &str) -> Arc<LimitRecord> {
        let mut limits = lock(&self.limits);
        if let Some(limit) = limits.iter().find(|limit| limit.name == name) {
            return limit.clone();
        }
        let limit = Arc::new(LimitRecord {
            name: name.to_owned(),
            shards: Shards::default(),
            decisions: ExportedSeries::default(),
            rejections: ExportedSeries::default(),
            effects: ExportedSeries::default(),
        });
        limits.push(limit.clone());
        limit
    }

    pub fn limits(&self) -> Vec<Arc<LimitRecord>> {
        lock(&self.limits).clone()
    }

    /// Removes the limits for which `kept` returns false.
    pub fn retain_limits(&self, kept: impl Fn(&str) -> bool) {
        lock(&self.limits).retain(|limit| kept(&limit.name));
    }

    /// Hides the comparisons of the limits for which `is_candidate` returns false.
    pub fn hide_effects(&self, is_candidate: impl Fn(&str) -> bool) {
        lock(&self.limits).iter().filter(|limit| !is_candidate(&limit.name)).for_each(|limit| limit.effects.hide());
    }

    /// Exports the series of this method and status from now on.
    pub fn export_code(&self, code: Code) {
        let mut codes = lock(&self.codes);
        if !codes.contains(&code) {
            codes.push(code);
        }
    }

    /// Returns the existing series of responses, by method and status.
    pub fn count_requests(&self) -> BTreeMap<Code, u64> {
        let mut counts: BTreeMap<Code, u64> = lock(&self.codes).iter().map(|code| (*code, 0)).collect();
        for (code, count) in self.shards.iter().map(|part| &part.requests).flat_map(Codes::iter_counts) {
            *counts.entry(code).or_default() += count;
        }
        counts
    }

    pub fn sum_durations(&self) -> Histogram {
        Histogram::sum(self.shards.iter().map(|part| &part.duration))
    }

    pub fn latest_exemplars(&self) -> BucketExemplars {
        Exemplars::latest(self.shards.iter().map(|part| &part.exemplars))
    }

    /// Returns the series of refusals that no limit caused.
    pub fn count_refusals(&self) -> Vec<(usize, u64)> {
        self.rejections.exported_series(self.shards.iter().map(|part| &part.rejections))
    }

    /// Returns the series of requests to the auth server.
    pub fn count_forward_auth(&self) -> Vec<(usize, u64)> {
        self.forward_auth.exported_series(self.shards.iter().map(|part| &part.forward_auth))
    }

    /// Returns the number of requests in progress.
    pub fn count_in_flight(&self) -> i64 {
        let parts = self.shards.iter().map(|part| &part.in_flight);
        let sum = parts.map(Count::get).fold(0, u64::wrapping_add);
        self.capped.load(Ordering::Relaxed).wrapping_add(sum.cast_signed())
    }

    /// Counts a request in if fewer than `max` are in progress. Returns false if the route is full.
    pub fn enter_capped(&self, max: usize) -> bool {
        // Incrementing before comparing keeps the cap exact: two concurrent requests may both be refused, but never
        // both pass.
        self.capped.fetch_add(1, Ordering::Relaxed);
        usize::try_from(self.count_in_flight()).is_ok_and(|count| count <= max)
    }

    pub fn leave_capped(&self) {
        self.capped.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LimitRecord {
    pub fn count_decisions(&self) -> Vec<(usize, u64)> {
        self.decisions.exported_series(self.shards.iter().map(|part| &part.decisions))
    }

    /// Returns the comparisons with the incumbent while the limit is a candidate.
    pub fn count_effects(&self) -> Vec<(usize, u64)> {
        if self.effects.is_hidden() {
            return Vec::new();
        }
        self.effects.exported_series(self.shards.iter().map(|part| &part.effects))
    }

    pub fn count_rejections(&self) -> Vec<(usize, u64)> {
        self.rejections.exported_series(self.shards.iter().map(|part| &part.rejections))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;

    #[test]
    fn workers_are_added_up_and_wanted_series_are_shown() {
        let record = RouteRecord::default();
        let [ok, made] = [StatusCode::OK, StatusCode::CREATED].map(|status| Code::new(&Method::GET, status));
        record.export_code(ok);
        record.export_code(ok);
        record.rejections.export_series(1);
        for worker in 0..3 {
            record.shards.shard_for(worker).requests.inc(made);
            record.shards.shard_for(worker).rejections.inc(3);
        }
        assert_eq!(record.count_requests().into_iter().collect::<Vec<_>>(), [(ok, 0), (made, 3)]);
        assert_eq!(record.count_refusals(), [(1, 0), (3, 3)]);
    }

    #[test]
    fn a_cap_counts_earlier_requests() {
        let record = RouteRecord::default();
        record.shards.shard_for(1).in_flight.inc();
        assert!(record.enter_capped(2));
        assert!(!record.enter_capped(2));
        record.leave_capped();
        record.shards.shard_for(1).in_flight.dec();
        assert_eq!(record.count_in_flight(), 1);
        assert!(record.enter_capped(2));
    }
}
