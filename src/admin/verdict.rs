//! What is wrong with the gateway, in one list for `/-/live`, `/-/status`, the dashboard and `sluicegate status`.
//!
//! Input: an event of the live stream, without the list itself. Output: the problems, broken things first, each with a
//! level, a kind for programs, a text for people, and the screen of the dashboard that shows more.
//!
//! To add a problem, add what it is judged by to the event in `streams::summary`, a check to `list_problems`, a case to
//! the test, and its kind to `docs/reference/admin-api-traffic.md` and `openapi/schemas/browser.json`.

use prometheus::IntGaugeVec;
use serde_json::{Value, json};

use crate::config::Config;
use crate::limiting::clock;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::remote_keys::KeyStatus;
use crate::telemetry::metrics::Metrics;
use crate::text::{format_count, format_span};

/// Number of seconds for which an event, such as an eviction, is reported.
const RECENT_S: u64 = 600;
/// Number of names in a text.
const NAMES_MAX: usize = 3;
/// Maximum number of characters of a name.
const NAME_MAX: usize = 60;
/// Number of certificates, and of `[jwt]` sections, that are each listed as a problem.
const SINGLE_MAX: usize = 3;

/// The problems of an event, in the order in which they were found.
#[derive(Default)]
struct Problems(Vec<Value>);

impl Problems {
    fn add(&mut self, is_broken: bool, kind: &str, (text, link): (String, &str)) {
        let level = if is_broken { "bad" } else { "warn" };
        self.0.push(json!({ "level": level, "kind": kind, "text": text, "link": link }));
    }

    fn warn(&mut self, kind: &str, text: impl Into<String>, link: &str) {
        self.add(false, kind, (text.into(), link));
    }

    fn bad(&mut self, kind: &str, text: impl Into<String>, link: &str) {
        self.add(true, kind, (text.into(), link));
    }
}

/// Lists what is wrong by an event of the live stream: broken things first.
pub fn list_problems(event: &Value) -> Vec<Value> {
    let mut problems = Problems::default();
    if event["lifecycle"] == "draining" {
        let text = "The gateway is stopping: it finishes requests and accepts no new ones.";
        problems.warn("draining", text, "#/now");
    }
    judge_store(event, &mut problems);
    judge_log_and_descriptors(event, &mut problems);
    judge_overrides(event, &mut problems);
    judge_servers(event, &mut problems);
    judge_certificates(event, &mut problems);
    judge_config(event, &mut problems);
    judge_requests(event, &mut problems);
    let Problems(mut list) = problems;
    list.sort_by_key(|problem| problem["level"] != "bad");
    list
}

fn judge_store(event: &Value, problems: &mut Problems) {
    let store = &event["store"];
    if store["up"] == false {
        let text = "The limit store does not respond. Each limit now acts by its on_error setting.";
        problems.bad("store_down", text, "#/limits");
    } else if store["breaker"].as_i64() > Some(0) {
        let text = "A worker has stopped calling the limit store after errors, and tests whether it works again.";
        problems.warn("store_breaker", text, "#/limits");
    }
    if store["may_evict"] == true {
        let text = "Redis may evict states of limits when its memory is full, which gives clients full budgets again. \
                    Set maxmemory-policy to noeviction.";
        problems.warn("store_may_evict", text, "#/limits");
    }
    if is_recent(&store["evicted_seconds_ago"]) {
        let total = store["evicted_total"].as_u64().unwrap_or(0);
        let keys = if total == 1 { "1 key in use was".to_owned() } else { format!("{total} keys in use were") };
        let text = format!(
            "Memory is full: {keys} evicted, so these clients have full budgets again. Raise max_keys of the store."
        );
        problems.bad("evictions", text, "#/limits");
    }
    let lost = &event["lost_usage"];
    if is_recent(&lost["seconds_ago"]) {
        let text = format!(
            "Usage by day is not complete: {} could not be recorded since the start, the last {}.",
            count(&lost["total"], "decision"),
            show_ago(&lost["seconds_ago"])
        );
        problems.warn("lost_usage", text, "#/limits");
    }
}

