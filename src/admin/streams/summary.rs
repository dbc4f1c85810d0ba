//! Events of the live stream: rates of the last seconds, and what is wrong. The numbers are those of `/metrics`,
//! `/-/status` and `/-/upstreams`. Called by `live`.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::admin::context::AdminContext;
use crate::admin::lifecycle::{SharedState, format_rfc3339};
use crate::admin::upstreams::list_upstreams;
use crate::admin::verdict::{count_rejected, list_key_status, list_problems};
use crate::config::Config;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::remote_keys::KeyStatus;
use crate::telemetry::metrics::{Metrics, Traffic};

/// Earlier counts, from which rates are computed.
#[derive(Default)]
pub struct LiveSampler {
    /// Earlier counts, the oldest first.
    samples: VecDeque<(Instant, Traffic)>,
}

/// Rates cover the time since the oldest sample: ten seconds, or less after the start of the stream.
const SAMPLES: usize = 11;
/// The first event compares with counts that are at least so old.
const FIRST_AGE: Duration = Duration::from_secs(1);
/// Maximum size of an event in bytes.
const EVENT_MAX: usize = 16 * 1024 - 64;
/// Maximum number of entries in a list of an event, and the numbers to try if the event is too large.
const ENTRIES: [usize; 5] = [24, 12, 6, 2, 0];
/// Maximum number of characters of a text in an event.
const TEXT_MAX: usize = 300;
/// Certificates that expire earlier than this are listed, in seconds.
const EXPIRES_SOON: i64 = 14 * 24 * 3600;

impl LiveSampler {
    /// Builds the event of now as JSON.
    pub fn make_event(&mut self, context: &AdminContext) -> String {
        self.add_sample(context);
        let upstreams = list_upstreams(&context.fleet);
        let fits = |most: &usize| {
            let text = self.describe(context, &upstreams, *most).to_string();
            Some(text).filter(|text| text.len() <= EVENT_MAX)
        };
        ENTRIES.iter().find_map(fits).unwrap_or_else(|| "{}".to_owned())
    }

    /// Adds the counts of now, and forgets old ones.
    fn add_sample(&mut self, context: &AdminContext) {
        if self.samples.is_empty() {
            // The first event has rates, too.
            self.samples.extend(context.history.find_total(FIRST_AGE));
        }
        self.samples.push_back((Instant::now(), context.metrics.routes.sum_traffic()));
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// Describes the gateway, with at most `most` entries in each list.
    fn describe(&self, context: &AdminContext, upstreams: &Value, most: usize) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = context.current.load();
        let (metrics, shared) = (&context.metrics, &context.shared);
        let evictions = context.limits.evictions();
        let environment = snapshot.config.admin.environment.as_ref();
        let lost_lines = context.history.lost_lines();
        let lost_usage = context.history.lost_usage();
        let mut event = json!({
            "at_ms": u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            "version": env!("CARGO_PKG_VERSION"),
            "host": context.limits.store_link().gateways().display_name(),
            "environment": environment.map(|(name, _)| name),
            "environment_color": environment.map(|(_, color)| color.label()),
            "lifecycle": shared.lifecycle().label(),
            "uptime_seconds": shared.uptime().as_secs(),
            "generation": snapshot.generation,
            "loaded_at": format_rfc3339(snapshot.loaded_at),
            "last_reload": describe_reload(&shared.last_reload(), most),
            "unapplied": list_unapplied(shared, most),
            "pinned": context.config.pinned_generation(),
            "token_keys": describe_key_faults(&snapshot.config, most),
            "store": {
                "shared": snapshot.config.store.is_shared(),
                "up": metrics.store.up.get() == 1,
                "breaker": metrics.store.breaker_state.get(),
                "gateways": metrics.gateways.alive.get(),
                "may_evict": snapshot.config.store.is_shared() && metrics.store.may_evict.get() == 1,
                "evicted_total": evictions.count,
                "evicted_seconds_ago": evictions.seconds_ago,
            },
            "lost_log_lines": { "total": lost_lines.count, "seconds_ago": lost_lines.seconds_ago() },
            "lost_usage": { "total": lost_usage.count, "seconds_ago": lost_usage.seconds_ago() },
            "descriptors": count_descriptors(),
            "overrides": count_overrides(&snapshot.config, metrics, most),
            "servers": describe_servers(upstreams, most),
            "certificates": describe_certificates(context, now.as_secs().cast_signed(), most),
        });
        if let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) {
            let window = RateWindow { before: &first.1, now: &last.1, seconds: (last.0 - first.0).as_secs_f64() };
            event["seconds"] = round_tenths(window.seconds);
            event["requests"] = window.describe_requests();
            event["limits"] =
                window.describe_limits(most, |name| snapshot.config.limits.find(name).map(|limit| limit.mode.label()));
        }
        event["problems"] = list_problems(&event).into();
        event
    }
}

