//! `GET /-/gateways`: all gateways that share the store, so that one dashboard shows them together.
//!
//! Every few seconds each gateway writes a summary of itself to the store: who it is, its rates of the last seconds,
//! and the keys that it refused most, as its log shows them. The page reads all summaries, and adds them up. With a
//! memory store there is one gateway. Summaries of others are data: only known members of the right type are used.
//!
//! To add a member, add it to `summarize`, list it below by its type, show it in `ui/gateways.js`, and describe it in
//! `openapi/schemas/traffic.json`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::context::AdminContext;
use crate::admin::page_request::PageRequest;
use crate::admin::problem::Problem;
use crate::admin::response::{AdminResponse, json_response};
use crate::admin::streams::summary::cut_text;
use crate::admin::upstreams::list_upstreams;
use crate::config::admin_tokens::Role;
use crate::limiting::store::redis::gateway_texts::{GatewayText, PeerText};

/// Interval at which a gateway writes its summary.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of refused keys in a summary, and in the list of all.
const KEYS: usize = 10;
/// Members of a summary that are texts, integers, numbers and booleans.
const TEXTS: [&str; 7] = ["host", "environment", "environment_color", "version", "hash", "lifecycle", "admin"];
const INTEGERS: [&str; 5] = ["generation", "uptime_seconds", "in_flight", "servers", "servers_unhealthy"];
const NUMBERS: [&str; 5] = ["per_second", "failed_per_second", "refused_per_second", "p50_ms", "p99_ms"];
const BOOLEANS: [&str; 1] = ["store_up"];

/// Writes the summary of this gateway while the store is shared. Never returns.
pub async fn write_summaries(context: Rc<AdminContext>) {
    let mut ticks = interval(WRITE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let snapshot = context.current.load_full();
        let link = context.limits.store_link();
        if snapshot.config.store.is_shared() {
            let summary = summarize(&context).to_string();
            // Without it, others see this gateway without numbers.
            let owner = (snapshot.config.store.prefix.as_str(), link.gateways().name());
            let _ = link.store().write_text(owner, GatewayText::Summary, &summary).await;
            context.limits.share_refusals().await;
        }
    }
}

pub async fn list_gateways(request: PageRequest) -> Result<AdminResponse, Problem> {
    let _work = request.start_work()?;
    let context = &request.context;
    let mut answer = match context.cached.gateways.find() {
        Some(answer) => answer,
        None => {
            let answer = describe_all(context).await;
            context.cached.gateways.keep(answer.clone());
            answer
        }
    };
    // Keys are about clients.
    if !request.caller.role.includes(Role::Keys) {
        answer["keys"] = Value::Null;
    }
    Ok(json_response(answer.to_string()))
}

async fn describe_all(context: &AdminContext) -> Value {
    let snapshot = context.current.load_full();
    let (config, link) = (&snapshot.config, context.limits.store_link());
    let own_name = link.gateways().name();
    let reading = match config.store.is_shared() {
        true => link.store().read_texts(&config.store.prefix, GatewayText::Summary).await,
        false => None,
    };
    let (summaries, fault) = match reading {
        Some(Ok(summaries)) => (summaries, None),
        Some(Err(why)) => (Vec::new(), Some(why)),
        None => (Vec::new(), None),
    };
    let mut gateways = vec![GatewayReport::of_summary(&summarize(context), own_name, Some(0))];
    gateways.extend(summaries.iter().filter(|one| one.name != own_name).map(GatewayReport::of_peer));
    json!({
        "store_shared": config.store.is_shared(),
        "store_fault": fault,
        "keys_comparable": config.admin.key_display.hasher.is_lasting,
        "self": own_name,
        "total": add_up(&gateways),
        "keys": merge_keys(&gateways),
        "gateways": gateways.into_iter().map(|gateway| Value::Object(gateway.members)).collect::<Vec<_>>(),
    })
}

/// Describes this gateway.
fn summarize(context: &AdminContext) -> Value {
    let snapshot = context.current.load();
    let environment = snapshot.config.admin.environment.as_ref();
    let upstreams = list_upstreams(&context.fleet);
    let servers: Vec<&Value> = upstreams["upstreams"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|upstream| upstream["servers"].as_array().into_iter().flatten())
        .collect();
    let mut summary = json!({
        "host": context.limits.store_link().gateways().display_name(),
        "environment": environment.map(|(name, _)| name),
        "environment_color": environment.map(|(_, color)| color.label()),
        "version": env!("CARGO_PKG_VERSION"),
        "generation": snapshot.generation,
        "hash": snapshot.config.hash,
        "lifecycle": context.shared.lifecycle().label(),
        "admin": context.shared.admin_addr().map(|addr| addr.to_string()),
        "uptime_seconds": context.shared.uptime().as_secs(),
        "store_up": context.metrics.store.up.get() == 1,
        "servers": servers.len(),
        "servers_unhealthy": servers.iter().filter(|server| server["state"] != "up").count(),
        "keys": context.limits.list_refused(KEYS),
    });
    if let (Some(members), Value::Object(rates)) = (summary.as_object_mut(), context.history.latest_rates()) {
        members.extend(rates);
    }
    summary
}

/// A gateway as it describes itself.
struct GatewayReport {
    members: Map<String, Value>,
    keys: Vec<RefusedKey>,
}

struct RefusedKey {
    limit: String,
    key: String,
    count_min: u64,
    count_max: u64,
}

