//! Positions and labels of the marks on the plot's axes. Called by `plot`.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A mark of the time axis.
pub struct Tick {
    pub at_ms: i64,
    pub label: String,
    /// The larger unit below the label where it changes: the day or the year.
    pub below: Option<String>,
}

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const STEPS: [i64; 32] = [
    20,
    50,
    100,
    200,
    500,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    5 * DAY,
    10 * DAY,
    20 * DAY,
    50 * DAY,
    100 * DAY,
    200 * DAY,
    500 * DAY,
    1000 * DAY,
];

/// Returns round UTC times from `start_ms` to `end_ms`, at most about `most` of them.
pub fn time_ticks(start_ms: i64, end_ms: i64, most: i64) -> Vec<Tick> {
    let length = (end_ms - start_ms).max(1);
    let last = STEPS[STEPS.len() - 1];
    let step = STEPS.into_iter().find(|step| length / step < most).unwrap_or(last * (length / last / most + 1));
    let (label, below) = match step {
        ..SECOND => ("%H:%M:%S%.3f", "%-d %b %Y"),
        SECOND..MINUTE => ("%H:%M:%S", "%-d %b %Y"),
        MINUTE..DAY => ("%H:%M", "%-d %b %Y"),
        _ => ("%-d %b", "%Y"),
    };
    let mut ticks: Vec<Tick> = Vec::new();
    let mut before = String::new();
    let mut at_ms = start_ms.div_euclid(step) * step;
    while at_ms <= end_ms {
        if at_ms >= start_ms {
            let larger = format_time(at_ms, below);
            let below = (larger != before).then(|| larger.clone());
            ticks.push(Tick { at_ms, label: format_time(at_ms, label), below });
            before = larger;
        }
        at_ms += step;
    }
    ticks
}

/// Formats a UTC time with a `strftime` pattern.
pub fn format_time(ms: i64, form: &str) -> String {
    let time = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC);
    time.strftime(form).to_string()
}

/// Returns 1, 2 or 5 times a power of ten, so that at most five such steps reach `most`.
pub fn nice_step(most: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step.saturating_mul(5) >= most {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Formats a number with thousands separators.
pub fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_say_the_day_where_it_changes() {
        let labels = |start_ms, end_ms| {
            let ticks = time_ticks(start_ms, end_ms, 8).into_iter();
            ticks.map(|tick| format!("{} {}", tick.label, tick.below.unwrap_or_default())).collect::<Vec<_>>()
        };
        let at = 1_769_896_800_000;
        assert_eq!(
            labels(at + 1, at + 3 * HOUR),
            ["22:30 31 Jan 2026", "23:00 ", "23:30 ", "00:00 1 Feb 2026", "00:30 ", "01:00 "]
        );
        assert_eq!(labels(at, at + SECOND)[..2], ["22:00:00.000 31 Jan 2026", "22:00:00.200 "]);
        assert_eq!(labels(at, at + 20 * DAY), ["1 Feb 2026", "6 Feb ", "11 Feb ", "16 Feb "]);
        for length in [1, 19, 777, 61_000, 86_400_000, 400 * DAY, 40_000 * DAY] {
            assert!((1..=9).contains(&time_ticks(at, at + length, 8).len()) || length < 20, "{length}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(group_digits(number), text);
        }
    }
}
