//! Lists the last requests that limits refused, with the arithmetic of each refusal. Called by `pages`.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admin::limits::LimitsApi;
use crate::admin::limits::labels::DecidedBy;
use crate::admin::limits::requests::NamedValues;
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::{Config, percent_decode};
use crate::limiting::answer::{NEVER, Policy};
use crate::limiting::gateways::Gateways;
use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::usage::refusals::{RecordedRefusal, RefusedCheck};

/// Query of `GET /-/refusals`. Filters that are not set match every refusal.
struct RefusalsQuery {
    request_id: Option<String>,
    limit: Option<String>,
    /// As the access log shows it.
    key: Option<String>,
    route: Option<String>,
    n: usize,
}

const N_DEFAULT: usize = 20;
const N_MAX: usize = 200;

impl RefusalsQuery {
    fn parse(query: &str) -> Result<RefusalsQuery, Problem> {
        refuse_repeated(query, &[])?;
        let mut parameters = RefusalsQuery { request_id: None, limit: None, key: None, route: None, n: N_DEFAULT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value).and_then(|value| String::from_utf8(value).ok());
            let value = value.ok_or_else(|| bad_query("a value is not percent-encoded UTF-8"))?;
            match name {
                "request_id" if value.is_empty() => return Err(bad_query("`request_id` is empty")),
                "request_id" => parameters.request_id = Some(value),
                "limit" => parameters.limit = Some(value),
                "key" if value.is_empty() => {
                    return Err(bad_query("`key` is empty; the key of a limit without one is `all`"));
                }
                "key" => parameters.key = Some(value),
                "route" => parameters.route = Some(value),
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=N_MAX).contains(n));
                    parameters.n = n.ok_or_else(|| bad_query(format!("`n` is an integer from 1 to {N_MAX}")))?;
                }
                _ => return Err(bad_query("the parameters are `request_id`, `limit`, `key`, `route` and `n`")),
            }
        }
        Ok(parameters)
    }

    /// Returns whether a refusal matches: the limit and the key are those of one of its `checks`. `limit_of` and
    /// `key_of` read a check.
    fn matches<C>(
        &self,
        (request_id, route): (&str, &str),
        checks: &[C],
        limit_of: impl Fn(&C) -> &str,
        key_of: impl Fn(&C) -> Option<String>,
    ) -> bool {
        let is_of_limit = |check: &C| self.limit.as_deref().is_none_or(|name| name == limit_of(check));
        let is_of_key = |check: &C| {
            self.key.as_deref().is_none_or(|key| list_parts(&key_of(check).unwrap_or_default()).eq(list_parts(key)))
        };
        self.request_id.as_deref().is_none_or(|id| id == request_id)
            && self.route.as_deref().is_none_or(|name| name == route)
            && (self.limit.is_none() && self.key.is_none()
                || checks.iter().any(|check| is_of_limit(check) && is_of_key(check)))
    }
}

impl LimitsApi {
    /// Returns the newest refusals that match the query, the newest first: of this gateway, and of those that share
    /// the store.
    pub async fn list_refusals(&self, query: &str) -> Result<Value, Problem> {
        let mut query = RefusalsQuery::parse(query)?;
        let snapshot = self.current.load_full();
        let limit = query.limit.as_deref().and_then(|name| snapshot.config.limits.find(name));
        if let (Some(limit), Some(key)) = (limit, &query.key) {
            query.key = Some(respell_key(limit, key, &snapshot.config.admin.key_display));
        }
        let peers = self.read_peer_refusals().await;
        // A limit or route may have gone since its last refusal, so an unknown name is not an error.
        let list = self.top_effort.run_within(|| {
            let is_match = |refusal: &&RecordedRefusal| {
                let key_of = |check: &RefusedCheck| show_key(check, &snapshot.config.admin.key_display);
                let about = (&*refusal.request_id, &*refusal.route);
                query.matches(about, &refusal.checks, |check| &check.limit.name, key_of)
            };
            let log = self.usage.collect_refusals();
            let own =
                log.newest().filter(is_match).take(query.n).map(|refusal| self.describe(refusal, &snapshot.config));
            let of_peers = peers.refusals.iter().filter(|report| {
                let about = (report.request_id.as_deref().unwrap_or_default(), report.route.as_str());
                query.matches(about, &report.limits, |check| &check.limit, |check| check.key.clone())
            });
            merge_newest(own, of_peers, query.n)
        });
        let busy = "other requests for this list take too much time; try again";
        let refusals = list.ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, busy))?;
        Ok(json!({
            "refusals": refusals,
            "gateways": peers.count_gateways(),
            "keys_comparable": snapshot.config.admin.key_display.hasher.is_lasting,
        }))
    }

    /// Describes a refusal of this gateway.
    pub(super) fn describe(&self, refusal: &RecordedRefusal, config: &Config) -> RefusalReport {
        RefusalReport::of_refusal(refusal, &config.admin.key_display, self.link.gateways())
    }
}

/// A refused request, as the API describes it and as gateways that share a store tell it to each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusalReport {
    /// As in RFC 3339, with milliseconds.
    pub time: String,
    pub request_id: Option<String>,
    pub client: IpAddr,
    pub route: String,
    pub status: u16,
    /// Every limit that refused. Those in shadow mode come last.
    pub limits: Vec<CheckReport>,
    /// Name under which the gateway that refused reports to the store.
    #[serde(default)]
    pub gateway: String,
    /// Its name that operators see.
    pub host: String,
}

