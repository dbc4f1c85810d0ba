//! Parses the bodies and queries of requests about limits, and checks them against the config. `part_text` recognizes
//! hashes, and texts that are not values. Called by `mod.rs` of `limits`.
//!
//! Input: a body or a query, and the config. Output: the values of keys by source (`NamedValues`) and what to do with
//! them, or a problem that names each error with its place. To add a parameter or a member, parse it here, and describe
//! it in `admin/openapi`.

mod part_text;

use std::sync::Arc;

use http::StatusCode;

use crate::admin::cached::TimeBudget;
use crate::admin::limits::json::{Faults, JsonNode, parse_body};
use crate::admin::limits::requests::part_text::OtherForms;
use crate::admin::problem::Problem;
use crate::config::{Config, find_closest, percent_decode};
use crate::limiting::decision::{Check, Op};
use crate::limiting::integers::COST_MAX;
use crate::limiting::key::KeyPart;
use crate::limiting::key::SourceValues;
use crate::limiting::key::shown_key::KeyHash;
use crate::limiting::limit::Limit;
use crate::limiting::receipts::Receipt;
use crate::limiting::source::{Ambiguous, Repeated, Source, SourceValue};
use crate::limiting::{Limiter, Outcome};

pub use crate::admin::limits::requests::part_text::{GivenHash, refuse_part_text};

/// Body of `POST /-/decide`.
pub struct DecideBody {
    pub op: Op,
    pub decisions: Vec<DecisionRequest>,
}

/// Limits that are decided together: all of them are charged or none.
pub struct DecisionRequest {
    pub limits: Vec<Arc<Limit>>,
    pub parts: NamedValues,
    pub cost: Option<i64>,
}

pub enum Refund {
    Receipt(Receipt),
    Units { parts: NamedValues, cost: i64 },
}

/// Values of a key's sources, by source name, and hashes of parts.
#[derive(Default)]
pub struct NamedValues {
    given: Vec<(String, SourceValue<'static>)>,
    /// Hashes from a log that the caller gave instead of values. Each has the name of its part in state keys.
    pub hashed: Vec<(String, KeyHash)>,
    /// Contents of state keys for these parts, which `hashed` looks up.
    pub found: Vec<(String, String)>,
    /// The query names a tenant that shares the budget.
    pub has_tenant: bool,
}

/// One value of a query or body.
enum GivenValue {
    Bytes(Vec<u8>),
    /// A value as clients send it, whatever it looks like.
    Literal(Vec<u8>),
    Hash(GivenHash),
}

/// Names of the parameters of a query for a value, its hash, and a value that may look like a part of a key.
struct ValueParameters {
    plain: &'static str,
    hash: &'static str,
    forms: OtherForms,
}

const DECISIONS_MAX: usize = 1000;
/// Maximum number of limits per decision, the same as on a route.
const LIMITS_MAX: usize = 16;
/// Number of byte pairs compared to find the limit that an unknown name probably means: about ten milliseconds.
const COMPARED_MAX: usize = 1_000_000;
/// Number of limits that a message lists.
const NAMES_MAX: usize = 10;
/// Maximum length of a value in bytes, the same as of a request header.
const VALUE_MAX: usize = 8 * 1024;
const HASH_HELP: &str = "a hash has 16 digits from 0 to 9 and a to f, as in the log";
/// The help for a hash in a query. Clients do not send what follows a plain `#` in a URL.
const QUERY_HASH_HELP: &str =
    "a hash has 16 digits from 0 to 9 and a to f, as in the log; write only these digits, or %23 for `#`";

const KEY_PARAMETERS: ValueParameters =
    ValueParameters { plain: "key", hash: "hash", forms: OtherForms { hash: ["hash=", ""], literal: "literal" } };
const TENANT_PARAMETERS: ValueParameters = ValueParameters {
    plain: "tenant",
    hash: "tenant_hash",
    forms: OtherForms { hash: ["tenant_hash=", ""], literal: "tenant_literal" },
};
/// Forms of a value in a query about a customer.
pub const CUSTOMER_FORMS: OtherForms = OtherForms { hash: ["hash=", ""], literal: "literal" };
const BODY_FORMS: OtherForms = OtherForms { hash: ["{\"hash\": \"", "\"}"], literal: "{\"percent\": TEXT}" };

impl SourceValues for NamedValues {
    /// Each source occurs only once.
    fn value(&self, source: &Source, _: Repeated) -> Result<Option<SourceValue<'_>>, Ambiguous> {
        let entry = self.given.iter().find(|(name, _)| source.is_called(name));
        Ok(entry.map(|(_, value)| value.as_borrowed()))
    }

