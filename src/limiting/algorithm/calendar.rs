//! Calendar window: at most `limit` units in each hour, day, week, month or year of a time zone. Twin of
//! `lua/calendar.lua`: same names, same order.
//!
//! A window starts at the first instant of its local date at `resets_at`, also on days when the clocks change, and ends
//! where the next one starts. Settings whose windows have the same start share a record.
//!
//! A key may be used under several boundaries: days of `resets_on` that differ between requests, or another zone on
//! another gateway. Then each has its own record, to which all charges are added; so each knows how much was charged in
//! its own window, and starts at 0 when that window starts. Only a boundary that is new in the middle of its window does
//! not know what was charged before. Until its window ends, it therefore refuses what another boundary refuses as well,
//! as long as the window of that one lasts. No count is copied into a window to which it may not belong, so no two
//! boundaries can pass a count on to each other.

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

    fn matches(&self, record: &WindowRecord, now: i64) -> bool {
        let windows = self.windows(now);
        find_own(record, &windows).is_some() || precedes(record, &window(&windows, 1))
    }

    fn decide_one(&self, record: Option<&WindowRecord>, now: i64, cost: i64) -> Step<WindowRecord> {
        self.window_at(record, now).decide(self.limit, now, cost)
    }

    /// A record that is partial decides with those of other boundaries: what it does not know, they may have counted.
    fn decide_among<'r>(
        &self,
        own: Option<&WindowRecord>,
        others: impl Iterator<Item = &'r WindowRecord>,
        now: i64,
        cost: i64,
    ) -> Step<WindowRecord> {
        let Window { record, end, is_repaired } = self.window_at(own, now);
        if !is_partial(&record) {
            return Window { record, end, is_repaired }.decide(self.limit, now, cost);
        }
        let (mut most, mut free_at) = (record.count, now);
        for other in others.map(|other| other.advanced(now)).filter(|other| may_apply(other, &record)) {
            most = most.max(other.count);
            if other.count + cost > self.limit {
                free_at = free_at.max(other.end_ms());
            }
        }
        // When its own window ends, it knows all charges of the next one.
        if record.count + cost > self.limit || free_at > end {
            free_at = end;
        }
        let together = WindowRecord { count: most, ..record };
        let mut step = Window { record: together, end, is_repaired }.decide(self.limit, now, cost);
        if step.answer.retry_ms > 0 {
            step.answer.retry_ms = free_at - now;
        }
        if let Some((next, _)) = &mut step.next {
            next.count -= most - record.count;
        }
        step
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

    /// Charges of a window that starts in the current one belong to it. Of one that started before, it is unknown which
    /// do: the new record is then partial.
    fn convert(&self, record: &WindowRecord, now: i64) -> (WindowRecord, i64) {
        let current = window(&self.windows(now), 1);
        let other = record.advanced(now);
        if other.start_ms >= current.start_ms {
            return (WindowRecord { count: other.count, ..current }, other.count);
        }
        let is_unknown = other.count > 0 && may_apply(&other, &current);
        (if is_unknown { partial(&current) } else { current }, 0)
    }

    /// Other rules do not know where its window ends.
    fn corrected(&self, record: WindowRecord, now: i64) -> WindowRecord {
        self.window_at(Some(&record), now).record
    }

    /// Both are records of one window.
    fn join_converted(one: (WindowRecord, i64), other: (WindowRecord, i64)) -> (WindowRecord, i64) {
        let ((one, used), (other, other_used)) = (one, other);
        let record = WindowRecord {
            count: one.count.max(other.count),
            start_ms: one.start_ms.max(other.start_ms),
            length_ms: one.length_ms.min(other.length_ms),
            ..one
        };
        (record, used.max(other_used))
    }

    /// A record of another boundary may have begun to count after the charge; then nothing of it is certain to be left.
    fn charge_left(&self, record: &WindowRecord, now: i64, cost: i64, receipt: i64) -> f64 {
        let record = record.advanced(now);
        let is_known = !is_partial(&record) || self.matches(&record, now);
        let applies = is_known && may_apply(&window(&self.windows(now), 1), &record);
        if applies { records::UsageRecord::charge_left(&record, now, cost, receipt) } else { 0.0 }
    }

    /// A record counts the charges of its next window as well, so that its boundary knows them if it returns.
    fn drop_at(record: &WindowRecord, _now: i64) -> i64 {
        record.next_end_ms()
    }
}

/// Returns whether charges of `record` may belong to the window `found` as well: it starts at the same time or later,
/// or is at most twice as long. Of a longer window, most charges were made before `found`.
fn may_apply(record: &WindowRecord, found: &WindowRecord) -> bool {
    record.start_ms >= found.start_ms || record.length_ms <= 2 * found.length_ms
}

/// Returns a record that does not know which charges its window had before. It starts 1 ms late; windows start at full
/// seconds.
fn partial(found: &WindowRecord) -> WindowRecord {
    WindowRecord { start_ms: found.start_ms + 1, length_ms: found.length_ms - 1, ..*found }
}

fn is_partial(record: &WindowRecord) -> bool {
    record.start_ms.rem_euclid(1000) == 1
}

/// Returns the record with the end of the window to which it belongs: the current or the next one. A state from the
/// next one means that this clock is late.
fn find_own(record: &WindowRecord, windows: &Windows) -> Option<WindowRecord> {
    [1, 2].into_iter().find_map(|index| {
        let found = window(windows, index);
        let late_ms = record.start_ms - found.start_ms;
        let belongs = (0..=1).contains(&late_ms) && is_as_long(record, &found);
        belongs.then(|| WindowRecord {
            count: record.count,
            start_ms: record.start_ms,
            length_ms: found.length_ms - late_ms,
            ..found
        })
    })
}

/// Returns whether `record` is of the window before `found`.
fn precedes(record: &WindowRecord, found: &WindowRecord) -> bool {
    record.start_ms + record.length_ms == found.start_ms && is_as_long(record, found)
}

/// Returns whether both are windows of one unit: months have 28 to 31 days, and an hour in which clocks are changed may
/// have 30 minutes.
fn is_as_long(record: &WindowRecord, found: &WindowRecord) -> bool {
    record.length_ms <= 2 * found.length_ms && found.length_ms <= 2 * record.length_ms
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
        let windows = self.windows(now);
        let own = record.and_then(|record| find_own(record, &windows));
        let record = own.unwrap_or_else(|| window(&windows, 1));
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
