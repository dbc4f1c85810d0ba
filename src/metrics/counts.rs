//! What one worker counts of one route and of one limit there. Written by requests of that worker
//! alone; `record` adds the workers up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Method, StatusCode};

use super::labels::{Decision, Reason};
use super::shards::Count;

/// What every request writes comes first, in two lines of memory.
#[derive(Default)]
#[repr(C, align(64))]
pub struct RouteCounts {
    pub requests: Codes,
    pub in_flight: Count,
    pub duration: Durations,
    /// Refusals that no limit made.
    pub rejections: LabelCounts<{ Reason::ALL.len() }>,
}

#[derive(Default)]
pub struct LimitCounts {
    pub decisions: LabelCounts<{ Decision::ALL.len() }>,
    pub rejections: LabelCounts<{ Reason::ALL.len() }>,
}

/// Counters of a closed set.
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

/// Label values of `method`; every other method counts as the last.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "OTHER"];

/// A method and a status code as one number above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code(u32);

impl Code {
    pub fn new(method: &Method, status: StatusCode) -> Code {
        let method = METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1);
        // Status codes have three digits, the first of them at least 1.
        Code(u32::from(status.as_u16()) + 1000 * u32::try_from(method).unwrap_or(0))
    }

    pub fn method(self) -> &'static str {
        METHODS.get(self.0 as usize / 1000).copied().unwrap_or(METHODS[METHODS.len() - 1])
    }

    pub fn status(self) -> u32 {
        self.0 % 1000
    }
}

/// Counters by method and status code. Most routes see a few of the thousands there could be: those
/// met first stand here, more in further links.
#[derive(Default)]
pub struct Codes {
    counts: [Count; 3],
    /// Of the same places; 0 while free.
    codes: [AtomicU32; 3],
    more: OnceLock<Box<Codes>>,
}

impl Codes {
    pub fn inc(&self, code: Code) {
        let mut link = self;
        loop {
            for (place, count) in link.codes.iter().zip(&link.counts) {
                let taken = place.load(Ordering::Relaxed);
                if taken == 0 {
                    place.store(code.0, Ordering::Relaxed);
                }
                if taken == 0 || taken == code.0 {
                    return count.inc();
                }
            }
            link = link.more.get_or_init(Box::default);
        }
    }

    /// What was counted, each code once.
    pub fn counted(&self) -> impl Iterator<Item = (Code, u64)> {
        let links = std::iter::successors(Some(self), |link| link.more.get().map(|more| &**more));
        let places = links.flat_map(|link| link.codes.iter().zip(&link.counts));
        places.map(|(code, count)| (Code(code.load(Ordering::Relaxed)), count.get())).filter(|(code, _)| code.0 > 0)
    }
}

/// Upper bounds of the duration buckets, in seconds.
pub const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Durations by bucket; those above the last one only count in all.
#[derive(Default)]
#[repr(C)]
pub struct Durations {
    sum_ns: Count,
    buckets: [Count; BUCKETS.len()],
    above: Count,
}

impl Durations {
    pub fn observe(&self, seconds: f64) {
        let place = BUCKETS.iter().position(|bound| seconds <= *bound);
        place.map_or(&self.above, |place| &self.buckets[place]).inc();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
        self.sum_ns.add((seconds * 1e9) as u64);
    }
}

/// Durations of all workers, as they are shown.
#[derive(Default)]
pub struct Histogram {
    /// Of each bucket and those before.
    pub cumulative: [u64; BUCKETS.len()],
    pub count: u64,
    pub sum_seconds: f64,
}

impl Histogram {
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds")]
    pub fn of<'a>(parts: impl Iterator<Item = &'a Durations>) -> Histogram {
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
            let counted: Vec<_> = codes.counted().map(|(code, count)| (code.method(), code.status(), count)).collect();
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
        let Histogram { cumulative, count, sum_seconds } = Histogram::of(parts.iter());
        assert_eq!((cumulative[0], cumulative[1], cumulative[12], cumulative[13], count), (2, 3, 3, 4, 5));
        assert!((sum_seconds - 61.0026).abs() < 1e-6);
    }

    #[test]
    fn what_a_request_writes_is_two_lines() {
        assert!(std::mem::offset_of!(RouteCounts, duration) <= 64);
    }
}
