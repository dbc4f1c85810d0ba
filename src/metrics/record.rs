//! What is counted of one route: plain cells, a few hundred bytes with its series, so that ten
//! thousand routes stay small and near each other in memory. Written by requests, read by
//! `routes`, which shows them.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::{Method, StatusCode};

use super::labels::{Decision, Reason};

/// Counts of one route; they outlive a reload that keeps the route.
#[derive(Default)]
pub struct RouteRecord {
    pub requests: Codes,
    pub duration: Durations,
    pub in_flight: InFlight,
    /// Refusals that no limit made.
    pub rejections: Tally<{ Reason::ALL.len() }>,
    limits: Mutex<Vec<Arc<LimitRecord>>>,
}

/// Counts of one limit on one route.
pub struct LimitRecord {
    pub name: String,
    pub decisions: Tally<{ Decision::ALL.len() }>,
    pub rejections: Tally<{ Reason::ALL.len() }>,
}

impl RouteRecord {
    /// The record of the route's limit `name`, made when it is new.
    pub fn limit(&self, name: &str) -> Arc<LimitRecord> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = limits.iter().find(|limit| limit.name == name) {
            return limit.clone();
        }
        let (decisions, rejections) = (Tally::default(), Tally::default());
        let limit = Arc::new(LimitRecord { name: name.to_owned(), decisions, rejections });
        limits.push(limit.clone());
        limit
    }

    pub fn limits(&self) -> Vec<Arc<LimitRecord>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the limits for which `kept` is false.
    pub fn retain_limits(&self, kept: impl Fn(&str) -> bool) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).retain(|limit| kept(&limit.name));
    }
}

/// Counters of a closed set. A series exists once it is wanted or counted.
pub struct Tally<const N: usize> {
    counts: [AtomicU64; N],
    wanted: AtomicU32,
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Tally<N> {
        Tally { counts: [const { AtomicU64::new(0) }; N], wanted: AtomicU32::new(0) }
    }
}

impl<const N: usize> Tally<N> {
    pub fn inc(&self, index: usize) {
        self.counts[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Shows the series from now on, so that rates are computed from 0 on.
    pub fn want(&self, index: usize) {
        self.wanted.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// The series that exist: index and count.
    pub fn shown(&self) -> impl Iterator<Item = (usize, u64)> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let counts = self.counts.iter().enumerate().map(|(index, count)| (index, count.load(Ordering::Relaxed)));
        counts.filter(move |(index, count)| *count > 0 || wanted & (1 << index) != 0)
    }
}

/// Label values of `method`; every other method counts as the last.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "OTHER"];

/// Counters by method and status code. Most routes see a few of the thousands there could be: those
/// met first stand here, more in further links.
#[derive(Default)]
pub struct Codes {
    cells: [CodeCell; 3],
    more: OnceLock<Box<Codes>>,
}

/// `key` is 0 while the cell is free.
#[derive(Default)]
struct CodeCell {
    key: AtomicU32,
    count: AtomicU64,
}

impl Codes {
    pub fn inc(&self, method: &Method, status: StatusCode) {
        self.cell(method, status).fetch_add(1, Ordering::Relaxed);
    }

    /// Shows the series from now on.
    pub fn want(&self, method: &Method, status: StatusCode) {
        self.cell(method, status);
    }

    fn cell(&self, method: &Method, status: StatusCode) -> &AtomicU64 {
        let method = METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1);
        // Status codes have three digits, the first of them at least 1.
        let key = u32::from(status.as_u16()) + 1000 * u32::try_from(method).unwrap_or(0);
        let mut link = self;
        loop {
            for cell in &link.cells {
                let taken = cell.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
                if taken.is_ok() || taken == Err(key) {
                    return &cell.count;
                }
            }
            link = link.more.get_or_init(Box::default);
        }
    }

    /// The series that exist: method, status code, count.
    pub fn shown(&self) -> Vec<(&'static str, u32, u64)> {
        let (mut shown, mut link) = (Vec::new(), Some(self));
        while let Some(codes) = link {
            for cell in &codes.cells {
                let key = cell.key.load(Ordering::Acquire);
                if let (Some(method), true) = (METHODS.get(key as usize / 1000), key > 0) {
                    shown.push((*method, key % 1000, cell.count.load(Ordering::Relaxed)));
                }
            }
            link = codes.more.get().map(|more| &**more);
        }
        shown
    }
}

/// Upper bounds of the duration buckets, in seconds.
pub const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Durations by bucket; those above the last one only count in all.
#[derive(Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS.len()],
    above: AtomicU64,
    sum_ns: AtomicU64,
}

impl Durations {
    pub fn observe(&self, seconds: f64) {
        let place = BUCKETS.iter().position(|bound| seconds <= *bound);
        place.map_or(&self.above, |place| &self.buckets[place]).fetch_add(1, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
        self.sum_ns.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }

    /// The cumulative count of each bucket, of all, and the sum in seconds.
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds")]
    pub fn shown(&self) -> ([u64; BUCKETS.len()], u64, f64) {
        let (mut counts, mut count) = ([0; BUCKETS.len()], 0);
        for (shown, bucket) in counts.iter_mut().zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            *shown = count;
        }
        count += self.above.load(Ordering::Relaxed);
        (counts, count, self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

/// Requests being served.
#[derive(Default)]
pub struct InFlight(AtomicI64);

impl InFlight {
    pub fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_and_code_has_a_counter_of_its_own() {
        let codes = Codes::default();
        let methods = [Method::GET, Method::POST, Method::from_bytes(b"BREW").unwrap()];
        let every: Vec<StatusCode> = (100..=999).map(|code| StatusCode::from_u16(code).unwrap()).collect();
        for round in 0..2 {
            for method in &methods {
                every.iter().for_each(|status| codes.inc(method, *status));
            }
            let shown = codes.shown();
            assert_eq!(shown.len(), 3 * 900);
            assert!(shown.iter().all(|(_, _, count)| *count == round + 1));
            assert!(shown.contains(&("OTHER", 418, round + 1)));
        }
    }

    #[test]
    fn threads_that_meet_a_new_code_share_its_counter() {
        let codes = Codes::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope
                    .spawn(|| (100..600).for_each(|code| codes.inc(&Method::GET, StatusCode::from_u16(code).unwrap())));
            }
        });
        let shown = codes.shown();
        assert_eq!(shown.len(), 500);
        assert!(shown.iter().all(|(_, _, count)| *count == 4), "{shown:?}");
    }

    #[test]
    fn a_bucket_holds_its_bound() {
        let durations = Durations::default();
        [0.0005, 0.001, 0.0011, 30.0, 31.0].into_iter().for_each(|seconds| durations.observe(seconds));
        let (counts, count, sum) = durations.shown();
        assert_eq!((counts[0], counts[1], counts[12], counts[13], count), (2, 3, 3, 4, 5));
        assert!((sum - 61.0026).abs() < 1e-6);
    }

    #[test]
    fn a_series_is_shown_once_it_is_wanted_or_counted() {
        let tally = Tally::<4>::default();
        tally.want(1);
        tally.inc(3);
        assert_eq!(tally.shown().collect::<Vec<_>>(), [(1, 0), (3, 1)]);
    }
}
