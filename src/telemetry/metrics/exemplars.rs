//! Exemplars of the duration histograms: for each bucket, the trace of a recent request that it counts. They exist only
//! where spans are exported.

use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::telemetry::metrics::counts::{BUCKETS, find_bucket};

/// A request with a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub trace_id: u128,
    pub seconds: f64,
    /// When the request ended, in ms of Unix time.
    pub time_ms: u64,
}

/// An exemplar for each bucket; the last is for durations above all bounds.
pub type BucketExemplars = [Option<Exemplar>; BUCKETS.len() + 1];

/// The last exemplars of one worker. Empty until its first sampled request.
#[derive(Default)]
pub struct Exemplars(OnceLock<Box<Mutex<BucketExemplars>>>);

impl Exemplars {
    /// Records a request of a trace that is exported. Never waits: while a scrape reads the exemplars, it does nothing.
    pub fn record(&self, seconds: f64, trace_id: u128) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(0);
        let exemplars = self.0.get_or_init(Box::default);
        let mut slots = match exemplars.try_lock() {
            Ok(slots) => slots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        slots[find_bucket(seconds).unwrap_or(BUCKETS.len())] = Some(Exemplar { trace_id, seconds, time_ms });
    }

    /// Returns the latest exemplars of all workers.
    pub fn latest<'a>(parts: impl Iterator<Item = &'a Exemplars>) -> BucketExemplars {
        let mut latest = BucketExemplars::default();
        for exemplars in parts.filter_map(|part| part.0.get()) {
            let slots = *exemplars.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (newest, found) in latest.iter_mut().zip(slots) {
                if found.map(|exemplar| exemplar.time_ms) > newest.map(|exemplar| exemplar.time_ms) {
                    *newest = found;
                }
            }
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_has_the_latest_request_of_all_workers() {
        let parts = [Exemplars::default(), Exemplars::default(), Exemplars::default()];
        parts[0].record(0.001, 1);
        parts[0].record(0.0005, 2);
        parts[1].record(31.0, 3);
        let latest = Exemplars::latest(parts.iter());
        assert_eq!(latest.map(|exemplar| exemplar.map_or(0, |found| found.trace_id)), {
            let mut expected = [0; BUCKETS.len() + 1];
            (expected[0], expected[BUCKETS.len()]) = (2, 3);
            expected
        });
        let held = parts[0].0.get().unwrap().lock().unwrap();
        parts[0].record(0.001, 4);
        drop(held);
        assert_eq!(Exemplars::latest(parts.iter())[0], latest[0], "a request does not wait for a scrape");
    }
}
