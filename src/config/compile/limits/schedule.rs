//! `time`, `days` and `zone` of a `when`: when a limit applies. Called by `when`.

use jiff::tz::TimeZone;

use crate::config::compile::limits::dates;
use crate::config::reader::{At, Section};
use crate::config::schema::limit;
use crate::config::values::{TextFault, invalid_text};
use crate::limiting::limit::schedule::{DAY_MINUTES, DAYS, Schedule, TimeRange};

const TIME_HELP: &str = "write \"08:00-18:00\", \"22:00-06:00\" for a night, or a list of them";
const DAYS_HELP: &str = "write \"mon\", \"mon-fri\", or a list of them";
/// Maximum number of times; each is compared with the clock.
const TIMES_MAX: usize = 24;

/// Compiles the schedule of a `when`, if it has one. The outer `None` means a mistake.
pub fn compile_schedule(when: &Section) -> Option<Option<Schedule>> {
    let [time, days, zone] =
        [&limit::when::TIME, &limit::when::DAYS, &limit::when::ZONE].map(|option| when.node(option));
    if time.is_none() && days.is_none() {
        let Some(node) = zone else { return Some(None) };
        let help = "add `time` or `days`, or remove it";
        return when.report_fault(limit::when::ZONE.name, node, "there is no `time` and no `days`", help);
    }
    let times = match time {
        None => Some(vec![TimeRange::WHOLE_DAY]),
        Some(node) => match when.read_strings(&limit::when::TIME, parse_time_range) {
            Some(times) if !(1..=TIMES_MAX).contains(&times.len()) => {
                let what = format!("there may be 1 to {TIMES_MAX} times");
                return when.report_fault(limit::when::TIME.name, node, &what, TIME_HELP);
            }
            times => times.map(|times| times.into_iter().map(|At { value, .. }| value).collect()),
        },
    };
    let days = match days {
        None => Some([true; 7]),
        Some(node) => match when.read_strings(&limit::when::DAYS, parse_days) {
            Some(days) if days.is_empty() => {
                return when.report_fault(limit::when::DAYS.name, node, "the list is empty", DAYS_HELP);
            }
            days => days.map(|days| days.iter().fold([false; 7], |all, At { value, .. }| join(all, *value))),
        },
    };
    let zone = match zone {
        None => Some(TimeZone::UTC),
        Some(_) => when.parse_string(&limit::when::ZONE, dates::parse_zone),
    };
    Some(Some(Schedule { zone: zone?, days: days?, times: times? }))
}

fn join(mut all: [bool; 7], more: [bool; 7]) -> [bool; 7] {
    all.iter_mut().zip(more).for_each(|(day, is_meant)| *day |= is_meant);
    all
}

/// Parses `08:00-18:00`. The end may be `24:00`.
fn parse_time_range(text: &str) -> Result<TimeRange, TextFault> {
    let Some((start, end)) = text.split_once('-') else {
        return invalid_text(format!("`{text}` is not a range of times"), TIME_HELP);
    };
    let minutes = |text: &str| -> Result<u16, TextFault> {
        let time = dates::parse_time_of_day(text.trim())?;
        Ok(u16::try_from(i16::from(time.hour()) * 60 + i16::from(time.minute())).unwrap_or(0))
    };
    let start = minutes(start)?;
    let end = if end.trim() == "24:00" { DAY_MINUTES } else { minutes(end)? };
    match start == end {
        true => {
            invalid_text(format!("`{text}` is empty"), "for the whole day, write \"00:00-24:00\" or leave out `time`")
        }
        false => Ok(TimeRange { start, end }),
    }
}

/// Parses `mon`, `monday`, or a range like `mon-fri` or `sat-mon`.
fn parse_days(text: &str) -> Result<[bool; 7], TextFault> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_day(first.trim())?, parse_day(last.trim())?);
    let mut days = [false; 7];
    for step in 0..7 {
        let day = (first + step) % 7;
        days[day] = true;
        if day == last {
            break;
        }
    }
    Ok(days)
}

fn parse_day(text: &str) -> Result<usize, TextFault> {
    let is_day = |(short, long): (&&str, &str)| text.eq_ignore_ascii_case(short) || text.eq_ignore_ascii_case(long);
    let long = dates::WEEKDAYS.iter().map(|(name, _)| *name);
    match DAYS.iter().zip(long).position(is_day) {
        Some(day) => Ok(day),
        None => invalid_text(format!("`{text}` is not a day"), DAYS_HELP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_days_have_one_meaning() {
        let range =
            |text| parse_time_range(text).map(|TimeRange { start, end }| (start, end)).map_err(|fault| fault.what);
        assert_eq!(range("08:00-18:30"), Ok((480, 1110)));
        assert_eq!(range("22:00 - 06:00"), Ok((1320, 360)));
        assert_eq!(range("00:00-24:00"), Ok((0, 1440)));
        for text in ["08:00", "8:00-18:00", "08:00-25:00", "24:00-08:00", "08:00-08:00", "08:00-18:00-20:00", ""] {
            assert!(range(text).is_err(), "{text}");
        }
        let days = |text| parse_days(text).map(|days| days.map(u8::from)).map_err(|fault| fault.what);
        assert_eq!(days("mon"), Ok([1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(days("Monday-fri"), Ok([1, 1, 1, 1, 1, 0, 0]));
        assert_eq!(days("sat-mon"), Ok([1, 0, 0, 0, 0, 1, 1]));
        assert_eq!(days("tue-mon"), Ok([1; 7]));
        for text in ["", "m", "mo-fr", "mon-", "weekday", "mon,fri"] {
            assert!(days(text).is_err(), "{text}");
        }
    }
}
