//! What windows that count have in common; twin of `lua/counted.lua`, same names, same order. Used
//! by `fixed_window` and `calendar`, which say what window it is.

use super::exact::EXACT;
use super::{Step, records};
use crate::limit::answer::{Answer, NEVER};
use crate::limit::key::COST_MAX;

/// No record counts more.
const MOST: i64 = EXACT;
/// The largest limit: a count and one more cost are added before they are compared.
pub const LARGEST: i64 = EXACT - 1 - COST_MAX;

/// `count` units were taken in the window of `length_ms` from `start_ms` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowRecord {
    pub count: i64,
    pub start_ms: i64,
    pub length_ms: i64,
    pub anchor: Anchor,
}

/// Where windows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The next one with its first request.
    FirstHit,
    /// At multiples of its length. `start_ms` is from when on charges are counted: of what was charged
    /// before in this window nothing is in the record.
    Clock,
    /// Where the calendar says, and at first where this one ends.
    Date,
}

/// The window that holds now, as a rule sees it.
pub struct Window {
    pub record: WindowRecord,
    /// When it ends.
    pub end: i64,
    /// It has to be stored even after a refusal.
    pub mended: bool,
}

impl Window {
    pub fn decide(self, limit: i64, now: i64, cost: i64) -> Step<WindowRecord> {
        let Window { mut record, end, mended } = self;
        let admitted = cost == 0 || record.count + cost <= limit;
        if admitted {
            record.count += cost;
        }

        let left = end - now;
        let mut retry_ms = 0;
        if cost > limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = left;
        }
        let store = cost > 0 && (admitted || mended);
        let remaining = (limit - record.count).max(0);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: left, receipt: now.max(record.start_ms) },
            next: store.then_some((record, left)),
        }
    }

    /// The receipt is the time of the charge; when its window is over nothing is given back.
    pub fn adjust(self, now: i64, delta: i64, receipt: i64) -> Option<(WindowRecord, i64, i64)> {
        let Window { mut record, end, .. } = self;
        if delta < 0 && record.counts(-delta, receipt) == 0 {
            return None;
        }
        record.count = (record.count + delta).clamp(0, MOST);
        Some((record, end - now, delta))
    }
}

impl WindowRecord {
    /// The window that holds now, by the numbers of the record.
    pub fn advanced(&self, now: i64) -> WindowRecord {
        if now < self.end_ms() {
            return *self;
        }
        let whole = now - (now - self.end_ms()) % self.length_ms;
        WindowRecord { count: 0, start_ms: if self.anchor == Anchor::FirstHit { now } else { whole }, ..*self }
    }

    fn end_ms(&self) -> i64 {
        let since_ms = if self.anchor == Anchor::Clock { self.start_ms % self.length_ms } else { 0 };
        self.start_ms + self.length_ms - since_ms
    }

    /// How much of a charge of `cost`, made at `charged_ms`, is counted in this window.
    fn counts(&self, cost: i64, charged_ms: i64) -> i64 {
        let within = self.start_ms <= charged_ms && charged_ms < self.end_ms();
        if within { cost.min(self.count) } else { 0 }
    }
}

impl records::Record for WindowRecord {
    fn life(&self, now: i64) -> i64 {
        if self.count == 0 { 0 } else { self.end_ms() - now }
    }

    fn charged(&self, now: i64, cost: i64) -> WindowRecord {
        let record = self.advanced(now);
        WindowRecord { count: (record.count + cost).min(MOST), ..record }
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    fn left(&self, now: i64, cost: i64, charged_ms: i64) -> f64 {
        self.advanced(now).counts(cost, charged_ms) as f64
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most a cost")]
    fn back(&self, now: i64, units: f64, _charged_ms: i64) -> WindowRecord {
        let record = self.advanced(now);
        WindowRecord { count: (record.count - units as i64).max(0), ..record }
    }
}
