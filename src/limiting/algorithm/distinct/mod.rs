//! Distinct values: at most `limit` different values of a source for each key and window. Twin of `lua/distinct.lua`:
//! same names, same order.
//!
//! A value that counts already is admitted however often it comes. A new one is admitted while fewer than `limit`
//! count. The windows are those of the algorithm that the limit names:
//!
//! - `sliding_log`: a value counts for the window after its last request. So any interval of that length has at most
//!   `limit` values, and a refused one has to wait until the oldest has not been used for that long.
//! - `fixed_window`, `calendar`: a value counts until the end of the window, and all leave together.
//!
//! The state has the hash of each value with the time of its last request, under every rule. Rules with other windows
//! or limits therefore count the same values. It never has more values than the largest limit that used it.

mod values;

use std::ops::RangeInclusive;

use crate::limiting::algorithm::calendar::Calendar;
use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::distinct::values::{NewState, Use};
pub use crate::limiting::algorithm::distinct::values::{ValueState, hash_value};
use crate::limiting::algorithm::interface::{COUNT, parse_numbers};
use crate::limiting::algorithm::params::{OptionError, OptionValues, PERIOD_MAX_MS, Param, RATE, option_error};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Rule, Step};
use crate::limiting::answer::{Answer, BanAnswer};

/// Admits at most `limit` different values in each window.
#[derive(Clone, Debug, PartialEq)]
pub struct Distinct {
    pub limit: i64,
    windows: ValueWindows,
    /// The value of a charge that is corrected; 0 for a decision, whose tag is the value.
    pub value: i64,
}

/// How long a value counts.
#[derive(Clone, Debug, PartialEq)]
enum ValueWindows {
    /// A value counts for this many ms after its last request.
    Sliding(i64),
    /// Values count until the end of a window of this many ms. A window begins with the first value after the previous
    /// one.
    FirstHit(i64),
    /// Values count until the next multiple of this many ms since the epoch.
    Clock(i64),
    /// Values count until the end of a window of the calendar.
    Calendar(Box<Calendar>),
}

/// Most values that a limit can count.
pub const LIMIT_MAX: i64 = 1000;
/// Hashes of values. All have 16 digits, so that Redis sorts their texts as numbers.
pub const VALUES: RangeInclusive<i64> = 1_000_000_000_000_000..=(1 << 52) - 1;
/// Name of the option.
pub const DISTINCT: &str = "distinct";

/// The current window from the point of view of a rule.
struct CurrentWindow {
    /// A value counts if its last request was not before this time.
    edge: i64,
    /// When all values expire; `None` if each expires at its own time.
    stop: Option<i64>,
    /// Start of the window to store.
    start: i64,
    /// Times in the state come from a clock that was wrong. Those ahead have to be moved to now and stored, or they
    /// would use up the limit until that time comes.
    is_repaired: bool,
}

impl Algorithm for Distinct {
    type State = ValueState;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[];

    const NUMBER: Number = COUNT;

    const NEEDS_TAG: bool = true;

    const CORRECTS_BY_OWN_RULE: bool = true;

    /// Distinct values are an option of limits, and no limit has them as its algorithm.
    fn build(_options: &OptionValues) -> Result<Distinct, OptionError> {
        Err(option_error(RATE.name(), "distinct values have no rate of their own", ""))
    }

    fn params(&self, now: i64) -> Vec<i64> {
        let Distinct { limit, value, .. } = *self;
        match &self.windows {
            ValueWindows::Sliding(window) => vec![limit, *window, 0, value],
            ValueWindows::FirstHit(window) => vec![limit, *window, 1, value],
            ValueWindows::Clock(window) => vec![limit, *window, 2, value],
            ValueWindows::Calendar(calendar) => {
                let starts = calendar.params(now);
                [&[limit, self.window_ms(now), 3, value], &starts[1..]].concat()
            }
        }
    }