    fn part_value<'v>(&'v self, part: &KeyPart, repeated: Repeated) -> Result<Option<SourceValue<'v>>, Ambiguous> {
        if self.found.is_empty() {
            return part.value(self, repeated);
        }
        let name = part.state_name();
        match self.found.iter().find(|(found, _)| *found == name) {
            Some((_, state)) => Ok(part.value_from_state(state)),
            None => part.value(self, repeated),
        }
    }
}

impl NamedValues {
    /// Returns the values in the parts of a state key of `limit`, such as `ip=::1,path=/a`.
    pub fn from_state(limit: &Limit, parts: &str) -> NamedValues {
        let mut values = NamedValues::default();
        for (part, state) in limit.counted_key().0.iter().zip(parts.split(',')) {
            let name = part.state_name();
            if let Some(value) = state.strip_prefix(name.as_str()) {
                values.found.push((name, value.to_owned()));
            }
        }
        values
    }

    /// Returns the value of one source, as a client of the admin API writes it.
    pub fn of_source(limit: &Limit, source: &Source, value: Vec<u8>) -> Result<NamedValues, String> {
        let value = to_request_value(limit.keeps_slashes, source, value)?;
        Ok(NamedValues { given: vec![(source.to_string(), value)], ..NamedValues::default() })
    }

    fn add_hash(&mut self, part: String, hash: GivenHash) {
        match hash {
            GivenHash::Shown(hash) => self.hashed.push((part, hash)),
            GivenHash::Digest(digits) => self.found.push((part, format!("#{digits}"))),
        }
    }

    fn has_hash_of(&self, part: &str) -> bool {
        let is_part = |name: &String| name == part;
        self.hashed.iter().map(|(name, _)| name).any(is_part) || self.found.iter().map(|(name, _)| name).any(is_part)
    }

    /// Returns whether the caller gave a part of the limit's key, or of its tenants, as a hash. Then responses must not
    /// contain its value.
    pub fn hides_key_of(&self, limit: &Limit) -> bool {
        !self.hashed.is_empty()
            && limit.counted_key().0.iter().any(|part| self.hashed.iter().any(|(name, _)| *name == part.state_name()))
    }
}

/// Converts a value to what a request of its owner would contain.
fn to_request_value(keeps_slashes: bool, source: &Source, bytes: Vec<u8>) -> Result<SourceValue<'static>, String> {
    if bytes.len() > VALUE_MAX {
        return Err(format!("it is longer than {VALUE_MAX} bytes"));
    }
    let merged = source.merge_written(&String::from_utf8_lossy(&bytes)).filter(|_| !keeps_slashes);
    if let Some(merged) = merged {
        return Err(format!("no request has it, because every route merges repeated slashes; write `{merged}`"));
    }
    source.parse_written(bytes).map_err(|fault| fault.to_string())
}

impl DecideBody {
    pub fn parse_body(body: &[u8], config: &Config, effort: &TimeBudget) -> Result<DecideBody, Problem> {
        let value = parse_body(body)?;
        let faults = Faults::default();
        let order = parse_decisions(&faults.root(&value), config, effort);
        faults.into_result(order)
    }
}

