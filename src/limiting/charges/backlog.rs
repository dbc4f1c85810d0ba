//! Corrections that the store has not accepted, because it was unavailable: a worker sends them again until they
//! succeed or expire. The backlog is bounded, and a few corrections are sent at a time, so that a store that has
//! recovered is not flooded and decisions do not queue behind corrections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::{IntCounter, IntGauge};
use tokio::time::{Instant, sleep};

use crate::limiting::decision::{Check, ErrorKind};
use crate::limiting::store::Store;
use crate::telemetry::metrics::Metrics;

/// Maximum number of corrections that a worker keeps for a store. A new one replaces the oldest, whose lease expires
/// first.
const BACKLOG_MAX: usize = 4096;
/// Number of corrections that are sent at the same time. Each has its own call, so that the failure of one does not
/// affect the others.
const BATCH_MAX: usize = 16;
/// Pause between two rounds while the store responds.
const PAUSE: Duration = Duration::from_millis(10);
/// First pause while the store does not respond. A single correction then tests whether the store is available again.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause while the store does not respond.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a refund is retried. The release of a lease is retried until the lease would have expired or, if its store
/// is no longer active, also for this long.
const RETRY_TIME: Duration = Duration::from_secs(10);

/// The undelivered corrections of one worker to one store.
pub struct Backlog {
    pending: RefCell<PendingCorrections>,
    /// True while a task sends the corrections.
    under_way: Cell<bool>,
    waiting: IntGauge,
    dropped: IntCounter,
}

#[derive(Default)]
struct PendingCorrections {
    next: u64,
    /// Sorted by the order of sending. Includes the corrections of the call under way.
    corrections: BTreeMap<u64, PendingCorrection>,
    /// Keys and tags of the leases in `corrections`, so that each lease is released only once.
    leases: HashSet<(String, i64)>,
}

struct PendingCorrection {
    check: Check,
    since: Instant,
    until: Instant,
}

impl Backlog {
    pub fn new(metrics: &Metrics) -> Backlog {
        Backlog {
            pending: RefCell::default(),
            under_way: Cell::new(false),
            waiting: metrics.store.corrections_waiting.clone(),
            dropped: metrics.store.corrections_dropped.clone(),
        }
    }

    /// Keeps the correction `check`. Returns true if the caller has to run [`Backlog::send_all`].
    pub fn add(&self, check: Check) -> bool {
        let since = Instant::now();
        let lease_ms = check.rule.lease_ms().map(|life_ms| u64::try_from(life_ms).unwrap_or(0));
        let life = lease_ms.map_or(RETRY_TIME, Duration::from_millis);
        let mut pending = self.pending.borrow_mut();
        let one = PendingCorrection { check, since, until: since + life };
        if one.lease().is_some_and(|lease| pending.leases.contains(&lease)) {
            return false;
        }
        let oldest = pending.corrections.keys().next().copied();
        if let Some(oldest) = oldest.filter(|_| pending.corrections.len() == BACKLOG_MAX) {
            pending.remove(oldest);
            self.waiting.dec();
            self.dropped.inc();
        }
        pending.add(one);
        self.waiting.inc();
        !self.under_way.replace(true)
    }

