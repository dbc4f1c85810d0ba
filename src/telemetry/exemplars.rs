//! Exemplars of a histogram: for each bucket, the trace of a recent request that it counts. They exist only where spans
//! are exported. `counts` has those of a worker, `openmetrics` exports them.

use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A request with a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub trace_id: u128,
    pub seconds: f64,
    /// When the request ended, in ms of Unix time.
    pub time_ms: u64,
}

/// The last exemplars of one worker, one for each of `N` buckets. Takes no memory until the first sampled request.
#[derive(Default)]
pub struct Exemplars<const N: usize>(OnceLock<Box<Mutex<[Option<Exemplar>; N]>>>);

impl<const N: usize> Exemplars<N> {
    /// Records a request of a trace that is exported. Never waits: while a scrape reads the exemplars, it does nothing.
    pub fn record(&self, bucket: usize, seconds: f64, trace_id: u128) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(0);
        let exemplars = self.0.get_or_init(|| Box::new(Mutex::new([None; N])));
        let mut slots = match exemplars.try_lock() {
            Ok(slots) => slots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(slot) = slots.get_mut(bucket) {
            *slot = Some(Exemplar { trace_id, seconds, time_ms });
        }
    }

    /// Returns the latest exemplars of all workers.
    pub fn latest<'a>(parts: impl Iterator<Item = &'a Exemplars<N>>) -> [Option<Exemplar>; N] {
        let mut latest: [Option<Exemplar>; N] = [None; N];
        for exemplars in parts.filter_map(|part| part.0.get()) {
            let slots = *exemplars.lock().unwrap_or_else(PoisonError::into_inner);
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
        let parts = [(); 3].map(|()| Exemplars::<3>::default());
        parts[0].record(0, 0.001, 1);
        parts[0].record(0, 0.0005, 2);
        parts[1].record(2, 31.0, 3);
        let ids = || Exemplars::latest(parts.iter()).map(|exemplar| exemplar.map_or(0, |found| found.trace_id));
        assert_eq!(ids(), [2, 0, 3]);
        let held = parts[0].0.get().unwrap().lock().unwrap();
        parts[0].record(0, 0.001, 4);
        drop(held);
        assert_eq!(ids(), [2, 0, 3], "a request does not wait for a scrape");
    }
}
