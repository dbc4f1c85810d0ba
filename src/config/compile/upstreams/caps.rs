//! Caps of an upstream: concurrent requests, connections, queue and the adaptive limit. Called by `upstreams`.

use std::time::Duration;

use crate::config::compile::to_millis;
use crate::config::reader::Section;
use crate::config::schema::row::{ConfigOption, Row};
use crate::config::schema::upstream;
use crate::upstream::Server;
use crate::upstream::adaptive::controller::AdaptiveRule;
use crate::upstream::caps::{CapRule, ServerCaps};
use crate::upstream::queue::NewestFirst;

/// Default of `newest_first_after` with `adaptive`.
const NEWEST_FIRST_AFTER: Duration = Duration::from_millis(100);

/// The options of the queue.
const QUEUE_OPTIONS: [&ConfigOption; 4] = [
    &upstream::MAX_WAITING.option,
    &upstream::WAITING_TIMEOUT.option,
    &upstream::NEWEST_FIRST_AFTER.option,
    &upstream::PATIENCE.option,
];

/// Compiles the caps of an upstream. `servers` is `None` if they could not be read. `is_adaptive`: it has an adaptive
/// limit, for which requests wait too.
pub fn compile_caps(section: &Section, servers: Option<&[Server]>, is_adaptive: bool) -> Option<CapRule> {
    let in_flight = section.get(&upstream::MAX_IN_FLIGHT);
    let connections = section.get(&upstream::MAX_CONNECTIONS);
    let total = section.read_section(&upstream::TOTAL);
    let of_total = |row: &Row<Option<u32>>| total.as_ref().and_then(|total| total.get(row));
    let total_in_flight = of_total(&upstream::total::MAX_IN_FLIGHT);
    let total_connections = of_total(&upstream::total::MAX_CONNECTIONS);
    if let Some(total) = total {
        total.report_unread_keys();
    }
    let waiting = section.get(&upstream::MAX_WAITING);
    let waiting_ms = to_millis(section.get(&upstream::WAITING_TIMEOUT));
    let newest_first = compile_newest_first(section, is_adaptive);
    let is_capped = is_adaptive
        || [upstream::MAX_IN_FLIGHT.option, upstream::MAX_CONNECTIONS.option, upstream::TOTAL.option]
            .iter()
            .any(|option| section.node(option).is_some());
    if !is_capped && servers.is_none_or(|servers| servers.iter().all(|server| server.caps == ServerCaps::default())) {
        for option in QUEUE_OPTIONS {
            if let (Some(node), Some(_)) = (section.node(option), servers) {
                let help = "set `max_in_flight`, `max_connections` or `adaptive`, or remove this";
                section.report_fault::<()>(option.name, node, "no request ever waits, because nothing is capped", help);
            }
        }
        return None;
    }
    Some(CapRule {
        in_flight: in_flight.unwrap_or(u32::MAX),
        connections: connections.unwrap_or(u32::MAX),
        total_in_flight: total_in_flight.unwrap_or(u32::MAX),
        total_connections: total_connections.unwrap_or(u32::MAX),
        waiting,
        waiting_ms,
        newest_first,
    })
}

/// Compiles `newest_first_after` and `patience`.
fn compile_newest_first(section: &Section, is_adaptive: bool) -> Option<NewestFirst> {
    let after = section.get(&upstream::NEWEST_FIRST_AFTER);
    let patience = section.get(&upstream::PATIENCE);
    if let (None, false, Some(node)) = (after, is_adaptive, section.node(&upstream::PATIENCE)) {
        let what = "it is the wait while the newest request goes first, which never happens here";
        section.report_fault::<()>(
            upstream::PATIENCE.name,
            node,
            what,
            "set `newest_first_after` or `adaptive`, or remove this",
        );
    }
    let after = after.or(is_adaptive.then_some(NEWEST_FIRST_AFTER))?;
    Some(NewestFirst { after, patience })
}

/// Compiles `adaptive`.
pub fn compile_adaptive(section: Section) -> Option<AdaptiveRule> {
    let (min, max) = (section.get(&upstream::adaptive::MIN), section.get(&upstream::adaptive::MAX));
    let start = section.read(&upstream::adaptive::START);
    let start = start.unwrap_or_else(|| section.default_of(&upstream::adaptive::START).clamp(min, max.max(min)));
    let fixed = section.get(&upstream::adaptive::FIXED_BASELINE);
    if let (true, Some(node)) =
        (min > max, section.node(&upstream::adaptive::MIN).or(section.node(&upstream::adaptive::MAX)))
    {
        return section.report_fault(
            upstream::adaptive::MIN.name,
            node,
            &format!("`min` {min} exceeds `max` {max}"),
            "make `min` smaller",
        );
    }
    if let (false, Some(node)) = ((min..=max).contains(&start), section.node(&upstream::adaptive::START)) {
        let help = format!("write a number from {min} to {max}, as `min` and `max` say");
        return section.report_fault(
            upstream::adaptive::START.name,
            node,
            &format!("the limit cannot start at {start}"),
            &help,
        );
    }
    section.report_unread_keys();
    let fixed_baseline_us = fixed.map(|fixed| u64::try_from(fixed.as_micros()).unwrap_or(u64::MAX));
    Some(AdaptiveRule { min, max, start, fixed_baseline_us })
}

/// Compiles the caps of one server.
pub fn compile_server_caps(section: &Section) -> ServerCaps {
    ServerCaps {
        in_flight: section.get(&upstream::server::MAX_IN_FLIGHT),
        connections: section.get(&upstream::server::MAX_CONNECTIONS),
    }
}
