//! Parameters of the algorithms that remember single requests or hold them back: `sliding_log`,
//! `leaky_bucket`, `concurrency`. Called by `limit`.

use std::time::Duration;

use super::exact::{EXACT, gcd};
use super::rule::corrected;
use crate::config::reader::{At, Section};
use crate::config::values::Rate;
use crate::limit::algo::Rule;
use crate::limit::algo::concurrency::Concurrency;
use crate::limit::algo::leaky_bucket::LeakyBucket;
use crate::limit::algo::sliding_log::SlidingLog;

/// Entries of one key, for algorithms that keep one for each unit.
const ENTRIES_MAX: i64 = 100_000;
/// Stamps that a millisecond has.
const STAMPS_PER_MS: i64 = 1000;
const LEASE: Duration = Duration::from_secs(15);

pub fn sliding_log(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let sorted_set = section.choice("state", &[("list", false), ("sorted_set", true)]).unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    let largest = ENTRIES_MAX.min(per_ms * STAMPS_PER_MS);
    if count > largest {
        let what = "the log would be too long";
        let help = format!("sliding_window needs no entry for each unit; the largest count for this is {largest}");
        return section.fault_at("rate", place, what, &help);
    }
    Some(Rule::SlidingLog(SlidingLog { limit: count, window_ms: per_ms, sorted_set }))
}

pub fn leaky_bucket(section: &Section, rate: Option<At<Rate>>) -> Option<Rule> {
    let day = Duration::from_secs(86_400);
    let queue = match section.node("queue") {
        Some(_) => section.duration("queue", Duration::ZERO..=day)?,
        None => Duration::ZERO,
    };
    let nodelay = section.bool("nodelay").unwrap_or(false);
    let At { place, value: Rate { count, per_ms } } = rate?;
    let divisor = gcd(count, per_ms);
    let (rate, per_ms) = (count / divisor, per_ms / divisor);
    // Slots are told apart by their microsecond.
    if rate > per_ms.saturating_mul(STAMPS_PER_MS) {
        let largest = per_ms * divisor * STAMPS_PER_MS;
        let help = format!("the largest count for this period is {largest}");
        return section.fault_at("rate", place, "slots would be closer than a microsecond", &help);
    }
    let queue_ms = i64::try_from(queue.as_millis()).unwrap_or(i64::MAX);
    // The twins add at most a cost and a queue's length to what is taken: 2 queue rate + 3 per.
    let room = (EXACT / 2 - rate - 2 * per_ms) / rate;
    if queue_ms > room {
        let node = section.node("queue")?;
        let help = format!("the longest `queue` for this rate is {room}ms");
        return section.fault("queue", node, "it is too long to stay exact", &help);
    }
    Some(Rule::LeakyBucket(LeakyBucket { rate, per_ms, queue_ms, nodelay, refunds: corrected(section) }))
}

pub fn concurrency(section: &Section) -> Option<Rule> {
    let in_flight = match section.node("in_flight") {
        Some(_) => section.integer("in_flight", 1..=ENTRIES_MAX),
        None => section.absent(format!("{} has no in_flight", section.title), "add one, like in_flight = 20"),
    };
    let lease = match section.node("lease") {
        Some(_) => section.duration("lease", Duration::from_secs(1)..=Duration::from_secs(3600)),
        None => Some(LEASE),
    };
    let lease_ms = i64::try_from(lease?.as_millis()).unwrap_or(i64::MAX);
    Some(Rule::Concurrency(Concurrency { in_flight: in_flight?, lease_ms }))
}
