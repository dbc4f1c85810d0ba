//! Calendar windows in time zones with unusual offsets and days, compared with the local date.

use std::collections::HashMap;

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;

use super::Client;
use crate::support::limiting::variants::compile_rule;

/// Time zones, each with an irregular day.
const ODD: [(&str, Date); 14] = [
    // +05:45, and -03:30 with its change to -02:30 and back.
    ("Asia/Kathmandu", date(2026, 11, 20)),
    ("America/St_Johns", date(2026, 3, 8)),
    ("America/St_Johns", date(2026, 11, 1)),
    // Days that begin at 01:00.
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("Africa/Cairo", date(2026, 4, 24)),
    ("Asia/Beirut", date(2026, 3, 29)),
    // A day whose first hour comes twice.
    ("America/Havana", date(2026, 11, 1)),
    // A day of which the last hour comes twice.
    ("America/Sao_Paulo", date(2018, 2, 17)),
    // The clocks change by half an hour.
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    // A day that was skipped.
    ("Pacific/Apia", date(2011, 12, 29)),
    ("Europe/Berlin", date(2028, 2, 29)),
    ("UTC", date(2028, 2, 29)),
    ("America/New_York", date(2027, 2, 28)),
];

fn calendar(unit: &str, zone: &str, limit: i64) -> sluicegate::limiting::algorithm::Rule {
    compile_rule(&format!("algorithm = \"calendar\"\nrate = \"{limit}/{unit}\"\nzone = \"{zone}\""))
}

/// Returns the date and time of a unit on the wall clock. An hour includes its offset, because it may occur twice.
fn shown(unit: &str, zone: &TimeZone, ms: i64) -> String {
    let format = match unit {
        "hour" => "%F %H %z",
        "day" => "%F",
        "week" => "%G-%V",
        "month" => "%Y-%m",
        _ => "%Y",
    };
    Timestamp::from_millisecond(ms).unwrap().to_zoned(zone.clone()).strftime(format).to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Three days of bursts and pauses around an irregular day: a request is admitted if and only if its date has
    /// enough units left.
    #[test]
    fn every_window_of_a_year_holds_its_limit(
        (zone, day) in prop::sample::select(ODD.to_vec()),
        unit in prop::sample::select(vec!["hour", "day", "week", "month", "year"]),
        limit in 1..6_i64,
        arrivals in prop::collection::vec(
            (prop_oneof![3 => Just(0), 3 => 0..3_600_000_i64, 1 => 0..40_000_000_i64, 2 => 1_799_000..1_801_000_i64], 1..3_i64),
            1..150,
        ),
    ) {
        let tz = TimeZone::get(zone).unwrap();
        let mut client = Client::new(calendar(unit, zone, limit));
        client.now = day.to_zoned(tz.clone()).unwrap().timestamp().as_millisecond() - 86_400_000;
        let mut dates: HashMap<String, (i64, i64)> = HashMap::new();
        for (step, cost) in arrivals {
            let answer = client.arrive((step, cost));
            let (asked, got) = dates.entry(shown(unit, &tz, client.now)).or_default();
            prop_assert_eq!(answer.admitted, *got + cost <= limit, "{} {} at {}", zone, unit, client.now);
            *asked += cost;
            *got += if answer.admitted { cost } else { 0 };
        }
    }
}

/// Days of a leap year in each zone: the limit is exhausted until the last millisecond before the first instant of the
/// next date, which is usually midnight, and full from then on.
#[test]
fn windows_are_those_of_the_wall_clock() {
    for zone in ["Asia/Kathmandu", "America/St_Johns", "Africa/Cairo", "America/Havana", "Europe/London"] {
        let tz = TimeZone::get(zone).unwrap();
        for (unit, step) in [("day", 1.day()), ("week", 1.week()), ("month", 1.month()), ("year", 1.year())] {
            // A Monday, and the first of a year, though not the same one.
            let mut first = if unit == "week" { date(2028, 1, 3) } else { date(2028, 1, 1) };
            let mut client = Client::new(calendar(unit, zone, 3));
            let begin = |date: Date| date.to_zoned(tz.clone()).unwrap().timestamp().as_millisecond();
            client.now = begin(first);
            while first.year() == 2028 {
                let next = first.checked_add(step).unwrap();
                assert_eq!(client.now, begin(first));
                let first_three = [0; 4].map(|_| client.arrive((0, 1)).admitted);
                assert_eq!(first_three, [true, true, true, false], "{zone} {first}");
                let left = begin(next) - client.now;
                let last = client.arrive((left - 1, 1));
                assert_eq!((last.admitted, last.retry_ms), (false, 1), "{zone} {first}");
                client.now += 1;
                first = next;
            }
        }
    }
}

/// Days that begin at another time than midnight, also at one that the clock leaves out or shows
/// twice: a day begins when the clock shows that time, or a later one, for the first time.
#[test]
fn a_day_begins_once_whatever_the_clock_shows() {
    const QUARTER: i64 = 900_000;
    for (zone, day) in ODD {
        let tz = TimeZone::get(zone).unwrap();
        let noon = day.at(12, 0, 0, 0).to_zoned(tz.clone()).unwrap().timestamp().as_millisecond();
        for resets_at in ["00:00", "00:30", "01:45", "02:30", "23:30"] {
            let lines = "algorithm = \"calendar\"\nrate = \"3/day\"";
            let rule = compile_rule(&format!("{lines}\nzone = \"{zone}\"\nresets_at = \"{resets_at}\""));
            let reset: jiff::civil::Time = resets_at.parse().unwrap();
            let mut today: Option<Date> = None;
            let mut starts: HashMap<Option<Date>, i64> = HashMap::new();
            // Two days on either side; the model starts on the first.
            for quarter in -192..192 {
                let now = noon + quarter * QUARTER;
                let shown = Timestamp::from_millisecond(now).unwrap().to_zoned(tz.clone()).datetime();
                let begun = if shown.time() >= reset { shown.date() } else { shown.date().yesterday().unwrap() };
                today = today.max(Some(begun));
                let text = rule.decide(None, now, 1, 0).next.unwrap().0.text();
                let start = text.split(' ').nth(1).unwrap().parse().unwrap();
                let known = *starts.entry(today).or_insert(start);
                assert_eq!(known, start, "{zone} at {shown}, days from {resets_at}");
            }
            let days: std::collections::HashSet<i64> = starts.values().copied().collect();
            assert_eq!(days.len(), starts.len(), "two days of {zone} from {resets_at} are one");
        }
    }
}
