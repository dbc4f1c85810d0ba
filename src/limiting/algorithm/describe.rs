//! Text for the numbers of rules, as messages, the replay and operators see them.

use crate::limiting::algorithm::Rule;

/// Formats a duration in the largest unit that divides it: `90 s`, `2 min`.
pub fn format_duration(ms: i64) -> String {
    for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")] {
        if ms >= unit && ms % unit == 0 {
            return format!("{} {name}", ms / unit);
        }
    }
    format!("{ms} ms")
}

/// Units of rates in the config.
const RATE_UNITS: [(i64, &str); 4] = [(1000, "s"), (60_000, "min"), (3_600_000, "h"), (86_400_000, "day")];

/// Formats a refill as a rate of the config, in the smallest unit that gives an integer: `200/day`.
fn format_refill(count: i64, per_ms: i64) -> String {
    let whole = |unit: i64| {
        let product = i128::from(count) * i128::from(unit);
        (product % i128::from(per_ms) == 0).then_some(product / i128::from(per_ms))
    };
    let rate = RATE_UNITS.iter().find_map(|(unit, name)| Some(format!("{}/{name}", whole(*unit)?)));
    rate.unwrap_or_else(|| format!("{count} per {}", format_duration(per_ms)))
}

impl Rule {
    /// Describes the budget as a limit of the config has it: `200/day, burst 10`.
    pub fn describe_budget(&self) -> String {
        let bucket = |count, per_ms, burst| format!("{}, burst {burst}", format_refill(count, per_ms));
        match self {
            Rule::TokenBucket(rule) if !rule.interval => bucket(rule.rate, rule.per_ms, rule.burst),
            Rule::Gcra(rule) => bucket(rule.rate, rule.per_ms, rule.burst),
            Rule::LeakyBucket(rule) => {
                format!("{}, queue {}", format_refill(rule.rate, rule.per_ms), format_duration(rule.queue_ms))
            }
            Rule::FixedWindow(_) | Rule::SlidingWindow(_) | Rule::SlidingLog(_) => {
                let policy = self.policy();
                let unit = RATE_UNITS.iter().find(|(unit, _)| *unit == policy.window_ms);
                unit.map_or_else(|| self.describe_number(), |(_, name)| format!("{}/{name}", policy.quota))
            }
            Rule::Concurrency(rule) => format!("{} at a time", rule.in_flight),
            _ => self.describe_number(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refills_are_rates_of_the_config() {
        let cases = [
            (1, 432_000, "200/day"),
            (1, 1000, "1/s"),
            (10, 1000, "10/s"),
            (1, 6000, "10/min"),
            (3, 7000, "3 per 7 s"),
        ];
        for (count, per_ms, text) in cases {
            assert_eq!(format_refill(count, per_ms), text);
        }
    }
}