/// Lists what is wrong now, as the live stream does.
pub fn list_current_problems(context: &AdminContext) -> Value {
    let mut sampler = LiveSampler::default();
    sampler.add_sample(context);
    let mut event = sampler.describe(context, &list_upstreams(&context.fleet), ENTRIES[0]);
    event["problems"].take()
}

/// Counts at the start and at the end of an interval.
struct RateWindow<'a> {
    before: &'a Traffic,
    now: &'a Traffic,
    seconds: f64,
}

impl RateWindow<'_> {
    /// Returns the events per second; `null` if the interval is too short. Counts of a removed route are gone.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    fn rate(&self, now: u64, before: u64) -> Value {
        match self.seconds > 0.1 {
            true => round_tenths(now.saturating_sub(before) as f64 / self.seconds),
            false => Value::Null,
        }
    }

    fn describe_requests(&self) -> Value {
        let (now, before) = (self.now, self.before);
        let quantile = |share| now.duration_quantile(before, share).map(round_tenths);
        json!({
            "total": now.requests,
            "failed_total": now.failed,
            "refused_total": now.refused,
            "in_flight": now.in_flight,
            "per_second": self.rate(now.requests, before.requests),
            "failed_per_second": self.rate(now.failed, before.failed),
            "refused_per_second": self.rate(now.refused, before.refused),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
        })
    }

    /// Lists the limits with the most refusals in the interval, then those with the most decisions.
    fn describe_limits(&self, most: usize, mode_of: impl Fn(&str) -> Option<&'static str>) -> Value {
        let limits = self.now.rank_limits(self.before);
        let list = limits.iter().take(most).map(|(name, before, now)| {
            json!({
                "limit": cut_text(name),
                "mode": mode_of(name),
                "refused_total": now.refused,
                "asked_per_second": self.rate(now.decided, before.decided),
                "refused_per_second": self.rate(now.refused, before.refused),
                "would_refuse_per_second": self.rate(now.would_refuse, before.would_refuse),
                "without_store_per_second": self.rate(now.without_store, before.without_store),
            })
        });
        json!({ "count": limits.len(), "list": list.collect::<Vec<_>>() })
    }
}

/// Lists the sections whose keys of tokens could not be fetched.
fn describe_key_faults(config: &Config, most: usize) -> Value {
    let faulty = list_key_status(config).filter(|(_, status)| status.is_unusable || status.fault.is_some());
    let describe = |(section, status): (&str, KeyStatus)| {
        let fault = status.fault.map(|fault| cut_text(&fault.to_string()));
        json!({ "section": cut_text(section), "usable": !status.is_unusable, "fault": fault })
    };
    faulty.take(most).map(describe).collect()
}

/// Counts the active live overrides, all overrides and rows of sets that are skipped, and the bans since the start.
fn count_overrides(config: &Config, metrics: &Metrics, most: usize) -> Value {
    let rejecting = config.limits.iter().filter(|limit| count_rejected(limit, metrics) > 0);
    let wrong_sets = config.set_files.iter().filter(|file| file.rejected.count > 0);
    let live = |limit: &Limit| metrics.store.live_overrides.with_label_values(&[&limit.name]).get();
    json!({
        "live": config.limits.iter().map(|limit| live(limit)).sum::<i64>(),
        "rejected": config.limits.iter().map(|limit| count_rejected(limit, metrics)).sum::<i64>(),
        "rejected_set_rows": config.set_files.iter().map(|file| file.rejected.count).sum::<usize>(),
        "rejected_sets": wrong_sets.take(most).map(|file| cut_text(&file.name)).collect::<Vec<_>>(),
        "rejected_limits": rejecting.take(most).map(|limit| cut_text(&limit.name)).collect::<Vec<_>>(),
        "bans_total": metrics.limits.count_bans(),
    })
}

/// Returns the open file descriptors of the process and how many it may have; null where the system does not say.
fn count_descriptors() -> Value {
    // The directory lists the descriptor that reads it, too.
    let open = std::fs::read_dir("/proc/self/fd").map(|entries| entries.count().saturating_sub(1)).ok();
    json!({ "open": open, "max": getrlimit(Resource::Nofile).current })
}

