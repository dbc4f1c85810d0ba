//! What the servers of an upstream are given at once. Called by `upstream`.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::numbers::{ms, usize_of};
use crate::config::reader::Section;
use crate::config::schema;
use crate::upstream::Server;
use crate::upstream::caps::{CapRule, ServerCaps};

const CAP: RangeInclusive<i64> = 1..=10_000_000;
const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// Of an upstream with `servers`, if those can be read.
pub fn caps(section: &Section, servers: Option<&[Server]>) -> Option<CapRule> {
    let [in_flight, connections] = both(section);
    let total = section.section("total", &schema::UPSTREAM_TOTAL);
    let [total_in_flight, total_connections] = total.as_ref().map_or([None; 2], both);
    if let Some(total) = total {
        total.finish();
    }
    let waiting = usize_of(section.integer("max_waiting", 0..=1_000_000));
    let waiting_ms = section.duration("waiting_timeout", WAIT).map(ms);
    let is_capped = ["max_in_flight", "max_connections", "total"].iter().any(|key| section.node(key).is_some());
    if !is_capped && servers.is_none_or(|servers| servers.iter().all(|server| server.caps == ServerCaps::default())) {
        for key in ["max_waiting", "waiting_timeout"] {
            if let (Some(node), Some(_)) = (section.node(key), servers) {
                let help = "set `max_in_flight` or `max_connections`, or remove this";
                section.fault::<()>(key, node, "no request has to wait: nothing is capped", help);
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

/// Of one server.
pub fn of_server(section: &Section) -> ServerCaps {
    let [in_flight, connections] = both(section);
    ServerCaps { in_flight, connections }
}

fn both(section: &Section) -> [Option<u32>; 2] {
    let cap = |key| section.integer(key, CAP).and_then(|cap| u32::try_from(cap).ok());
    [cap("max_in_flight"), cap("max_connections")]
}
