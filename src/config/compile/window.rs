//! `[limit.NAME]` with sliding or calendar windows: their parameters, and the bounds that keep
//! their arithmetic exact. Called by `limit`.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use super::exact::EXACT;
use crate::config::reader::{At, Section, choose, closest};
use crate::config::values::{self, Fault, Rate, fault};
use crate::limit::algo::Rule;
use crate::limit::algo::calendar::{Calendar, Dates, Unit};
use crate::limit::algo::sliding_window::SlidingWindow;
use crate::limit::key::COST_MAX;

const UNITS: &[(&str, Unit)] = &[
    ("hour", Unit::Hour),
    ("day", Unit::Day),
    ("week", Unit::Week),
    ("month", Unit::Month),
    ("year", Unit::Year),
    ("h", Unit::Hour),
    ("d", Unit::Day),
];

const WEEKDAYS: &[(&str, Weekday)] = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

pub fn sliding_window(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let precision = match section.node("precision") {
        Some(_) => section.integer("precision", 2..=60)?,
        None => 2,
    };
    let At { place, value: Rate { count, per_ms } } = rate?;
    let largest = SlidingWindow::largest(per_ms, precision);
    if count > largest {
        let help = format!("the largest count is {largest}");
        return section.fault_at("rate", place, "it is too large to stay exact", &help);
    }
    match SlidingWindow::new(count, per_ms, precision) {
        Some(rule) => Some(Rule::SlidingWindow(rule)),
        None => {
            let what = format!("{precision} parts of {per_ms} ms are shorter than a millisecond");
            section.fault("precision", section.node("precision")?, &what, &format!("at most {per_ms}"))
        }
    }
}

pub fn calendar(section: &Section) -> Option<Rule> {
    let rate = section.parse_at("rate", rate);
    let zone = match section.node("zone") {
        Some(_) => section.parse("zone", zone),
        None => Some(TimeZone::UTC),
    };
    let resets_at = section.parse_at("resets_at", time_of_day);
    let week_start = section.parse_at("week_start", |text| choose(text, WEEKDAYS));
    let At { place, value: (count, unit) } = rate?;
    let largest = EXACT - 1 - COST_MAX;
    if count > largest {
        let help = format!("the largest count is {largest}");
        return section.fault_at("rate", place, "it is too large to stay exact", &help);
    }
    if let (Unit::Hour, Some(at)) = (unit, &resets_at) {
        return section.fault_at("resets_at", at.place, "hours begin at full hours", "remove it");
    }
    if let (false, Some(at)) = (unit == Unit::Week, &week_start) {
        return section.fault_at("week_start", at.place, "the rate is not one per week", "remove it");
    }
    let resets_at = resets_at.map_or(Time::midnight(), |at| at.value);
    let week_start = week_start.map_or(Weekday::Monday, |at| at.value);
    Some(Rule::Calendar(Calendar::new(count, Dates { unit, zone: zone?, resets_at, week_start })))
}

/// `10000/day`, `5/week`.
fn rate(text: &str) -> Result<(i64, Unit), Fault> {
    const HELP: &str = "write a count per hour, day, week, month or year: \"10000/day\"";
    let Some((count, unit)) = text.split_once('/') else {
        return fault(format!("`{text}` is not a rate of calendar windows"), HELP);
    };
    let Some((_, unit)) = UNITS.iter().find(|(word, _)| *word == unit.trim()) else {
        return fault(format!("`{}` is not a calendar window", unit.trim()), HELP);
    };
    Ok((values::rate(&format!("{count}/day"))?.count, *unit))
}

fn zone(text: &str) -> Result<TimeZone, Fault> {
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

fn time_of_day(text: &str) -> Result<Time, Fault> {
    let number = |text: &str| text.parse::<i8>().ok().filter(|_| text.len() == 2 && text.as_bytes()[0] != b'+');
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    match parts.and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok()) {
        Some(time) => Ok(time),
        None => fault(format!("`{text}` is not a time of day"), "write HH:MM, from \"00:00\" to \"23:59\""),
    }
}