fn parse_decisions(root: &JsonNode, config: &Config, effort: &TimeBudget) -> Option<DecideBody> {
    root.check_members(&["operation", "decisions"])?;
    let op = root.require("operation").and_then(|node| match node.text()? {
        "take" => Some(Op::Take),
        "peek" => Some(Op::Peek),
        other => node.add_fault(format!("unknown operation `{other}`; one of take, peek")),
    });
    let decisions = root.require("decisions")?.items(1..=DECISIONS_MAX)?;
    // Every item is parsed, to find all errors, before one of them fails the request.
    let decisions: Vec<_> = decisions.iter().map(|node| parse_decision(node, config, effort)).collect();
    Some(DecideBody { op: op?, decisions: decisions.into_iter().collect::<Option<_>>()? })
}

fn parse_decision(node: &JsonNode, config: &Config, effort: &TimeBudget) -> Option<DecisionRequest> {
    node.check_members(&["limits", "key", "cost"])?;
    let items = node.require("limits")?.items(1..=LIMITS_MAX)?;
    let mut limits: Vec<Arc<Limit>> = Vec::with_capacity(items.len());
    for item in &items {
        let Some(name) = item.text() else { continue };
        match config.limits.find(name) {
            Some(_) if limits.iter().any(|limit| limit.name == name) => {
                item.add_fault::<()>(format!("`{name}` occurs twice"));
            }
            Some(limit) => limits.push(limit.clone()),
            None => drop(item.unknown_limit::<()>(|| describe_unknown_limit(config, name, effort))),
        }
    }
    let limits = sort_limits(limits, &items);
    let is_whole = limits.len() == items.len();
    let limits = add_tiers(limits, config);
    let parts = match node.get("key") {
        // The key of an unknown limit is unknown as well.
        Some(key) if is_whole => parse_key_values(&key, &limits)?,
        _ => NamedValues::default(),
    };
    let cost = match node.get("cost") {
        Some(cost) => Some(cost.integer(0..=COST_MAX)?),
        None => None,
    };
    Some(DecisionRequest { limits, parts, cost })
}

/// Returns the message for a name that no limit has; `effort` is the time spent on such names.
pub fn describe_unknown_limit(config: &Config, name: &str, effort: &TimeBudget) -> String {
    let mut left = COMPARED_MAX;
    let names = config.limits.iter().map(|limit| limit.name.as_str()).take_while(|other| {
        left = left.saturating_sub(other.len() * name.len());
        left > 0
    });
    let help = match effort.run_within(|| find_closest(name, names)).flatten() {
        Some(close) => format!("did you mean `{close}`?"),
        None => list_names(config),
    };
    format!("there is no limit `{name}`; {help}")
}

/// Lists the first limits of the config.
fn list_names(config: &Config) -> String {
    let names: Vec<&str> = config.limits.iter().take(NAMES_MAX).map(|limit| limit.name.as_str()).collect();
    match (names.as_slice(), config.limits.iter().count().saturating_sub(NAMES_MAX)) {
        ([], _) => "the config has no limits".to_owned(),
        (names, 0) => format!("there are {}", names.join(", ")),
        (names, more) => format!("there are {} and {more} more", names.join(", ")),
    }
}

/// Sorts the limits so that each follows its base and its incumbent, as on a route. Without its base, a limit would
/// never be evaluated.
fn sort_limits(mut waiting: Vec<Arc<Limit>>, items: &[JsonNode]) -> Vec<Arc<Limit>> {
    for item in items {
        let base = waiting.iter().find(|limit| item.is(&limit.name)).and_then(|limit| limit.after.as_ref());
        if let Some(base) = base.filter(|base| !items.iter().any(|item| item.is(base))) {
            item.add_fault::<()>(format!("it comes after `{base}`: name both"));
        }
    }
    let mut order: Vec<Arc<Limit>> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let ready = |limit: &Arc<Limit>| {
            let waits_for = |name: &String| waiting.iter().any(|other| other.name == *name);
            limit.after.as_ref().is_none_or(|base| order.iter().any(|earlier| earlier.name == *base))
                && !limit.candidate_of.as_ref().is_some_and(waits_for)
        };
        let Some(next) = waiting.iter().position(ready) else { break };
        order.push(waiting.remove(next));
    }
    order.append(&mut waiting);
    order
}