impl GatewayReport {
    fn of_peer(peer: &PeerText) -> GatewayReport {
        let text = peer.text.as_ref();
        let summary = text.and_then(|(text, _)| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        GatewayReport::of_summary(&summary, &peer.name, text.map(|(_, age_ms)| *age_ms))
    }

    /// Takes the known members of a summary. `age_ms`: `None` if there is none.
    fn of_summary(summary: &Value, name: &str, age_ms: Option<u64>) -> GatewayReport {
        let mut members = Map::new();
        members.insert("name".to_owned(), name.into());
        members.insert("age_ms".to_owned(), age_ms.into());
        let text = |name: &str| summary[name].as_str().map_or(Value::Null, |text| cut_text(text).into());
        members.extend(TEXTS.map(|name| (name.to_owned(), text(name))));
        members.extend(INTEGERS.map(|name| (name.to_owned(), summary[name].as_u64().into())));
        let number = |name: &str| summary[name].as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        members.extend(NUMBERS.map(|name| (name.to_owned(), number(name).into())));
        members.extend(BOOLEANS.map(|name| (name.to_owned(), summary[name].as_bool().into())));
        let keys = summary["keys"].as_array().into_iter().flatten().take(KEYS);
        let key = |key: &Value| {
            Some(RefusedKey {
                limit: cut_text(key["limit"].as_str()?),
                key: cut_text(key["key"].as_str()?),
                count_min: key["count_min"].as_u64()?,
                count_max: key["count_max"].as_u64()?,
            })
        };
        GatewayReport { members, keys: keys.filter_map(key).collect() }
    }
}

/// Adds up the rates. A quantile of all requests does not follow from those of the gateways, so the largest is shown.
fn add_up(gateways: &[GatewayReport]) -> Value {
    let numbers = |name: &'static str| gateways.iter().filter_map(move |gateway| gateway.members[name].as_f64());
    let sum = |name| (numbers(name).sum::<f64>() * 10.0).round() / 10.0;
    json!({
        "gateways": gateways.len(),
        "per_second": sum("per_second"),
        "failed_per_second": sum("failed_per_second"),
        "refused_per_second": sum("refused_per_second"),
        "in_flight": numbers("in_flight").sum::<f64>(),
        "p99_ms_max": numbers("p99_ms").reduce(f64::max),
    })
}

/// Adds up how often each key was refused, by its name in the log. Hashes are the same on gateways with one secret.
fn merge_keys(gateways: &[GatewayReport]) -> Vec<Value> {
    let mut merged: BTreeMap<(&str, &str), (u64, u64, u64)> = BTreeMap::new();
    for key in gateways.iter().flat_map(|gateway| &gateway.keys) {
        let (least, most, seen_by) = merged.entry((&key.limit, &key.key)).or_default();
        *least = least.saturating_add(key.count_min);
        *most = most.saturating_add(key.count_max);
        *seen_by += 1;
    }
    let mut keys: Vec<_> = merged.into_iter().collect();
    keys.sort_by_key(|(_, (least, ..))| Reverse(*least));
    let describe = |((limit, key), (least, most, seen_by)): ((&str, &str), (u64, u64, u64))| json!({ "limit": limit, "key": key, "count_min": least, "count_max": most, "gateways": seen_by });
    keys.into_iter().take(KEYS).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> GatewayReport {
        let text = Some((text.to_owned(), 5));
        GatewayReport::of_peer(&PeerText { name: "f".repeat(32), text })
    }

    #[test]
    fn what_a_peer_writes_is_taken_only_if_it_has_the_right_type() {
        for hostile in ["", "{", "[]", "null", "7", &"[".repeat(10_000), "{\"keys\":{}}", "{\"keys\":[null,7,{}]}"] {
            let report = report(hostile);
            assert!(report.keys.is_empty() && report.members["host"].is_null(), "{hostile:.20}");
        }
        let lying = json!({
            "host": "x".repeat(5000), "environment": 7, "per_second": -5, "p99_ms": "1", "generation": -1, "in_flight": 1e300,
            "name": "other", "extra": true, "keys": vec![json!({ "limit": "l", "key": "k", "count_min": u64::MAX, "count_max": u64::MAX }); 500],
        });
        let report = report(&lying.to_string());
        assert!(report.members["host"].as_str().unwrap().chars().count() < 400);
        for absent in ["environment", "per_second", "p99_ms", "generation", "in_flight"] {
            assert!(report.members[absent].is_null(), "{absent}");
        }
        assert_eq!((&report.members["name"], report.members.get("extra")), (&json!("f".repeat(32)), None));
        assert_eq!(merge_keys(&[report])[0]["count_min"], u64::MAX);
    }

    #[test]
    fn rates_and_keys_of_all_gateways_add_up() {
        let key =
            |name: &str, count: u64| json!({ "limit": "l", "key": name, "count_min": count, "count_max": count + 1 });
        let one =
            json!({ "per_second": 10.5, "refused_per_second": 1, "p99_ms": 3.0, "keys": [key("a", 4), key("b", 5)] });
        let two = json!({ "per_second": 2.0, "p99_ms": 9.0, "keys": [key("a", 3)] });
        let all = [&one, &two].map(|summary| report(&summary.to_string()));
        let total = add_up(&all);
        assert_eq!([&total["per_second"], &total["p99_ms_max"]].map(Value::as_f64), [Some(12.5), Some(9.0)]);
        let keys = merge_keys(&all);
        assert_eq!(keys[0], json!({ "limit": "l", "key": "a", "count_min": 7, "count_max": 9, "gateways": 2 }));
        assert_eq!(keys[1]["gateways"], 1);
    }
}
