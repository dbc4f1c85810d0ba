//! Finds the calendar windows around an instant, in any time zone.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Error, SignedDuration, Timestamp, ToSpan};

/// How the time of a zone is divided into windows.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarSettings {
    pub unit: CalendarUnit,
    pub zone: TimeZone,
    /// Local time at which days, weeks, months and years start. Hours start at full local hours.
    pub resets_at: Time,
    pub week_start: Weekday,
    /// Day on which months begin, 1 to 31. A shorter month begins on its last day. 0 is the day that the request names,
    /// and the first if it names none.
    pub month_day: i8,
}

/// Length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// One calendar window. It ends where the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateWindow {
    /// Local date of the start, such as 20261120. For hours, such as 20261120140: the last digit is 1 for an hour that
    /// the clock shows for the second time.
    pub id: i64,
    pub start_ms: i64,
}

/// Five consecutive windows; the second is the current one.
pub type Windows = [DateWindow; 5];

impl CalendarUnit {
    pub const ALL: [CalendarUnit; 5] =
        [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];

    pub fn name(self) -> &'static str {
        match self {
            CalendarUnit::Hour => "hour",
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        }
    }

    /// Returns the length without a change of the clocks, of the longest month and year.
    pub fn usual_ms(self) -> i64 {
        let hours = match self {
            CalendarUnit::Hour => 1,
            CalendarUnit::Day => 24,
            CalendarUnit::Week => 24 * 7,
            CalendarUnit::Month => 24 * 31,
            CalendarUnit::Year => 24 * 366,
        };
        hours * 3_600_000
    }
}

impl CalendarSettings {
    /// Returns the windows around `now_ms`.
    pub fn windows(&self, now_ms: i64) -> Windows {
        self.compute(now_ms).unwrap_or_else(|_| self.regular(now_ms))
    }

    fn compute(&self, now_ms: i64) -> Result<Windows, Error> {
        let (current, end) = self.span(Timestamp::from_millisecond(now_ms)?)?;
        let (before, _) = self.span(Timestamp::from_millisecond(current.start_ms - 1)?)?;
        let (second, end) = self.span(end)?;
        let (third, end) = self.span(end)?;
        let (fourth, _) = self.span(end)?;
        Ok([before, current, second, third, fourth])
    }

    /// Returns windows of equal length, for instants outside the range of the calendar.
    fn regular(&self, now_ms: i64) -> Windows {
        let length = self.unit.usual_ms();
        let number = now_ms.div_euclid(length);
        [-1, 0, 1, 2, 3].map(|step| DateWindow { id: number + step, start_ms: (number + step) * length })
    }

    /// Returns the window that contains `now`, and its end.
    fn span(&self, now: Timestamp) -> Result<(DateWindow, Timestamp), Error> {
        if self.unit == CalendarUnit::Hour {
            return self.hour(now);
        }
        // A zone may skip a whole local date, so this searches for the latest date that has started.
        let today = self.zone.to_datetime(now).date();
        let mut next = self.next(self.next(self.first(today)?)?)?;
        let mut end = self.begin(next)?;
        loop {
            let date = self.first(next.yesterday()?)?;
            let start = self.begin(date)?;
            if start <= now {
                return Ok((DateWindow { id: number(date), start_ms: start.as_millisecond() }, end));
            }
            (next, end) = (date, start);
        }
    }