/// A limit that refused, by its settings at that time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckReport {
    pub limit: String,
    pub mode: String,
    pub reason: String,
    /// As the access log shows it.
    pub key: Option<String>,
    pub cost: Option<i64>,
    pub policy: Policy,
    /// The key has its own size, which is in `policy`.
    #[serde(rename = "override")]
    pub is_overridden: bool,
    /// `None` if the limit refused without a computation.
    #[serde(flatten)]
    pub answer: Option<AnswerReport>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnswerReport {
    pub remaining: i64,
    /// `None` if waiting does not help.
    pub retry_after_ms: Option<i64>,
    pub reset_ms: i64,
    pub source: String,
}

/// Returns the `n` newest refusals, the newest first.
pub(super) fn merge_newest<'p>(
    own: impl Iterator<Item = RefusalReport>,
    of_peers: impl Iterator<Item = &'p RefusalReport>,
    n: usize,
) -> Vec<RefusalReport> {
    let mut refusals: Vec<RefusalReport> = own.chain(of_peers.cloned()).collect();
    refusals.sort_by(|one, other| other.time.cmp(&one.time));
    refusals.truncate(n);
    refusals
}

impl RefusalReport {
    /// Describes a refusal of this gateway.
    fn of_refusal(refusal: &RecordedRefusal, display: &KeyDisplay, gateways: &Gateways) -> RefusalReport {
        RefusalReport {
            time: format_time(refusal.at_ms),
            request_id: Some(&*refusal.request_id).filter(|id| !id.is_empty()).map(str::to_owned),
            client: refusal.client,
            route: refusal.route.to_string(),
            status: refusal.status,
            limits: refusal.checks.iter().map(|check| CheckReport::of_check(check, display)).collect(),
            gateway: gateways.name().to_owned(),
            host: gateways.display_name(),
        }
    }

    /// Returns whether the time and the labels are such as gateways write: anybody who may write to the store could
    /// have written the report.
    pub fn is_valid(&self) -> bool {
        let is_valid = |check: &CheckReport| {
            let source = check.answer.as_ref().map(|answer| answer.source.as_str());
            Mode::LABELS.contains(&check.mode.as_str())
                && source.is_none_or(|source| DecidedBy::LABELS.contains(&source))
        };
        self.time.parse::<Timestamp>().is_ok() && self.limits.iter().all(is_valid)
    }
}

impl CheckReport {
    fn of_check(check: &RefusedCheck, display: &KeyDisplay) -> CheckReport {
        let limit = &check.limit;
        let policy = check.override_rule.as_ref().unwrap_or(&limit.rule).policy();
        let source = if check.why.is_local { DecidedBy::Local } else { DecidedBy::Store };
        CheckReport {
            limit: limit.name.clone(),
            mode: limit.mode.label().to_owned(),
            reason: check.why.reason.to_owned(),
            key: show_key(check, display),
            cost: check.cost,
            policy,
            is_overridden: check.override_rule.is_some() || check.why.is_blocked,
            answer: check.why.answer.map(|answer| AnswerReport {
                remaining: answer.remaining,
                retry_after_ms: Some(answer.retry_ms).filter(|ms| *ms != NEVER),
                reset_ms: answer.reset_ms,
                source: source.label().to_owned(),
            }),
        }
    }
}

/// Returns the key of a check as the access log shows it. `None` if the request had none.
fn show_key(check: &RefusedCheck, display: &KeyDisplay) -> Option<String> {
    let parts = Some(state_key_parts(&check.key)).filter(|parts| !parts.is_empty())?;
    Some(display.show_state_parts(check.limit.counted_key(), parts.split(',')))
}

/// Returns a key as refusals show it. They know only the digest of a long or unusual value, and the network of an
/// address.
/// A part that the config hides stays: all its values are shown as the same text.
fn respell_key(limit: &Limit, key: &str, display: &KeyDisplay) -> String {
    let parts = limit.counted_key().0.iter().filter(|part| **part != KeyPart::All);
    let texts = list_parts(key).zip(parts.map(Some).chain(std::iter::repeat(None)));
    let spellings = texts.map(|(text, part)| {
        part.and_then(|part| respell_part(limit, part, text, display)).unwrap_or_else(|| text.to_owned())
    });
    spellings.collect::<Vec<_>>().join(",")
}

fn respell_part(limit: &Limit, part: &KeyPart, text: &str, display: &KeyDisplay) -> Option<String> {
    if display.hides_any(part.sources().iter()) {
        return None;
    }
    let value = percent_decode(text.strip_prefix(part.state_name().as_str())?.strip_prefix('=')?)?;
    let values = NamedValues::of_source(limit, part.sources().first()?, value).ok()?;
    let names = part.part_names(&values, limit.repeated).ok().filter(|names| names.value.is_some())?;
    Some(display.show_state_part(part, &names.state))
}

/// Returns the parts of a shown key that have a value.
fn list_parts(key: &str) -> impl Iterator<Item = &str> {
    key.split(',').filter(|part| *part != "all" && !part.is_empty())
}

/// Formats a time in ms since 1970, with milliseconds.
fn format_time(at_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(at_ms).unwrap_or(0));
    Timestamp::try_from(UNIX_EPOCH + since).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}
