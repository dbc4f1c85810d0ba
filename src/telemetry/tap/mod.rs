//! Taps: operators watch requests as they end. Each tap has a filter, a rate and a bounded queue.
//!
//! Input: `proxy::account::log_entry` publishes each request that ended, but only while there is a tap; without one, a
//! request costs one relaxed load. Output: the admin listener reads the queue of its [`TapReader`]. A worker never
//! waits: a request above the rate is left out, and one that does not fit into the queue is lost. Both are counted.
//!
//! `filter` selects requests, `rate` samples them, and `event` formats them with the fields of the access log.

mod event;
mod filter;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::rate::SharedBucket;
use crate::telemetry::access_log::LogRecord;
use crate::telemetry::metrics::{CandidateEffect, Decision, TapMetrics};
pub use crate::telemetry::tap::filter::{FILTER_NAMES, FILTERS, TapFilter};

/// Maximum number of taps.
pub const TAPS_MAX: usize = 8;
/// Maximum number of queued events per tap, and of their bytes. Further events are lost.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The taps of this process. Clones are cheap and share them.
#[derive(Clone)]
pub struct Taps(Arc<TapRegistry>);

struct TapRegistry {
    /// Number of taps; all that a request reads while there is none.
    count: AtomicUsize,
    open: ArcSwap<Vec<Arc<Tap>>>,
    metrics: TapMetrics,
}

/// Decision of one limit about a request.
#[derive(Clone, Debug)]
pub struct TapDecision {
    pub limit: String,
    pub decision: Decision,
    /// Units left for the key; `None` if no store decided.
    pub remaining: Option<i64>,
    /// Time in ms until the key passes again, or for which the request was delayed; `None` if waiting does not help.
    pub retry_after_ms: Option<i64>,
    /// The key, with secrets as hashes. `None` if it is ambiguous.
    pub key: Option<String>,
    /// How a candidate compares with its incumbent. `None` for other limits.
    pub effect: Option<CandidateEffect>,
}

struct Tap {
    filter: TapFilter,
    started: Instant,
    /// Interval between two events, once the events of a second are used up.
    interval_ns: u64,
    bucket: SharedBucket,
    queue: mpsc::Sender<Bytes>,
    /// Bytes of the queued events.
    waiting: AtomicUsize,
    matched: AtomicU64,
    sampled_out: AtomicU64,
    lost: AtomicU64,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Numbers of requests since the tap was opened. `matched` is the sum of the others and of those in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapCounts {
    pub matched: u64,
    pub sent: u64,
    /// Left out, because more requests matched than the rate allows.
    pub sampled_out: u64,
    /// Dropped, because the reader is too slow.
    pub lost: u64,
}

/// The reading end of a tap, which ends when this is dropped.
pub struct TapReader {
    tap: Arc<Tap>,
    events: mpsc::Receiver<Bytes>,
    taps: Taps,
    sent: u64,
}

impl Taps {
    pub fn new(metrics: TapMetrics) -> Taps {
        Taps(Arc::new(TapRegistry { count: AtomicUsize::new(0), open: ArcSwap::default(), metrics }))
    }

    /// Returns whether somebody taps requests.
    pub fn is_active(&self) -> bool {
        self.0.count.load(Ordering::Relaxed) > 0
    }