/// Adds the wider tiers of limits with the key part `ip6tiers`, each behind its limit.
fn add_tiers(named: Vec<Arc<Limit>>, config: &Config) -> Vec<Arc<Limit>> {
    let mut all = Vec::with_capacity(named.len());
    for limit in &named {
        all.push(limit.clone());
        if limit.tier_of.as_ref() == Some(&limit.name) {
            let is_named = |tier: &Arc<Limit>| named.iter().any(|other| other.name == tier.name);
            let tiers = config.limits.iter().filter(|tier| tier.is_wider_tier() && tier.tier_of == limit.tier_of);
            all.extend(tiers.filter(|tier| !is_named(tier)).cloned());
        }
    }
    all
}

/// Rejects a name that no listed limit uses in its key: ignored, it would leave a part missing.
fn parse_key_values(node: &JsonNode, limits: &[Arc<Limit>]) -> Option<NamedValues> {
    let mut values = NamedValues::default();
    let keeps_slashes = limits.iter().any(|limit| limit.keeps_slashes);
    let parts = || limits.iter().flat_map(|limit| &limit.counted_key().0);
    for (name, value) in node.entries()?.into_iter().take_while(|_| !node.has_enough_faults()) {
        let mut stated_sources = limits.iter().flat_map(|limit| limit.stated_sources());
        if let Some(source) = stated_sources.find(|source| source.is_called(name)) {
            match value.text().map(|text| to_request_value(keeps_slashes, source, text.as_bytes().to_vec())) {
                Some(Ok(given)) => values.given.push((name.to_owned(), given)),
                Some(Err(why)) => drop(value.add_fault::<()>(why)),
                None => {}
            }
            continue;
        }
        let Some((part, source)) = parts().find_map(|part| Some((part, part.find_source(name)?))) else {
            let mut sources: Vec<String> =
                parts().filter(|part| **part != KeyPart::All).map(ToString::to_string).collect();
            sources.sort_unstable();
            sources.dedup();
            let list = if sources.is_empty() { "nothing".to_owned() } else { sources.join(", ") };
            value.add_fault::<()>(format!("these limits are keyed by {list}"));
            continue;
        };
        let state_name = part.state_name();
        if values.has_hash_of(&state_name) || values.given.iter().any(|(earlier, _)| source.is_called(earlier)) {
            value.add_fault::<()>(format!("`{source}` occurs twice"));
        }
        let bytes = match parse_value(&value, &state_name) {
            Some(GivenValue::Literal(bytes)) => bytes,
            Some(GivenValue::Bytes(bytes)) => match refuse_part_text(part, &bytes, &BODY_FORMS) {
                Ok(()) => bytes,
                Err(why) => {
                    value.add_fault::<()>(why);
                    continue;
                }
            },
            Some(GivenValue::Hash(hash)) => {
                values.add_hash(state_name, hash);
                continue;
            }
            None => continue,
        };
        match to_request_value(keeps_slashes, source, bytes) {
            Ok(given) if source.is_called(name) => values.given.push((name.to_owned(), given)),
            Ok(given) => values.given.push((source.to_string(), given)),
            Err(why) => drop(value.add_fault::<()>(why)),
        }
    }
    Some(values)
}

