//! Rates of each route, each branch of a split and each limit in the last seconds, as JSON.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::admin::history::samples::{TrafficCounts, TrafficHistory, rate_between};
use crate::telemetry::metrics::{LimitTraffic, Traffic};

/// Maximum number of routes, and of limits, that are listed.
const ROWS_MAX: usize = 2000;

/// Writes the routes with the most requests, and the limits with the most refusals, at the start of each list.
pub fn write_rates(history: &TrafficHistory) -> String {
    let rates = history.with_counts(|before, now| {
        let seconds = (now.at - before.at).as_secs_f64();
        json!({
            "seconds": round_tenths(seconds),
            "route_count": now.routes.len(),
            "routes": describe_routes(before, now, seconds),
            "limit_count": now.total.limits.len(),
            "limits": describe_limits(&before.total, &now.total, seconds),
        })
    });
    let nothing = || json!({ "seconds": 0.0, "route_count": 0, "routes": [], "limit_count": 0, "limits": [] });
    rates.unwrap_or_else(nothing).to_string()
}

fn describe_routes(before: &TrafficCounts, now: &TrafficCounts, seconds: f64) -> Value {
    let nothing = Traffic::default();
    let mut routes: Vec<_> =
        now.routes.iter().map(|(name, traffic)| (name, before.routes.get(name).unwrap_or(&nothing), traffic)).collect();
    routes
        .sort_by_key(|(_, before, now)| (Reverse(now.requests.saturating_sub(before.requests)), Reverse(now.requests)));
    let list = routes.iter().take(ROWS_MAX).map(|(name, before, now)| describe_route(name, before, now, seconds));
    list.collect()
}

fn describe_limits(before: &Traffic, now: &Traffic, seconds: f64) -> Value {
    let limits = now.rank_limits(before);
    let list = limits.iter().take(ROWS_MAX).map(|(name, before, now)| {
        let rate = |read: fn(&LimitTraffic) -> u64| rate_of(read(before), read(now), seconds);
        json!({
            "limit": name,
            "asked_total": now.decided,
            "refused_total": now.refused,
            "asked_per_second": rate(|limit| limit.decided),
            "refused_per_second": rate(|limit| limit.refused),
            "would_refuse_per_second": rate(|limit| limit.would_refuse),
            "without_store_per_second": rate(|limit| limit.without_store),
        })
    });
    list.collect()
}

fn describe_route(name: &str, before: &Traffic, now: &Traffic, seconds: f64) -> Value {
    let mut route = describe_responses(before, now, seconds);
    route["route"] = json!(name);
    route["refused_per_second"] = json!(rate_of(before.refused, now.refused, seconds));
    route["in_flight"] = json!(now.in_flight);
    let nothing = Traffic::default();
    let branches = now.branches.iter().map(|(upstream, now)| {
        let mut branch = describe_responses(before.branches.get(upstream).unwrap_or(&nothing), now, seconds);
        branch["upstream"] = json!(upstream);
        branch
    });
    route["branches"] = branches.collect();
    route
}

/// Describes the responses of a route, or of a branch of its split.
fn describe_responses(before: &Traffic, now: &Traffic, seconds: f64) -> Value {
    let rate = |read: fn(&Traffic) -> u64| rate_of(read(before), read(now), seconds);
    let quantile = |share| now.duration_quantile(before, share).map(round_tenths);
    json!({
        "requests_total": now.requests,
        "requests_per_second": rate(|traffic| traffic.requests),
        "client_errors_per_second": rate(|traffic| traffic.client_errors),
        "too_many_per_second": rate(|traffic| traffic.too_many),
        "failed_per_second": rate(|traffic| traffic.failed),
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
    })
}

/// Returns the events per second; `None` before the second sample.
fn rate_of(before: u64, now: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.1).then(|| round_tenths(rate_between(before, now, seconds)))
}

fn round_tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
