//! Caps of an upstream: concurrent requests, connections and queue. Called by `upstreams`.

use crate::config::compile::numbers::{to_millis, to_usize};
use crate::config::reader::Section;
use crate::config::schema;
use crate::upstream::Server;
use crate::upstream::caps::{CapRule, ServerCaps};

/// Compiles the caps of an upstream. `servers` is `None` if they could not be read.
pub fn compile_caps(section: &Section, servers: Option<&[Server]>) -> Option<CapRule> {
    let [in_flight, connections] = read_both(section);
    let total = section.read_section("total", &schema::UPSTREAM_TOTAL);
    let [total_in_flight, total_connections] = total.as_ref().map_or([None; 2], read_both);
    if let Some(total) = total {
        total.report_unread_keys();
    }
    let waiting = to_usize(section.read_integer("max_waiting"));
    let waiting_ms = section.read_duration("waiting_timeout").map(to_millis);
    let is_capped = ["max_in_flight", "max_connections", "total"].iter().any(|key| section.node(key).is_some());
    if !is_capped && servers.is_none_or(|servers| servers.iter().all(|server| server.caps == ServerCaps::default())) {
        for key in ["max_waiting", "waiting_timeout"] {
            if let (Some(node), Some(_)) = (section.node(key), servers) {
                let help = "set `max_in_flight` or `max_connections`, or remove this";
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
    })
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
