//! Everything that the limits know about one customer: one value of a source, such as `ip=203.0.113.9`. Called by
//! `pages`.
//!
//! A limit whose whole key is this source is asked directly. Of a limit with further key parts, the store cannot list
//! the keys of the customer: those that the gateway remembers are asked, from the decisions of the last ten minutes and
//! the last refusals. The answer names the limits of which that may be incomplete. The work is bounded however many
//! limits and keys there are.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::task::yield_now;

use crate::admin::limits::decide::fixed_cost;
use crate::admin::limits::peer_refusals::PeerRefusals;
use crate::admin::limits::refusals::{RefusalReport, merge_newest};
use crate::admin::limits::requests::{CUSTOMER_FORMS, GivenHash, NamedValues, refuse_part_text};
use crate::admin::limits::state::{describe_override_of, read_state};
use crate::admin::limits::{LIMITS_PER_CALL, LimitsApi, requests};
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::admin_tokens::Role;
use crate::config::{Config, find_closest, percent_decode};
use crate::limiting::Limiter;
use crate::limiting::decision::ErrorKind;
use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::{KeyDisplay, KeyHash};
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::Limit;
use crate::limiting::source::Source;
use crate::limiting::usage::history::UsageHistory;
use crate::limiting::usage::refusals::RecordedRefusal;
use crate::limiting::usage::{KeyOutcome, hash_key};

/// Query of `GET /-/customers`.
struct CustomerQuery {
    source: String,
    value: GivenCustomer,
    n: usize,
}

enum GivenCustomer {
    Value(Vec<u8>),
    /// A value as clients send it, whatever it looks like.
    Literal(Vec<u8>),
    Hash(GivenHash),
}

/// The value that keys of the customer have.
enum CustomerValue {
    Bytes(Vec<u8>),
    /// The digest that state keys have instead of a long or unusual value.
    Digest(String),
}

/// A key of the customer.
struct CustomerKey {
    limit: Arc<Limit>,
    /// The key as its state key has it, `NAME=VALUE,...`.
    parts: String,
    values: NamedValues,
    /// How often it was refused recently: at least, and at most.
    refused: (u64, u64),
}

/// A limit with a part of its key that has the value of the customer.
struct MatchingLimit<'c> {
    limit: &'c Arc<Limit>,
    /// Index of the part in the counted key.
    index: usize,
    /// The part as in state keys, `NAME=VALUE`.
    state: String,
}

/// Maximum number of limits that are asked.
const LIMITS_MAX: usize = 1000;
/// Maximum number of remembered keys that are asked, of one limit and of all.
const KEYS_PER_LIMIT: usize = 20;
const KEYS_MAX: usize = 200;
/// Number of names in `incomplete`.
const NAMES_MAX: usize = 100;
const N_DEFAULT: usize = 20;
const N_MAX: usize = 200;

impl CustomerQuery {
    fn parse(query: &str) -> Result<CustomerQuery, Problem> {
        refuse_repeated(query, &[])?;
        let (mut source, mut value, mut n) = (None, None, N_DEFAULT);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
            let bytes = percent_decode(text).ok_or_else(|| bad_query(format!("`{name}` is not percent-encoded")))?;
            let text = str::from_utf8(&bytes).ok();
            match name {
                "source" => source = text.filter(|text| !text.is_empty()).map(str::to_owned),
                "value" if value.is_none() => value = Some(GivenCustomer::Value(bytes)),
                "literal" if value.is_none() => value = Some(GivenCustomer::Literal(bytes)),
                "hash" if value.is_none() => {
                    let digits = text.map(|text| text.rsplit_once('#').map_or(text, |(_, digits)| digits));
                    let hash = digits.and_then(|digits| GivenHash::parse("", digits));
                    let help = "`hash` has 16 digits from 0 to 9 and a to f, as in the log, or 32 as in a usage report";
                    value = Some(GivenCustomer::Hash(hash.ok_or_else(|| bad_query(help))?));
                }
                "value" | "literal" | "hash" => return Err(bad_query("write one of `value`, `literal` and `hash`")),
                "n" => {
                    let n_given = text.and_then(|text| text.parse().ok()).filter(|n| (1..=N_MAX).contains(n));
                    n = n_given.ok_or_else(|| bad_query(format!("`n` is an integer from 1 to {N_MAX}")))?;
                }
                _ => return Err(bad_query("the parameters are `source`, `value`, `literal`, `hash` and `n`")),
            }
        }
        let missing = "write a source and its value: `source=ip&value=203.0.113.9`";
        let (Some(source), Some(value)) = (source, value) else { return Err(bad_query(missing)) };
        Ok(CustomerQuery { source, value, n })
    }
}

