//! How much of a charge is still in a record that refills; twin of the same functions in
//! `lua/refill.lua`.
//!
//! A bucket where a charge had never been made has the whole charge more, and keeps that lead as
//! long as it does not get full; while it is full it loses what comes in. It can only have been full
//! when the real one had no more in use than the lead. So the least that was in use since the charge
//! bounds the lead from below, as does the charge less what came in, and the two can follow each
//! other: what came in up to some moment, the least in use after it.
//!
//! The least in use is known by marks. Each says what was in use at a time, before the charge that was
//! made then, less what has been given back since of charges made before: only those were part of it. Marks
//! that a later one undercuts say nothing. Of the others there would be as many as charges, so the two
//! that differ least become one that promises the lower for both.

use super::refill::{LedgerMark, Marks, RefillRecord};

/// Of one record.
const MOST_MARKS: usize = 5;

/// Those that say more than that `used` is in use now.
fn standing(marks: &[LedgerMark], used: i64) -> Vec<LedgerMark> {
    let mut least = used;
    let mut standing = Vec::with_capacity(marks.len() + 1);
    for mark in marks.iter().rev() {
        if mark.low < least {
            least = mark.low;
            standing.push(*mark);
        }
    }
    standing.reverse();
    standing
}

/// Makes one mark of those two that differ least.
fn join(marks: &mut Vec<LedgerMark>) {
    if let Some(place) = (0..marks.len() - 1).min_by_key(|place| marks[place + 1].low - marks[*place].low) {
        marks[place + 1].low = marks[place].low;
        marks.remove(place);
    }
}

impl RefillRecord {
    /// The marks that follow a charge to this record as it was at that time. Without any, it gets
    /// the first if `wanted`: of what was before nothing is known.
    pub fn marked(&self, marks: &[LedgerMark], wanted: bool) -> Marks {
        let mut marks = standing(marks, self.used);
        if marks.is_empty() && !wanted {
            return Marks::default();
        }
        let low = if marks.is_empty() { 0 } else { self.used };
        if marks.last().is_none_or(|mark| mark.at_ms < self.at_ms) {
            marks.push(LedgerMark { at_ms: self.at_ms, low });
        }
        if marks.len() > MOST_MARKS {
            join(&mut marks);
        }
        marks.into()
    }

    /// How much of a charge of `need`, made at `charged_ms`, this record still holds at least. Of an
    /// advanced record.
    pub fn holds(&self, marks: &[LedgerMark], need: i64, charged_ms: i64) -> i64 {
        let most = self.remains(need, charged_ms);
        if marks.is_empty() {
            return most;
        }
        let (mut most, mut since) = (most, charged_ms);
        for mark in standing(marks, self.used).into_iter().filter(|mark| mark.at_ms > charged_ms) {
            most = most.max(self.with(mark.low, since).remains(need, charged_ms));
            since = mark.at_ms;
        }
        most.max(self.with(self.used, since).remains(need, charged_ms))
    }

    /// The marks that follow when so much of a charge made at `charged_ms` is given back of this
    /// record.
    pub fn given(&self, marks: &[LedgerMark], charged_ms: i64, given: i64) -> Marks {
        let lower = |mark: &LedgerMark| match mark.at_ms > charged_ms {
            true => LedgerMark { low: (mark.low - given).max(0), ..*mark },
            false => *mark,
        };
        let marks: Vec<LedgerMark> = marks.iter().map(lower).collect();
        standing(&marks, self.used - given).into()
    }
}
