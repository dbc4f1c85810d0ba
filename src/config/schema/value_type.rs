//! Types of options: how a value is written, and its bounds. Used by the tables of `schema`, and by `reader` for
//! bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::schema::Schema;
use crate::limiting::algorithm::all_params;
use crate::limiting::algorithm::params::ParamKind;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const TIB: u64 = 1 << 40;
/// Maximum of a size without a bound of its own: no machine has more.
pub const SIZE_MAX: u64 = 1 << 50;
/// Milliseconds of a second, minute, hour and day.
pub const SECOND: u64 = 1000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
pub const DAY: u64 = 24 * HOUR;

/// Integers from here on are larger than any operator needs: bounds of the arithmetic are not shown.
const SHOWN_MAX: i64 = 1 << 52;
const WEEKDAYS: &[&str] = &["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// How a value is written.
#[derive(Clone, Copy, Debug)]
pub enum ValueType {
    Boolean,
    /// Only `true`.
    True,
    /// Only `false`.
    False,
    Integer {
        least: i64,
        most: i64,
    },
    /// One of these integers.
    Integers(&'static [i64]),
    /// Bytes: an integer, or a string with a unit.
    Size {
        least: u64,
        most: u64,
    },
    /// A string with a unit of time.
    Duration {
        least_ms: u64,
        most_ms: u64,
    },
    /// A duration up to ten years, which may be written in years.
    Age,
    /// A number from 0.001 to 1.
    Fraction,
    /// A number from 0 to 1.
    Sample,
    /// A number from 0.001 to this bound.
    Decimal(u32),
    /// A count per period.
    Rate,
    /// A count per hour, day, week, month or year.
    CalendarRate,
    /// One of these strings.
    Words(&'static [&'static str]),
    /// Any string; the text says what it is.
    Text(&'static str),
    /// The path of a file or directory, from the file that contains it.
    Path(&'static str),
    /// One value, or a list of them.
    List {
        item: &'static ValueType,
        least: usize,
        most: usize,
    },
    /// A list, always in brackets.
    Array {
        item: &'static ValueType,
        least: usize,
        most: usize,
    },
    /// A table with keys that the user chooses.
    Map(&'static ValueType),
    Table(&'static Schema),
    /// Tables with names: `[limit.NAME]`.
    Named(&'static Schema),
    /// A table that has options of its own and tables with names: `[jwt]` and `[jwt.NAME]`.
    TableOrNamed(&'static Schema),
    Either(&'static [ValueType]),
    /// An option of algorithms, which declare its type.
    OfAlgorithm,
}

pub const fn integer(least: i64, most: i64) -> ValueType {
    ValueType::Integer { least, most }
}

pub const fn duration(least_ms: u64, most_ms: u64) -> ValueType {
    ValueType::Duration { least_ms, most_ms }
}

pub const fn size(least: u64, most: u64) -> ValueType {
    ValueType::Size { least, most }
}

/// Returns the type of one value, or a list that may be empty.
pub const fn list(item: &'static ValueType) -> ValueType {
    list_from(0, item)
}

/// Returns the type of one value, or a list of at least `least`.
pub const fn list_from(least: usize, item: &'static ValueType) -> ValueType {
    ValueType::List { item, least, most: usize::MAX }
}

/// Returns the type of an option that algorithms declare.
pub fn type_of_param(name: &str) -> ValueType {
    let Some(param) = all_params().find(|param| param.name == name) else { return ValueType::Text("string") };
    match &param.kind {
        ParamKind::Rate => ValueType::Rate,
        ParamKind::CalendarRate => ValueType::CalendarRate,
        ParamKind::Integer { least, most } => integer(*least, *most),
        ParamKind::Duration { least_ms, most_ms } => duration(least_ms.unsigned_abs(), most_ms.unsigned_abs()),
        ParamKind::Flag => ValueType::Boolean,
        ParamKind::Choice(words) => ValueType::Words(words),
        ParamKind::Zone => ValueType::Text("IANA time zone"),
        ParamKind::TimeOfDay => ValueType::Text("time of day"),
        ParamKind::Weekday => ValueType::Words(WEEKDAYS),
    }
}

impl ValueType {
    /// Returns the type itself, or its alternatives.
    pub fn alternatives(&self) -> impl Iterator<Item = ValueType> + use<> {
        let (own, several): (Option<ValueType>, &[ValueType]) = match *self {
            ValueType::Either(types) => (None, types),
            other => (Some(other), &[]),
        };
        own.into_iter().chain(several.iter().copied())
    }

    /// Returns the tables of options that a value may contain.
    pub fn tables(&self) -> Vec<&'static Schema> {
        match *self {
            ValueType::Table(schema) | ValueType::Named(schema) | ValueType::TableOrNamed(schema) => vec![schema],
            ValueType::List { item, .. } | ValueType::Array { item, .. } | ValueType::Map(item) => item.tables(),
            ValueType::Either(types) => types.iter().flat_map(ValueType::tables).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the type of the items of a list or of the values of a table with the user's own keys, else the type
    /// itself.
    pub fn item(&self) -> ValueType {
        match *self {
            ValueType::List { item, .. } | ValueType::Array { item, .. } | ValueType::Map(item) => item.item(),
            other => other,
        }
    }

    /// Returns whether the keys of its table are the user's own.
    pub fn has_own_keys(&self) -> bool {
        self.alternatives().any(|alternative| matches!(alternative, ValueType::Map(_)))
    }

    /// Returns the words that a value, or an item of it, may be.
    pub fn words(&self) -> Vec<&'static str> {
        let words = |of: ValueType| match of.item() {
            ValueType::Words(words) => words.to_vec(),
            either @ ValueType::Either(_) => either.words(),
            _ => Vec::new(),
        };
        self.alternatives().flat_map(words).collect()
    }

    pub fn integer_range(&self) -> Option<RangeInclusive<i64>> {
        self.alternatives().find_map(|alternative| match alternative {
            ValueType::Integer { least, most } => Some(least..=most),
            _ => None,
        })
    }

    pub fn decimal_max(&self) -> Option<u32> {
        self.alternatives().find_map(|alternative| match alternative {
            ValueType::Decimal(most) => Some(most),
            _ => None,
        })
    }

    pub fn size_range(&self) -> Option<RangeInclusive<u64>> {
        self.alternatives().find_map(|alternative| match alternative {
            ValueType::Size { least, most } => Some(least..=most),
            _ => None,
        })
    }

    pub fn duration_range(&self) -> Option<RangeInclusive<Duration>> {
        self.alternatives().find_map(|alternative| match alternative {
            ValueType::Duration { least_ms, most_ms } => {
                Some(Duration::from_millis(least_ms)..=Duration::from_millis(most_ms))
            }
            _ => None,
        })
    }

    /// Returns the type in Markdown, as the manual writes it.
    pub fn describe(&self) -> String {
        match *self {
            ValueType::Boolean => "boolean".to_owned(),
            ValueType::True => "`true`".to_owned(),
            ValueType::False => "`false`".to_owned(),
            ValueType::Integer { least, most: SHOWN_MAX.. } => format!("integer from {least}"),
            ValueType::Integer { least, most } => format!("{least} to {most}"),
            ValueType::Integers(numbers) => join(numbers.iter().map(i64::to_string)),
            ValueType::Size { most: SIZE_MAX.., .. } => "size".to_owned(),
            ValueType::Size { least: 0, most } => format!("size, up to {}", describe_size(most)),
            ValueType::Size { least, most } => format!("size, {} to {}", describe_size(least), describe_size(most)),
            ValueType::Duration { least_ms: 0, most_ms } => format!("duration, 0 to {}", describe_duration(most_ms)),
            ValueType::Duration { least_ms, most_ms } => {
                format!("duration, {} to {}", describe_duration(least_ms), describe_duration(most_ms))
            }
            ValueType::Age => "duration up to 10 years".to_owned(),
            ValueType::Fraction => "fraction".to_owned(),
            ValueType::Sample => "0 to 1".to_owned(),
            ValueType::Decimal(most) => format!("number, 0.001 to {most}"),
            ValueType::Rate => "rate".to_owned(),
            ValueType::CalendarRate => "COUNT/hour, /day, /week, /month or /year".to_owned(),
            ValueType::Words(words) => join(words.iter().map(|word| format!("`\"{word}\"`"))),
            ValueType::Text(what) | ValueType::Path(what) => what.to_owned(),
            ValueType::List { item, most, .. } | ValueType::Array { item, most, .. } => {
                let bound = if most == usize::MAX { String::new() } else { format!(", up to {most}") };
                format!("list of {}{bound}", item.describe_several())
            }
            ValueType::Map(item) => format!("table of {}", item.describe_several()),
            ValueType::Table(_) => "table".to_owned(),
            ValueType::Named(_) => "sections `[NAME.NAME]`".to_owned(),
            ValueType::TableOrNamed(_) => "section".to_owned(),
            ValueType::Either(types) => types.iter().map(ValueType::describe).collect::<Vec<_>>().join(", or "),
            ValueType::OfAlgorithm => "as the option".to_owned(),
        }
    }

    /// Returns the type in the plural.
    fn describe_several(&self) -> String {
        match *self {
            ValueType::Text(what) | ValueType::Path(what) if what.ends_with('s') => format!("{what}es"),
            ValueType::Text(what) | ValueType::Path(what) => format!("{what}s"),
            ValueType::Table(_) => "tables".to_owned(),
            _ => self.describe(),
        }
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Writes a number of bytes with the largest unit that divides it.
fn describe_size(bytes: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Writes a duration with the largest unit that divides it.
fn describe_duration(ms: u64) -> String {
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s")];
    match units.iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
    }
}
