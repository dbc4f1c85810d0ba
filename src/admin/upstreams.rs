//! Page of upstreams with the state of their servers. Listed in `pages`.

use std::convert::Infallible;

use serde_json::{Value, json};

use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};
use crate::snapshot::Fleet;
use crate::upstream::breaker::{BreakerKind, CircuitBreaker};
use crate::upstream::hostname::LookupOutcome;
use crate::upstream::roster::{Member, UpstreamState};
use crate::upstream::state::{Health, HealthReport};
use crate::upstream::{SERVICE_PREFIX, Server};

pub async fn show_upstreams(request: PageRequest) -> Result<AdminResponse, Problem> {
    let context = &request.context;
    let list = || Ok::<_, Infallible>(list_upstreams(&context.fleet).to_string());
    let Ok(text) = context.cached.upstreams.get_or_make(list);
    Ok(json_response(text))
}

/// Lists the upstreams with the state of their servers.
pub fn list_upstreams(fleet: &Fleet) -> Value {
    let now_ms = fleet.now_ms();
    let upstreams = fleet.upstreams().into_iter().map(|upstream| {
        let roster = upstream.roster();
        let servers =
            upstream.settings.servers.iter().flat_map(|server| list_endpoints(&upstream, &roster, server, now_ms));
        let servers: Vec<Value> = servers.collect();
        let none_up = roster.iter().all(|member| member.state.report_health(now_ms).health != Health::Up);
        let mut entry = json!({
            "name": upstream.settings.name,
            "balance": upstream.settings.balance.label(),
            "fail_open": none_up,
            "servers": servers,
        });
        if upstream.settings.caps.is_some() {
            let load = upstream.load();
            entry["in_flight"] = load.in_flight().into();
            entry["waiting"] = load.queue.len().into();
            entry["refused"] = json!(load.refused());
            if upstream.settings.caps.is_some_and(|caps| caps.newest_first.is_some()) {
                entry["newest_first"] = load.queue.is_newest_first().into();
            }
        }
        if let Some(report) = upstream.load().adaptive.as_ref().map(|adaptive| adaptive.report()) {
            let known_ms = |ms: f64| (ms > 0.0).then(|| (ms * 10.0).round() / 10.0);
            entry["adaptive"] = json!({
                "limit": report.limit,
                "in_flight": report.in_flight,
                "baseline_ms": known_ms(report.baseline_ms),
                "response_ms": known_ms(report.recent_ms),
            });
        }
        if let Some(breaker) = upstream.breaker() {
            entry["breaker"] = describe_breaker(breaker, now_ms);
        }
        entry
    });
    let mut answer = json!({ "upstreams": upstreams.collect::<Vec<_>>() });
    let of_routes = fleet.breakers().into_iter().filter(|breaker| breaker.kind == BreakerKind::Route);
    let of_routes: serde_json::Map<String, Value> =
        of_routes.map(|breaker| (breaker.name.clone(), describe_breaker(&breaker, now_ms))).collect();
    if !of_routes.is_empty() {
        answer["route_breakers"] = of_routes.into();
    }
    answer
}

/// Describes the state of a breaker.
fn describe_breaker(breaker: &CircuitBreaker, now_ms: u64) -> Value {
    let report = breaker.describe(now_ms);
    let cause = report.cause.map(
        |cause| json!({ "condition": cause.condition.label(), "failed": cause.failed, "requests": cause.requests }),
    );
    // From thousandths to a number from 0 to 1.
    let share = f64::from(u32::try_from(report.share).unwrap_or(1000)) / 1000.0;
    json!({
        "state": report.phase.label(),
        "admitted_share": share,
        "may_close_in_ms": report.opens_for_ms,
        "opened": report.entered.open,
        "refused": breaker.refused(),
        "last_opened_by": cause,
    })
}

/// Lists a server, with one entry per address if it is written with a hostname.
fn list_endpoints(upstream: &UpstreamState, roster: &[Member], server: &Server, now_ms: u64) -> Vec<Value> {
    let its: Vec<&Member> = roster.iter().filter(|member| member.endpoint.origin == server.origin).collect();
    let host_name = server.origin.hostname();
    if let (Some(host_name), true) = (host_name, its.is_empty()) {
        let name = upstream.names().iter().find(|name| name.name == host_name);
        let outcome = name.and_then(|name| name.last_outcome()).map(LookupOutcome::label);
        return vec![json!({
            "server": server.origin.to_string(),
            "address": null,
            "weight": server.weight,
            "state": "unresolved",
            "reason": outcome,
            "returns_in_ms": null,
            "for_ms": null,
        })];
    }
    // SRV records give each of their hosts a weight.
    let is_service = host_name.is_some_and(|name| name.starts_with(SERVICE_PREFIX));
    let place = |member: &Member| {
        let HealthReport { health, reason, ejection, since_ms } = member.state.report_health(now_ms);
        let mut place = json!({
            "server": server.origin.to_string(),
            "weight": if is_service { round_thousandths(member.weight_part()) } else { member.weight.into() },
            "state": health.label(),
            "reason": reason,
            "returns_in_ms": ejection.map(|ejection| ejection.until_ms.saturating_sub(now_ms)),
            "for_ms": since_ms.map(|since_ms| now_ms.saturating_sub(since_ms)),
        });
        if let Some(rule) = &member.caps {
            let bound = |max: u32| Some(max).filter(|max| *max < u32::MAX);
            place["in_flight"] = member.state.in_flight().into();
            place["max_in_flight"] = bound(rule.in_flight).into();
            if rule.caps_connections() {
                place["connections"] = member.state.connections().into();
                place["max_connections"] = bound(rule.connections).into();
            }
        }
        if host_name.is_some() {
            place["address"] = member.endpoint.label().into();
        }
        place
    };
    its.into_iter().map(place).collect()
}

fn round_thousandths(number: f64) -> Value {
    ((number * 1000.0).round() / 1000.0).into()
}
