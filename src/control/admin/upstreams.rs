//! The upstreams and how their servers stand. Called by `pages`.

use serde_json::{Value, json};

use crate::snapshot::Fleet;
use crate::upstream::roster::Member;
use crate::upstream::state::{Health, HealthReport};

pub fn list(fleet: &Fleet) -> Value {
    let now_ms = fleet.now_ms();
    let upstreams = fleet.upstreams().into_iter().map(|upstream| {
        let roster = upstream.roster();
        let servers: Vec<Value> = roster.iter().map(|member| server(member, now_ms)).collect();
        let none_up = roster.iter().all(|member| member.state.told(now_ms).health != Health::Up);
        json!({
            "name": upstream.settings.name,
            "balance": upstream.settings.balance.label(),
            "fail_open": none_up,
            "servers": servers,
        })
    });
    json!({ "upstreams": upstreams.collect::<Vec<_>>() })
}

fn server(member: &Member, now_ms: u64) -> Value {
    let HealthReport { health, reason, ejection } = member.state.told(now_ms);
    json!({
        "server": member.server.origin.to_string(),
        "weight": member.server.weight,
        "state": health.label(),
        "reason": reason,
        "returns_in_ms": ejection.map(|ejection| ejection.until_ms.saturating_sub(now_ms)),
    })
}
