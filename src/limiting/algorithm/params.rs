//! The options of algorithms: how an algorithm declares them, and how it receives their values. The config compiler
//! parses options by these declarations, without knowing any algorithm.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use crate::limiting::algorithm::dates::CalendarUnit;
use crate::limiting::algorithm::exact::gcd;

/// Declaration of an option.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: ParamKind,
    /// Overrides may set the option for single keys. Other options are the same for all keys of a limit.
    pub overridable: bool,
}

/// Type of an option. The config parses each into the [`ParamValue`] of the same name, unless stated
/// otherwise.
#[derive(Clone, Copy, Debug)]
pub enum ParamKind {
    /// A count per period of at most [`PERIOD_MAX_MS`].
    Rate,
    /// A count per calendar unit.
    CalendarRate,
    Integer {
        least: i64,
        most: i64,
    },
    /// A duration, parsed into an integer in ms.
    Duration {
        least_ms: i64,
        most_ms: i64,
    },
    Flag,
    /// One of two words, parsed into a flag: true for the second.
    Choice([&'static str; 2]),
    Zone,
    /// A time of day to the minute.
    TimeOfDay,
    Weekday,
}

/// Value of an option.
#[derive(Clone, Debug)]
pub enum ParamValue {
    Rate(Rate),
    CalendarRate(CalendarRate),
    Integer(i64),
    Flag(bool),
    Zone(TimeZone),
    TimeOfDay(Time),
    Weekday(Weekday),
}

/// A rate: `count` units, at least one, per `per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub count: i64,
    pub per_ms: i64,
}

/// A calendar rate: `count` units, at least one, per `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarRate {
    pub count: i64,
    pub unit: CalendarUnit,
}

/// The longest period of a rate: ten years.
pub const PERIOD_MAX_MS: i64 = 3660 * 86_400_000;

impl Rate {
    /// Reduces the fraction: 10 per 1000 ms becomes 1 per 100 ms.
    pub fn reduced(self) -> Rate {
        let divisor = gcd(self.count, self.per_ms);
        Rate { count: self.count / divisor, per_ms: self.per_ms / divisor }
    }
}

/// An option with values of type `T`.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    pub param: Param,
    of: fn(&ParamValue) -> Option<T>,
}

macro_rules! fields {
    ($($T:ty, $constructor:ident($($argument:ident: $A:ty),*) => $kind:expr, $value:pat => $read:expr;)*) => {
        $(impl Field<$T> {
            pub const fn $constructor(name: &'static str $(, $argument: $A)*) -> Field<$T> {
                let param = Param { name, kind: $kind, overridable: false };
                Field { param, of: |value| match value { $value => Some($read), _ => None } }
            }
        })*
    };
}

fields! {
    Rate, rate() => ParamKind::Rate, ParamValue::Rate(rate) => *rate;
    CalendarRate, calendar_rate() => ParamKind::CalendarRate, ParamValue::CalendarRate(rate) => *rate;
    i64, integer(least: i64, most: i64) => ParamKind::Integer { least, most }, ParamValue::Integer(number) => *number;
    i64, duration(least_ms: i64, most_ms: i64) => ParamKind::Duration { least_ms, most_ms }, ParamValue::Integer(ms) => *ms;
    bool, flag() => ParamKind::Flag, ParamValue::Flag(flag) => *flag;
    bool, choice(words: [&'static str; 2]) => ParamKind::Choice(words), ParamValue::Flag(second) => *second;
    TimeZone, zone() => ParamKind::Zone, ParamValue::Zone(zone) => zone.clone();
    Time, time_of_day() => ParamKind::TimeOfDay, ParamValue::TimeOfDay(time) => *time;
    Weekday, weekday() => ParamKind::Weekday, ParamValue::Weekday(day) => *day;
}

impl<T> Field<T> {
    /// Allows overrides to set the option.
    pub const fn overridable(mut self) -> Field<T> {
        self.param.overridable = true;
        self
    }

    pub const fn name(&self) -> &'static str {
        self.param.name
    }
}

/// Rate of every algorithm with a period.
pub const RATE: Field<Rate> = Field::rate("rate").overridable();
/// How long a lease lasts after its client has disconnected, while the upstream server works on the request. Only
/// algorithms with leases have it, and only the rules for charges use it.
pub const LINGER: Field<i64> = Field::<i64>::duration("linger", 0, 3_600_000);

/// Values of the options of one limit, each within its own bounds.
#[derive(Debug)]
pub struct OptionValues {
    /// One entry per option of the algorithm; `None` if the limit does not set it.
    values: Vec<(&'static str, Option<ParamValue>)>,
    /// True if the limit may refund charges.
    pub refunds: bool,
}

/// Why options make no rule: what is wrong with the option `param`, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    pub param: &'static str,
    pub what: String,
    pub help: String,
}

impl OptionValues {
    /// `values` has an entry for every option of the algorithm.
    pub fn new(values: Vec<(&'static str, Option<ParamValue>)>, refunds: bool) -> OptionValues {
        OptionValues { values, refunds }
    }

    /// Returns the value of an option, if the limit sets it.
    pub fn get<T>(&self, field: &Field<T>) -> Option<T> {
        let entry = self.values.iter().find(|(name, _)| *name == field.name());
        debug_assert!(entry.is_some(), "the algorithm does not list {}", field.name());
        let value = entry?.1.as_ref()?;
        let read = (field.of)(value);
        debug_assert!(read.is_some(), "{} is listed as another kind than {value:?}", field.name());
        read
    }

    /// Returns whether the limit sets the option called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.values.iter().any(|(known, value)| *known == name && value.is_some())
    }

    /// Returns the value of the leading option.
    ///
    /// # Errors
    /// The limit does not set it.
    pub fn require<T>(&self, field: &Field<T>) -> Result<T, OptionError> {
        self.get(field).ok_or_else(|| option_error(field.name(), "it is missing", ""))
    }

    /// Returns the option to report for a wrong value: `field`, or `other` if `field` takes its default from that.
    pub fn option_to_blame<T, U>(&self, field: &Field<T>, other: &Field<U>) -> &'static str {
        if self.has(field.name()) { field.name() } else { other.name() }
    }
}

/// Creates the error of an option.
pub fn option_error(param: &'static str, what: impl Into<String>, help: impl Into<String>) -> OptionError {
    OptionError { param, what: what.into(), help: help.into() }
}

/// Returns `count`, the count of a rate.
///
/// # Errors
/// If `count` exceeds `largest`, above which the arithmetic is not exact.
pub fn check_count(largest: i64, count: i64) -> Result<i64, OptionError> {
    if count <= largest {
        return Ok(count);
    }
    Err(option_error(RATE.name(), "it is too large to stay exact", format!("the largest count is {largest}")))
}
