//! Records that refill over time, for `token_bucket`, `gcra` and `leaky_bucket`. Twin of `lua/refill.lua`: same names,
//! same order.
//!
//! A record counts the tokens in use: taken and not yet refilled. The unit is token × `per_ms`, so that neither a
//! charge nor the refill needs a division. Example: at 3 tokens per 1000 ms, one token is 1000 units and each
//! millisecond refills 3 units. After one charge, `used` is 1000; 100 ms later it is 700. A record with nothing in use
//! equals no record.
//!
//! - `ledger`: how much of a charge is certainly still in use, for refunds.

mod ledger;

use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::records;

/// Usage at the time `at_ms`. `rate` tokens refill every `per_ms`: evenly if `lump_ms` is 1, all at once if it is
/// `per_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct RefillRecord {
    pub used: i64,
    pub at_ms: i64,
    pub rate: i64,
    pub per_ms: i64,
    pub lump_ms: i64,
    /// Marks of the ledger, which make refunds larger. Only charges of the record's own rule keep them. Without marks a
    /// refund may be too small, never too large.
    pub marks: LedgerMarks,
}

/// A lower bound of past usage: just before a charge at `at_ms`, `low` was in use, not counting what has been refunded
/// since. It is the lowest usage since the previous mark. See the header of `ledger`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerMark {
    pub at_ms: i64,
    pub low: i64,
}

/// Marks of a record. Both numbers rise from each mark to the next.
pub type LedgerMarks = Box<[LedgerMark]>;

/// Maximum usage of a record, and maximum of one charge, so that their sum is exact.
pub const USED_MAX: i64 = EXACT / 2;

impl RefillRecord {
    /// Returns how much each lump refills.
    pub fn gain(&self) -> i64 {
        self.rate * self.lump_ms
    }

    /// Returns whether both records have the same rate, period and lumps.
    pub fn same_basis(&self, other: &RefillRecord) -> bool {
        (self.rate, self.per_ms, self.lump_ms) == (other.rate, other.per_ms, other.lump_ms)
    }

    /// Returns the time when everything is refilled.
    pub fn refilled_at(&self) -> i64 {
        self.at_ms + div_ceil(self.used, self.gain()) * self.lump_ms
    }

    /// Returns a record of the same basis with other usage and no marks.
    pub fn with_usage(&self, used: i64, at_ms: i64) -> RefillRecord {
        RefillRecord { used, at_ms, marks: LedgerMarks::default(), ..*self }
    }

    /// Returns the record refilled up to `now`, or up to its last lump before `now`.
    pub fn advanced(&self, now: i64) -> RefillRecord {
        let steps = (now - self.at_ms).max(0) / self.lump_ms;
        if steps >= div_ceil(self.used, self.gain()) {
            return self.with_usage(0, now.max(self.at_ms));
        }
        self.with_usage(self.used - steps * self.gain(), self.at_ms + steps * self.lump_ms)
    }

    /// Converts the record to another basis. The usage is rounded up by at most one unit, a fraction of a token. The
    /// twin does the same operations on doubles in the same order, so both round alike.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^51")]
    pub fn converted(&self, basis: RefillRecord, now: i64) -> RefillRecord {
        let record = self.advanced(now);
        let used = (record.used as f64 / self.per_ms as f64 * basis.per_ms as f64).ceil();
        let keeps_phase = self.lump_ms == basis.lump_ms || record.at_ms > now;
        let at_ms = if keeps_phase { record.at_ms } else { now };
        RefillRecord { used: used.min(USED_MAX as f64) as i64, at_ms, ..basis }
    }

    /// Returns a lower bound of what is left of a charge of `need` made at `charged_ms`: everything that was refilled
    /// since then may have belonged to this charge. The record must be advanced.
    pub fn min_left(&self, need: i64, charged_ms: i64) -> i64 {
        let lumps = div_ceil((self.at_ms - charged_ms).max(0), self.lump_ms);
        if lumps >= div_ceil(need, self.gain()) { 0 } else { (need - lumps * self.gain()).min(self.used) }
    }

    /// Converts a cost to the unit of `used`.
    fn need(&self, cost: i64) -> i64 {
        cost.min(USED_MAX / self.per_ms + 1) * self.per_ms
    }

    /// Formats the record as the twin stores it: five numbers, then two per mark. With `fields` 4, the lump is left out
    /// if there are no marks.
    pub fn text(&self, fields: usize) -> String {
        let RefillRecord { used, at_ms, rate, per_ms, lump_ms, marks } = self;
        let mut text = format!("{used} {at_ms} {rate} {per_ms}");
        if fields > 4 || !marks.is_empty() {
            text.push_str(&format!(" {lump_ms}"));
        }
        for LedgerMark { at_ms, low } in marks {
            text.push_str(&format!(" {at_ms} {low}"));
        }
        text
    }
}

impl records::UsageRecord for RefillRecord {
    fn lifetime(&self, now: i64) -> i64 {
        self.refilled_at() - now
    }

    fn charged(&self, now: i64, cost: i64) -> RefillRecord {
        let record = self.advanced(now);
        RefillRecord { used: (record.used + self.need(cost)).min(USED_MAX), ..record }
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^52")]
    fn charge_left(&self, now: i64, cost: i64, charged_ms: i64) -> f64 {
        self.advanced(now).min_left(self.need(cost), charged_ms) as f64 / self.per_ms as f64
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^52")]
    fn refunded(&self, now: i64, units: f64, _charged_ms: i64) -> RefillRecord {
        let record = self.advanced(now);
        let refund = (units * self.per_ms as f64).floor().min(record.used as f64) as i64;
        RefillRecord { used: record.used - refund, ..record }
    }
}
