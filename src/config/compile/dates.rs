//! The words of calendars: rates per month, time zones, times of the day. Called by `rule`.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use crate::config::hints::closest;
use crate::config::values::{self, Fault, fault};
use crate::limit::algo::dates::Unit;
use crate::limit::algo::params::Dated;

const UNITS: &[(&str, Unit)] = &[
    ("hour", Unit::Hour),
    ("day", Unit::Day),
    ("week", Unit::Week),
    ("month", Unit::Month),
    ("year", Unit::Year),
    ("h", Unit::Hour),
    ("d", Unit::Day),
];

pub const WEEKDAYS: &[(&str, Weekday)] = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// `10000/day`, `5/week`.
pub fn rate(text: &str) -> Result<Dated, Fault> {
    const HELP: &str = "write a count per hour, day, week, month or year: \"10000/day\"";
    let Some((count, unit)) = text.split_once('/') else {
        return fault(format!("`{text}` is not a rate of calendar windows"), HELP);
    };
    let Some((_, unit)) = UNITS.iter().find(|(word, _)| *word == unit.trim()) else {
        return fault(format!("`{}` is not a calendar window", unit.trim()), HELP);
    };
    Ok(Dated { count: values::rate(&format!("{count}/day"))?.count, unit: *unit })
}

pub fn zone(text: &str) -> Result<TimeZone, Fault> {
    const HELP: &str = "write an IANA name, like \"UTC\", \"Asia/Shanghai\" or \"Europe/Berlin\"";
    TimeZone::get(text).or_else(|_| {
        let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        let help = match closest(text, names.iter().map(String::as_str)) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => HELP.to_owned(),
        };
        fault(format!("unknown time zone `{text}`"), help)
    })
}

pub fn time_of_day(text: &str) -> Result<Time, Fault> {
    let number = |text: &str| text.parse::<i8>().ok().filter(|_| text.len() == 2 && text.as_bytes()[0] != b'+');
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    match parts.and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok()) {
        Some(time) => Ok(time),
        None => fault(format!("`{text}` is not a time of day"), "write HH:MM, from \"00:00\" to \"23:59\""),
    }
}
