//! What could not be given back because the store did not answer: slots and refunds that a worker brings
//! again. Bounded, and brought a few at a time, so that a store which comes back is not flooded and the
//! limits of others do not wait behind them. Kept by `desk`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use prometheus::{IntCounter, IntGauge};
use tokio::time::{Instant, sleep};

use super::decision::{Check, ErrorKind};
use super::store::Store;
use crate::metrics::Metrics;

/// Corrections that a worker keeps for a store. Beyond that the oldest goes, as its lease ends first.
const OWED_MAX: usize = 4096;
/// Brought at once, each a decision of its own: one that fails holds none of the others back.
const AT_ONCE: usize = 16;
/// Pause between two rounds while the store answers,
const PAUSE: Duration = Duration::from_millis(10);
/// and while it does not: a single correction asks whether it is back, less and less often.
const AWAY_MIN: Duration = Duration::from_millis(100);
const AWAY_MAX: Duration = Duration::from_secs(2);
/// How long a refund is brought again, and a slot to a store that is no longer in force. Any other slot is
/// let go of until its lease would have ended by itself.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Backlog {
    owed: RefCell<Owing>,
    /// Somebody brings what is owed.
    under_way: Cell<bool>,
    waiting: IntGauge,
    dropped: IntCounter,
}

#[derive(Default)]
struct Owing {
    next: u64,
    /// In the order of bringing; those under way are among them.
    corrections: BTreeMap<u64, Owed>,
    /// Keys and tags of the leases among them, each of which is let go of once.
    leases: HashSet<(String, i64)>,
}

struct Owed {
    check: Check,
    since: Instant,
    until: Instant,
}

impl Backlog {
    pub fn new(metrics: &Metrics) -> Backlog {
        Backlog {
            owed: RefCell::default(),
            under_way: Cell::new(false),
            waiting: metrics.store_corrections_waiting.clone(),
            dropped: metrics.store_corrections_dropped.clone(),
        }
    }

    /// Keeps `check`, a correction. True if the caller has to [`Backlog::bring`] what is owed.
    pub fn keep(&self, check: Check) -> bool {
        let since = Instant::now();
        let lease_ms = check.rule.lease_ms().map(|life_ms| u64::try_from(life_ms).unwrap_or(0));
        let life = lease_ms.map_or(PATIENCE, Duration::from_millis);
        let mut owed = self.owed.borrow_mut();
        let one = Owed { check, since, until: since + life };
        if one.lease().is_some_and(|lease| owed.leases.contains(&lease)) {
            return false;
        }
        let oldest = owed.corrections.keys().next().copied();
        if let Some(oldest) = oldest.filter(|_| owed.corrections.len() == OWED_MAX) {
            owed.remove(oldest);
            self.waiting.dec();
            self.dropped.inc();
        }
        owed.add(one);
        self.waiting.inc();
        !self.under_way.replace(true)
    }

