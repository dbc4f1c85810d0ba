//! Counts that one worker writes, and their sums over all workers: by the value of a label, by method and status, and
//! by duration.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Method, StatusCode};

use crate::telemetry::exemplars::Exemplar;
use crate::telemetry::metrics::shards::Count;

/// One counter per value of a closed label set.
pub struct LabelCounts<const N: usize>([Count; N]);

impl<const N: usize> Default for LabelCounts<N> {
    fn default() -> LabelCounts<N> {
        LabelCounts([const { Count::new() }; N])
    }
}

impl<const N: usize> LabelCounts<N> {
    pub fn inc(&self, index: usize) {
        self.0[index].inc();
    }

    pub fn get(&self, index: usize) -> u64 {
        self.0[index].get()
    }
}

/// Series of a closed label set that are exported before anything was counted, so that rates start at 0.
#[derive(Default)]
pub struct ExportedSeries(AtomicU32);

impl ExportedSeries {
    pub fn export_series(&self, index: usize) {
        self.0.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// Exports no series before it is exported again.
    pub fn hide(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub fn is_hidden(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Returns the series that exist: index and count.
    pub fn list_series<'a, const N: usize>(
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

/// Values of the `method` label. Every other method is counted as the last one.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "OTHER"];

/// A method and a status code, encoded as one number greater than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code(u32);

impl Code {
    pub fn new(method: &Method, status: StatusCode) -> Code {
        let method = METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1);
        // A status code has three digits and starts with at least 1, so 0 never occurs.
        Code(u32::from(status.as_u16()) + 1000 * u32::try_from(method).unwrap_or(0))
    }

    /// Returns the name of the method. A code that was made of a status alone has none.
    pub fn method(self) -> &'static str {
        METHODS.get(self.0 as usize / 1000).copied().unwrap_or(METHODS[METHODS.len() - 1])
    }

    pub fn status(self) -> u32 {
        self.0 % 1000
    }
}

/// The code of a status alone, for families without the label `method`.
impl From<StatusCode> for Code {
    fn from(status: StatusCode) -> Code {
        Code(u32::from(status.as_u16()))
    }
}

/// Counters by method and status code. A route usually sees a few of the thousands of combinations: the first three
/// are stored inline, further ones in linked blocks.
#[derive(Default)]
pub struct Codes {
    counts: [Count; 3],
    /// Codes of the counters at the same index; 0 means free.
    codes: [AtomicU32; 3],
    more: OnceLock<Box<Codes>>,
}

impl Codes {
    pub fn inc(&self, code: Code) {
        let mut link = self;
        loop {
            for (place, count) in link.codes.iter().zip(&link.counts) {
                let current = place.load(Ordering::Relaxed);
                if current == 0 {
                    place.store(code.0, Ordering::Relaxed);
                }
                if current == 0 || current == code.0 {
                    return count.inc();
                }
            }
            link = link.more.get_or_init(Box::default);
        }
    }

    /// Returns each code that was counted, once.
    pub fn iter_counts(&self) -> impl Iterator<Item = (Code, u64)> {
        let links = std::iter::successors(Some(self), |link| link.more.get().map(|more| &**more));
        let places = links.flat_map(|link| link.codes.iter().zip(&link.counts));
        places.map(|(code, count)| (Code(code.load(Ordering::Relaxed)), count.get())).filter(|(code, _)| code.0 > 0)
    }
}

/// Upper bounds of the duration buckets, in seconds.
pub const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// An exemplar for each bucket; the last is for durations above all bounds.
pub type BucketExemplars = [Option<Exemplar>; BUCKETS.len() + 1];

/// Returns the index of the bucket of a duration; `None` above the last bound.
pub fn find_bucket(seconds: f64) -> Option<usize> {
    BUCKETS.iter().position(|bound| seconds <= *bound)
}

/// Durations by bucket. A duration above the last bound counts only in the total.
#[derive(Default)]
#[repr(C)]
pub struct Durations {
    sum_ns: Count,
    buckets: [Count; BUCKETS.len()],
    above: Count,
}

impl Durations {
    pub fn observe(&self, seconds: f64) {
        find_bucket(seconds).map_or(&self.above, |place| &self.buckets[place]).inc();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
        self.sum_ns.add((seconds * 1e9) as u64);
    }
}

/// Durations of all workers, in the form that is exported.
#[derive(Default)]
pub struct Histogram {
    /// Cumulative counts: each bucket includes the ones before it.
    pub cumulative: [u64; BUCKETS.len()],
    pub count: u64,
    pub sum_seconds: f64,
}

impl Histogram {
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds")]
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Durations>) -> Histogram {
        let mut all = Histogram::default();
        for part in parts {
            let mut count = 0;
            for (cumulative, bucket) in all.cumulative.iter_mut().zip(&part.buckets) {
                count += bucket.get();
                *cumulative += count;
            }
            all.count += count + part.above.get();
            all.sum_seconds += part.sum_ns.get() as f64 / 1e9;
        }
        all
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
        for round in 1..=2 {
            for method in &methods {
                every.iter().for_each(|status| codes.inc(Code::new(method, *status)));
            }
            let counted: Vec<_> =
                codes.iter_counts().map(|(code, count)| (code.method(), code.status(), count)).collect();
            assert_eq!(counted.len(), 3 * 900);
            assert!(counted.iter().all(|(_, _, count)| *count == round));
            assert!(counted.contains(&("OTHER", 418, round)));
        }
    }

    #[test]
    fn a_bucket_holds_its_bound() {
        let parts = [Durations::default(), Durations::default()];
        [0.0005, 0.001, 0.0011].into_iter().for_each(|seconds| parts[0].observe(seconds));
        [30.0, 31.0].into_iter().for_each(|seconds| parts[1].observe(seconds));
        let Histogram { cumulative, count, sum_seconds } = Histogram::sum(parts.iter());
        assert_eq!((cumulative[0], cumulative[1], cumulative[12], cumulative[13], count), (2, 3, 3, 4, 5));
        assert!((sum_seconds - 61.0026).abs() < 1e-6);
    }
}