    /// Sends the corrections until none are left. `retired` is true once another store is active.
    pub async fn send_all(&self, store: &Store, retired: &Cell<bool>) {
        let (mut size, mut pause) = (1, Duration::ZERO);
        loop {
            self.drop_expired(retired.get());
            let round = self.next_batch(size);
            if round.is_empty() {
                self.under_way.set(false);
                return;
            }
            let outcomes = join_all(round.iter().map(|(_, check)| store.adjust(check))).await;
            let has_reply = outcomes.iter().any(Result::is_ok);
            for ((id, _), outcome) in round.iter().zip(outcomes) {
                self.end_attempt(*id, outcome.err());
            }
            (size, pause) = match has_reply {
                true => (BATCH_MAX, PAUSE),
                false => (1, (pause * 2).clamp(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX)),
            };
            // The jitter keeps workers and gateways that lost the same store from retrying in step.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    /// Counts a correction that failed and is not safe to repeat.
    pub fn count_lost(&self) {
        self.dropped.inc();
    }

    /// Drops corrections whose time is up. The leases among them have expired by themselves, the others are lost.
    fn drop_expired(&self, retired: bool) {
        let now = Instant::now();
        let mut pending = self.pending.borrow_mut();
        let ids = pending.corrections.iter().filter(|(_, one)| one.has_expired(now, retired)).map(|(id, _)| *id);
        for id in ids.collect::<Vec<u64>>() {
            if pending.remove(id).is_some_and(|one| one.lease().is_none()) {
                self.count_lost();
            }
            self.waiting.dec();
        }
    }

    fn next_batch(&self, size: usize) -> Vec<(u64, Rc<Vec<Check>>)> {
        let pending = self.pending.borrow();
        pending.corrections.iter().take(size).map(|(id, one)| (*id, Rc::new(vec![one.check.clone()]))).collect()
    }

    /// Ends one attempt to send a correction. If it failed and is safe to repeat, it moves to the end of the backlog,
    /// so that corrections to an unavailable server do not delay the others.
    fn end_attempt(&self, id: u64, failed: Option<ErrorKind>) {
        let mut pending = self.pending.borrow_mut();
        // It may have been dropped in the meantime.
        let Some(one) = pending.remove(id) else { return };
        match failed {
            Some(kind) if is_repeatable(&one.check, kind) => pending.add(one),
            Some(_) => {
                self.waiting.dec();
                self.count_lost();
            }
            None => self.waiting.dec(),
        }
    }
}

/// Returns whether a correction that failed with `kind` is safe to repeat: the release of a lease, and any correction
/// that certainly did not happen.
pub fn is_repeatable(check: &Check, kind: ErrorKind) -> bool {
    check.rule.lease_ms().is_some() || !kind.is_unsure()
}

impl PendingCorrections {
    fn add(&mut self, one: PendingCorrection) {
        self.leases.extend(one.lease());
        self.corrections.insert(self.next, one);
        self.next += 1;
    }

    fn remove(&mut self, id: u64) -> Option<PendingCorrection> {
        let one = self.corrections.remove(&id)?;
        if let Some(lease) = one.lease() {
            self.leases.remove(&lease);
        }
        Some(one)
    }
}

impl PendingCorrection {
    fn lease(&self) -> Option<(String, i64)> {
        self.check.rule.lease_ms().map(|_| (self.check.key.clone(), self.check.tag))
    }

    fn has_expired(&self, now: Instant, retired: bool) -> bool {
        now >= self.until || retired && now >= self.since + RETRY_TIME
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.pending.get_mut().corrections.values().for_each(|_| self.waiting.dec());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::concurrency::Concurrency;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::limit::{Limit, Mode};
    use crate::limiting::store::memory::MemoryStore;

    fn correction(rule: Rule, tag: i64) -> Check {
        let limit = Limit::bare("any", rule, Mode::Enforce);
        Check { tag, ..Check::new(&limit, "key".to_owned(), -1) }
    }

    fn slot(tag: i64) -> Check {
        correction(Rule::Concurrency(Concurrency { in_flight: 9, lease_ms: 3_600_000 }), tag)
    }

    fn refund(tag: i64) -> Check {
        correction(Rule::FixedWindow(FixedWindow { limit: 9, window_ms: 3_600_000, clock: false }), tag)
    }

    #[test]
    fn the_backlog_is_bounded_and_each_lease_is_in_it_once() {
        let metrics = Metrics::new().unwrap();
        let shown = || (metrics.store.corrections_waiting.get(), metrics.store.corrections_dropped.get());
        let backlog = Backlog::new(&metrics);
        assert!(backlog.add(slot(0)), "the first starts the task");
        assert!(!backlog.add(slot(0)) && !backlog.add(refund(0)) && !backlog.add(refund(0)));
        assert_eq!(shown(), (3, 0));
        for tag in 1..=i64::try_from(BACKLOG_MAX).unwrap() {
            assert!(!backlog.add(slot(tag)));
        }
        assert_eq!(shown(), (4096, 3));
        // The oldest was dropped, so it can be added again.
        backlog.add(slot(0));
        assert_eq!(shown(), (4096, 4));
        drop(backlog);
        assert_eq!(shown(), (0, 4));
    }

    #[test]
    fn failed_corrections_move_to_the_end_unless_they_may_have_happened() {
        let metrics = Metrics::new().unwrap();
        let backlog = Backlog::new(&metrics);
        [slot(1), slot(2), refund(3), refund(4)].into_iter().for_each(|check| _ = backlog.add(check));
        for (id, failed) in [
            (0, Some(ErrorKind::Timeout)),
            (1, None),
            (2, Some(ErrorKind::Timeout)),
            (3, Some(ErrorKind::Disconnected)),
        ] {
            backlog.end_attempt(id, failed);
        }
        let tags: Vec<i64> = backlog.next_batch(9).iter().map(|(_, check)| check[0].tag).collect();
        assert_eq!((tags, metrics.store.corrections_waiting.get()), (vec![1, 4], 2));
        assert_eq!(metrics.store.corrections_dropped.get(), 1, "what may have happened is lost");
        let now = Instant::now();
        backlog.pending.borrow_mut().corrections.values_mut().for_each(|one| one.until = now);
        backlog.drop_expired(false);
        assert_eq!((metrics.store.corrections_waiting.get(), metrics.store.corrections_dropped.get()), (0, 2));
    }

    #[tokio::test]
    async fn sending_ends_with_the_last_correction_and_has_to_be_started_again() {
        let metrics = Metrics::new().unwrap();
        let backlog = Backlog::new(&metrics);
        let (store, retired) = (Store::Memory(Arc::new(MemoryStore::new(1000))), Cell::new(false));
        let mut ended = slot(7);
        ended.rule = Arc::new(Rule::Concurrency(Concurrency { in_flight: 9, lease_ms: 0 }));
        for check in [ended, slot(8), refund(9)] {
            backlog.add(check);
        }
        backlog.send_all(&store, &retired).await;
        assert_eq!(metrics.store.corrections_waiting.get(), 0);
        assert!(backlog.add(slot(8)));
    }
}
