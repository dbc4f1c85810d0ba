//! Lists the last requests that limits refused, with the arithmetic of each refusal. Called by `pages`.

use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::limits::LimitsApi;
use crate::admin::limits::labels::DecidedBy;
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::percent_decode;
use crate::limiting::answer::NEVER;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::usage::refusals::{RecordedRefusal, RefusedCheck};

/// Query of `GET /-/refusals`. Filters that are not set match every refusal.
struct RefusalsQuery {
    request_id: Option<String>,
    limit: Option<String>,
    route: Option<String>,
    n: usize,
}

const N_DEFAULT: usize = 20;
const N_MAX: usize = 200;

impl RefusalsQuery {
    fn parse(query: &str) -> Result<RefusalsQuery, Problem> {
        refuse_repeated(query, &[])?;
        let mut parameters = RefusalsQuery { request_id: None, limit: None, route: None, n: N_DEFAULT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value).and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| bad_query("a value is not percent-encoded UTF-8"))?;
            match name {
                "request_id" if value.is_empty() => return Err(bad_query("`request_id` is empty")),
                "request_id" => parameters.request_id = Some(value),
                "limit" => parameters.limit = Some(value),
                "route" => parameters.route = Some(value),
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=N_MAX).contains(n));
                    parameters.n = n.ok_or_else(|| bad_query(format!("`n` is an integer from 1 to {N_MAX}")))?;
                }
                _ => return Err(bad_query("the parameters are `request_id`, `limit`, `route` and `n`")),
            }
        }
        Ok(parameters)
    }

    fn matches(&self, refusal: &RecordedRefusal) -> bool {
        self.request_id.as_ref().is_none_or(|id| **id == *refusal.request_id)
            && self.route.as_ref().is_none_or(|route| **route == *refusal.route)
            && self.limit.as_ref().is_none_or(|name| refusal.checks.iter().any(|check| check.limit.name == *name))
    }
}

impl LimitsApi {
    /// Returns the newest refusals that match the query, the newest first.
    pub fn list_refusals(&self, query: &str) -> Result<Value, Problem> {
        let query = RefusalsQuery::parse(query)?;
        let snapshot = self.current.load();
        // A limit or route may have gone since its last refusal, so an unknown name is no error.
        let display = &snapshot.config.admin.key_display;
        let list = self.top_effort.run_within(|| {
            let log = self.usage.collect_refusals();
            let refusals = log.newest().filter(|refusal| query.matches(refusal));
            refusals.take(query.n).map(|refusal| describe_refusal(refusal, display)).collect::<Vec<_>>()
        });
        let busy = "other requests for this list take too much time; try again";
        let refusals = list.ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, busy))?;
        Ok(json!({ "refusals": refusals }))
    }
}

pub fn describe_refusal(refusal: &RecordedRefusal, display: &KeyDisplay) -> Value {
    let checks: Vec<Value> = refusal.checks.iter().map(|check| describe_check(check, display)).collect();
    json!({
        "time": format_time(refusal.at_ms),
        "request_id": Some(&*refusal.request_id).filter(|id| !id.is_empty()),
        "client": refusal.client.to_string(),
        "route": &*refusal.route,
        "status": refusal.status,
        "limits": checks,
    })
}

/// Describes a limit that refused, by its settings at that time.
fn describe_check(check: &RefusedCheck, display: &KeyDisplay) -> Value {
    let limit = &check.limit;
    let policy = check.override_rule.as_ref().unwrap_or(&limit.rule).policy();
    let parts = Some(state_key_parts(&check.key)).filter(|parts| !parts.is_empty());
    let mut value = json!({
        "limit": limit.name,
        "mode": limit.mode.label(),
        "reason": check.why.reason,
        "key": parts.map(|parts| display.show_state_parts(limit.counted_key(), parts.split(','))),
        "cost": check.cost,
        "policy": { "quota": policy.quota, "window_ms": policy.window_ms },
        "override": check.override_rule.is_some() || check.why.is_blocked,
    });
    if let Some(answer) = &check.why.answer {
        value["remaining"] = answer.remaining.into();
        value["retry_after_ms"] = if answer.retry_ms == NEVER { Value::Null } else { answer.retry_ms.into() };
        value["reset_ms"] = answer.reset_ms.into();
        value["source"] = if check.why.is_local { DecidedBy::Local } else { DecidedBy::Store }.label().into();
    }
    value
}

/// Formats a time in ms since 1970, with milliseconds.
fn format_time(at_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(at_ms).unwrap_or(0));
    jiff::Timestamp::try_from(UNIX_EPOCH + since).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}
