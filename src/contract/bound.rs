//! Bounds: the most units that a rule admits for one key in any interval. Pure arithmetic; docs/guarantees/bounds.md
//! states the same formulas.

use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::calendar::{Calendar, CalendarUnit};
use crate::limiting::algorithm::token_bucket::TokenBucket;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// The most that clocks are put forward or back at once, in any zone.
const CLOCK_CHANGE_MS: i64 = 2 * HOUR_MS;

/// How many units a rule admits in an interval, by the length of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `first` units, and `rate` per `per_ms` of the interval and of `ahead_ms` more.
    Steady { first: i64, rate: i64, per_ms: i64, ahead_ms: i64 },
    /// `first` units, and `count` for each period that ends in the interval.
    Lumps { first: i64, count: i64, period_ms: i64 },
    /// `count` units in each window, of which none is shorter than `shortest_ms`.
    Windows { count: i64, shortest_ms: i64 },
    /// `count` units in any interval of `window_ms`.
    Rolling { count: i64, window_ms: i64 },
    /// Like [`Bound::Windows`], but less in intervals that are shorter than a window.
    Weighted { count: i64, window_ms: i64 },
    /// `count` units in use at once.
    Slots { count: i64 },
}

impl Bound {
    /// Returns the bound of a rule.
    pub fn of(rule: &Rule) -> Bound {
        match rule {
            Rule::TokenBucket(bucket) if bucket.interval => {
                let first = bucket.burst.saturating_add(bucket.debt);
                Bound::Lumps { first, count: bucket.rate, period_ms: bucket.per_ms }
            }
            Rule::TokenBucket(bucket) => {
                let first = bucket.burst.saturating_add(bucket.debt);
                Bound::Steady { first, rate: bucket.rate, per_ms: bucket.per_ms, ahead_ms: 0 }
            }
            Rule::Gcra(gcra) => Bound::Steady { first: gcra.burst, rate: gcra.rate, per_ms: gcra.per_ms, ahead_ms: 0 },
            Rule::WarmUp(rule) => Bound::of(&Rule::TokenBucket(rule.bucket.clone())),
            Rule::Fair(fair) => {
                let TokenBucket { burst, rate, per_ms, .. } = fair.pool;
                Bound::Steady { first: burst, rate, per_ms, ahead_ms: 0 }
            }
            Rule::FixedWindow(window) => Bound::Windows { count: window.limit, shortest_ms: window.window_ms },
            Rule::Calendar(calendar) => Bound::of_calendar(calendar, calendar.limit),
            Rule::SlidingLog(log) => Bound::Rolling { count: log.limit, window_ms: log.window_ms },
            Rule::SlidingWindow(window) if window.is_weighted() => {
                Bound::Weighted { count: window.limit, window_ms: window.window_ms }
            }
            Rule::SlidingWindow(window) => Bound::Rolling { count: window.limit, window_ms: window.window_ms },
            Rule::LeakyBucket(leaky) => {
                Bound::Steady { first: 1, rate: leaky.rate, per_ms: leaky.per_ms, ahead_ms: leaky.queue_ms }
            }
            Rule::Concurrency(slots) => Bound::Slots { count: slots.in_flight },
            // Of values instead of units.
            Rule::Distinct(values) => match (values.calendar(), rule.policy().window_ms) {
                (Some(calendar), _) => Bound::of_calendar(calendar, values.limit),
                (None, window_ms) if values.is_sliding() => Bound::Rolling { count: values.limit, window_ms },
                (None, shortest_ms) => Bound::Windows { count: values.limit, shortest_ms },
            },
            // It bounds refusals. No limit has this rule as its own.
            Rule::Ban(ban) => Bound::Rolling { count: ban.after, window_ms: ban.within_ms },
        }
    }

    fn of_calendar(calendar: &Calendar, count: i64) -> Bound {
        let change_ms = if calendar.has_clock_changes() { CLOCK_CHANGE_MS } else { 0 };
        Bound::Windows { count, shortest_ms: shortest_window_ms(calendar.unit(), change_ms) }
    }