    fn encode_rule(&self) -> String {
        match &self.windows {
            ValueWindows::Calendar(calendar) => format!("{},{}", self.value, calendar.encode_rule()),
            _ => self.params(0).iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }

    fn decode_rule(encoded: &str) -> Option<Distinct> {
        let is_value = |value: i64| value == 0 || VALUES.contains(&value);
        if let Some(&[limit @ 1..=LIMIT_MAX, window @ 1..=PERIOD_MAX_MS, kind @ 0..=2, value]) =
            parse_numbers(encoded).as_deref()
        {
            let windows = match kind {
                0 => ValueWindows::Sliding(window),
                1 => ValueWindows::FirstHit(window),
                _ => ValueWindows::Clock(window),
            };
            return is_value(value).then_some(Distinct { limit, windows, value });
        }
        let (value, calendar) = encoded.split_once(',')?;
        let (value, calendar) = (value.parse().ok()?, Calendar::decode_rule(calendar)?);
        let is_sound = is_value(value) && calendar.limit <= LIMIT_MAX;
        is_sound.then(|| Distinct { limit: calendar.limit, windows: ValueWindows::Calendar(calendar.into()), value })
    }

    fn policy(&self) -> Policy {
        let window_ms = match &self.windows {
            ValueWindows::Sliding(window) | ValueWindows::FirstHit(window) | ValueWindows::Clock(window) => *window,
            ValueWindows::Calendar(calendar) => calendar.policy().window_ms,
        };
        Policy { quota: self.limit, window_ms }
    }

    fn is_calendar(&self) -> bool {
        self.calendar().is_some()
    }

    /// A request has a cost, however large, or looks at the state with a cost of 0. The receipt is the time of a value
    /// that is new, and 0 for one that counted before: nothing of that is refunded.
    fn decide(&self, state: Option<&ValueState>, now: i64, cost: i64, tag: i64) -> Step<ValueState> {
        let value = if self.value > 0 { self.value } else { tag };
        let limit = self.limit;
        let empty = ValueState::default();
        let state = state.unwrap_or(&empty);
        let window_ms = self.window_ms(now);
        let (longest, largest) = (state.longest().max(window_ms), state.largest().max(limit));
        let CurrentWindow { edge, stop, start, is_repaired } = self.window_at(state, now, window_ms);
        let at = |ms: i64| if is_repaired { ms.min(now) } else { ms };

        let count = state.count_since(edge);
        // The newest value that must leave before a further one fits.
        let last = if count >= limit { state.nth_newest(limit - 1).map(at) } else { None };
        let own = state.last_use(value).map(at).filter(|ms| *ms >= edge);
        // Of a limit that was larger before, only the newest values count.
        let is_member = own.is_some_and(|ms| count <= limit || last.is_none_or(|last| ms >= last));
        let admitted = cost == 0 || is_member || last.is_none();
        let is_charged = admitted && cost > 0;
        let is_new = is_charged && own.is_none();

        let mut retry_ms = 0;
        if let (false, Some(last)) = (admitted, last) {
            retry_ms = stop.unwrap_or(last + window_ms + 1) - now;
        }
        let time = now.max(edge).max(own.unwrap_or(0));
        let newest = state.nth_newest(0).map(at).filter(|ms| *ms >= edge);
        let latest = if is_charged { Some(newest.unwrap_or(0).max(time)) } else { newest };
        let reset_ms = stop.or(latest.map(|latest| latest + window_ms + 1)).map_or(0, |end| (end - now).max(0));
        // The wait of a refusal is only exact if the window that it ends with is stored.
        let is_head_new = longest > state.longest() || largest > state.largest() || start != state.start();
        let store = cost > 0 && (is_charged || is_repaired || !state.is_empty() && is_head_new);
        let next = || {
            let used = is_charged.then_some(Use { value, ms: time, is_new });
            let moved_to = is_repaired.then_some(now);
            let state = state.updated(&NewState { moved_to, used, kept_since: now - longest, longest, largest, start });
            let ttl_ms = state.nth_newest(0).unwrap_or(now) + longest + 1 - now;
            (state, ttl_ms.max(1))
        };
        let remaining = (limit - count - i64::from(is_new)).max(0);
        let receipt = if is_new { time } else { 0 };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt, ban: BanAnswer::None },
            next: store.then(next),
        }
    }

    /// Removes a value that the charge added, if no other request has used it since. A value is never added by a
    /// correction.
    fn adjust(&self, state: Option<&ValueState>, now: i64, delta: i64, receipt: i64) -> Option<Corrected<ValueState>> {
        let state = state.filter(|_| delta < 0 && receipt > 0)?.without_single_use(self.value, receipt)?;
        let ttl_ms = match state.nth_newest(0) {
            Some(newest) => (newest + state.longest() + 1 - now).max(1),
            None => 1,
        };
        Some((state, ttl_ms, 1))
    }

    fn text(state: &ValueState) -> String {
        state.text()
    }

    /// The script reads and writes a few members of a sorted set.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        4
    }

    fn share(&self, n: i64) -> Distinct {
        Distinct { limit: (self.limit / n).max(1), ..self.clone() }
    }

    fn with_number(&self, limit: i64) -> Distinct {
        Distinct { limit, ..self.clone() }
    }

    fn max_number(&self) -> i64 {
        LIMIT_MAX
    }

    fn describe(&self) -> String {
        let window = match &self.windows {
            ValueWindows::Sliding(window) | ValueWindows::FirstHit(window) | ValueWindows::Clock(window) => {
                format_duration(*window)
            }
            ValueWindows::Calendar(calendar) => calendar.unit().name().to_owned(),
        };
        let values = if self.limit == 1 { "value" } else { "different values" };
        format!("{} {values} per {window}", self.limit)
    }
}