    /// Returns the first day of the unit that contains `date`.
    fn first(&self, date: Date) -> Result<Date, Error> {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => Ok(date),
            CalendarUnit::Week => date.checked_sub(i64::from(date.weekday().since(self.week_start)).days()),
            CalendarUnit::Month => match self.month_start(date)? {
                start if start <= date => Ok(start),
                _ => self.month_start(date.first_of_month().yesterday()?),
            },
            CalendarUnit::Year => Ok(date.first_of_year()),
        }
    }

    fn next(&self, first: Date) -> Result<Date, Error> {
        first.checked_add(match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => 1.day(),
            CalendarUnit::Week => 1.week(),
            CalendarUnit::Month => return self.month_start(first.last_of_month().tomorrow()?),
            CalendarUnit::Year => 1.year(),
        })
    }

    /// Returns the day of the month of `date` on which a window begins.
    fn month_start(&self, date: Date) -> Result<Date, Error> {
        Date::new(date.year(), date.month(), self.month_day.clamp(1, date.days_in_month()))
    }

    /// Returns the first instant at which the local clock shows `resets_at` of that date or later.
    fn begin(&self, date: Date) -> Result<Timestamp, Error> {
        let local = date.to_datetime(self.resets_at);
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local),
            AmbiguousOffset::Gap { before, .. } => {
                // The time does not exist that day. This is the same distance after the change of the clocks.
                let behind = before.to_timestamp(local)?;
                let mut changes = self.zone.preceding(behind.checked_add(SignedDuration::from_nanos(1))?);
                Ok(changes.next().map_or(behind, |change| change.timestamp()))
            }
        }
    }

    /// Returns the hour of the local clock, cut where the clock changes.
    fn hour(&self, now: Timestamp) -> Result<(DateWindow, Timestamp), Error> {
        let offset = self.zone.to_offset(now);
        let local_time = offset.to_datetime(now);
        let mut start = offset.to_timestamp(local_time.date().at(local_time.hour(), 0, 0, 0))?;
        let mut end = start.checked_add(SignedDuration::from_hours(1))?;
        for change in self.zone.preceding(now.checked_add(SignedDuration::from_nanos(1))?) {
            if change.timestamp() <= start {
                break;
            }
            if self.offset_before(change.timestamp())? != offset {
                start = change.timestamp();
                break;
            }
        }
        for change in self.zone.following(now) {
            if change.timestamp() >= end {
                break;
            }
            if change.offset() != offset {
                end = change.timestamp();
                break;
            }
        }
        let local_time = offset.to_datetime(start);
        let ambiguous = self.zone.to_ambiguous_timestamp(local_time).offset();
        let is_repeated = matches!(ambiguous, AmbiguousOffset::Fold { after, .. } if after == offset);
        let id = (number(local_time.date()) * 100 + i64::from(local_time.hour())) * 10 + i64::from(is_repeated);
        Ok((DateWindow { id, start_ms: start.as_millisecond() }, end))
    }

    fn offset_before(&self, change: Timestamp) -> Result<Offset, Error> {
        Ok(self.zone.to_offset(change.checked_sub(SignedDuration::from_nanos(1))?))
    }
}

