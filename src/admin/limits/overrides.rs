//! Sets and removes the live override of one key: a block, another budget, or none. Called by `pages`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::limits::json::{Faults, JsonNode, parse_body};
use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::state::{add_key, describe_override};
use crate::admin::limits::{LimitsApi, requests};
use crate::admin::live_overrides::OverrideFault;
use crate::admin::problem::{Problem, ProblemKind};
use crate::config::{Config, parse_duration};
use crate::limiting::algorithm::{SPECS, all_params};
use crate::limiting::clock;
use crate::limiting::key::state_key::DIGEST_MARK;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::table::parse_end;

/// Longest time that an override may be set `for`.
const FOR_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// A changed override, for the response and for the audit log.
pub struct OverrideChange {
    pub answer: Value,
    /// The key as logs show it.
    pub key: Option<String>,
    /// The change in words.
    pub summary: String,
}

impl LimitsApi {
    /// Sets the live override of a key, as `body` says.
    pub async fn set_override(
        &self,
        name: &str,
        query: &str,
        (body, caller): (&[u8], Option<&str>),
    ) -> Result<OverrideChange, Problem> {
        let value = parse_body(body)?;
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        let faults = Faults::default();
        let value = parse_entry(&faults.root(&value), limit);
        let value = faults.into_result(value)?;
        self.change_override(limit, query, Some((value, caller))).await
    }

    /// Removes the live override of a key.
    pub async fn remove_override(&self, name: &str, query: &str) -> Result<OverrideChange, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        self.change_override(limit, query, None).await
    }

    async fn change_override(
        &self,
        limit: &Arc<Limit>,
        query: &str,
        new: Option<(String, Option<&str>)>,
    ) -> Result<OverrideChange, Problem> {
        let snapshot = self.current.load_full();
        let limiter = self.link.limiter();
        let (mut parts, cost) = requests::parse_query(limit, query)?;
        if cost.is_some() || parts.has_tenant {
            let detail = "an override is about the key of the limit: leave `cost` and `tenant` out";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        // A hash from the log is enough for an entry, if it stays valid.
        if !limit.overrides.can_match_hashes() {
            self.hashes.find_values(&limiter, (&snapshot.config, &self.usage), vec![&mut parts]).await?;
        }
        let field = field_of(limit, &parts)?;
        let value = new.as_ref().map(|(value, caller)| add_setting(value, *caller));
        let change = (field.as_str(), value.as_deref());
        let mut answer = self.change_live(&snapshot.config, limit, change).await?;
        add_key(&mut answer, limit, &parts, String::new(), &snapshot.config.admin.key_display);
        if let Some(members) = answer.as_object_mut() {
            members.remove("state_key");
        }
        Ok(OverrideChange::new(answer, new.as_ref().map(|(value, _)| value.as_str())))
    }

    /// Sets or removes the live override of a canonical field. Returns what was done, without the key.
    pub(super) async fn change_live(
        &self,
        config: &Config,
        limit: &Arc<Limit>,
        change: (&str, Option<&str>),
    ) -> Result<Value, Problem> {
        self.live.catch_up(config, &self.link.store()).await;
        let replaced = describe_override(limit, change.0);
        let outcome = self.live.change_entry(config, limit, &self.link.store(), change).await;
        let changed = outcome.map_err(|fault| match fault {
            OverrideFault::Invalid(what) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what),
            OverrideFault::Unavailable(why) => {
                let detail = format!("Redis did not make the change ({why}); it is not known whether it will apply");
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_kind(ProblemKind::StoreUnavailable)
            }
        })?;
        Ok(json!({
            "existed": changed.existed,
            "kept_in": changed.keeper.label(),
            "applied": changed.is_applied,
            "override": describe_override(limit, change.0),
            "replaced": replaced,
        }))
    }
}

impl OverrideChange {
    /// `value`: the new entry; `None` if it was removed.
    pub(super) fn new(answer: Value, value: Option<&str>) -> OverrideChange {
        let summary = match value {
            Some(value) => format!("override set: {value}"),
            None if answer["existed"] == true => "override removed".to_owned(),
            None => "there was no override to remove".to_owned(),
        };
        let key = answer["key"].as_str().map(str::to_owned);
        OverrideChange { answer, key, summary }
    }
}