    /// Returns the most units in an interval of `interval_ms`, if the state of the key is lost `losses` times in it.
    ///
    /// Each loss divides the interval into two parts, and each part starts with a full budget. The bound is the sum
    /// over the parts, for any lengths.
    pub fn max_units_in(self, interval_ms: i64, losses: i64) -> i64 {
        let (length, losses) = (i128::from(interval_ms.max(0)), i128::from(losses.max(0)));
        let parts = losses + 1;
        let most = match self {
            // A clock of whole milliseconds adds up to one to each part.
            Bound::Steady { first, rate, per_ms, ahead_ms } => {
                let time_ms = length + parts * (i128::from(ahead_ms) + 1);
                parts * i128::from(first) + i128::from(rate) * time_ms / i128::from(per_ms)
            }
            Bound::Lumps { first, count, period_ms } => {
                let periods = (length + parts) / i128::from(period_ms) + parts;
                parts * i128::from(first) + i128::from(count) * periods
            }
            Bound::Windows { count, shortest_ms } => i128::from(count) * (windows_in(length, shortest_ms) + losses),
            Bound::Rolling { count, window_ms } => {
                let windows = (length + i128::from(window_ms) - 1) / i128::from(window_ms);
                i128::from(count) * (windows.max(1) + losses)
            }
            Bound::Weighted { count, window_ms } if length < i128::from(window_ms) => {
                parts * i128::from(count) + i128::from(count) * length / i128::from(window_ms)
            }
            Bound::Weighted { count, window_ms } => i128::from(count) * (windows_in(length, window_ms) + losses),
            Bound::Slots { count } => parts * i128::from(count),
        };
        i64::try_from(most).unwrap_or(i64::MAX)
    }

    /// Returns the most units in an interval of `interval_ms` in which the clock is set forward once. No budget can be
    /// more than full after that. Windows of the clock (`is_anchored`) continue elsewhere: the parts of the interval
    /// before and after can both touch the end of a window.
    pub fn max_units_across_jump(self, interval_ms: i64, is_anchored: bool) -> i64 {
        match self {
            Bound::Windows { count, shortest_ms } if is_anchored => {
                let windows = match interval_ms {
                    0 | 1 => 2 + interval_ms,
                    _ => (interval_ms - 2) / shortest_ms + 4,
                };
                count.saturating_mul(windows)
            }
            _ => self.max_units_in(interval_ms, 1),
        }
    }
}

/// Returns how many windows an interval can touch.
fn windows_in(length: i128, window_ms: i64) -> i128 {
    if length == 0 { 1 } else { (length - 1) / i128::from(window_ms) + 2 }
}

/// Returns a length that no window of a unit falls below: clocks are put forward, and one zone has left out a date.
fn shortest_window_ms(unit: CalendarUnit, change_ms: i64) -> i64 {
    let date_ms = if change_ms > 0 { DAY_MS } else { 0 };
    match unit {
        // Some zones change by half an hour, so an hour of the clock may have half its length.
        CalendarUnit::Hour => HOUR_MS - change_ms / 4,
        CalendarUnit::Day => DAY_MS - change_ms,
        CalendarUnit::Week => 7 * DAY_MS - date_ms - change_ms,
        CalendarUnit::Month => 28 * DAY_MS - change_ms,
        CalendarUnit::Year => 365 * DAY_MS - date_ms - change_ms,
    }
}

/// Returns the bound of a rule as a formula, in the words of docs/guarantees/bounds.md.
pub fn formula(rule: &Rule) -> &'static str {
    match rule {
        Rule::TokenBucket(bucket) if bucket.interval => "burst, plus the count for each period that ends in T",
        Rule::TokenBucket(_) => "burst + rate x (T + 1 ms), plus debt",
        Rule::WarmUp(_) => "burst + rate x (T + 1 ms), and less while the key is cold",
        Rule::Gcra(_) => "burst + rate x (T + 1 ms)",
        Rule::Fair(_) => "burst + rate x (T + 1 ms), for all tenants together",
        Rule::FixedWindow(_) => "the count in each window (to 1 ms), twice the count in an interval of one period",
        Rule::Calendar(_) => {
            "the count in each window (to 1 ms), twice the count in an interval around the end of a window"
        }
        Rule::SlidingLog(_) => "the count in any interval of one period",
        Rule::SlidingWindow(window) if window.is_weighted() => {
            "less than twice the count in any interval of one period (to 1 ms), and never more than the count at once"
        }
        Rule::SlidingWindow(_) => "the count in any interval of one period",
        Rule::LeakyBucket(_) => "1 + rate x (T + queue + 1 ms)",
        Rule::Distinct(rule) if rule.is_sliding() => "the count of different values in any interval of one period",
        Rule::Distinct(_) => "the count of different values in each window (to 1 ms)",
        Rule::Ban(_) => "refusals before a ban",
        Rule::Concurrency(_) => "in_flight exchanges with an upstream at once",
    }
}