fn judge_log_and_descriptors(event: &Value, problems: &mut Problems) {
    let lost = &event["lost_log_lines"];
    if is_recent(&lost["seconds_ago"]) {
        let text = format!(
            "Log lines are missing: {} since the start, the last {}. The disk, or what reads the log, is too slow.",
            count(&lost["total"], "line"),
            show_ago(&lost["seconds_ago"])
        );
        problems.warn("lost_log_lines", text, "#/now");
    }
    let descriptors = &event["descriptors"];
    if let (Some(open), Some(max)) = (descriptors["open"].as_u64(), descriptors["max"].as_u64())
        && u128::from(open) * 10 > u128::from(max) * 8
    {
        let text =
            format!("{open} of {max} file descriptors are open. Raise LimitNOFILE, or close connections earlier.");
        problems.add(u128::from(open) * 20 > u128::from(max) * 19, "descriptors", (text, "#/tls"));
    }
}

fn judge_overrides(event: &Value, problems: &mut Problems) {
    let overrides = &event["overrides"];
    let total = overrides["rejected"].as_u64().unwrap_or(0);
    if total > 0 {
        let names = join_all_names(&overrides["rejected_limits"]);
        let what = if total == 1 { "has an error and is" } else { "have errors and are" };
        let what =
            format!("{} {what} skipped ({names}): the log says which.", count(&overrides["rejected"], "override"));
        problems.warn("overrides_skipped", what, "#/limits");
    }
    let rows = overrides["rejected_set_rows"].as_u64().unwrap_or(0);
    if rows > 0 {
        let names = join_all_names(&overrides["rejected_sets"]);
        let what = if rows == 1 { "has an error and is" } else { "have errors and are" };
        let rows = count(&overrides["rejected_set_rows"], "row");
        problems.warn(
            "set_rows_skipped",
            format!("{rows} of sets {what} skipped ({names}): the log says which."),
            "#/config",
        );
    }
}

fn judge_servers(event: &Value, problems: &mut Problems) {
    let servers = &event["servers"];
    let fail_open = servers["fail_open_count"].as_u64().unwrap_or(0);
    if fail_open > 0 {
        let names = join_names(&servers["fail_open"], fail_open);
        let text = format!("No server is healthy in {}: {names}.", count(&servers["fail_open_count"], "upstream"));
        problems.bad("upstream_down", text, "#/upstreams");
    }
    // Servers of such an upstream are not repeated.
    let is_listed = |upstream: &Value| list(&servers["fail_open"]).any(|name| name == upstream);
    if list(&servers["unhealthy"]).any(|server| !is_listed(&server["upstream"])) {
        let unhealthy = servers["unhealthy_count"].as_u64().unwrap_or(0);
        let names: Value = list(&servers["unhealthy"]).map(|server| server["server"].clone()).collect();
        let are = if unhealthy == 1 { "is" } else { "are" };
        let whole = count(&servers["count"], "server");
        let text = format!("{unhealthy} of {whole} {are} not healthy: {}.", join_names(&names, unhealthy));
        problems.warn("servers_unhealthy", text, "#/upstreams");
    }
}

fn judge_certificates(event: &Value, problems: &mut Problems) {
    let certificates = &event["certificates"];
    let now_ms = event["at_ms"].as_i64().unwrap_or(0);
    for certificate in list(&certificates["expiring"]).take(SINGLE_MAX) {
        let name = cut_name(certificate["name"].as_str().unwrap_or_default());
        match certificate["not_after"].as_i64().unwrap_or(0).saturating_mul(1000).saturating_sub(now_ms) {
            left @ ..=0 => {
                let text = format!("The certificate for {name} expired {} ago.", format_span(left.saturating_neg()));
                problems.bad("certificate_expired", text, "#/tls");
            }
            left => {
                let text = format!("The certificate for {name} expires in {}.", format_span(left));
                problems.warn("certificate_expires", text, "#/tls");
            }
        }
    }
    let more = certificates["expiring_count"].as_u64().unwrap_or(0).saturating_sub(SINGLE_MAX as u64);
    if more > 0 {
        let text = format!("{} more expire within 14 days.", count(&more.into(), "certificate"));
        problems.warn("certificate_expires", text, "#/tls");
    }
}