impl Distinct {
    /// Returns the rule that corrects charges of `value`.
    pub fn for_value(&self, value: i64) -> Distinct {
        Distinct { value, ..self.clone() }
    }

    /// Returns the calendar whose windows the rule has.
    pub fn calendar(&self) -> Option<&Calendar> {
        match &self.windows {
            ValueWindows::Calendar(calendar) => Some(calendar),
            _ => None,
        }
    }

    /// Returns whether a value leaves at its own time, and not with all others.
    pub fn is_sliding(&self) -> bool {
        matches!(self.windows, ValueWindows::Sliding(_))
    }

    fn window_ms(&self, now: i64) -> i64 {
        match &self.windows {
            ValueWindows::Sliding(window) | ValueWindows::FirstHit(window) | ValueWindows::Clock(window) => *window,
            ValueWindows::Calendar(calendar) => {
                let [start, stop, _] = calendar.bounds_at(now);
                stop - start
            }
        }
    }

    /// Returns the current window. If the clock was set back a little, it is still the window of the newest value.
    fn window_at(&self, state: &ValueState, now: i64, window: i64) -> CurrentWindow {
        let (mut start, newest) = (state.start(), state.nth_newest(0).unwrap_or(now));
        let is_repaired = match &self.windows {
            ValueWindows::FirstHit(_) => newest.max(start) > now + window,
            ValueWindows::Calendar(calendar) => newest >= calendar.bounds_at(now)[2],
            ValueWindows::Sliding(_) | ValueWindows::Clock(_) => newest > now + window,
        };
        let at = if is_repaired { now } else { now.max(newest) };
        let (edge, stop) = match &self.windows {
            ValueWindows::Sliding(_) => (now - window, None),
            ValueWindows::FirstHit(_) => {
                if is_repaired && start > now || at >= start + window {
                    start = at;
                }
                (start, Some(start + window))
            }
            ValueWindows::Clock(_) => {
                let first = at - at % window;
                (first, Some(first + window))
            }
            ValueWindows::Calendar(calendar) => {
                let [first, stop, _] = calendar.bounds_at(at);
                (first, Some(stop))
            }
        };
        CurrentWindow { edge, stop, start, is_repaired }
    }
}

impl Rule {
    /// Returns the calendar whose windows the rule has.
    pub fn calendar(&self) -> Option<&Calendar> {
        match self {
            Rule::Calendar(calendar) => Some(calendar),
            Rule::Distinct(rule) => rule.calendar(),
            _ => None,
        }
    }

    /// Returns the same rule with months that begin on `day`, from 1 to 31; `None` if it has no calendar.
    pub fn with_month_day(&self, day: i8) -> Option<Rule> {
        let calendar = self.calendar()?.with_month_day(day);
        Some(match self {
            Rule::Distinct(rule) => {
                Rule::Distinct(Distinct { windows: ValueWindows::Calendar(calendar.into()), ..rule.clone() })
            }
            _ => Rule::Calendar(calendar),
        })
    }

    /// Returns the rule that counts different values in the windows of this one.
    ///
    /// # Errors
    /// The algorithm has no windows whose values could be counted, or the limit is too large.
    pub fn counting_distinct(self) -> Result<Rule, OptionError> {
        let (limit, windows) = match self {
            Rule::SlidingLog(log) => (log.limit, ValueWindows::Sliding(log.window_ms)),
            Rule::FixedWindow(fixed) if fixed.clock => (fixed.limit, ValueWindows::Clock(fixed.window_ms)),
            Rule::FixedWindow(fixed) => (fixed.limit, ValueWindows::FirstHit(fixed.window_ms)),
            Rule::Calendar(calendar) => (calendar.limit, ValueWindows::Calendar(calendar.into())),
            other => {
                let what = format!("{} has no windows in which values could be counted", other.name());
                let help = "write algorithm = \"sliding_log\", \"fixed_window\" or \"calendar\"";
                return Err(option_error(DISTINCT, what, help));
            }
        };
        if limit > LIMIT_MAX {
            let help = format!("the largest count with `distinct` is {LIMIT_MAX}");
            return Err(option_error(RATE.name(), "a key could have too many values", help));
        }
        Ok(Rule::Distinct(Distinct { limit, windows, value: 0 }))
    }
}