    /// Brings what is owed until nothing is. `retired`: another store is in force.
    pub async fn bring(&self, store: &Store, retired: &Cell<bool>) {
        let (mut most, mut pause) = (1, Duration::ZERO);
        loop {
            self.forget_ended(retired.get());
            let round = self.first(most);
            if round.is_empty() {
                self.under_way.set(false);
                return;
            }
            let outcomes = join_all(round.iter().map(|(_, check)| store.adjust(check))).await;
            let answered = outcomes.iter().any(Result::is_ok);
            for ((id, _), outcome) in round.iter().zip(outcomes) {
                self.end(*id, outcome.err());
            }
            (most, pause) = match answered {
                true => (AT_ONCE, PAUSE),
                false => (1, (pause * 2).clamp(AWAY_MIN, AWAY_MAX)),
            };
            // Workers and gateways that lost the same store do not come back in step.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    /// What is of no use any more: the leases have ended by themselves.
    fn forget_ended(&self, retired: bool) {
        let now = Instant::now();
        let mut owed = self.owed.borrow_mut();
        let ended = owed.corrections.iter().filter(|(_, one)| one.has_ended(now, retired)).map(|(id, _)| *id);
        for id in ended.collect::<Vec<u64>>() {
            owed.remove(id);
            self.waiting.dec();
        }
    }

    fn first(&self, most: usize) -> Vec<(u64, Rc<Vec<Check>>)> {
        let owed = self.owed.borrow();
        owed.corrections.iter().take(most).map(|(id, one)| (*id, Rc::new(vec![one.check.clone()]))).collect()
    }

    /// One that failed goes behind all others, so that those of a server that is away hold up none: a lease,
    /// which can be let go of twice, and what has certainly not happened.
    fn end(&self, id: u64, failed: Option<ErrorKind>) {
        let mut owed = self.owed.borrow_mut();
        // Or it was dropped meanwhile.
        let Some(one) = owed.remove(id) else { return };
        match failed {
            Some(kind) if one.check.rule.lease_ms().is_some() || !kind.is_unsure() => owed.add(one),
            _ => self.waiting.dec(),
        }
    }
}

impl Owing {
    fn add(&mut self, one: Owed) {
        self.leases.extend(one.lease());
        self.corrections.insert(self.next, one);
        self.next += 1;
    }

    fn remove(&mut self, id: u64) -> Option<Owed> {
        let one = self.corrections.remove(&id)?;
        if let Some(lease) = one.lease() {
            self.leases.remove(&lease);
        }
        Some(one)
    }
}

impl Owed {
    fn lease(&self) -> Option<(String, i64)> {
        self.check.rule.lease_ms().map(|_| (self.check.key.clone(), self.check.tag))
    }

    fn has_ended(&self, now: Instant, retired: bool) -> bool {
        now >= self.until || retired && now >= self.since + PATIENCE
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.owed.get_mut().corrections.values().for_each(|_| self.waiting.dec());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::algo::{Rule, concurrency::Concurrency, fixed_window::FixedWindow};
    use crate::limit::limits::{Limit, Mode};
    use crate::limit::store::memory::Memory;

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
    fn what_is_owed_is_bounded_and_each_slot_is_owed_once() {
        let metrics = Metrics::new().unwrap();
        let shown = || (metrics.store_corrections_waiting.get(), metrics.store_corrections_dropped.get());
        let backlog = Backlog::new(&metrics);
        assert!(backlog.keep(slot(0)), "the first has somebody bring it");
        assert!(!backlog.keep(slot(0)) && !backlog.keep(refund(0)) && !backlog.keep(refund(0)));
        assert_eq!(shown(), (3, 0));
        for tag in 1..=i64::try_from(OWED_MAX).unwrap() {
            assert!(!backlog.keep(slot(tag)));
        }
        assert_eq!(shown(), (4096, 3));
        // The oldest has gone, and is owed anew.
        backlog.keep(slot(0));
        assert_eq!(shown(), (4096, 4));
        drop(backlog);
        assert_eq!(shown(), (0, 4));
    }

    #[test]
    fn what_fails_is_kept_behind_the_others_unless_it_may_have_happened() {
        let metrics = Metrics::new().unwrap();
        let backlog = Backlog::new(&metrics);
        [slot(1), slot(2), refund(3), refund(4)].into_iter().for_each(|check| _ = backlog.keep(check));
        for (id, failed) in [
            (0, Some(ErrorKind::Timeout)),
            (1, None),
            (2, Some(ErrorKind::Timeout)),
            (3, Some(ErrorKind::Disconnected)),
        ] {
            backlog.end(id, failed);
        }
        let tags: Vec<i64> = backlog.first(9).iter().map(|(_, check)| check[0].tag).collect();
        assert_eq!((tags, metrics.store_corrections_waiting.get()), (vec![1, 4], 2));
    }

    #[tokio::test]
    async fn whoever_brings_ends_with_the_last_and_is_needed_again() {
        let metrics = Metrics::new().unwrap();
        let backlog = Backlog::new(&metrics);
        let (store, retired) = (Store::Memory(Arc::new(Memory::new(1000))), Cell::new(false));
        let mut ended = slot(7);
        ended.rule = Arc::new(Rule::Concurrency(Concurrency { in_flight: 9, lease_ms: 0 }));
        for check in [ended, slot(8), refund(9)] {
            backlog.keep(check);
        }
        backlog.bring(&store, &retired).await;
        assert_eq!(metrics.store_corrections_waiting.get(), 0);
        assert!(backlog.keep(slot(8)));
    }
}
