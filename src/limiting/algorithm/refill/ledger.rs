//! How much of a charge may be refunded to a record that refills. Twin of the same functions in `lua/refill.lua`.
//!
//! The rule: after a refund, a bucket must never have more tokens than if the charge had never been made.
//!
//! Example: a bucket with burst 5 refills 1 token per second. At t = 0 three tokens are in use, and a request takes one
//! more. How much of it can be refunded later?
//!
//! - No other requests arrive. At t = 3, one token is in use: 4 - 3. Without the charge none would be, so the refund is
//!   one token. At t = 4 none is in use either way, so the refund is 0.
//! - Other requests take one token per second. At t = 100, four tokens are still in use. Without the charge, three
//!   would be in use all the time. So the whole token can be refunded, although 100 tokens were refilled since.
//!
//! In general, compare the real bucket with one that never saw the charge, the *reference*. Right after the charge, the
//! reference has `need` tokens more. It keeps this lead while it is not full. While it is full, its refill is lost, so
//! the lead shrinks; but then the lead is exactly what is in use in the real bucket. So for every time `s` since the
//! charge:
//!
//! - Until `s`, the lead has lost no more than what was refilled until then.
//! - After `s`, it shrinks only while the reference is full. So it never shrinks below the least that was in use in the
//!   real bucket since `s`.
//!
//! Hence the lead is at least `min(need - refilled until s, least in use since s)`. The refund is the largest of these
//! bounds over all known `s`.
//!
//! The least in use is known from *marks*. A charge adds a mark: the time, and what was in use just before. A refund
//! lowers the marks after its charge, because they included that charge. A mark is dropped when later usage is lower,
//! as it bounds nothing any more. So the marks rise. A record has at most five: beyond that, the two that differ least
//! are merged into one with the lower bound, which makes refunds smaller but never wrong.

use crate::limiting::algorithm::refill::{LedgerMark, LedgerMarks, RefillRecord};

/// Maximum number of marks of one record.
const MARKS_MAX: usize = 5;

/// Returns the marks that are still lower bounds: those below all later marks and below the current usage `used`.
fn valid_marks(marks: &[LedgerMark], used: i64) -> Vec<LedgerMark> {
    let mut least = used;
    // Most records have no marks, and allocate nothing.
    let mut valid = Vec::new();
    for mark in marks.iter().rev() {
        if mark.low < least {
            least = mark.low;
            valid.push(*mark);
        }
    }
    valid.reverse();
    valid
}

/// Merges the two marks that differ least.
fn merge_closest(marks: &mut Vec<LedgerMark>) {
    if let Some(index) = (0..marks.len() - 1).min_by_key(|index| marks[index + 1].low - marks[*index].low) {
        marks[index + 1].low = marks[index].low;
        marks.remove(index);
    }
}

impl RefillRecord {
    /// Returns the marks after a charge to this record, which must be advanced to the time of the charge. A record
    /// without marks gets its first one only if `wanted`; its bound is 0, as earlier usage is unknown.
    pub fn mark_charge(&self, marks: &[LedgerMark], wanted: bool) -> LedgerMarks {
        let mut marks = valid_marks(marks, self.used);
        if marks.is_empty() && !wanted {
            return LedgerMarks::default();
        }
        let low = if marks.is_empty() { 0 } else { self.used };
        if marks.last().is_none_or(|mark| mark.at_ms < self.at_ms) {
            marks.push(LedgerMark { at_ms: self.at_ms, low });
        }
        if marks.len() > MARKS_MAX {
            merge_closest(&mut marks);
        }
        marks.into()
    }

    /// Returns how much of a charge of `need` made at `charged_ms` may be refunded: the largest lower bound of the
    /// lead. The record must be advanced.
    pub fn max_refund(&self, marks: &[LedgerMark], need: i64, charged_ms: i64) -> i64 {
        let most = self.min_left(need, charged_ms);
        if marks.is_empty() {
            return most;
        }
        let (mut most, mut since) = (most, charged_ms);
        for mark in valid_marks(marks, self.used).into_iter().filter(|mark| mark.at_ms > charged_ms) {
            most = most.max(self.with_usage(mark.low, since).min_left(need, charged_ms));
            since = mark.at_ms;
        }
        most.max(self.with_usage(self.used, since).min_left(need, charged_ms))
    }

    /// Returns the marks after `refund` of a charge made at `charged_ms` was refunded.
    pub fn mark_refund(&self, marks: &[LedgerMark], charged_ms: i64, refund: i64) -> LedgerMarks {
        let lower = |mark: &LedgerMark| match mark.at_ms > charged_ms {
            true => LedgerMark { low: (mark.low - refund).max(0), ..*mark },
            false => *mark,
        };
        let marks: Vec<LedgerMark> = marks.iter().map(lower).collect();
        valid_marks(&marks, self.used - refund).into()
    }
}
