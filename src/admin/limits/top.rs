//! Lists the keys that limits refused or admitted most often in recent time. Called by `pages`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::limits::decide::fixed_cost;
use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::state::lacks_rate;
use crate::admin::limits::store_check::run_check;
use crate::admin::limits::{LimitsApi, requests};
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::percent_decode;
use crate::labels::Label;
use crate::limiting::Limiter;
use crate::limiting::decision::Op;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::usage::KeyOutcome;
use crate::limiting::usage::history::{UsageWindow, WindowUsage};
use crate::limiting::usage::refusals::RecordedRefusal;

/// Query of `GET /-/top`.
struct TopQuery {
    /// `None`: all limits.
    limit: Option<String>,
    by: KeyOutcome,
    window: UsageWindow,
    n: usize,
}

/// A key of the list.
struct TopKey<'a> {
    limit: &'a Arc<Limit>,
    /// The key as its state key has it, `NAME=VALUE,...`.
    parts: String,
    /// How many of the last refusals of the key each route had.
    routes: BTreeMap<String, u64>,
    value: Value,
    count: u64,
}

const N_DEFAULT: usize = 10;
const N_MAX: usize = 100;
/// Maximum number of routes listed for a key.
const ROUTES_MAX: usize = 5;

impl TopQuery {
    fn parse(query: &str) -> Result<TopQuery, Problem> {
        refuse_repeated(query, &[])?;
        let mut parameters =
            TopQuery { limit: None, by: KeyOutcome::Refused, window: UsageWindow::Minute, n: N_DEFAULT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value).and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| bad_query(format!("`{name}` is not percent-encoded UTF-8")))?;
            match name {
                "limit" => parameters.limit = Some(value),
                "by" => parameters.by = parse_label(name, &value, KeyOutcome::ALL)?,
                "window" => parameters.window = parse_label(name, &value, UsageWindow::ALL)?,
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=N_MAX).contains(n));
                    parameters.n = n.ok_or_else(|| bad_query(format!("`n` is an integer from 1 to {N_MAX}")))?;
                }
                _ => {
                    let help = "there are `limit`, `by`, `window` and `n`";
                    return Err(bad_query(format!("unknown parameter `{name}`; {help}")));
                }
            }
        }
        Ok(parameters)
    }
}

fn parse_label<T: Label>(name: &str, value: &str, all: &[T]) -> Result<T, Problem> {
    let item = all.iter().find(|item| item.label() == value).copied();
    item.ok_or_else(|| {
        let labels: Vec<&str> = all.iter().map(|item| item.label()).collect();
        bad_query(format!("`{name}` is one of {}", labels.join(", ")))
    })
}

impl LimitsApi {
    /// Returns the keys of one limit, or of all, that were refused or admitted most often.
    pub async fn list_top(&self, query: &str) -> Result<Value, Problem> {
        let query = TopQuery::parse(query)?;
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        let limits: Vec<&Arc<Limit>> = match &query.limit {
            Some(name) => vec![self.find_limit(config, name)?],
            None => config.limits.iter().collect(),
        };
        let display = &config.admin.key_display;
        let list = self.top_effort.run_within(|| self.list_keys(limits, &query, display));
        let busy = "other requests for this list take too much time; try again";
        let (keys, sums) = list.ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, busy))?;
        let limiter = self.link.limiter();
        let keys =
            join_all(keys.into_iter().map(|key| add_state(&limiter, key, query.by == KeyOutcome::Refused))).await;
        Ok(json!({ "by": query.by.label(), "window": query.window.label(), "limits": sums, "keys": keys }))
    }

    /// Lists the `n` keys that were refused most in the last minute; none while the list takes too much time.
    pub fn list_refused(&self, n: usize) -> Vec<Value> {
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        let query = TopQuery { limit: None, by: KeyOutcome::Refused, window: UsageWindow::Minute, n };
        let list = || self.list_keys(config.limits.iter().collect(), &query, &config.admin.key_display).0;
        let keys = self.top_effort.run_within(list).unwrap_or_default();
        keys.into_iter().map(|key| key.value).collect()
    }

    /// Lists the `n` keys with the largest counts, of the `n` of `limits` with the most decisions, and describes these
    /// limits.
    fn list_keys<'l>(
        &self,
        mut limits: Vec<&'l Arc<Limit>>,
        query: &TopQuery,
        display: &KeyDisplay,
    ) -> (Vec<TopKey<'l>>, Vec<Value>) {
        let TopQuery { ref limit, by, window, n } = *query;
        let history = self.usage.collect();
        let (totals, now) = (history.totals(window), Instant::now());
        let total = |limit: &Limit| totals.get(&limit.store_ref.id).map_or(0, |sums| sums[by as usize]);
        if limit.is_none() {
            let is_tried = |sums: &[u64; KeyOutcome::ALL.len()]| {
                [KeyOutcome::WouldRefuse, KeyOutcome::WouldAdmit].iter().any(|would| sums[*would as usize] > 0)
            };
            limits.retain(|limit| total(limit) > 0 || totals.get(&limit.store_ref.id).is_some_and(is_tried));
            limits.sort_by_key(|limit| Reverse(total(limit)));
            limits.truncate(n);
        }
        let (mut keys, mut sums) = (Vec::new(), Vec::new());
        for limit in limits {
            let usage = history.find_usage(limit.store_ref.id, by, window, now);
            sums.push(describe_usage(limit, &usage, totals.get(&limit.store_ref.id).copied().unwrap_or_default()));
            keys.extend(list_limit_keys(limit, &usage, n, now, display));
        }
        keys.sort_by_key(|key| Reverse(key.count));
        keys.truncate(n);
        if by == KeyOutcome::Refused {
            count_routes(&mut keys, self.usage.collect_refusals().newest());
        }
        (keys, sums)
    }
}

