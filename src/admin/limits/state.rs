//! Shows and resets the state of single keys. Called by `pages`.

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admin::limits::decide::{fixed_cost, format_numbers, format_unasked};
use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::store_check::{run_check, store_unavailable};
use crate::admin::limits::{LimitsApi, refuse_hidden, requests};
use crate::admin::problem::Problem;
use crate::config::admin_tokens::Role;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::fair::{FORGET, TenantShare};
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, ErrorKind, Op};
use crate::limiting::key::SourceValues;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::OverrideOrigin;
use crate::limiting::overrides::table::{OverrideBudget, OverrideEntry};
use crate::limiting::{Limiter, Outcome, clock};

impl LimitsApi {
    /// Returns the state of a key and what the limit would decide to a caller with this role; changes nothing.
    pub async fn show_state(&self, name: &str, query: &str, role: Role) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        if !role.includes(Role::Limits) && snapshot.config.admin.key_display.hides_any(limit.sources()) {
            return Err(refuse_hidden(&format!("the config hides values that the limit {} reads", limit.name), role));
        }
        let (mut parts, cost) = requests::parse_query(limit, query)?;
        self.live.catch_up(&snapshot.config, &self.link.store()).await;
        let limiter = self.link.limiter();
        self.hashes.find_values(&limiter, (&snapshot.config, &self.usage), vec![&mut parts]).await?;
        let (check, instead) =
            requests::build_check(&limiter, limit, &parts, cost.unwrap_or_else(|| fixed_cost(limit)))?;
        let key = check.key.clone();
        let state = read_state(&limiter, (limit, &parts), check, instead).await;
        let mut state = state.map_err(|kind| store_unavailable(kind, ""))?;
        state["override"] = describe_override_of(limit, &parts);
        add_key(&mut state, limit, &parts, key, &snapshot.config.admin.key_display);
        Ok(state)
    }

    /// Resets the usage of a key.
    pub async fn reset_key(&self, name: &str, query: &str) -> Result<Value, Problem> {
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        let (mut parts, _) = requests::parse_query(limit, query)?;
        let limiter = self.link.limiter();
        self.hashes.find_values(&limiter, (&snapshot.config, &self.usage), vec![&mut parts]).await?;
        let (check, _) = requests::build_check(&limiter, limit, &parts, 0)?;
        let key = check.key.clone();
        self.note_managed(limit);
        let mut answer = json!({ "reset": true });
        let (op, check) = match parts.has_tenant {
            true => (Op::Adjust, check.correction(0, FORGET)),
            false => {
                let existed = has_state(&limiter, &check).await.map_err(|kind| store_unavailable(kind, ""))?;
                answer["existed"] = existed.into();
                (Op::Reset, check)
            }
        };
        // Usage counted locally while the store was unavailable is reset as well.
        limiter.run_in_memory(op, check.clone());
        run_check(&limiter, op, check)
            .await
            .map_err(|kind| store_unavailable(kind, "; it is not known whether the key was reset"))?;
        add_key(&mut answer, limit, &parts, key, &snapshot.config.admin.key_display);
        Ok(answer)
    }
}

/// Returns the numbers of a key, and what the limit would decide about the cost of `check`. `instead`: the outcome of
/// an override that is not a rule.
pub async fn read_state(
    limiter: &Limiter,
    (limit, parts): (&Arc<Limit>, &NamedValues),
    check: Check,
    instead: Option<Outcome>,
) -> Result<Value, ErrorKind> {
    // These would be the numbers of a request without a rate.
    if lacks_rate(limit, parts) {
        return Ok(json!({ "rate_not_known": true }));
    }
    if let Some(outcome) = instead {
        return Ok(format_unasked(outcome));
    }
    let (key, policy) = (check.key.clone(), check.rule.policy());
    let (rule, ban) = (check.rule.clone(), check.ban.as_ref().map(|ban| ban.to_look()));
    // This is the state without the ban, whose numbers follow below.
    let now = run_check(limiter, Op::Peek, Check { ban: None, ..check.to_look() }).await?;
    let answer = run_check(limiter, Op::Peek, check).await?;
    let mut state = format_numbers(&Answer { remaining: now.remaining, reset_ms: now.reset_ms, ..answer }, policy);
    if let Some(units) = limiter.store().leased_units(&key) {
        state["leased"] = units.into();
    }
    add_standing(&mut state, &rule, &now);
    if let Some(ban) = ban {
        state["ban"] = describe_ban(&run_check(limiter, Op::Peek, ban).await?);
    }
    Ok(state)
}

