//! How an algorithm states its parameters, the options that a limit has because of it, and how it is
//! given them. The config reads what is stated here in the words of its file; it knows no algorithm.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use super::dates::Unit;
use super::exact::gcd;

/// What is known of an option without its value.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: ParamKind,
    /// Single keys may have one of their own, also live. What is no amount is the shape of a limit.
    pub amount: bool,
}

/// What an option may be; each is read into the value of the same name.
#[derive(Clone, Copy, Debug)]
pub enum ParamKind {
    /// A count per period of at most [`PERIOD_MOST_MS`].
    Rate,
    /// A count per unit of the calendar.
    Dated,
    Integer {
        least: i64,
        most: i64,
    },
    /// Read into an integer.
    Duration {
        least_ms: i64,
        most_ms: i64,
    },
    Flag,
    /// One of two words, read into a flag: whether it is the second.
    Either([&'static str; 2]),
    Zone,
    /// To the minute.
    TimeOfDay,
    Weekday,
}

#[derive(Clone, Debug)]
pub enum ParamValue {
    Rate(Rate),
    Dated(Dated),
    Integer(i64),
    Flag(bool),
    Zone(TimeZone),
    TimeOfDay(Time),
    Weekday(Weekday),
}

/// `count` units, at least one, per `per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub count: i64,
    pub per_ms: i64,
}

/// `count` units, at least one, per `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dated {
    pub count: i64,
    pub unit: Unit,
}

/// The longest period of a rate: ten years.
pub const PERIOD_MOST_MS: i64 = 3660 * 86_400_000;

impl Rate {
    /// The same with the smallest numbers: 10 in 1000 ms is 1 in 100 ms.
    pub fn reduced(self) -> Rate {
        let divisor = gcd(self.count, self.per_ms);
        Rate { count: self.count / divisor, per_ms: self.per_ms / divisor }
    }
}

/// An option whose values are `T`.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    pub param: Param,
    of: fn(&ParamValue) -> Option<T>,
}

macro_rules! fields {
    ($($T:ty, $constructor:ident($($argument:ident: $A:ty),*) => $kind:expr, $value:pat => $read:expr;)*) => {
        $(impl Field<$T> {
            pub const fn $constructor(name: &'static str $(, $argument: $A)*) -> Field<$T> {
                let param = Param { name, kind: $kind, amount: false };
                Field { param, of: |value| match value { $value => Some($read), _ => None } }
            }
        })*
    };
}

fields! {
    Rate, rate() => ParamKind::Rate, ParamValue::Rate(rate) => *rate;
    Dated, dated() => ParamKind::Dated, ParamValue::Dated(rate) => *rate;
    i64, integer(least: i64, most: i64) => ParamKind::Integer { least, most }, ParamValue::Integer(number) => *number;
    i64, duration(least_ms: i64, most_ms: i64) => ParamKind::Duration { least_ms, most_ms }, ParamValue::Integer(ms) => *ms;
    bool, flag() => ParamKind::Flag, ParamValue::Flag(flag) => *flag;
    bool, either(words: [&'static str; 2]) => ParamKind::Either(words), ParamValue::Flag(second) => *second;
    TimeZone, zone() => ParamKind::Zone, ParamValue::Zone(zone) => zone.clone();
    Time, time_of_day() => ParamKind::TimeOfDay, ParamValue::TimeOfDay(time) => *time;
    Weekday, weekday() => ParamKind::Weekday, ParamValue::Weekday(day) => *day;
}

impl<T> Field<T> {
    pub const fn amount(mut self) -> Field<T> {
        self.param.amount = true;
        self
    }

    pub const fn name(&self) -> &'static str {
        self.param.name
    }
}

/// Of all algorithms with periods.
pub const RATE: Field<Rate> = Field::rate("rate").amount();
/// Of algorithms whose charges are leases: for how long one outlives a client that left while the upstream
/// works on its request. No rule needs it, but whoever holds the lease.
pub const LINGER: Field<i64> = Field::<i64>::duration("linger", 0, 3_600_000);

/// What a limit says of the options of its algorithm, each by itself within its bounds.
#[derive(Debug)]
pub struct Given {
    /// Also of those that it does not say.
    values: Vec<(&'static str, Option<ParamValue>)>,
    /// Charges may have to be given back.
    pub refunds: bool,
}

/// Why there is no rule of what was given: what is wrong with the option `param`, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub param: &'static str,
    pub what: String,
    pub help: String,
}

impl Given {
    /// `values`: of every option of the algorithm.
    pub fn new(values: Vec<(&'static str, Option<ParamValue>)>, refunds: bool) -> Given {
        Given { values, refunds }
    }

    pub fn get<T>(&self, field: &Field<T>) -> Option<T> {
        let found = self.values.iter().find(|(name, _)| *name == field.name());
        debug_assert!(found.is_some(), "the algorithm does not list {}", field.name());
        let value = found?.1.as_ref()?;
        let read = (field.of)(value);
        debug_assert!(read.is_some(), "{} is listed as another kind than {value:?}", field.name());
        read
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.iter().any(|(known, value)| *known == name && value.is_some())
    }

    /// The leading one.
    ///
    /// # Errors
    /// It is not there.
    pub fn need<T>(&self, field: &Field<T>) -> Result<T, Misfit> {
        self.get(field).ok_or_else(|| misfit(field.name(), "it is not there", ""))
    }

    /// Which of the two says too much: `field`, or `other` if `field` has its value from that.
    pub fn blamed<T, U>(&self, field: &Field<T>, other: &Field<U>) -> &'static str {
        if self.has(field.name()) { field.name() } else { other.name() }
    }
}

pub fn misfit(param: &'static str, what: impl Into<String>, help: impl Into<String>) -> Misfit {
    Misfit { param, what: what.into(), help: help.into() }
}

/// `count`, the one of a rate, unless it is more than stays exact.
///
/// # Errors
/// It is.
pub fn at_most(largest: i64, count: i64) -> Result<i64, Misfit> {
    if count <= largest {
        return Ok(count);
    }
    Err(misfit(RATE.name(), "it is too large to stay exact", format!("the largest count is {largest}")))
}