/// Describes all decisions of a limit with one outcome.
fn describe_usage(limit: &Limit, found: &WindowUsage, totals: [u64; KeyOutcome::ALL.len()]) -> Value {
    let (distinct, is_exact) = found.usage.distinct.estimate_count();
    let mut usage = json!({
        "limit": limit.name,
        "seconds": found.covered.as_secs(),
        "total": found.usage.total,
        "distinct": distinct,
        "distinct_is_exact": is_exact,
        "error_max": found.usage.frequent.missed,
    });
    for (outcome, total) in KeyOutcome::ALL.iter().zip(totals) {
        usage[outcome.label()] = total.into();
    }
    usage
}

/// Counts over which routes the keys were refused, among the last refusals of all limits.
fn count_routes<'r>(keys: &mut [TopKey<'_>], refusals: impl Iterator<Item = &'r RecordedRefusal>) {
    let mut places: HashMap<(u64, &str), BTreeMap<&str, u64>> = HashMap::new();
    for refusal in refusals {
        for check in refusal.checks.iter().filter(|check| check.limit.mode == Mode::Enforce) {
            let routes = places.entry((check.limit.store_ref.id, state_key_parts(&check.key))).or_default();
            *routes.entry(&refusal.route).or_default() += 1;
        }
    }
    for key in keys {
        if let Some(routes) = places.get(&(key.limit.store_ref.id, key.parts.as_str())) {
            key.routes = routes.iter().map(|(route, count)| ((*route).to_owned(), *count)).collect();
        }
    }
}

fn list_limit_keys<'a>(
    limit: &'a Arc<Limit>,
    found: &WindowUsage,
    n: usize,
    now: Instant,
    display: &KeyDisplay,
) -> Vec<TopKey<'a>> {
    let frequent = &found.usage.frequent;
    let top = frequent.list_top(n).into_iter().map(|(hash, parts, count)| TopKey {
        limit,
        parts: parts.to_owned(),
        routes: BTreeMap::new(),
        value: json!({
            "limit": limit.name,
            "key": display.show_state_parts(limit.counted_key(), parts.split(',')),
            "count_min": count,
            "count_max": count + frequent.missed,
            "share": divide(count, found.usage.total),
            "last_seen_seconds": found.last_seen(hash, now).map(|ago| ago.as_secs()),
        }),
        count,
    });
    top.collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share of counts, rounded to four digits")]
fn divide(count: u64, total: u64) -> f64 {
    (count as f64 / total.max(1) as f64 * 10_000.0).round() / 10_000.0
}

/// Adds what is left for the key now. Without an answer of the store, these members are absent.
async fn add_state(limiter: &Limiter, mut key: TopKey<'_>, lists_routes: bool) -> Value {
    if lists_routes {
        let mut counts: Vec<(&String, &u64)> = key.routes.iter().collect();
        counts.sort_by_key(|(_, count)| Reverse(**count));
        let most = counts.iter().take(ROUTES_MAX);
        key.value["routes"] = most.map(|(route, count)| json!({ "route": route, "count": count })).collect();
    }
    let values = NamedValues::from_state(key.limit, &key.parts);
    let Ok((check, instead)) = requests::build_check(limiter, key.limit, &values, fixed_cost(key.limit)) else {
        return key.value;
    };
    if lacks_rate(key.limit, &values) {
        key.value["rate_not_known"] = true.into();
    } else if instead.is_some() {
        key.value["override"] = true.into();
    } else if let Ok(answer) = run_check(limiter, Op::Peek, check).await {
        key.value["remaining"] = answer.remaining.into();
        key.value["retry_after_ms"] = if answer.admitted { 0 } else { answer.retry_ms }.into();
    }
    key.value
}