    /// Opens a tap that gets at most `per_second` events on average. Returns `None` if there are [`TAPS_MAX`] already.
    pub fn open(&self, filter: TapFilter, per_second: u32) -> Option<TapReader> {
        let before = self.0.count.fetch_add(1, Ordering::Relaxed);
        if before >= TAPS_MAX {
            self.0.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (queue, events) = mpsc::channel(WAITING_MAX);
        let tap = Arc::new(Tap {
            filter,
            started: Instant::now(),
            interval_ns: SECOND_NS / u64::from(per_second.max(1)),
            bucket: SharedBucket::default(),
            queue,
            waiting: AtomicUsize::new(0),
            matched: AtomicU64::new(0),
            sampled_out: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        self.0.open.rcu(|open| open.iter().chain([&tap]).cloned().collect::<Vec<_>>());
        Some(TapReader { tap, events, taps: self.clone(), sent: 0 })
    }

    /// Offers a request that has ended to all taps.
    pub fn publish(&self, record: &LogRecord, decisions: &[TapDecision]) {
        let mut event = None;
        for tap in self.0.open.load().iter().filter(|tap| tap.filter.matches(record, decisions)) {
            tap.matched.fetch_add(1, Ordering::Relaxed);
            if !tap.take_turn() {
                tap.sampled_out.fetch_add(1, Ordering::Relaxed);
                self.0.metrics.sampled_out.inc();
                continue;
            }
            let event = event.get_or_insert_with(|| Bytes::from(event::format_event(record, decisions)));
            if !tap.queue_event(event.clone()) {
                tap.lost.fetch_add(1, Ordering::Relaxed);
                self.0.metrics.lost.inc();
            }
        }
    }
}

impl Tap {
    /// Returns whether an event may be sent now. A bucket holds the events of one second.
    fn take_turn(&self) -> bool {
        let now_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.bucket.take(now_ns, self.interval_ns, SECOND_NS)
    }

    /// Queues an event; returns false if it does not fit.
    fn queue_event(&self, event: Bytes) -> bool {
        let bytes = event.len();
        let fits = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= WAITING_BYTES_MAX;
        if fits && self.queue.try_send(event).is_ok() {
            return true;
        }
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        false
    }
}

impl TapReader {
    /// Waits for the next event, in the format of an event stream.
    pub async fn next_event(&mut self) -> Bytes {
        match self.events.recv().await {
            Some(event) => {
                self.tap.waiting.fetch_sub(event.len(), Ordering::Relaxed);
                self.sent += 1;
                self.taps.0.metrics.sent.inc();
                event
            }
            // The tap has a sender as long as this exists.
            None => std::future::pending().await,
        }
    }

    pub fn counts(&self) -> TapCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Tap { matched, sampled_out, lost, .. } = &*self.tap;
        TapCounts { sent: self.sent, sampled_out: count(sampled_out), lost: count(lost), matched: count(matched) }
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.taps
            .0
            .open
            .rcu(|open| open.iter().filter(|tap| !Arc::ptr_eq(tap, &self.tap)).cloned().collect::<Vec<_>>());
        self.taps.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn taps() -> Taps {
        Taps::new(Metrics::new().unwrap().taps)
    }

    #[test]
    fn there_are_a_few_taps_and_each_ends_with_its_reader() {
        let taps = taps();
        assert!(!taps.is_active());
        let mut all: Vec<_> = (0..TAPS_MAX).filter_map(|_| taps.open(TapFilter::default(), 1)).collect();
        assert!(all.len() == TAPS_MAX && taps.open(TapFilter::default(), 1).is_none() && taps.is_active());
        all.pop();
        assert!(taps.open(TapFilter::default(), 1).is_some());
        drop(all);
        assert!(!taps.is_active() && taps.0.open.load().is_empty());
    }

    #[test]
    fn nothing_waits_for_a_reader_that_does_not_read() {
        let taps = taps();
        let reader = taps.open(TapFilter::default(), 1_000_000).unwrap();
        for _ in 0..WAITING_MAX + 7 {
            taps.publish(&LogRecord::default(), &[]);
        }
        let TapCounts { matched, sent, sampled_out, lost } = reader.counts();
        assert_eq!((matched, sent, sampled_out, lost), (WAITING_MAX as u64 + 7, 0, 0, 7));
        let long = LogRecord { path: "/".repeat(WAITING_BYTES_MAX / 3), ..LogRecord::default() };
        let reader = taps.open(TapFilter::default(), 1_000_000).unwrap();
        (0..4).for_each(|_| taps.publish(&long, &[]));
        assert_eq!(reader.counts().lost, 2);
        assert!(reader.tap.waiting.load(Ordering::Relaxed) <= WAITING_BYTES_MAX);
    }

    #[test]
    fn events_beyond_the_rate_are_counted() {
        let taps = taps();
        let reader = taps.open(TapFilter::default(), 5).unwrap();
        (0..100).for_each(|_| taps.publish(&LogRecord::default(), &[]));
        let TapCounts { matched, sampled_out, lost, .. } = reader.counts();
        // A slow machine may earn an event or two in the meantime.
        assert!(matched == 100 && lost == 0 && (90..=95).contains(&sampled_out), "{:?}", reader.counts());
    }
}
