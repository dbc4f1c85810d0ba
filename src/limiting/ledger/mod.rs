//! The ledger: what each key of a limit with `usage` was admitted, refused and charged on each day (UTC), for reports.
//!
//! Input: every decision and correction, recorded in the `recorder` of its worker. Output: `pending` has what is not
//! saved yet, in batches that a store applies at most once however often they are sent. The control thread saves them,
//! so no request waits. All of it is bounded; what has no space is counted as lost.
//!
//! To add a number, add it to [`DayUsage`], to its text form, and to the script of `store::redis::usage_days`.

pub mod pending;
pub mod recorder;

use std::fmt;

/// The usage of one key on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayUsage {
    /// Requests that the limit admitted and charged.
    pub admitted: u64,
    /// Requests that the limit refused.
    pub refused: u64,
    /// Units that were charged, less those that were refunded. On a day with more refunds than charges it is negative.
    pub units: i64,
}

/// The usage of one limit on one day.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LedgerDay {
    pub limit: String,
    /// Days since 1970-01-01, UTC.
    pub day: i64,
}

pub const DAY_MS: i64 = 86_400_000;

impl DayUsage {
    pub fn add(&mut self, other: DayUsage) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.refused = self.refused.saturating_add(other.refused);
        self.units = self.units.saturating_add(other.units);
    }

    /// Parses the text form, `ADMITTED REFUSED UNITS`.
    pub fn parse(text: &str) -> Option<DayUsage> {
        let mut numbers = text.split(' ');
        let usage = DayUsage {
            admitted: numbers.next()?.parse().ok()?,
            refused: numbers.next()?.parse().ok()?,
            units: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(usage)
    }
}

impl fmt::Display for DayUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.admitted, self.refused, self.units)
    }
}

impl LedgerDay {
    /// Returns the date, such as `2026-11-30`.
    pub fn date(&self) -> String {
        format_day(self.day)
    }

    /// Returns when usage that is kept for `kept_days` expires, in seconds since 1970.
    pub fn expires_s(&self, kept_days: u16) -> i64 {
        (self.day + 1 + i64::from(kept_days)).saturating_mul(DAY_MS / 1000)
    }
}

/// Returns the date of a day since 1970.
fn format_day(day: i64) -> String {
    let time = jiff::Timestamp::from_second(day.saturating_mul(DAY_MS / 1000));
    time.map_or_else(|_| String::new(), |time| time.strftime("%Y-%m-%d").to_string())
}

/// Parses a date such as `2026-11-30` to a day since 1970.
pub fn parse_day(text: &str) -> Option<i64> {
    let date: jiff::civil::Date = text.parse().ok()?;
    // Other forms of dates have other lengths.
    let midnight = (text.len() == 10).then(|| date.to_zoned(jiff::tz::TimeZone::UTC).ok()).flatten()?;
    Some(midnight.timestamp().as_second().div_euclid(DAY_MS / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_usage_have_a_text_form() {
        assert_eq!((format_day(0), format_day(20_787)), ("1970-01-01".to_owned(), "2026-11-30".to_owned()));
        assert_eq!((parse_day("1970-01-02"), parse_day("2026-11-30")), (Some(1), Some(20_787)));
        for wrong in ["", "2026-11", "2026-11-31", "2026-11-30T00:00:00", "20261130"] {
            assert_eq!(parse_day(wrong), None, "{wrong}");
        }
        let usage = DayUsage { admitted: 3, refused: 0, units: -7 };
        assert_eq!(DayUsage::parse(&usage.to_string()), Some(usage));
        for wrong in ["", "1 2", "1 2 3 4", "-1 2 3", "a b c"] {
            assert_eq!(DayUsage::parse(wrong), None, "{wrong}");
        }
        let day = LedgerDay { limit: "l".to_owned(), day: 0 };
        assert_eq!(day.expires_s(1), 2 * 86_400);
    }
}
