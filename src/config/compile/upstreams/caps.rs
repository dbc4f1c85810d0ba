//! Caps of an upstream: concurrent requests, connections, queue and the adaptive limit. Called by `upstreams`.

use std::time::Duration;

use crate::config::compile::numbers::{to_millis, to_usize};
use crate::config::reader::Section;
use crate::config::schema;
use crate::upstream::Server;
use crate::upstream::adaptive::controller::AdaptiveRule;
use crate::upstream::caps::{CapRule, ServerCaps};
use crate::upstream::queue::NewestFirst;

/// Default of `newest_first_after` with `adaptive`.
const NEWEST_FIRST_AFTER: Duration = Duration::from_millis(100);
/// Default of `patience`.
const PATIENCE_DEFAULT: Duration = Duration::from_millis(5);

/// The options of the queue.
const QUEUE_OPTIONS: [&str; 4] = ["max_waiting", "waiting_timeout", "newest_first_after", "patience"];

/// Compiles the caps of an upstream. `servers` is `None` if they could not be read. `is_adaptive`: it has an adaptive
/// limit, for which requests wait too.
pub fn compile_caps(section: &Section, servers: Option<&[Server]>, is_adaptive: bool) -> Option<CapRule> {
    let [in_flight, connections] = read_both(section);
    let total = section.read_section("total", &schema::upstream::total::TABLE);
    let [total_in_flight, total_connections] = total.as_ref().map_or([None; 2], read_both);
    if let Some(total) = total {
        total.report_unread_keys();
    }
    let waiting = to_usize(section.read_integer("max_waiting"));
    let waiting_ms = section.read_duration("waiting_timeout").map(to_millis);
    let newest_first = compile_newest_first(section, is_adaptive);
    let is_capped =
        is_adaptive || ["max_in_flight", "max_connections", "total"].iter().any(|key| section.node(key).is_some());
    if !is_capped && servers.is_none_or(|servers| servers.iter().all(|server| server.caps == ServerCaps::default())) {
        for key in QUEUE_OPTIONS {
            if let (Some(node), Some(_)) = (section.node(key), servers) {
                let help = "set `max_in_flight`, `max_connections` or `adaptive`, or remove this";
                section.report_fault::<()>(key, node, "no request ever waits, because nothing is capped", help);
            }
        }
        return None;
    }
    Some(CapRule {
        in_flight: in_flight.unwrap_or(u32::MAX),
        connections: connections.unwrap_or(u32::MAX),
        total_in_flight: total_in_flight.unwrap_or(u32::MAX),
        total_connections: total_connections.unwrap_or(u32::MAX),
        waiting: waiting.unwrap_or(100),
        waiting_ms: waiting_ms.unwrap_or(3_000),
        newest_first,
    })
}

/// Compiles `newest_first_after` and `patience`.
fn compile_newest_first(section: &Section, is_adaptive: bool) -> Option<NewestFirst> {
    let after = section.read_duration("newest_first_after");
    let patience = section.read_duration("patience");
    if let (None, false, Some(node)) = (after, is_adaptive, section.node("patience")) {
        let what = "it is the wait while the newest request goes first, which never happens here";
        section.report_fault::<()>("patience", node, what, "set `newest_first_after` or `adaptive`, or remove this");
    }
    let after = after.or(is_adaptive.then_some(NEWEST_FIRST_AFTER))?;
    Some(NewestFirst { after, patience: patience.unwrap_or(PATIENCE_DEFAULT) })
}

/// Compiles `adaptive`.
pub fn compile_adaptive(section: Section) -> Option<AdaptiveRule> {
    let read = |key, default| {
        section.read_integer(key).map_or(Some(default), |number| u32::try_from(number).ok()).unwrap_or(default)
    };
    let (min, max) = (read("min", 3), read("max", 1_000));
    let start = read("start", 20.clamp(min, max.max(min)));
    let fixed = section.read_duration("fixed_baseline");
    if let (true, Some(node)) = (min > max, section.node("min").or(section.node("max"))) {
        return section.report_fault("min", node, &format!("`min` {min} exceeds `max` {max}"), "make `min` smaller");
    }
    if let (false, Some(node)) = ((min..=max).contains(&start), section.node("start")) {
        let help = format!("write a number from {min} to {max}, as `min` and `max` say");
        return section.report_fault("start", node, &format!("the limit cannot start at {start}"), &help);
    }
    section.report_unread_keys();
    let fixed_baseline_us = fixed.map(|fixed| u64::try_from(fixed.as_micros()).unwrap_or(u64::MAX));
    Some(AdaptiveRule { min, max, start, fixed_baseline_us })
}

/// Compiles the caps of one server.
pub fn compile_server_caps(section: &Section) -> ServerCaps {
    let [in_flight, connections] = read_both(section);
    ServerCaps { in_flight, connections }
}

fn read_both(section: &Section) -> [Option<u32>; 2] {
    let cap = |key| section.read_integer(key).and_then(|cap| u32::try_from(cap).ok());
    [cap("max_in_flight"), cap("max_connections")]
}
