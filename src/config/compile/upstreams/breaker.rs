//! `breaker` of an upstream or a route. Called by `upstreams` and `routes`.

use std::time::Duration;

use crate::config::compile::numbers::to_millis;
use crate::config::reader::Section;
use crate::config::schema;
use crate::upstream::Fraction;
use crate::upstream::breaker::machine::BreakerRule;

/// Compiles `breaker`, which needs at least one condition.
pub fn compile_breaker(owner: &Section) -> Option<BreakerRule> {
    let node = owner.node("breaker")?;
    let section = owner.read_section("breaker", &schema::upstream::breaker::TABLE)?;
    let time = |key, default| to_millis(section.read_duration(key).unwrap_or(Duration::from_secs(default)));
    let count = |key| section.read_integer(key).and_then(|count| u64::try_from(count).ok());
    let slow_ratio = section.read_fraction("slow_ratio");
    let rule = BreakerRule {
        slow_ms: section.read_duration("slow").map(to_millis),
        slow_ratio: slow_ratio.unwrap_or(Fraction::HALF),
        error_ratio: section.read_fraction("error_ratio"),
        errors: count("errors"),
        window_ms: time("window", 10),
        min_requests: count("min_requests").unwrap_or(10),
        open_for_ms: time("open_for", 5),
        probes: count("probes").and_then(|count| u32::try_from(count).ok()).unwrap_or(3),
        ramp_ms: time("ramp", 10),
    };
    let has_condition = ["slow", "error_ratio", "errors"].iter().any(|key| section.node(key).is_some());
    let slow_ratio = section.node("slow_ratio").filter(|_| section.node("slow").is_none());
    section.report_unread_keys();
    if let Some(ratio) = slow_ratio {
        let help = "add slow = \"1s\", the time from which a request is slow, or remove slow_ratio";
        return owner.report_fault("slow_ratio", ratio, "it needs `slow`", help);
    }
    if !has_condition {
        let help = "add slow = \"1s\", error_ratio = 0.5 or errors = 50";
        return owner.report_fault("breaker", node, "nothing opens this breaker", help);
    }
    Some(rule)
}