fn judge_config(event: &Value, problems: &mut Problems) {
    let reload = &event["last_reload"];
    if reload["result"] == "failure" {
        let text = format!(
            "The changed config was rejected ({}). Generation {} stays active.",
            count(&reload["diagnostics_count"], "error"),
            event["generation"]
        );
        problems.warn("reload_failed", text, "#/config");
    }
    if let Some(error) = event["unapplied"][0].as_str() {
        let text =
            format!("The config is active, but not all of it: {error}. The gateway tries again every 10 seconds.");
        problems.bad("reload_incomplete", text, "#/config");
    }
    if let Some(generation) = event["pinned"].as_u64() {
        let text = format!(
            "After a rollback, the config of generation {generation} is active in place of the files. To \
             activate the files, save a change of one, or return to their generation."
        );
        problems.warn("pinned", text, "#/config");
    }
    for keys in list(&event["token_keys"]).take(SINGLE_MAX) {
        let section = cut_name(keys["section"].as_str().unwrap_or_default());
        let (effect, is_broken) = match keys["usable"] == false {
            true => ("tokens are refused", true),
            false => ("the last keys are used", false),
        };
        let fault = keys["fault"].as_str().unwrap_or("no keys were fetched");
        let text = format!("The keys of [{section}] are not current, so {effect}: {fault}.");
        problems.add(is_broken, "token_keys", (text, "#/config"));
    }
}

fn judge_requests(event: &Value, problems: &mut Problems) {
    let requests = &event["requests"];
    let rate = |name: &str| requests[name].as_f64().unwrap_or(0.0);
    let (all, failed, refused) = (rate("per_second"), rate("failed_per_second"), rate("refused_per_second"));
    if failed > 0.0 && failed > 0.01 * all {
        let text = format!("{} of the requests fail (status 500 or above).", show_share(failed, all));
        problems.add(failed > 0.5 * all, "requests_fail", (text, "#/routes?order=-5xx"));
    }
    if refused > 0.2 * all && refused >= 1.0 {
        let first = event["limits"]["list"][0]["limit"].as_str();
        let most = first.map(|name| format!(", most by the limit {}", cut_name(name))).unwrap_or_default();
        let text = format!("{} of the requests are refused{most}.", show_share(refused, all));
        problems.warn("requests_refused", text, "#/limits");
    }
}

/// Returns how many live overrides and rows of the file of a limit are skipped because of an error.
pub fn count_rejected(limit: &Limit, metrics: &Metrics) -> i64 {
    let count = |gauges: &IntGaugeVec| gauges.with_label_values(&[&limit.name]).get();
    // Limits without a file have no series about it.
    let rows = limit.overrides.file().map_or(0, |_| count(&metrics.store.rejected_rows));
    count(&metrics.store.rejected_overrides) + rows
}

/// Returns what is known of the keys of each section.
pub fn list_key_status(config: &Config) -> impl Iterator<Item = (&str, KeyStatus)> {
    let now_s = clock::now_ms() / 1000;
    config.token_keys.iter().map(move |keys| (keys.settings.name.as_str(), keys.status(now_s)))
}

fn list(values: &Value) -> impl Iterator<Item = &Value> {
    values.as_array().into_iter().flatten()
}

fn is_recent(seconds_ago: &Value) -> bool {
    seconds_ago.as_u64().is_some_and(|seconds| seconds < RECENT_S)
}

fn show_ago(seconds_ago: &Value) -> String {
    format!("{} ago", format_span(seconds_ago.as_i64().unwrap_or(0).saturating_mul(1000)))
}

fn count(number: &Value, one: &str) -> String {
    format_count(number.as_u64().unwrap_or(0), one)
}

