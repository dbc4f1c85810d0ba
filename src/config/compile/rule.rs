//! The numbers of a limit: one function per algorithm, with the bounds that keep its arithmetic
//! exact. Called by `limit`, and by `overrides` for the numbers of single keys.

use super::exact::{EXACT, gcd};
use super::{limit_flow, window};
use crate::config::reader::{At, Section};
use crate::config::values::{self, Rate};
use crate::limit::algo::Rule;
use crate::limit::algo::fixed_window::FixedWindow;
use crate::limit::algo::gcra::Gcra;
use crate::limit::algo::token_bucket::TokenBucket;
use crate::limit::key::COST_MAX;

/// The parameters that only some algorithms have.
const ALGORITHM_KEYS: &[(&str, &[&str])] = &[
    ("token_bucket", &["burst", "debt", "refill", "start"]),
    ("fixed_window", &["anchor"]),
    ("gcra", &["burst"]),
    ("sliding_window", &["precision"]),
    ("calendar", &["zone", "resets_at", "week_start"]),
    ("sliding_log", &["state"]),
    ("leaky_bucket", &["queue", "nodelay"]),
    ("concurrency", &["in_flight", "lease", "linger"]),
];

/// The rule that the numbers of `section` make; also those of a limit with an override laid over.
pub fn rule(section: &Section, algorithm: &str) -> Option<Rule> {
    let rate = match section.node("rate") {
        // In words of its own.
        Some(_) if algorithm == "calendar" => None,
        None if algorithm == "concurrency" => None,
        Some(node) if algorithm == "concurrency" => {
            section.fault("rate", node, "concurrency has no such parameter", "it takes in_flight, lease, linger")
        }
        Some(_) => section.parse_at("rate", values::rate),
        None => section.absent(format!("{} has no rate", section.title), "add one, like rate = \"10/s\""),
    };
    match algorithm {
        "fixed_window" => fixed_window(section, rate),
        "gcra" => gcra(section, rate),
        "sliding_window" => window::sliding_window(section, rate),
        "calendar" => window::calendar(section),
        "sliding_log" => limit_flow::sliding_log(section, rate),
        "leaky_bucket" => limit_flow::leaky_bucket(section, rate),
        "concurrency" => limit_flow::concurrency(section),
        _ => token_bucket(section, rate),
    }
}

/// Whether the end of a request may change what it was charged.
pub fn corrected(section: &Section) -> bool {
    ["charge_on", "refund_on", "settle"].iter().any(|key| section.node(key).is_some())
}

/// Whether `algorithm` has the parameter `key`, which not all have.
pub fn takes(algorithm: &str, key: &str) -> bool {
    match key {
        "rate" => algorithm != "concurrency",
        _ => ALGORITHM_KEYS.iter().any(|(name, keys)| *name == algorithm && keys.contains(&key)),
    }
}

/// Reports the parameters of other algorithms.
pub fn strangers(section: &Section, algorithm: Option<&str>) {
    let own = ALGORITHM_KEYS.iter().find(|(name, _)| Some(*name) == algorithm).map_or(&[][..], |(_, keys)| keys);
    let mut all: Vec<&'static str> = ALGORITHM_KEYS.iter().flat_map(|(_, keys)| *keys).copied().collect();
    all.sort_unstable();
    all.dedup();
    for key in all {
        let (Some(entry), Some(algorithm)) = (section.entry(key), algorithm) else { continue };
        if own.contains(&key) {
            continue;
        }
        let having = ALGORITHM_KEYS.iter().filter(|(_, keys)| keys.contains(&key));
        let owners: Vec<&str> = having.map(|(name, _)| *name).collect();
        let what = format!("{algorithm} has no such parameter");
        let rate = if takes(algorithm, "rate") { "rate, " } else { "" };
        let help = format!("`{key}` belongs to {}; {algorithm} takes {rate}{}", owners.join(" and "), own.join(", "));
        section.fault_at::<()>(key, entry.place, &what, &help);
    }
}

fn token_bucket(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let burst = match section.node("burst") {
        Some(_) => Some(section.integer("burst", 1..=EXACT)?),
        None => None,
    };
    let debt = section.integer("debt", 0..=EXACT).unwrap_or(0);
    let interval = section.choice("refill", &[("continuous", false), ("interval", true)]).unwrap_or(false);
    let empty = section.choice("start", &[("full", false), ("empty", true)]).unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    // A continuous refill of 10 in 1000 ms is one of 1 in 100 ms; an interval's lumps are not.
    let divisor = if interval { 1 } else { gcd(count, per_ms) };
    let (rate, per_ms) = (count / divisor, per_ms / divisor);
    if interval && rate > (EXACT - 1) / per_ms {
        let largest = (EXACT - 1) / per_ms;
        return section.fault_at(
            "rate",
            place,
            "it is too large to stay exact",
            &format!("the largest count for this period is {largest}"),
        );
    }
    // What is used by whatever numbers and what is asked for, (burst + 2 debt + 1) * per, are half of
    // what can be divided each.
    let room = (EXACT / 2 - 1) / per_ms - 1;
    let at = section.node("burst").map_or(place, |node| node.place);
    let named = if section.node("burst").is_some() { "burst" } else { "rate" };
    let burst = burst.unwrap_or(count);
    if burst > room {
        let help = format!("the largest `burst` for this rate is {room}");
        return section.fault_at(named, at, "the burst is too large to stay exact", &help);
    }
    if debt > (room - burst) / 2 {
        let largest = (room - burst) / 2;
        let node = section.node("debt")?;
        return section.fault(
            "debt",
            node,
            "it is too large to stay exact",
            &format!("the largest for this rate and burst is {largest}"),
        );
    }
    Some(Rule::TokenBucket(TokenBucket { rate, per_ms, burst, debt, interval, empty, refunds: corrected(section) }))
}

fn fixed_window(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let clock = section.choice("anchor", &[("first_hit", false), ("clock", true)]).unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    // The count of a window and one more cost are added before they are compared.
    let largest = EXACT - 1 - COST_MAX;
    if count > largest {
        return section.fault_at(
            "rate",
            place,
            "it is too large to stay exact",
            &format!("the largest count is {largest}"),
        );
    }
    Some(Rule::FixedWindow(FixedWindow { limit: count, window_ms: per_ms, clock }))
}

fn gcra(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let burst = match section.node("burst") {
        Some(_) => Some(section.integer("burst", 1..=EXACT)?),
        None => None,
    };
    let At { place, value: Rate { count, per_ms } } = rate?;
    let divisor = gcd(count, per_ms);
    let (rate, per_ms) = (count / divisor, per_ms / divisor);
    if rate >= EXACT {
        return section.fault_at("rate", place, "it is too large to stay exact", "write a smaller one");
    }
    // What is used by whatever numbers and what is asked for, (burst + 1) * per, are half of what can be
    // divided each.
    let largest = (EXACT / 2 - 1) / per_ms - 1;
    let (named, at) = section.node("burst").map_or(("rate", place), |node| ("burst", node.place));
    let burst = burst.unwrap_or(count);
    if burst > largest {
        let help = format!("the largest `burst` for this rate is {largest}");
        return section.fault_at(named, at, "the burst is too large to stay exact", &help);
    }
    Some(Rule::Gcra(Gcra { rate, per_ms, burst, refunds: corrected(section) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::algo::NAMES;

    #[test]
    fn every_algorithm_says_which_parameters_it_has() {
        let names: Vec<&str> = ALGORITHM_KEYS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, NAMES);
    }
}