fn number(date: Date) -> i64 {
    i64::from(date.year()) * 10_000 + i64::from(date.month()) * 100 + i64::from(date.day())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dates(unit: CalendarUnit, zone: &str, resets_at: &str, week_start: Weekday) -> CalendarSettings {
        let zone = TimeZone::get(zone).unwrap();
        CalendarSettings { unit, zone, resets_at: resets_at.parse().unwrap(), week_start, month_day: 1 }
    }

    /// Each row: day, `now`, start and end of the month.
    #[test]
    fn months_begin_on_their_day_or_on_the_last() {
        for (month_day, now, start, end) in [
            (17, "2026-11-16T22:59:59Z", "2026-10-16T22:00:00Z", "2026-11-16T23:00:00Z"),
            (17, "2026-11-16T23:00:00Z", "2026-11-16T23:00:00Z", "2026-12-16T23:00:00Z"),
            (31, "2026-02-27T22:59:59Z", "2026-01-30T23:00:00Z", "2026-02-27T23:00:00Z"),
            (31, "2026-02-27T23:00:00Z", "2026-02-27T23:00:00Z", "2026-03-30T22:00:00Z"),
            (30, "2028-02-29T00:00:00Z", "2028-02-28T23:00:00Z", "2028-03-29T22:00:00Z"),
            (29, "2027-01-15T00:00:00Z", "2026-12-28T23:00:00Z", "2027-01-28T23:00:00Z"),
            (1, "2026-11-30T12:00:00Z", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z"),
        ] {
            let months = dates(CalendarUnit::Month, "Europe/Berlin", "00:00", Weekday::Monday);
            let months = CalendarSettings { month_day, ..months };
            let ms = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
            let windows = months.windows(ms(now));
            assert_eq!((windows[1].start_ms, windows[2].start_ms), (ms(start), ms(end)), "{month_day} {now}");
        }
    }

    #[test]
    fn months_are_in_a_row_whatever_their_day() {
        for month_day in 1..=31 {
            let dates = dates(CalendarUnit::Month, "America/New_York", "02:30", Weekday::Monday);
            let dates = CalendarSettings { month_day, ..dates };
            let mut now_ms = 1_700_000_000_000;
            for _ in 0..30 {
                let windows = dates.windows(now_ms);
                assert!(windows[1].start_ms <= now_ms && now_ms < windows[2].start_ms);
                for pair in windows.windows(2) {
                    let days = (pair[1].start_ms - pair[0].start_ms) / 86_400_000;
                    assert!((27..=31).contains(&days), "{month_day} {pair:?}");
                    assert_eq!(dates.windows(pair[1].start_ms - 1)[1], pair[0], "{month_day}");
                }
                now_ms = windows[2].start_ms + 7_777_777;
            }
        }
    }

    /// Each row: `now`, then id, start and end of its window, as instants in UTC.
    fn assert_windows(
        unit: CalendarUnit,
        zone: &str,
        resets_at: &str,
        week_start: Weekday,
        table: &[(&str, i64, &str, &str)],
    ) {
        let dates = dates(unit, zone, resets_at, week_start);
        let ms = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
        for (now, id, start, end) in table {
            let [before, current, next, ..] = dates.windows(ms(now));
            let found = Timestamp::from_millisecond(next.start_ms).unwrap();
            let begun = Timestamp::from_millisecond(current.start_ms).unwrap();
            assert_eq!(
                (current.id, begun.to_string(), found.to_string()),
                (*id, (*start).into(), (*end).into()),
                "{zone} {now}"
            );
            assert!(before.start_ms < current.start_ms);
            // Every ms of the window belongs to it, and no other ms does.
            for (edge, holds) in [(ms(start), true), (ms(start) - 1, false), (ms(end) - 1, true), (ms(end), false)] {
                assert_eq!(dates.windows(edge)[1] == current, holds, "{zone} {now} at {edge}");
            }
        }
    }

    fn assert_days(zone: &str, table: &[(&str, i64, &str, &str)]) {
        assert_windows(CalendarUnit::Day, zone, "00:00", Weekday::Monday, table);
    }

    #[test]
    fn days_have_23_24_or_25_hours() {
        assert_days(
            "America/New_York",
            &[
                ("2026-03-07T12:00:00Z", 20260307, "2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z"),
                ("2026-03-08T12:00:00Z", 20260308, "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
                ("2026-11-01T12:00:00Z", 20261101, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
            ],
        );
        assert_days(
            "Asia/Shanghai",
            &[("2026-11-20T15:59:59Z", 20261120, "2026-11-19T16:00:00Z", "2026-11-20T16:00:00Z")],
        );
        // The last line of the zone data applies to the far future.
        assert_days(
            "Europe/Berlin",
            &[("2099-03-29T12:00:00Z", 20990329, "2099-03-28T23:00:00Z", "2099-03-29T22:00:00Z")],
        );
    }

    #[test]
    fn offsets_of_half_and_quarter_hours() {
        assert_days(
            "Asia/Kathmandu",
            &[("2026-11-20T18:14:59Z", 20261120, "2026-11-19T18:15:00Z", "2026-11-20T18:15:00Z")],
        );
        assert_days(
            "America/St_Johns",
            &[("2026-11-20T03:30:00Z", 20261120, "2026-11-20T03:30:00Z", "2026-11-21T03:30:00Z")],
        );
        // The clocks went from 00:01 back to 23:01. The 6th had started a minute before, and continues.
        assert_days(
            "America/St_Johns",
            &[("2010-11-07T02:45:00Z", 20101107, "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z")],
        );
    }

    #[test]
    fn a_day_begins_at_its_first_instant_if_it_has_no_midnight() {
        assert_days(
            "America/Sao_Paulo",
            &[
                ("2018-11-03T12:00:00Z", 20181103, "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"),
                ("2018-11-04T12:00:00Z", 20181104, "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
                // At 24:00 the clock showed 23:00 again.
                ("2018-02-18T02:30:00Z", 20180217, "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"),
            ],
        );
        // Midnight occurs twice.
        assert_days(
            "America/Havana",
            &[("2026-11-01T04:30:00Z", 20261101, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z")],
        );
        // Samoa skipped 30 December 2011.
        assert_days(
            "Pacific/Apia",
            &[
                ("2011-12-30T09:00:00Z", 20111229, "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
                ("2011-12-30T10:00:00Z", 20111231, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
            ],
        );
    }

    #[test]
    fn months_and_years_end_where_they_end() {
        let (month, year, monday) = (CalendarUnit::Month, CalendarUnit::Year, Weekday::Monday);
        assert_windows(
            month,
            "UTC",
            "00:00",
            monday,
            &[
                ("2028-02-29T23:59:59Z", 20280201, "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
                ("2027-02-28T23:59:59Z", 20270201, "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"),
                ("2026-12-31T23:59:59Z", 20261201, "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ],
        );
        assert_windows(
            month,
            "Europe/Berlin",
            "04:30",
            monday,
            &[("2026-04-01T02:29:59Z", 20260301, "2026-03-01T03:30:00Z", "2026-04-01T02:30:00Z")],
        );
        assert_windows(
            year,
            "Asia/Kathmandu",
            "00:00",
            monday,
            &[("2028-02-29T00:00:00Z", 20280101, "2027-12-31T18:15:00Z", "2028-12-31T18:15:00Z")],
        );
    }

    #[test]
    fn weeks_and_days_begin_when_told() {
        let table = [("2026-11-20T12:00:00Z", 20261116, "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z")];
        assert_windows(CalendarUnit::Week, "UTC", "00:00", Weekday::Monday, &table);
        let table = [("2026-11-20T12:00:00Z", 20261115, "2026-11-15T06:00:00Z", "2026-11-22T06:00:00Z")];
        assert_windows(CalendarUnit::Week, "UTC", "06:00", Weekday::Sunday, &table);
        // 02:30 does not exist on 8 March; the clocks jump from 02:00 to 03:00.
        let table = [
            ("2026-03-08T06:59:59Z", 20260307, "2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z"),
            ("2026-03-08T07:00:00Z", 20260308, "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"),
        ];
        assert_windows(CalendarUnit::Day, "America/New_York", "02:30", Weekday::Monday, &table);
    }

    #[test]
    fn hours_are_those_of_the_local_clock() {
        let assert_hours =
            |zone, table: &[_]| assert_windows(CalendarUnit::Hour, zone, "00:00", Weekday::Monday, table);
        assert_hours(
            "Asia/Kathmandu",
            &[("2026-11-20T12:00:00Z", 20261120170, "2026-11-20T11:15:00Z", "2026-11-20T12:15:00Z")],
        );
        assert_hours(
            "America/New_York",
            &[
                ("2026-11-01T05:30:00Z", 20261101010, "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"),
                ("2026-11-01T06:30:00Z", 20261101011, "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"),
                ("2026-03-08T07:30:00Z", 20260308030, "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"),
            ],
        );
        // The clocks change by half an hour.
        assert_hours(
            "Australia/Lord_Howe",
            &[
                ("2026-04-04T14:40:00Z", 20260405010, "2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z"),
                ("2026-04-04T15:10:00Z", 20260405011, "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
                ("2026-10-03T15:40:00Z", 20261004020, "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"),
            ],
        );
    }

    #[test]
    fn windows_are_in_a_row_in_every_zone() {
        let zones: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        assert!(zones.len() > 400, "{} zones are bundled", zones.len());
        for (i, zone) in zones.iter().enumerate() {
            let unit =
                [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year]
                    [i % 5];
            let dates = dates(unit, zone, "00:00", Weekday::Monday);
            let mut now_ms = 1_700_000_000_000;
            for _ in 0..30 {
                let windows = dates.windows(now_ms);
                assert!(windows[1].start_ms <= now_ms && now_ms < windows[2].start_ms, "{zone} at {now_ms}");
                for pair in windows.windows(2) {
                    assert!(pair[0].start_ms < pair[1].start_ms && pair[0].id != pair[1].id, "{zone} {pair:?}");
                    assert_eq!(dates.windows(pair[1].start_ms - 1)[1], pair[0], "{zone}");
                }
                now_ms = windows[2].start_ms + 7_777_777;
            }
        }
    }
}