fn cut_name(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
        None => name.to_owned(),
    }
}

/// Joins the first of `total` names.
fn join_names(names: &Value, total: u64) -> String {
    let shown: Vec<String> = list(names).take(NAMES_MAX).map(|name| cut_name(name.as_str().unwrap_or("?"))).collect();
    let more = if total > shown.len() as u64 { ", \u{2026}" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Joins the names of a list that may be longer than what is shown.
fn join_all_names(names: &Value) -> String {
    join_names(names, list(names).count() as u64)
}

fn show_share(part: f64, whole: f64) -> String {
    let percent = if whole > 0.0 { 100.0 * part / whole } else { 100.0 };
    if percent < 0.1 {
        "under 0.1 %".to_owned()
    } else if percent < 10.0 {
        format!("{percent:.1} %").replace(".0 %", " %")
    } else {
        format!("{percent:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A healthy gateway, with changes.
    fn event(changes: Value) -> Value {
        let mut event = json!({
            "at_ms": 1_800_000_000_000_i64, "lifecycle": "ready", "generation": 3, "last_reload": null, "pinned": null,
            "store": { "shared": true, "up": true, "breaker": 0, "gateways": 2, "may_evict": false,
                "evicted_total": 0, "evicted_seconds_ago": null },
            "servers": { "count": 2, "unhealthy_count": 0, "unhealthy": [], "fail_open_count": 0, "fail_open": [] },
            "certificates": { "count": 1, "expiring_count": 0, "expiring": [] },
            "requests": { "per_second": 100, "failed_per_second": 0, "refused_per_second": 10 },
            "limits": { "count": 1, "list": [{ "limit": "per-ip" }] },
        });
        merge(&mut event, changes);
        event
    }

    fn merge(value: &mut Value, changes: Value) {
        match (value, changes) {
            (Value::Object(members), Value::Object(changes)) => {
                for (name, change) in changes {
                    merge(members.entry(name).or_insert(Value::Null), change);
                }
            }
            (value, change) => *value = change,
        }
    }

    #[test]
    fn each_problem_has_a_level_a_text_and_a_screen() {
        let down = json!({ "upstream": "app", "server": "http://10.0.0.1:3000", "state": "down" });
        let (day, now) = (86_400, 1_800_000_000);
        let certificate = |name: &str, not_after: i64| json!({ "name": name, "not_after": not_after });
        // Changes, and the problems in their order.
        let cases: Vec<(Value, Vec<&str>)> = vec![
            (json!({}), vec![]),
            (json!({ "requests": { "per_second": null, "refused_per_second": null } }), vec![]),
            (json!({ "requests": null }), vec![]),
            (
                json!({ "requests": { "refused_per_second": 60 } }),
                vec!["warn requests_refused 60 % of the requests are refused, most by the limit per-ip. #/limits"],
            ),
            (
                json!({ "requests": { "failed_per_second": 60 } }),
                vec!["bad requests_fail 60 % of the requests fail (status 500 or above). #/routes?order=-5xx"],
            ),
            (json!({ "requests": { "per_second": 0, "refused_per_second": 0 } }), vec![]),
            (
                json!({ "servers": { "unhealthy_count": 1, "unhealthy": [down] } }),
                vec!["warn servers_unhealthy 1 of 2 servers is not healthy: http://10.0.0.1:3000. #/upstreams"],
            ),
            (
                json!({ "servers": { "unhealthy_count": 1, "unhealthy": [down], "fail_open_count": 1, "fail_open": ["app"] },
                    "last_reload": { "result": "failure", "diagnostics_count": 2 }, "store": { "up": false } }),
                vec![
                    "bad store_down The limit store does not respond. #/limits",
                    "bad upstream_down No server is healthy in 1 upstream: app. #/upstreams",
                    "warn reload_failed The changed config was rejected (2 errors). Generation 3 stays active. #/config",
                ],
            ),
            (
                json!({ "last_reload": { "result": "unchanged" }, "unapplied": ["cannot listen"] }),
                vec![
                    "bad reload_incomplete The config is active, but not all of it: cannot listen. The gateway tries again \
                     every 10 seconds. #/config",
                ],
            ),
            (
                json!({ "certificates": { "expiring_count": 2, "expiring":
                    [certificate("old.example", now - day), certificate("new.example", now + 3 * day)] } }),
                vec![
                    "bad certificate_expired The certificate for old.example expired 1 d ago. #/tls",
                    "warn certificate_expires The certificate for new.example expires in 3 d. #/tls",
                ],
            ),
            (
                json!({ "store": { "evicted_total": 3, "evicted_seconds_ago": 599 } }),
                vec!["bad evictions Memory is full: 3 keys in use were evicted #/limits"],
            ),
            (json!({ "store": { "evicted_total": 3, "evicted_seconds_ago": 600 } }), vec![]),
            (json!({ "store": { "may_evict": true } }), vec!["warn store_may_evict Redis may evict #/limits"]),
            (
                json!({ "lost_usage": { "total": 1, "seconds_ago": 61 } }),
                vec!["warn lost_usage Usage by day is not complete: 1 decision could not be recorded #/limits"],
            ),
            (
                json!({ "lost_log_lines": { "total": 7, "seconds_ago": 5 } }),
                vec!["warn lost_log_lines Log lines are missing: 7 lines since the start, the last 5 s ago. #/now"],
            ),
            (json!({ "lost_log_lines": { "total": 7, "seconds_ago": 900 } }), vec![]),
            (json!({ "descriptors": { "open": 81, "max": 100 } }), vec!["warn descriptors 81 of 100 #/tls"]),
            (json!({ "descriptors": { "open": 96, "max": 100 } }), vec!["bad descriptors 96 of 100 #/tls"]),
            (json!({ "descriptors": { "open": 80, "max": null } }), vec![]),
            (
                json!({ "overrides": { "rejected": 1, "rejected_limits": ["daily"] } }),
                vec!["warn overrides_skipped 1 override has an error and is skipped (daily) #/limits"],
            ),
            (
                json!({ "overrides": { "rejected_set_rows": 2, "rejected_sets": ["bad"] } }),
                vec!["warn set_rows_skipped 2 rows of sets have errors and are skipped (bad) #/config"],
            ),
            (json!({ "lifecycle": "draining" }), vec!["warn draining The gateway is stopping #/now"]),
            (
                json!({ "pinned": 1 }),
                vec![
                    "warn pinned After a rollback, the config of generation 1 is active in place of the files. #/config",
                ],
            ),
            (
                json!({ "token_keys": [{ "section": "jwt.auth", "usable": false, "fault": "refused" }] }),
                vec!["bad token_keys The keys of [jwt.auth] are not current, so tokens are refused: refused. #/config"],
            ),
        ];
        for (changes, expected) in cases {
            let found = list_problems(&event(changes.clone()));
            assert_eq!(found.len(), expected.len(), "{changes}: {found:?}");
            for (problem, expected) in found.iter().zip(expected) {
                let text = |name: &str| problem[name].as_str().unwrap().to_owned();
                let (start, link) = expected.rsplit_once(' ').unwrap();
                let shown = format!("{} {} {}", text("level"), text("kind"), text("text"));
                assert!(shown.starts_with(start) && text("link") == link, "{problem} is not {expected}");
            }
        }
    }

    #[test]
    fn a_list_of_many_names_is_short() {
        let many: Vec<String> = (0..5000).map(|place| format!("{place}{}", "x".repeat(5000))).collect();
        let servers = json!({ "fail_open_count": 5000, "fail_open": many });
        let keys: Vec<Value> = many.iter().map(|name| json!({ "section": name, "fault": "f" })).collect();
        let found = list_problems(&event(json!({ "servers": servers, "token_keys": keys })));
        assert_eq!(found.len(), 1 + SINGLE_MAX);
        assert!(json!(found).to_string().len() < 2000);
    }
}