impl LimitsApi {
    /// Returns what the limits know about one value of a source, for a caller with this role; changes nothing.
    pub async fn show_customer(&self, query: &str, role: Role) -> Result<Value, Problem> {
        let CustomerQuery { source: given, value, n } = CustomerQuery::parse(query)?;
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        let limiter = self.link.limiter();
        self.live.catch_up(config, &self.link.store()).await;
        // A log shows parts by the name that they have in state keys, which may be longer than that of the source.
        let parts = || config.limits.iter().flat_map(|limit| &limit.counted_key().0);
        let named_part = parts().find(|part| part.state_name() == given);
        let source =
            named_part.and_then(|part| part.sources().first()).map_or_else(|| given.clone(), ToString::to_string);
        let mut limits: Vec<(&Arc<Limit>, &KeyPart)> = config
            .limits
            .iter()
            .filter_map(|limit| Some((limit, limit.counted_key().0.iter().find(|part| has_source(part, &source))?)))
            .collect();
        if limits.is_empty() {
            return Err(self.describe_unused(config, &source));
        }
        let is_plain = matches!(value, GivenCustomer::Value(_));
        let value = match value {
            GivenCustomer::Value(value) | GivenCustomer::Literal(value) => CustomerValue::Bytes(value),
            GivenCustomer::Hash(GivenHash::Digest(digits)) => CustomerValue::Digest(digits),
            GivenCustomer::Hash(GivenHash::Shown(hash)) => {
                self.find_value(config, &limiter, named_part.unwrap_or(limits[0].1), hash).await?
            }
        };
        // The list omits everything that would confirm a guess of a hidden value.
        let limit_count = limits.len();
        if !role.includes(Role::Limits) {
            limits.retain(|(limit, _)| !config.admin.key_display.hides_any(limit.sources()));
        }
        let hidden = limit_count - limits.len();
        let left_out = limits.len().saturating_sub(LIMITS_MAX);
        limits.truncate(LIMITS_MAX);
        if let CustomerValue::Bytes(value) = &value
            && is_plain
        {
            let refuse = |why: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("`value`: {why}"));
            limits.iter().try_for_each(|(_, part)| refuse_part_text(part, value, &CUSTOMER_FORMS)).map_err(refuse)?;
        }
        let limits = match_limits(limits, &source, &value)?;
        yield_now().await;
        let busy = || {
            let detail = "other requests for this list take too much time; try again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        };
        let peers = self.read_peer_refusals().await;
        let listing = self.top_effort.run_within(|| self.find_keys(&limits, (&source, &value), (n, &peers), config));
        let FoundKeys { keys, incomplete, refusals } = listing.ok_or_else(busy)?;
        let (mut items, mut fault) = (Vec::with_capacity(keys.len()), None);
        for keys in keys.chunks(LIMITS_PER_CALL) {
            for (item, error) in join_all(keys.iter().map(|key| describe_key(&limiter, key, config))).await {
                items.push(item);
                fault = fault.or(error);
            }
            yield_now().await;
        }
        Ok(json!({
            "source": given,
            "limits": items,
            "refusals": refusals,
            "gateways": peers.count_gateways(),
            "keys_comparable": config.admin.key_display.hasher.is_lasting,
            "incomplete": incomplete.iter().take(NAMES_MAX).collect::<Vec<_>>(),
            "incomplete_total": incomplete.len(),
            "limits_left_out": left_out,
            "limits_hidden": hidden,
            "store_fault": fault.map(|kind| kind.label()),
        }))
    }

    /// Finds the value of a hash from a log.
    async fn find_value(
        &self,
        config: &Config,
        limiter: &Limiter,
        part: &KeyPart,
        hash: KeyHash,
    ) -> Result<CustomerValue, Problem> {
        let mut values = NamedValues::default();
        values.hashed.push((part.state_name(), hash));
        self.hashes.find_values(limiter, (config, &self.usage), vec![&mut values]).await?;
        let state = values.found.first().map(|(_, state)| state.as_str()).unwrap_or_default();
        Ok(match state.strip_prefix('#') {
            Some(digits) => CustomerValue::Digest(digits.to_owned()),
            None => CustomerValue::Bytes(state.trim_start_matches('=').as_bytes().to_vec()),
        })
    }