/// Summarizes the state of all servers, and lists the unhealthy ones.
fn describe_servers(upstreams: &Value, most: usize) -> Value {
    let (mut count, mut unhealthy, mut fail_open) = (0_usize, Vec::new(), Vec::new());
    for upstream in upstreams["upstreams"].as_array().into_iter().flatten() {
        let servers = upstream["servers"].as_array().map_or(&[][..], Vec::as_slice);
        count += servers.len();
        if upstream["fail_open"] == true && !servers.is_empty() {
            fail_open.push(cut_value(&upstream["name"]));
        }
        unhealthy.extend(servers.iter().filter(|server| server["state"] != "up").map(|server| (upstream, server)));
    }
    let unhealthy_count = unhealthy.len();
    let list = unhealthy.into_iter().take(most).map(|(upstream, server)| {
        json!({
            "upstream": cut_value(&upstream["name"]),
            "server": cut_value(&server["server"]),
            "address": cut_value(&server["address"]),
            "state": server["state"],
            "reason": cut_value(&server["reason"]),
            "returns_in_ms": server["returns_in_ms"],
        })
    });
    let fail_open_count = fail_open.len();
    fail_open.truncate(most);
    json!({
        "count": count,
        "unhealthy_count": unhealthy_count,
        "unhealthy": list.collect::<Vec<_>>(),
        "fail_open_count": fail_open_count,
        "fail_open": fail_open,
    })
}

/// Lists the certificates that expire soon or have expired.
fn describe_certificates(context: &AdminContext, now: i64, most: usize) -> Value {
    let all = context.metrics.tls.list_expiries();
    let expiring: Vec<_> = all.iter().take_while(|expiry| expiry.not_after < now + EXPIRES_SOON).collect();
    let list = expiring.iter().take(most).map(|expiry| {
        json!({
            "listener": cut_text(&expiry.listener),
            "name": cut_text(&expiry.name),
            "not_after": expiry.not_after,
        })
    });
    json!({ "count": all.len(), "expiring_count": expiring.len(), "expiring": list.collect::<Vec<_>>() })
}

/// Shortens the record of the last reload; `null` before the first.
/// Lists errors of parts of the active config that could not be applied.
fn list_unapplied(shared: &SharedState, most: usize) -> Vec<Value> {
    shared.unapplied().into_iter().take(most.min(5)).map(|error| cut_value(&error.into())).collect()
}

fn describe_reload(record: &Value, most: usize) -> Value {
    if record.is_null() {
        return Value::Null;
    }
    let diagnostics = record["diagnostics"].as_array().map_or(&[][..], Vec::as_slice);
    let list = diagnostics.iter().take(most.min(5)).map(|diagnostic| {
        json!({
            "file": cut_value(&diagnostic["file"]),
            "line": diagnostic["line"],
            "column": diagnostic["column"],
            "message": cut_value(&diagnostic["message"]),
            "help": cut_value(&diagnostic["help"]),
        })
    });
    json!({
        "result": record["result"],
        "at": record["at"],
        "trigger": record["trigger"],
        "summary": cut_value(&record["summary"]),
        "diagnostics_count": diagnostics.len(),
        "diagnostics": list.collect::<Vec<_>>(),
        "warnings_count": record["warnings"].as_array().map_or(0, Vec::len),
    })
}

fn cut_value(value: &Value) -> Value {
    value.as_str().map_or(Value::Null, |text| cut_text(text).into())
}

pub fn cut_text(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

fn round_tenths(number: f64) -> Value {
    ((number * 10.0).round() / 10.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_characters() {
        let text = "\u{20ac}".repeat(TEXT_MAX);
        assert_eq!(cut_text(&text), text);
        let longer = cut_text(&format!("{text}x"));
        assert_eq!(longer.chars().count(), TEXT_MAX + 1);
        assert!(longer.ends_with('\u{2026}'));
    }

    #[test]
    fn a_reload_with_many_mistakes_is_shortened() {
        let mistake = json!({ "file": "a.toml", "line": 3, "column": 7, "message": "x".repeat(5000), "help": null });
        let record = json!({ "result": "failure", "at": "then", "diagnostics": vec![mistake; 500] });
        let shown = describe_reload(&record, 24);
        assert_eq!((shown["diagnostics"].as_array().unwrap().len(), &shown["diagnostics_count"]), (5, &json!(500)));
        assert!(shown.to_string().len() < 2500, "{shown}");
    }

    #[test]
    fn servers_that_are_not_up_are_listed() {
        let server = |state: &str| json!({ "server": "http://a:1", "state": state, "reason": null });
        let upstreams = json!({ "upstreams": [
            { "name": "app", "fail_open": false, "servers": [server("up"), server("down")] },
            { "name": "all", "fail_open": true, "servers": [server("ejected")] },
            { "name": "echo", "fail_open": true, "servers": [] },
        ] });
        let shown = describe_servers(&upstreams, 1);
        assert_eq!(
            (&shown["count"], &shown["unhealthy_count"], &shown["fail_open"]),
            (&json!(3), &json!(2), &json!(["all"]))
        );
        assert_eq!(shown["unhealthy"].as_array().unwrap().len(), 1);
    }
}
