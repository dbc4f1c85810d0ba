//! The times at which a limit applies: `time`, `days` and `zone` of a `when`. The local clock of the zone decides:
//! where the clocks are set forward, the hour that is skipped does not occur, and where they are set back, the repeated
//! hour counts both times.

use std::fmt::{self, Write};

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

/// Times of every week.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub zone: TimeZone,
    /// Days on which the times begin, from Monday.
    pub days: [bool; 7],
    /// One of them must contain the time. Never empty.
    pub times: Vec<TimeRange>,
}

/// A part of a day, in minutes since midnight. With `end` at or before `start`, it ends on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub start: u16,
    pub end: u16,
}

/// Names of the days, from Monday.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;

impl TimeRange {
    pub const WHOLE_DAY: TimeRange = TimeRange { start: 0, end: DAY_MINUTES };
}

impl Schedule {
    /// Returns whether the time belongs to the schedule. A range over midnight belongs to the day on which it begins.
    pub fn contains(&self, now_ms: i64) -> bool {
        let Some((day, minute)) = self.local_time(now_ms) else { return false };
        self.times.iter().any(|TimeRange { start, end }| match start < end {
            true => self.days[day] && (*start..*end).contains(&minute),
            false => self.days[day] && minute >= *start || self.days[(day + 6) % 7] && minute < *end,
        })
    }

    /// Returns the number of the day, from Monday, and the minute of the local clock.
    fn local_time(&self, now_ms: i64) -> Option<(usize, u16)> {
        let local = self.zone.to_datetime(Timestamp::from_millisecond(now_ms).ok()?);
        let minute = u16::try_from(i16::from(local.hour()) * 60 + i16::from(local.minute())).ok()?;
        Some((day_number(local.weekday()), minute))
    }

    /// Formats the time of the local clock, such as `mon 2026-11-30 09:12`.
    pub fn describe_time(&self, now_ms: i64) -> Option<String> {
        let local = self.zone.to_datetime(Timestamp::from_millisecond(now_ms).ok()?);
        let (day, date) = (DAYS[day_number(local.weekday())], local.date());
        Some(format!("{day} {date} {:02}:{:02}", local.hour(), local.minute()))
    }
}

fn day_number(day: Weekday) -> usize {
    usize::try_from(day.to_monday_zero_offset()).unwrap_or(0)
}

/// Formats the schedule, such as `mon, tue 08:00-18:00 (Europe/Berlin)`.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if self.days != [true; 7] {
            let days: Vec<&str> =
                DAYS.iter().zip(self.days).filter(|(_, is_meant)| *is_meant).map(|(day, _)| *day).collect();
            text.extend([&days.join(", "), " "]);
        }
        for (place, TimeRange { start, end }) in self.times.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(text, "{comma}{:02}:{:02}-{:02}:{:02}", start / 60, start % 60, end / 60, end % 60)?;
        }
        write!(f, "{text} ({})", self.zone.iana_name().unwrap_or("UTC"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(zone: &str, days: &[usize], times: &[(u16, u16)]) -> Schedule {
        let mut meant = [days.is_empty(); 7];
        days.iter().for_each(|day| meant[*day] = true);
        let times = times.iter().map(|(start, end)| TimeRange { start: start * 60, end: end * 60 }).collect();
        Schedule { zone: TimeZone::get(zone).unwrap(), days: meant, times }
    }

    fn contains(schedule: &Schedule, text: &str) -> bool {
        schedule.contains(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    /// 30 November 2026 is a Monday, and Berlin is one hour ahead.
    #[test]
    fn the_local_clock_and_day_decide() {
        let office = schedule("Europe/Berlin", &[0, 4], &[(8, 18)]);
        for (time, is_meant) in [
            ("2026-11-30T06:59:59.999Z", false),
            ("2026-11-30T07:00:00Z", true),
            ("2026-11-30T16:59:59.999Z", true),
            ("2026-11-30T17:00:00Z", false),
            ("2026-12-01T09:00:00Z", false),
            ("2026-12-04T09:00:00Z", true),
        ] {
            assert_eq!(contains(&office, time), is_meant, "{time}");
        }
        assert_eq!(office.to_string(), "mon, fri 08:00-18:00 (Europe/Berlin)");
        let ms = "2026-11-30T08:12:00Z".parse::<Timestamp>().unwrap().as_millisecond();
        assert_eq!(office.describe_time(ms).as_deref(), Some("mon 2026-11-30 09:12"));
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let night = schedule("UTC", &[4], &[(22, 6)]);
        for (time, is_meant) in [
            ("2026-12-04T05:00:00Z", false),
            ("2026-12-04T21:59:00Z", false),
            ("2026-12-04T22:00:00Z", true),
            ("2026-12-05T05:59:00Z", true),
            ("2026-12-05T06:00:00Z", false),
            ("2026-12-05T22:00:00Z", false),
        ] {
            assert_eq!(contains(&night, time), is_meant, "{time}");
        }
        // From Sunday to Monday.
        assert!(contains(&schedule("UTC", &[6], &[(22, 6)]), "2026-11-30T00:00:00Z"));
        let lunch = schedule("UTC", &[], &[(8, 12), (13, 18)]);
        let at = ["07", "08", "12", "13", "18"].map(|hour| contains(&lunch, &format!("2026-11-30T{hour}:00:00Z")));
        assert_eq!(at, [false, true, false, true, false]);
        assert!(contains(&Schedule { times: vec![TimeRange::WHOLE_DAY], ..night }, "2026-12-04T23:59:59Z"));
    }

    /// In Berlin, 02:00 to 03:00 does not exist on 29 March 2026, and occurs twice on 25 October.
    #[test]
    fn the_clock_may_be_set() {
        let hour = schedule("Europe/Berlin", &[], &[(2, 3)]);
        assert!(!contains(&hour, "2026-03-29T00:59:59Z") && !contains(&hour, "2026-03-29T01:00:00Z"));
        let repeated = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"];
        assert_eq!(repeated.map(|time| contains(&hour, time)), [true, true, false]);
    }
}
