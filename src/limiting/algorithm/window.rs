//! Windows with a counter, for `fixed_window` and `calendar`, which choose the windows. Twin of `lua/counted.lua`: same
//! names, same order.

use crate::limiting::algorithm::exact::EXACT;
use crate::limiting::algorithm::{Corrected, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};
use crate::limiting::integers::COST_MAX;

/// Largest count of a record.
const COUNT_MAX: i64 = EXACT;
/// The largest limit. A count and one more cost are added before they are compared, and the sum must be exact.
pub const LIMIT_MAX: i64 = EXACT - 1 - COST_MAX;

/// `count` units were charged in the window of `length_ms` that starts at `start_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowRecord {
    pub count: i64,
    pub start_ms: i64,
    pub length_ms: i64,
    pub anchor: Anchor,
}

/// When the next window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// A window starts with the first request after the end of the previous one.
    FirstHit,
    /// A window starts at a multiple of the window length. `start_ms` is the time of the first charge that the record
    /// contains; the window itself may have started before.
    Clock,
    /// A window starts at a date of the calendar and ends when the next one starts.
    Date,
}

/// The current window from the point of view of a rule.
pub struct Window {
    pub record: WindowRecord,
    /// When the window ends.
    pub end: i64,
    /// The record was corrected, and has to be stored even after a refusal.
    pub is_repaired: bool,
}

impl Window {
    /// Decides by the count of this window; see `Algorithm::decide`.
    pub fn decide(self, limit: i64, now: i64, cost: i64) -> Step<WindowRecord> {
        let Window { mut record, end, is_repaired } = self;
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
        let store = cost > 0 && (admitted || is_repaired);
        let remaining = (limit - record.count).max(0);
        let receipt = if record.start_ms > now { -record.start_ms } else { now };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: left, receipt, ban: BanAnswer::None },
            next: store.then_some((record, left)),
        }
    }

    /// Corrects a charge. The receipt is its time, or the negative start of its window if that was still ahead. Nothing
    /// is refunded once its window has ended.
    pub fn adjust(self, now: i64, delta: i64, receipt: i64) -> Option<Corrected<WindowRecord>> {
        let Window { mut record, end, .. } = self;
        let units = if delta < 0 { record.left_of_charge(-delta, receipt) } else { delta };
        if delta < 0 && units == 0 {
            return None;
        }
        record.count = (record.count + delta).clamp(0, COUNT_MAX);
        Some((record, end - now, units))
    }
}

impl WindowRecord {
    /// Returns the current window by the numbers of the record.
    pub fn advanced(&self, now: i64) -> WindowRecord {
        if now < self.end_ms() {
            return *self;
        }
        let whole = now - (now - self.end_ms()) % self.length_ms;
        match self.anchor {
            Anchor::FirstHit => WindowRecord { count: 0, start_ms: now, ..*self },
            Anchor::Clock => WindowRecord { count: 0, start_ms: whole, ..*self },
            Anchor::Date => {
                WindowRecord { count: 0, start_ms: self.end_ms(), length_ms: self.next_length_ms(), ..*self }
            }
        }
    }

    pub fn end_ms(&self) -> i64 {
        let since_ms = if self.anchor == Anchor::Clock { self.start_ms % self.length_ms } else { 0 };
        self.start_ms + self.length_ms - since_ms
    }

    /// Returns how long the next window of a calendar is at most. Only its rule knows the end: months have 28 to 31
    /// days.
    fn next_length_ms(&self) -> i64 {
        self.length_ms + self.length_ms / 8
    }

    /// Returns when the next window has ended as well.
    pub fn next_end_ms(&self) -> i64 {
        self.end_ms() + self.next_length_ms()
    }

    /// Returns how much of a charge of `cost` this window contains.
    fn left_of_charge(&self, cost: i64, receipt: i64) -> i64 {
        let charged_ms = receipt.saturating_abs();
        let within = self.start_ms <= charged_ms && charged_ms < self.end_ms();
        if within { cost.min(self.count) } else { 0 }
    }
}

impl records::UsageRecord for WindowRecord {
    fn lifetime(&self, now: i64) -> i64 {
        if self.count == 0 { 0 } else { self.end_ms() - now }
    }

    fn charged(&self, now: i64, cost: i64) -> WindowRecord {
        let record = self.advanced(now);
        WindowRecord { count: (record.count + cost).min(COUNT_MAX), ..record }
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    fn charge_left(&self, now: i64, cost: i64, receipt: i64) -> f64 {
        self.advanced(now).left_of_charge(cost, receipt) as f64
    }

    /// A charge whose window was still ahead was made at least 1 ms before that window. A window of another basis that
    /// starts with it may not contain the charge.
    fn receipt_elsewhere(receipt: i64) -> i64 {
        if receipt < 0 { receipt.saturating_abs() - 1 } else { receipt }
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most a cost")]
    fn refunded(&self, now: i64, units: f64, _receipt: i64) -> WindowRecord {
        let record = self.advanced(now);
        WindowRecord { count: (record.count - units as i64).max(0), ..record }
    }
}
