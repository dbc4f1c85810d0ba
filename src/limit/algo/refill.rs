//! Records that refill; twin of `lua/refill.lua`, same names, same order. Used by `token_bucket`,
//! `gcra` and `leaky_bucket`, which say what they admit.
//!
//! A record counts what was taken and has not come back, in units of token x ms, so neither refill
//! nor charge ever divides. An empty record equals an absent one.

use super::exact::{EXACT, div_ceil};
use super::records;

/// `used` token x `per_ms` were taken and not yet refilled as of `at_ms`; `rate` come back every
/// `per_ms`, all together if `lump_ms` is `per_ms`, evenly if it is 1.
#[derive(Clone, Debug, PartialEq)]
pub struct RefillRecord {
    pub used: i64,
    pub at_ms: i64,
    pub rate: i64,
    pub per_ms: i64,
    pub lump_ms: i64,
    /// What its refunds go by. Only its own rule's charges keep it: what else makes a record of this
    /// one leaves it away, which gives back less.
    pub marks: Marks,
}

/// What was in use at `at_ms` and has not been given back since, at least `low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerMark {
    pub at_ms: i64,
    pub low: i64,
}

/// The marks of a record, both numbers rising from each to the next.
pub type Marks = Box<[LedgerMark]>;

/// No record has more used, and no rule takes more at once: their sum is exact.
pub const MOST: i64 = EXACT / 2;

impl RefillRecord {
    pub fn gain(&self) -> i64 {
        self.rate * self.lump_ms
    }

    pub fn same_basis(&self, other: &RefillRecord) -> bool {
        (self.rate, self.per_ms, self.lump_ms) == (other.rate, other.per_ms, other.lump_ms)
    }

    /// When all has come back.
    pub fn whole_at(&self) -> i64 {
        self.at_ms + div_ceil(self.used, self.gain()) * self.lump_ms
    }

    pub fn with(&self, used: i64, at_ms: i64) -> RefillRecord {
        RefillRecord { used, at_ms, marks: Marks::default(), ..*self }
    }

    /// As of now, or of the last lump.
    pub fn advanced(&self, now: i64) -> RefillRecord {
        let steps = (now - self.at_ms).max(0) / self.lump_ms;
        if steps >= div_ceil(self.used, self.gain()) {
            return self.with(0, now.max(self.at_ms));
        }
        self.with(self.used - steps * self.gain(), self.at_ms + steps * self.lump_ms)
    }

    /// What was used by other numbers, by these. At most one unit (a fraction of a token) above the
    /// true quotient: the same operations in the same order as the twin, in doubles, so both round
    /// alike.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^51")]
    pub fn adopted(&self, basis: RefillRecord, now: i64) -> RefillRecord {
        let record = self.advanced(now);
        let used = (record.used as f64 / self.per_ms as f64 * basis.per_ms as f64).ceil();
        let keeps_phase = self.lump_ms == basis.lump_ms || record.at_ms > now;
        let at_ms = if keeps_phase { record.at_ms } else { now };
        RefillRecord { used: used.min(MOST as f64) as i64, at_ms, ..basis }
    }

    /// How much of a charge of `need`, made at `charged_ms`, is still there at least: what came back
    /// since may have been all its own. Of an advanced record.
    pub fn remains(&self, need: i64, charged_ms: i64) -> i64 {
        let lumps = div_ceil((self.at_ms - charged_ms).max(0), self.lump_ms);
        if lumps >= div_ceil(need, self.gain()) { 0 } else { (need - lumps * self.gain()).min(self.used) }
    }

    /// Of `cost` units, in those of `used`.
    fn need(&self, cost: i64) -> i64 {
        cost.min(MOST / self.per_ms + 1) * self.per_ms
    }

    /// Five numbers, of which the last can be left out where nothing comes in lumps; then two of each
    /// mark.
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

impl records::Record for RefillRecord {
    fn life(&self, now: i64) -> i64 {
        self.whole_at() - now
    }

    fn charged(&self, now: i64, cost: i64) -> RefillRecord {
        let record = self.advanced(now);
        RefillRecord { used: (record.used + self.need(cost)).min(MOST), ..record }
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^52")]
    fn left(&self, now: i64, cost: i64, charged_ms: i64) -> f64 {
        self.advanced(now).remains(self.need(cost), charged_ms) as f64 / self.per_ms as f64
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^52")]
    fn back(&self, now: i64, units: f64, _charged_ms: i64) -> RefillRecord {
        let record = self.advanced(now);
        let given = (units * self.per_ms as f64).floor().min(record.used as f64) as i64;
        RefillRecord { used: record.used - given, ..record }
    }
}