/// Parses a string, `{"percent": TEXT}` for bytes that a JSON string cannot contain and for texts that look like a part
/// of a key, or `{"hash": DIGITS}`.
fn parse_value(value: &JsonNode, part: &str) -> Option<GivenValue> {
    if let Some(digits) = value.get("hash") {
        value.check_members(&["hash"])?;
        let hash = GivenHash::parse(part, digits.text()?).or_else(|| digits.add_fault(HASH_HELP));
        return hash.map(GivenValue::Hash);
    }
    let Some(encoded) = value.get("percent") else {
        return match value.is_object() {
            true => value.add_fault("it must be a string, {\"percent\": \"caf%E9\"}, or {\"hash\": DIGITS}"),
            false => value.text().map(|text| GivenValue::Bytes(text.as_bytes().to_vec())),
        };
    };
    value.check_members(&["percent"])?;
    let bytes = percent_decode(encoded.text()?);
    bytes.map(GivenValue::Literal).or_else(|| encoded.add_fault("it is not percent-encoded: bytes are written %XX"))
}

/// Parses the body of a refund: a receipt, or a key and units.
pub fn parse_refund(limit: &Arc<Limit>, prefix: &str, body: &[u8]) -> Result<Refund, Problem> {
    let value = parse_body(body)?;
    let faults = Faults::default();
    let refund = parse_refund_body(&faults.root(&value), limit, prefix);
    faults.into_result(refund)
}

fn parse_refund_body(root: &JsonNode, limit: &Arc<Limit>, prefix: &str) -> Option<Refund> {
    root.check_members(&["receipt", "key", "cost"])?;
    let Some(node) = root.get("receipt") else {
        let parts = match root.get("key") {
            Some(key) => parse_key_values(&key, std::slice::from_ref(limit))?,
            None => NamedValues::default(),
        };
        let cost = root.require("cost")?.integer(1..=COST_MAX)?;
        return Some(Refund::Units { parts, cost });
    };
    for name in ["key", "cost"] {
        if let Some(node) = root.get(name) {
            node.add_fault::<()>("it is part of the receipt");
        }
    }
    let Some(receipt) = Receipt::from_token(node.text()?) else {
        return node.add_fault("it is not a receipt that a decision gave");
    };
    if receipt.key_prefix() != prefix {
        return node
            .add_fault(format!("it is not a receipt of this store, whose keys begin with `{prefix}` (`prefix`)"));
    }
    match receipt.limit_and_algorithm() {
        Some((name, _)) if name == limit.name => Some(Refund::Receipt(receipt)),
        Some((name, _)) => node.add_fault(format!("it is a receipt of the limit `{name}`")),
        None => node.add_fault("it is not a receipt that a decision gave"),
    }
}

/// Parses `key=PART&hash=DIGITS&literal=PART`, one for each part in the order of the limit's key, the same for a tenant
/// (`tenant`, `tenant_hash`, `tenant_literal`), `rate=TEXT` and `day=N` if requests state these, and `cost=N`.
pub fn parse_query(limit: &Limit, query: &str) -> Result<(NamedValues, Option<i64>), Problem> {
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let (mut values, mut tenant, mut cost, mut key_values) = (Vec::new(), Vec::new(), None, NamedValues::default());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode(value).ok_or_else(|| bad(format!("`{name}` is not percent-encoded")))?;
        match name {
            _ if KEY_PARAMETERS.contains(name) => values.push((name, value)),
            _ if TENANT_PARAMETERS.contains(name) => tenant.push((name, value)),
            "cost" => {
                let value = str::from_utf8(&value).ok().and_then(|value| value.parse().ok());
                let within = value.filter(|cost| (0..=COST_MAX).contains(cost));
                cost = Some(within.ok_or_else(|| bad(format!("`cost` is an integer from 0 to {COST_MAX}")))?);
            }
            "rate" | "day" => {
                let source = match name {
                    "rate" => limit.key_rate.as_ref().map(|rate| &rate.source),
                    _ => limit.month_day.as_ref().map(|day| &day.source),
                };
                let what = || bad(format!("`{}` has no `{name}` that requests state: leave it out", limit.name));
                let source = source.ok_or_else(what)?;
                let value = to_request_value(limit.keeps_slashes, source, value)
                    .map_err(|why| bad(format!("`{name}`: {why}")))?;
                key_values.given.push((source.to_string(), value));
            }
            _ => {
                let help = "there are `key`, `hash` and `literal`, the same with `tenant`, `rate`, `day` and `cost`";
                return Err(bad(format!("unknown parameter `{name}`; {help}")));
            }
        }
    }
    let parts: Vec<&KeyPart> = limit.key.0.iter().filter(|part| **part != KeyPart::All).collect();
    if parts.len() != values.len() {
        let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
        return Err(bad(match names.as_slice() {
            [] => format!("`{}` has one budget for all: leave `key` out", limit.name),
            names => {
                format!("`{}` is keyed by {}: write `key` once for each, in this order", limit.name, names.join(", "))
            }
        }));
    }
    for (part, (name, value)) in parts.into_iter().zip(values) {
        add_query_value(limit, part, (name, value), &KEY_PARAMETERS, &mut key_values).map_err(bad)?;
    }
    add_tenant(limit, tenant, &mut key_values).map_err(bad)?;
    Ok((key_values, cost))
}

