//! Calendar options: rates per month, time zones, times of day. Called by `rule`.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use crate::config::closest::find_closest;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::algorithm::dates::CalendarUnit;
use crate::limiting::algorithm::params::CalendarRate;

const UNITS: &[(&str, CalendarUnit)] = &[
    ("hour", CalendarUnit::Hour),
    ("day", CalendarUnit::Day),
    ("week", CalendarUnit::Week),
    ("month", CalendarUnit::Month),
    ("year", CalendarUnit::Year),
    ("h", CalendarUnit::Hour),
    ("d", CalendarUnit::Day),
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

/// Parses `10000/day` or `5/week`.
pub fn parse_calendar_rate(text: &str) -> Result<CalendarRate, TextFault> {
    const HELP: &str = "write a count per hour, day, week, month or year: \"10000/day\"";
    let Some((count, unit)) = text.split_once('/') else {
        return invalid_text(format!("`{text}` is not a rate of calendar windows"), HELP);
    };
    let Some((_, unit)) = UNITS.iter().find(|(word, _)| *word == unit.trim()) else {
        return invalid_text(format!("`{}` is not a calendar window", unit.trim()), HELP);
    };
    Ok(CalendarRate { count: values::parse_rate(&format!("{count}/day"))?.count, unit: *unit })
}

pub fn parse_zone(text: &str) -> Result<TimeZone, TextFault> {
    const HELP: &str = "write an IANA name, like \"UTC\", \"Asia/Shanghai\" or \"Europe/Berlin\"";
    TimeZone::get(text).or_else(|_| {
        let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        let help = match find_closest(text, names.iter().map(String::as_str)) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => HELP.to_owned(),
        };
        invalid_text(format!("unknown time zone `{text}`"), help)
    })
}

pub fn parse_time_of_day(text: &str) -> Result<Time, TextFault> {
    let number = |text: &str| text.parse::<i8>().ok().filter(|_| text.len() == 2 && text.as_bytes()[0] != b'+');
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    match parts.and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok()) {
        Some(time) => Ok(time),
        None => invalid_text(format!("`{text}` is not a time of day"), "write HH:MM, from \"00:00\" to \"23:59\""),
    }
}
