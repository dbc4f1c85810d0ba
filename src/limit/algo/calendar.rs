//! Calendar window; twin of `lua/calendar.lua`, same names, same order. At most `limit` in each
//! hour, day, week, month or year of a time zone.
//!
//! A window starts at the first instant of its local date (at `resets_at`), whatever daylight
//! saving does that day, and ends where the next one starts. Its id is the local date, a number
//! that does not depend on the release of the time zone database.

mod dates;

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::counted::{State, Window};
use super::{Algorithm, Policy, Step};
use dates::Windows;
pub use dates::{Dates, Unit};

#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    pub limit: i64,
    dates: Dates,
    known: Known,
}

/// The windows asked for last: within one of them the calendar is asked once.
#[derive(Debug, Default)]
struct Known(ArcSwapOption<Windows>);

impl Clone for Known {
    fn clone(&self) -> Known {
        Known(ArcSwapOption::new(self.0.load_full()))
    }
}

/// What is known changes no decision.
impl PartialEq for Known {
    fn eq(&self, _: &Known) -> bool {
        true
    }
}

impl Algorithm for Calendar {
    type State = State;

    fn params(&self, now: i64) -> Vec<i64> {
        let windows = self.windows(now);
        let windows = windows.iter().flat_map(|window| [window.id, window.start_ms]);
        std::iter::once(self.limit).chain(windows).collect()
    }

    /// Of the window decided in last: a day is not always 24 hours long.
    fn policy(&self) -> Policy {
        let window_ms = match &*self.known.0.load() {
            Some(windows) => windows[2].start_ms - windows[1].start_ms,
            None => self.dates.unit.usual_ms(),
        };
        Policy { quota: self.limit, window_ms }
    }

    fn share(&self, n: i64) -> Calendar {
        Calendar { limit: (self.limit / n).max(1), ..self.clone() }
    }

    fn decide(&self, state: Option<&State>, now: i64, cost: i64, _tag: i64) -> Step<State> {
        self.window_at(state, now).decide(self.limit, now, cost)
    }

    fn adjust(&self, state: Option<&State>, now: i64, delta: i64, receipt: i64) -> Option<(State, i64)> {
        self.window_at(state, now).adjust(now, delta, receipt)
    }

    fn text(state: &State) -> String {
        state.text()
    }
}

impl Calendar {
    pub fn new(limit: i64, dates: Dates) -> Calendar {
        Calendar { limit, dates, known: Known::default() }
    }

    pub fn unit(&self) -> Unit {
        self.dates.unit
    }

    fn window_at(&self, state: Option<&State>, now: i64) -> Window {
        let [_, current, next, after, _] = self.windows(now);
        let fresh = Window { count: 0, id: current.id, end: next.start_ms, mended: false };
        match state {
            Some(state) if state.id == current.id => Window { count: state.count, ..fresh },
            // Time does not run backwards.
            Some(state) if state.id == next.id => {
                Window { count: state.count, id: next.id, end: after.start_ms, mended: false }
            }
            // Left by another clock, or by shorter windows inside this one.
            Some(state) if state.id > current.id => Window { count: state.count, mended: true, ..fresh },
            _ => fresh,
        }
    }

    /// Copied: counting the readers of one allocation would make the workers wait for each other.
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
    use jiff::civil::{Time, Weekday};
    use jiff::tz::TimeZone;

    use super::*;

    fn days(limit: i64) -> Calendar {
        let (zone, week_start) = (TimeZone::get("America/New_York").unwrap(), Weekday::Monday);
        Calendar::new(limit, Dates { unit: Unit::Day, zone, resets_at: Time::midnight(), week_start })
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
    fn the_calendar_is_asked_once_in_a_window() {
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