    /// Lists the keys of the customer and its last refusals.
    fn find_keys(
        &self,
        limits: &[MatchingLimit<'_>],
        (source, value): (&str, &CustomerValue),
        (n, peers): (usize, &PeerRefusals),
        config: &Config,
    ) -> FoundKeys {
        let history = self.usage.collect();
        let log = self.usage.collect_refusals();
        let by_id: HashMap<u64, &MatchingLimit> =
            limits.iter().map(|matching| (matching.limit.store_ref.id, matching)).collect();
        let keys_of = |refusal: &RecordedRefusal| {
            let keys = refusal.checks.iter().filter_map(|check| {
                let (id, parts) = (check.limit.store_ref.id, state_key_parts(&check.key));
                by_id.get(&id).filter(|matching| matching.is_in(parts)).map(|_| (id, parts.to_owned()))
            });
            keys.collect::<Vec<_>>()
        };
        let mut keys_by_limit: HashMap<u64, BTreeSet<String>> = HashMap::new();
        for (id, parts) in log.newest().flat_map(keys_of) {
            let known = keys_by_limit.entry(id).or_default();
            if known.len() < KEYS_PER_LIMIT {
                known.insert(parts);
            }
        }
        let (mut keys, mut incomplete, mut remembered) = (Vec::new(), Vec::new(), 0);
        for matching in limits {
            let limit = matching.limit;
            if limit.counted_key().0.len() == 1 {
                keys.push(CustomerKey::new(&history, limit, matching.state.clone()));
                continue;
            }
            incomplete.push(limit.name.clone());
            for parts in
                matching.remembered_keys(&history, keys_by_limit.remove(&limit.store_ref.id).unwrap_or_default())
            {
                if remembered < KEYS_MAX {
                    remembered += 1;
                    keys.push(CustomerKey::new(&history, limit, parts));
                }
            }
        }
        let address = match value {
            CustomerValue::Bytes(value) => str::from_utf8(value).ok().and_then(|text| text.parse::<IpAddr>().ok()),
            CustomerValue::Digest(_) => None,
        };
        let address = address.filter(|_| source == "ip" || source.starts_with("ip/"));
        let is_of_customer =
            |refusal: &&RecordedRefusal| address == Some(refusal.client) || !keys_of(refusal).is_empty();
        let own = log.newest().filter(is_of_customer).take(n).map(|refusal| self.describe(refusal, config));
        let display = &config.admin.key_display;
        let shown_parts: HashMap<&str, (usize, String)> =
            limits.iter().map(|matching| (matching.limit.name.as_str(), matching.show_part(display))).collect();
        let of_peers = peers.refusals.iter().filter(|report| {
            let has_key = |(limit, key): (&str, &str)| {
                let shown = shown_parts.get(limit);
                shown.is_some_and(|(index, part)| key.split(',').nth(*index) == Some(part))
            };
            let keys = report.limits.iter().filter_map(|check| Some((check.limit.as_str(), check.key.as_deref()?)));
            address == Some(report.client) || keys.into_iter().any(has_key)
        });
        FoundKeys { keys, incomplete, refusals: merge_newest(own, of_peers, n) }
    }

    fn describe_unused(&self, config: &Config, source: &str) -> Problem {
        let names: BTreeSet<String> = config
            .limits
            .iter()
            .flat_map(|limit| &limit.counted_key().0)
            .flat_map(KeyPart::sources)
            .map(|source| if matches!(source, Source::Ip(_)) { "ip".to_owned() } else { source.to_string() })
            .collect();
        let close = self.hints.run_within(|| find_closest(source, names.iter().map(String::as_str)).map(str::to_owned));
        let help = match close.flatten() {
            Some(close) => format!("did you mean `{close}`?"),
            None if names.is_empty() => "no limit has a key".to_owned(),
            None => format!("there are {}", names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ")),
        };
        Problem::new(StatusCode::NOT_FOUND, format!("no limit is keyed by `{source}`; {help}"))
    }
}

/// Result of the search in what the gateway remembers.
struct FoundKeys {
    keys: Vec<CustomerKey>,
    /// Limits of which the customer may have more keys.
    incomplete: Vec<String>,
    refusals: Vec<RefusalReport>,
}

/// Returns whether the part reads this source. `ip` means every prefix length.
fn has_source(part: &KeyPart, source: &str) -> bool {
    part.find_source(source).is_some()
}

/// Computes the part of each key, normalized as in requests. Tiers that do not count the address are left out.
fn match_limits<'c>(
    limits: Vec<(&'c Arc<Limit>, &KeyPart)>,
    source: &str,
    value: &CustomerValue,
) -> Result<Vec<MatchingLimit<'c>>, Problem> {
    let mut matching = Vec::with_capacity(limits.len());
    for (limit, part) in limits {
        let Some(source) = part.find_source(source) else { continue };
        let state = match value {
            CustomerValue::Digest(digits) => Some(format!("{}#{digits}", part.state_name())),
            CustomerValue::Bytes(value) => {
                let refuse = |why: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("`value`: {why}"));
                let values = NamedValues::of_source(limit, source, value.clone()).map_err(refuse)?;
                let names = part.part_names(&values, limit.repeated).ok().filter(|names| names.value.is_some());
                names.filter(|_| !limit.is_tier_without(&values)).map(|names| names.state)
            }
        };
        let index = limit.counted_key().0.iter().position(|other| other == part);
        if let (Some(state), Some(index)) = (state, index) {
            matching.push(MatchingLimit { limit, index, state });
        }
    }
    Ok(matching)
}

