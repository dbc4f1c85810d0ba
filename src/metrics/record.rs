//! What is counted of one route: a small part for each worker that served it, and what all of them
//! share. Bound to requests by `snapshot`, shown by `routes`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::counts::{Code, Codes, Histogram, LabelCounts, LimitCounts, RouteCounts};
use super::shards::{Count, Shards};

/// Counts of one route; they outlive a reload that keeps the route.
#[derive(Default)]
pub struct RouteRecord {
    pub shards: Shards<RouteCounts>,
    pub rejections: WantedSeries,
    /// Requests being served while the route had a cap, which is exact over all workers.
    capped: AtomicI64,
    codes: Mutex<Vec<Code>>,
    limits: Mutex<Vec<Arc<LimitRecord>>>,
}

/// Counts of one limit on one route.
pub struct LimitRecord {
    pub name: String,
    pub shards: Shards<LimitCounts>,
    pub decisions: WantedSeries,
    pub rejections: WantedSeries,
}

/// Series of a closed set that are shown before anything is counted, so that rates start at 0.
#[derive(Default)]
pub struct WantedSeries(AtomicU32);

impl WantedSeries {
    pub fn want(&self, index: usize) {
        self.0.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// The series that exist: index and count.
    pub fn shown<'a, const N: usize>(&self, parts: impl Iterator<Item = &'a LabelCounts<N>>) -> Vec<(usize, u64)> {
        let mut counts = [0; N];
        for part in parts {
            counts.iter_mut().enumerate().for_each(|(index, count)| *count += part.get(index));
        }
        let wanted = self.0.load(Ordering::Relaxed);
        let shown = counts.into_iter().enumerate();
        shown.filter(|(index, count)| *count > 0 || wanted & (1 << index) != 0).collect()
    }
}

impl RouteRecord {
    /// The record of the route's limit `name`, made when it is new.
    pub fn limit(&self, name: &str) -> Arc<LimitRecord> {
        let mut limits = lock(&self.limits);
        if let Some(limit) = limits.iter().find(|limit| limit.name == name) {
            return limit.clone();
        }
        let (decisions, rejections) = (WantedSeries::default(), WantedSeries::default());
        let limit = Arc::new(LimitRecord { name: name.to_owned(), shards: Shards::default(), decisions, rejections });
        limits.push(limit.clone());
        limit
    }

    pub fn limits(&self) -> Vec<Arc<LimitRecord>> {
        lock(&self.limits).clone()
    }

    /// Forgets the limits for which `kept` is false.
    pub fn retain_limits(&self, kept: impl Fn(&str) -> bool) {
        lock(&self.limits).retain(|limit| kept(&limit.name));
    }

    /// Shows the answers of this method and status from now on.
    pub fn want(&self, code: Code) {
        let mut codes = lock(&self.codes);
        if !codes.contains(&code) {
            codes.push(code);
        }
    }

    /// The answers that exist as series, by method and status.
    pub fn requests(&self) -> BTreeMap<Code, u64> {
        let mut shown: BTreeMap<Code, u64> = lock(&self.codes).iter().map(|code| (*code, 0)).collect();
        for (code, count) in self.shards.iter().map(|part| &part.requests).flat_map(Codes::counted) {
            *shown.entry(code).or_default() += count;
        }
        shown
    }

    pub fn durations(&self) -> Histogram {
        Histogram::of(self.shards.iter().map(|part| &part.duration))
    }

    /// The series of refusals that no limit made.
    pub fn refusals(&self) -> Vec<(usize, u64)> {
        self.rejections.shown(self.shards.iter().map(|part| &part.rejections))
    }

    /// Requests being served.
    pub fn in_flight(&self) -> i64 {
        let parts = self.shards.iter().map(|part| &part.in_flight);
        let uncapped = parts.map(Count::get).fold(0, u64::wrapping_add);
        self.capped.load(Ordering::Relaxed).wrapping_add(uncapped.cast_signed())
    }

    /// Counts a request in, where no more than `max` may be served. False when there are more now.
    pub fn enter_capped(&self, max: usize) -> bool {
        // Counting first keeps the cap exact: two that meet may both be refused, never both pass.
        self.capped.fetch_add(1, Ordering::Relaxed);
        usize::try_from(self.in_flight()).is_ok_and(|count| count <= max)
    }

    pub fn leave_capped(&self) {
        self.capped.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LimitRecord {
    pub fn decided(&self) -> Vec<(usize, u64)> {
        self.decisions.shown(self.shards.iter().map(|part| &part.decisions))
    }

    pub fn rejected(&self) -> Vec<(usize, u64)> {
        self.rejections.shown(self.shards.iter().map(|part| &part.rejections))
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
        record.want(ok);
        record.want(ok);
        record.rejections.want(1);
        for worker in 0..3 {
            record.shards.of(worker).requests.inc(made);
            record.shards.of(worker).rejections.inc(3);
        }
        assert_eq!(record.requests().into_iter().collect::<Vec<_>>(), [(ok, 0), (made, 3)]);
        assert_eq!(record.refusals(), [(1, 0), (3, 3)]);
    }

    #[test]
    fn a_cap_counts_those_that_came_before_it() {
        let record = RouteRecord::default();
        record.shards.of(1).in_flight.inc();
        assert!(record.enter_capped(2));
        assert!(!record.enter_capped(2));
        record.leave_capped();
        record.shards.of(1).in_flight.dec();
        assert_eq!(record.in_flight(), 1);
        assert!(record.enter_capped(2));
    }
}