impl ValueParameters {
    fn contains(&self, name: &str) -> bool {
        [self.plain, self.hash, self.forms.literal].contains(&name)
    }
}

/// Adds a value of a query.
fn add_query_value(
    limit: &Limit,
    part: &KeyPart,
    (name, value): (&str, Vec<u8>),
    parameters: &ValueParameters,
    named: &mut NamedValues,
) -> Result<(), String> {
    let (plain, state_name) = (parameters.plain, part.state_name());
    if name == parameters.hash {
        let hash = str::from_utf8(&value).ok().and_then(|text| GivenHash::parse(&state_name, text));
        named.add_hash(state_name, hash.ok_or_else(|| format!("`{name}`: {QUERY_HASH_HELP}"))?);
        return Ok(());
    }
    if name == plain {
        refuse_part_text(part, &value, &parameters.forms).map_err(|why| format!("`{plain}`: {why}"))?;
    }
    // Alternatives are different places of one value, so any of them can carry it.
    if let Some(source) = part.sources().first() {
        let value =
            to_request_value(limit.keeps_slashes, source, value).map_err(|why| format!("{plain} {source}: {why}"))?;
        named.given.push((source.to_string(), value));
    }
    Ok(())
}

/// Adds the values of a tenant that shares the budget of the limit.
fn add_tenant(limit: &Limit, values: Vec<(&str, Vec<u8>)>, named: &mut NamedValues) -> Result<(), String> {
    if values.is_empty() {
        return Ok(());
    }
    let fair = limit.fair.as_ref();
    let fair =
        fair.ok_or_else(|| format!("`{}` has no `fair`, so it has no tenants: leave `tenant` out", limit.name))?;
    let parts = &fair.key.0;
    if parts.len() != values.len() {
        let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        return Err(format!("tenants of `{}` are {names}: write `tenant` once for each, in this order", limit.name));
    }
    named.has_tenant = true;
    for (part, value) in parts.iter().zip(values) {
        add_query_value(limit, part, value, &TENANT_PARAMETERS, named)?;
    }
    Ok(())
}

/// Returns the check of a limit with the budget of its key. A missing key part must be stated explicitly. A tier has no
/// budget for an IPv4 address.
pub fn build_check(
    limiter: &Limiter,
    limit: &Arc<Limit>,
    parts: &NamedValues,
    cost: i64,
) -> Result<(Check, Option<Outcome>), Problem> {
    if limit.is_tier_without(parts) {
        let name = limit.listed_name();
        let what =
            format!("`{}` counts only networks of IPv6; an IPv4 address has one budget, that of `{name}`", limit.name);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what));
    }
    limiter.make_check(limit, parts, cost).map_err(|_| {
        let names: Vec<String> = limit.key.0.iter().map(ToString::to_string).collect();
        let detail = format!("`{}` is keyed by {}: give each of them in `key`", limit.name, names.join(", "));
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    })
}