impl MatchingLimit<'_> {
    /// Returns whether a key, as its state key has it, has the value of the customer.
    fn is_in(&self, parts: &str) -> bool {
        parts.split(',').nth(self.index) == Some(self.state.as_str())
    }

    /// Returns the index of the part, and the part as logs show it. A hidden part is shown as a text that equals none.
    fn show_part(&self, display: &KeyDisplay) -> (usize, String) {
        let part = self.limit.counted_key().0.get(self.index);
        let shown = part
            .map(|part| display.show_state_part(part, &self.state))
            .filter(|_| !display.hides_any(part.into_iter().flat_map(KeyPart::sources)));
        (self.index, shown.unwrap_or_default())
    }

    /// Returns the keys of the customer that the gateway remembers. `refused` are the keys of the last refusals.
    fn remembered_keys(&self, history: &UsageHistory, refused: BTreeSet<String>) -> BTreeSet<String> {
        let mut keys = refused;
        history.visit_keys(self.limit.store_ref.id, |parts| {
            if keys.len() < KEYS_PER_LIMIT && self.is_in(parts) && !keys.contains(parts) {
                keys.insert(parts.to_owned());
            }
        });
        keys
    }
}

impl CustomerKey {
    fn new(history: &UsageHistory, limit: &Arc<Limit>, parts: String) -> CustomerKey {
        let values = NamedValues::from_state(limit, &parts);
        let refusals = history.count_key(limit.store_ref.id, KeyOutcome::over(limit), hash_key(&parts));
        CustomerKey { limit: limit.clone(), parts, values, refused: refusals }
    }
}

/// Describes a key and what it has left. The second value is why the store did not answer.
async fn describe_key(limiter: &Limiter, key: &CustomerKey, config: &Config) -> (Value, Option<ErrorKind>) {
    let limit = &key.limit;
    let display = &config.admin.key_display;
    let mut item = json!({
        "limit": limit.name,
        "key": display.show_state_parts(limit.counted_key(), key.parts.split(',')),
        "mode": limit.mode.label(),
        "outcome": KeyOutcome::over(limit).label(),
        "refused_min": key.refused.0,
        "refused_max": key.refused.1,
        "override": describe_override_of(limit, &key.values),
    });
    let Ok((check, instead)) = requests::build_check(limiter, limit, &key.values, fixed_cost(limit)) else {
        return (item, None);
    };
    match read_state(limiter, (limit, &key.values), check, instead).await {
        Ok(mut state) => {
            if let (Some(quota), Some(left)) = (state["policy"]["quota"].as_i64(), state["remaining"].as_i64()) {
                state["used"] = (quota - left).max(0).into();
            }
            if let (Some(item), Value::Object(state)) = (item.as_object_mut(), state) {
                item.extend(state);
            }
            (item, None)
        }
        Err(kind) => (item, Some(kind)),
    }
}
