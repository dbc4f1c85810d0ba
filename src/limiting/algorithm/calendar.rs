//! Calendar window: at most `limit` units in each hour, day, week, month or year of a time zone. Twin of
//! `lua/calendar.lua`: same names, same order.
//!
//! A window starts at the first instant of its local date at `resets_at`, also on days when the clocks change, and ends
//! where the next one starts. Settings whose windows have the same start and end share a record.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use crate::limiting::algorithm::dates::Windows;
pub use crate::limiting::algorithm::dates::{CalendarSettings, CalendarUnit};
use crate::limiting::algorithm::interface::COUNT;
use crate::limiting::algorithm::params::{
    CalendarRate, Field, OptionError, OptionValues, Param, check_count, option_error,
};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState};
use crate::limiting::algorithm::window::{Anchor, LIMIT_MAX, Window, WindowRecord};
use crate::limiting::algorithm::{Algorithm, Corrected, LeaseBasis, Number, Policy, Step, records};

/// Admits at most `limit` units in each window of the calendar.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    pub limit: i64,
    dates: CalendarSettings,
    known: KnownWindows,
}

/// Cache of the windows around the last decision, so that the calendar is computed once per window.
#[derive(Debug, Default)]
struct KnownWindows(ArcSwapOption<Windows>);

impl Clone for KnownWindows {
    fn clone(&self) -> KnownWindows {
        KnownWindows(ArcSwapOption::new(self.0.load_full()))
    }
}

/// The cache changes no decision, so all are equal.
impl PartialEq for KnownWindows {
    fn eq(&self, _: &KnownWindows) -> bool {
        true
    }
}

const RATE: Field<CalendarRate> = Field::calendar_rate("rate").overridable();
const ZONE: Field<TimeZone> = Field::zone("zone");
const RESETS_AT: Field<Time> = Field::time_of_day("resets_at");
const WEEK_START: Field<Weekday> = Field::weekday("week_start");
const RESETS_ON: Field<i64> = Field::<i64>::integer("resets_on", 1, 31).overridable();

impl Calendar {
    /// Returns the length of the windows.
    pub fn unit(&self) -> CalendarUnit {
        self.dates.unit
    }

    /// Returns whether the clocks of the zone are ever changed, so that windows have different lengths.
    pub fn has_clock_changes(&self) -> bool {
        self.dates.zone.to_fixed_offset().is_err()
    }
}

impl Algorithm for Calendar {
    type State = RecordsState<WindowRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[ZONE.param, RESETS_AT.param, WEEK_START.param, RESETS_ON.param];

    const NUMBER: Number = COUNT;

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<Calendar, OptionError> {
        let CalendarRate { count, unit } = options.require(&RATE)?;
        let limit = check_count(LIMIT_MAX, count)?;
        let (resets_at, week_start) = (options.get(&RESETS_AT), options.get(&WEEK_START));
        if unit == CalendarUnit::Hour && resets_at.is_some() {
            return Err(option_error(RESETS_AT.name(), "hourly windows start on the hour", "remove it"));
        }
        if unit != CalendarUnit::Week && week_start.is_some() {
            return Err(option_error(WEEK_START.name(), "only a rate per week uses it", "remove it"));
        }
        let resets_on = options.get(&RESETS_ON);
        if unit != CalendarUnit::Month && resets_on.is_some() {
            return Err(option_error(RESETS_ON.name(), "only a rate per month uses it", "remove it"));
        }
        let dates = CalendarSettings {
            unit,
            zone: options.get(&ZONE).unwrap_or(TimeZone::UTC),
            resets_at: resets_at.unwrap_or(Time::midnight()),
            week_start: week_start.unwrap_or(Weekday::Monday),
            month_day: resets_on.and_then(|day| i8::try_from(day).ok()).unwrap_or(1),
        };
        Ok(Calendar::new(limit, dates))
    }

    fn is_calendar(&self) -> bool {
        true
    }

    fn params(&self, now: i64) -> Vec<i64> {
        let windows = self.windows(now);
        std::iter::once(self.limit).chain(windows.map(|window| window.start_ms)).collect()
    }

