//! `breaker` of an upstream or a route. Called by `upstreams` and `routes`.

use std::time::Duration;

use crate::config::compile::to_millis;
use crate::config::reader::Section;
use crate::config::schema::row::Row;
use crate::config::schema::upstream;
use crate::upstream::breaker::machine::BreakerRule;

/// Compiles `breaker`, which needs at least one condition.
pub fn compile_breaker(owner: &Section) -> Option<BreakerRule> {
    let node = owner.node(&upstream::BREAKER)?;
    let section = owner.read_section(&upstream::BREAKER)?;
    let time = |row: &Row<Duration>| to_millis(section.get(row));
    let rule = BreakerRule {
        slow_ms: section.get(&upstream::breaker::SLOW).map(to_millis),
        slow_ratio: section.get(&upstream::breaker::SLOW_RATIO),
        error_ratio: section.get(&upstream::breaker::ERROR_RATIO),
        errors: section.get(&upstream::breaker::ERRORS),
        window_ms: time(&upstream::breaker::WINDOW),
        min_requests: section.get(&upstream::breaker::MIN_REQUESTS),
        open_for_ms: time(&upstream::breaker::OPEN_FOR),
        probes: section.get(&upstream::breaker::PROBES),
        ramp_ms: time(&upstream::breaker::RAMP),
    };
    let conditions =
        [upstream::breaker::SLOW.option, upstream::breaker::ERROR_RATIO.option, upstream::breaker::ERRORS.option];
    let has_condition = conditions.iter().any(|option| section.node(option).is_some());
    let slow_ratio =
        section.node(&upstream::breaker::SLOW_RATIO).filter(|_| section.node(&upstream::breaker::SLOW).is_none());
    section.report_unread_keys();
    if let Some(ratio) = slow_ratio {
        let help = "add slow = \"1s\", the time from which a request is slow, or remove slow_ratio";
        return owner.report_fault(upstream::breaker::SLOW_RATIO.name, ratio, "it needs `slow`", help);
    }
    if !has_condition {
        let help = "add slow = \"1s\", error_ratio = 0.5 or errors = 50";
        return owner.report_fault(upstream::BREAKER.name, node, "nothing opens this breaker", help);
    }
    Some(rule)
}