/// Returns whether requests of the key state its rate, and these values do not. An override takes precedence.
pub fn lacks_rate(limit: &Arc<Limit>, parts: &NamedValues) -> bool {
    let Some(rate) = &limit.key_rate else { return false };
    matches!(parts.value(&rate.source, limit.repeated), Ok(None)) && describe_override_of(limit, parts).is_null()
}

/// Returns whether the key has used something, or its ban remembers something.
async fn has_state(limiter: &Limiter, check: &Check) -> Result<bool, ErrorKind> {
    let look = Check { ban: None, ..check.to_look() };
    let fresh = look.rule.decide(None, clock::now_ms(), 0, look.tag).answer;
    let now = run_check(limiter, Op::Peek, look).await?;
    if now.remaining != fresh.remaining {
        return Ok(true);
    }
    let Some(ban) = &check.ban else { return Ok(false) };
    let fresh = ban.rule.decide(None, clock::now_ms(), 0, 0).answer;
    let now = run_check(limiter, Op::Peek, ban.to_look()).await?;
    Ok(!now.admitted || now.receipt != fresh.receipt || now.remaining != fresh.remaining)
}

/// Adds the limit and the key. The state key contains all values, so it is left out if the caller gave a hash.
pub fn add_key(answer: &mut Value, limit: &Limit, parts: &NamedValues, state_key: String, display: &KeyDisplay) {
    let mut text = String::new();
    let key = if parts.has_tenant { limit.counted_key() } else { &limit.key };
    let result = display.write_key(&mut text, key, parts, limit.repeated);
    answer["limit"] = limit.name.as_str().into();
    answer["key"] = result.map_or(Value::Null, |()| text.into());
    if !parts.hides_key_of(limit) {
        answer["state_key"] = state_key.into();
    }
}

/// Describes the override of the key with these values; null if it has none.
pub fn describe_override_of(limit: &Arc<Limit>, parts: &NamedValues) -> Value {
    let names = limit.overrides.has_any().then(|| limit.budget_names("", parts, true).ok()).flatten();
    names.and_then(|names| names.values).map_or(Value::Null, |values| describe_override(limit, &values))
}

/// Describes the override of a key by its values, as a field of the overrides has them.
pub fn describe_override(limit: &Limit, values: &str) -> Value {
    let Some((entry, origin)) = limit.overrides.find_with_origin(values, clock::now_ms) else { return Value::Null };
    describe_entry(&entry, origin)
}

/// Describes an entry of the overrides.
pub fn describe_entry(entry: &OverrideEntry, origin: OverrideOrigin) -> Value {
    let time = |at_ms: i64| Timestamp::from_millisecond(at_ms).ok();
    let until = entry.until_ms.and_then(time);
    let mut text = entry.describe_budget();
    if let Some(until) = until {
        let _ = write!(text, " until {until}");
    }
    let setting = entry.setting.as_ref();
    json!({
        "text": text,
        "blocked": entry.budget == OverrideBudget::Blocked,
        "source": match origin {
            OverrideOrigin::Live => "live",
            OverrideOrigin::Config => "config",
            OverrideOrigin::File => "file",
        },
        "until": until.map(|until| until.to_string()),
        "note": entry.note,
        "set_at": setting.and_then(|setting| time(setting.at_ms)).map(|time| time.to_string()),
        "set_by": setting.and_then(|setting| setting.by.as_deref()),
    })
}

/// Describes the ban of a key. `answer` is the answer of the ban to a cost of 0.
pub fn describe_ban(answer: &Answer) -> Value {
    json!({
        "banned": !answer.admitted,
        "left_ms": answer.retry_ms,
        "refusals_left": answer.remaining,
        "bans": answer.receipt,
    })
}

/// Adds the share of a tenant to the state of its budget, if tenants share it. `answer` is that to a cost of 0.
fn add_standing(state: &mut Value, rule: &Rule, answer: &Answer) {
    let Some(share) = rule.tenant_share(answer) else { return };
    let TenantShare { active, weight, total_weight, rate, backlog, reserve } = share;
    state["fair"] = json!({
        "active": active, "weight": weight, "total_weight": total_weight, "rate_per_second": rate,
        "reserve": reserve, "must_leave": backlog,
    });
}