    fn encode_rule(&self) -> String {
        let CalendarSettings { unit, zone, resets_at, week_start, month_day } = &self.dates;
        let (zone, week_start) = (zone.iana_name().unwrap_or_default(), week_start.to_monday_zero_offset());
        format!("{},{},{zone},{resets_at},{week_start},{month_day}", self.limit, unit.name())
    }

    fn decode_rule(encoded: &str) -> Option<Calendar> {
        let words: Vec<&str> = encoded.split(',').collect();
        // A receipt of an earlier version has no day.
        let (&[limit, unit, zone, resets_at, week_start], month_day) = match &*words {
            [rest @ .., day] if rest.len() == 5 => (<&[&str; 5]>::try_from(rest).ok()?, *day),
            all => (<&[&str; 5]>::try_from(all).ok()?, "1"),
        };
        let dates = CalendarSettings {
            unit: CalendarUnit::ALL.into_iter().find(|known| known.name() == unit)?,
            zone: TimeZone::get(zone).ok()?,
            resets_at: resets_at.parse().ok()?,
            week_start: Weekday::from_monday_zero_offset(week_start.parse().ok()?).ok()?,
            month_day: month_day.parse().ok().filter(|day| (0..=31).contains(day))?,
        };
        let limit = limit.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit))?;
        Some(Calendar::new(limit, dates))
    }

    /// Uses the length of the window of the last decision, as not every day has 24 hours.
    fn policy(&self) -> Policy {
        let window_ms = match &*self.known.0.load() {
            Some(windows) => windows[2].start_ms - windows[1].start_ms,
            None => self.dates.unit.usual_ms(),
        };
        Policy { quota: self.limit, window_ms }
    }

    /// Finding the window takes as long as the decision itself.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        2
    }

    fn lease_basis(&self) -> Option<LeaseBasis> {
        Some(LeaseBasis { rate: self.limit, per_ms: self.dates.unit.usual_ms(), refill: None })
    }

    fn share(&self, n: i64) -> Calendar {
        Calendar { limit: (self.limit / n).max(1), ..self.clone() }
    }

    fn with_number(&self, limit: i64) -> Calendar {
        Calendar { limit, ..self.clone() }
    }

    fn max_number(&self) -> i64 {
        LIMIT_MAX
    }

    fn describe(&self) -> String {
        match self.dates.month_day {
            0 | 1 => format!("{} per {}", self.limit, self.dates.unit.name()),
            day => format!("{} per {} from day {day}", self.limit, self.dates.unit.name()),
        }
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(
        &self,
        state: Option<&Self::State>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::State>> {
        records::adjust(self, state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |WindowRecord { count, start_ms, length_ms, .. }| {
            format!("{count} {start_ms} {length_ms}")
        })
    }
}

impl RecordAlgorithm for Calendar {
    type Record = WindowRecord;

    /// Only the calendar of a record knows its next window, so a record is not kept beyond its own.
    const RETENTION_MS: i64 = 0;

    fn matches(&self, record: &WindowRecord, now: i64) -> bool {
        let windows = self.windows(now);
        // The next window counts too: a state from it means that this clock is late.
        let is_current_or_next =
            [1, 2].iter().any(|index| *record == WindowRecord { count: record.count, ..window(&windows, *index) });
        is_current_or_next || ends_at(record, windows[1].start_ms)
    }

    fn decide_one(&self, record: Option<&WindowRecord>, now: i64, cost: i64) -> Step<WindowRecord> {
        self.window_at(record, now).decide(self.limit, now, cost)
    }

    fn adjust_one(
        &self,
        record: Option<&WindowRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<WindowRecord>> {
        self.window_at(record, now).adjust(now, delta, receipt)
    }

    fn convert(&self, record: &WindowRecord, now: i64) -> (WindowRecord, i64) {
        let current = window(&self.windows(now), 1);
        let count = if applies_to_window(record, &current) { record.advanced(now).count } else { 0 };
        (WindowRecord { count, ..current }, count)
    }

    /// The other record may have started after the charge; then nothing of it is certain to be left.
    fn charge_left(&self, record: &WindowRecord, now: i64, cost: i64, receipt: i64) -> f64 {
        let applies = applies_to_window(&window(&self.windows(now), 1), record);
        if applies { records::UsageRecord::charge_left(record, now, cost, receipt) } else { 0.0 }
    }
}

/// Returns whether the charges of `record` belong to the window `found` as well: it starts at the same time or later,
/// or is at most twice as long. Of a longer window it is unknown which charges were made in `found`.
fn applies_to_window(record: &WindowRecord, found: &WindowRecord) -> bool {
    record.start_ms >= found.start_ms || record.length_ms <= 2 * found.length_ms
}

fn ends_at(record: &WindowRecord, ms: i64) -> bool {
    record.start_ms + record.length_ms == ms
}

/// Returns an empty record for the window with that index.
fn window(windows: &Windows, index: usize) -> WindowRecord {
    let start_ms = windows[index].start_ms;
    WindowRecord { count: 0, start_ms, length_ms: windows[index + 1].start_ms - start_ms, anchor: Anchor::Date }
}

impl Calendar {
    pub fn new(limit: i64, dates: CalendarSettings) -> Calendar {
        Calendar { limit, dates, known: KnownWindows::default() }
    }

    /// Returns whether a request names the day on which its months begin.
    pub fn has_open_month_day(&self) -> bool {
        self.dates.month_day == 0
    }

    /// Returns the same limit with months that begin on `day`, from 1 to 31.
    pub fn with_month_day(&self, day: i8) -> Calendar {
        Calendar::new(self.limit, CalendarSettings { month_day: day, ..self.dates.clone() })
    }

    /// Returns the current window. `record` belongs to it, to the one before or to the next.
    fn window_at(&self, record: Option<&WindowRecord>, now: i64) -> Window {
        let current = window(&self.windows(now), 1);
        let record = record.filter(|record| !ends_at(record, current.start_ms)).copied().unwrap_or(current);
        Window { record, end: record.start_ms + record.length_ms, is_repaired: false }
    }

    /// Returns start and end of the current window, and the end of the next one.
    pub fn bounds_at(&self, now: i64) -> [i64; 3] {
        let windows = self.windows(now);
        [windows[1].start_ms, windows[2].start_ms, windows[3].start_ms]
    }

    /// Returns the windows around `now`. They are copied: a shared reference count would make workers wait for each
    /// other.
    fn windows(&self, now: i64) -> Windows {
        if let Some(known) = &*self.known.0.load()
            && (known[1].start_ms..known[2].start_ms).contains(&now)
        {
            return **known;
        }
        let windows = self.dates.windows(now);
        self.known.0.store(Some(Arc::new(windows)));
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(limit: i64) -> Calendar {
        let (zone, week_start) = (TimeZone::get("America/New_York").unwrap(), Weekday::Monday);
        Calendar::new(
            limit,
            CalendarSettings { unit: CalendarUnit::Day, zone, resets_at: Time::midnight(), week_start, month_day: 1 },
        )
    }

    #[test]
    fn the_policy_tells_how_long_this_window_is() {
        let days = days(9);
        let of = |text: &str| {
            days.decide(None, text.parse::<jiff::Timestamp>().unwrap().as_millisecond(), 1, 0);
            days.policy().window_ms / 3_600_000
        };
        assert_eq!(days.policy().window_ms, 86_400_000);
        assert_eq!([of("2026-03-07T12:00:00Z"), of("2026-03-08T12:00:00Z"), of("2026-11-01T12:00:00Z")], [24, 23, 25]);
    }

    #[test]
    fn the_calendar_is_computed_once_per_window() {
        let days = days(9);
        let windows = days.windows(1_795_000_000_000);
        let known = days.known.0.load_full().unwrap();
        let still_known = || Arc::ptr_eq(&known, &days.known.0.load_full().unwrap());
        for now in [windows[1].start_ms, windows[2].start_ms - 1] {
            assert_eq!(days.windows(now), windows);
            assert!(still_known());
        }
        assert_eq!(days.windows(windows[2].start_ms)[0], windows[1]);
        assert!(!still_known());
        assert_eq!(days.windows(windows[2].start_ms - 1), windows);
    }
}