/// Adds to an entry when it was set, and the name of the token.
fn add_setting(value: &str, caller: Option<&str>) -> String {
    let now = Timestamp::from_second(clock::now_ms().div_euclid(1000)).unwrap_or_default();
    // The name of a token has no `;`.
    let by = caller.map(|name| format!(";set_by={name}")).unwrap_or_default();
    format!("{value};set_at={now}{by}")
}

/// Returns the key as a field of the overrides has it.
fn field_of(limit: &Limit, parts: &NamedValues) -> Result<String, Problem> {
    let mut field = String::new();
    for (index, part) in limit.key.0.iter().enumerate() {
        if index > 0 {
            field.push(',');
        }
        let state_name = part.state_name();
        let is_found = parts.found.iter().any(|(name, _)| *name == state_name);
        match parts.hashed.iter().find(|(name, _)| *name == state_name) {
            Some((_, hash)) if !is_found => drop(write!(field, "{DIGEST_MARK}{hash}")),
            _ => {
                let names = part.part_names(parts, limit.repeated).ok();
                let value = names.and_then(|names| names.value).filter(|value| !value.contains(DIGEST_MARK));
                let detail = "the store has only a digest of this key; give the value itself, or set `keys_secret`";
                field.push_str(&value.ok_or_else(|| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail))?);
            }
        }
    }
    Ok(field)
}

/// Parses the body to an entry such as `rate=100/s;until=2026-12-31T00:00:00Z;note=launch`.
fn parse_entry(root: &JsonNode, limit: &Limit) -> Option<String> {
    let amounts: Vec<&str> = all_params().filter(|param| param.overridable).map(|param| param.name).collect();
    let members: Vec<&str> = amounts.iter().copied().chain(["block", "for", "until", "note"]).collect();
    root.check_members(&members)?;
    let mut pairs: Vec<String> = Vec::new();
    for name in &amounts {
        if let Some(node) = root.get(name) {
            pairs.push(format!("{name}={}", parse_amount(&node)?));
        }
    }
    if let Some(node) = root.get("block") {
        match node.is_true() {
            true if pairs.is_empty() => {
                let spec = SPECS.iter().find(|spec| spec.name == limit.rule.name())?;
                pairs.push(format!("{}=0", spec.leading.name));
            }
            true => return node.add_fault("a block has no numbers"),
            false => return node.add_fault("it is true, or absent"),
        }
    }
    if pairs.is_empty() {
        return root.add_fault(format!("it changes nothing; the members here are {}", members.join(", ")));
    }
    match (root.get("for"), root.get("until")) {
        (Some(node), Some(_)) => return node.add_fault("write `for` or `until`"),
        (Some(node), None) => pairs.push(format!("until={}", parse_for(&node)?)),
        (None, Some(node)) => match parse_end(node.text()?) {
            Some(time) if time.as_millisecond() <= clock::now_ms() => return node.add_fault("this time has passed"),
            Some(time) => pairs.push(format!("until={time}")),
            None => return node.add_fault("write a time with its offset: 2026-12-31T00:00:00Z"),
        },
        (None, None) => {}
    }
    if let Some(node) = root.get("note") {
        let note = node.text()?.trim();
        // It separates the parts of an entry in Redis.
        if note.contains(';') {
            return node.add_fault("a note has no `;`, because that separates the parts of an entry; write a comma");
        }
        pairs.push(format!("note={note}"));
    }
    Some(pairs.join(";"))
}

/// Parses a number, or a text such as `100/s`.
fn parse_amount(node: &JsonNode) -> Option<String> {
    if let Some(number) = node.plain_integer() {
        return Some(number.to_string());
    }
    let text = node.text()?;
    match text.contains([';', '=']) {
        true => node.add_fault("it is not a number or a rate"),
        false => Some(text.to_owned()),
    }
}

/// Parses a duration, and returns the time at which it ends.
fn parse_for(node: &JsonNode) -> Option<String> {
    let length = match parse_duration(node.text()?) {
        Ok(length) if length.is_zero() || length > FOR_MAX => return node.add_fault("it is from 1s to 3660d"),
        Ok(length) => i64::try_from(length.as_millis()).ok()?,
        Err(fault) => return node.add_fault(fault.to_string()),
    };
    // Rounded up to whole seconds.
    let until_ms = (clock::now_ms() + length + 999).div_euclid(1000) * 1000;
    Timestamp::from_millisecond(until_ms).ok().map(|time| time.to_string())
}
