//! Describes what one limit does with a request, and why. Called by `limits` and `descriptors`, which decide.

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;

use crate::explain::explanation::{LimitEffect, LimitReport, LimitState, TenantReport};
use crate::explain::verdict::format_instant;
use crate::explain::walk::MadeCharge;
use crate::limiting::algorithm::fair::TenantShare;
use crate::limiting::answer::{Answer, BanAnswer, NEVER};
use crate::limiting::decision::Check;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::over::Over;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::source::Facts;
use crate::limiting::{ChainState, LimitResult, Outcome, Verdict};
use crate::proxy::steps::response::problem::refusal_title;

/// Describes a limit apart from what it does with the request.
pub fn describe_limit(limit: &Limit, before_auth: bool) -> LimitReport {
    LimitReport {
        name: limit.name.clone(),
        mode: limit.mode.label().to_owned(),
        over: limit.over.text(),
        algorithm: limit.rule.name().to_owned(),
        rule: limit.rule.describe(),
        before_auth,
        after: limit.after.clone(),
        ban: limit.ban.as_ref().map(|ban| ban.rule.describe()),
        clear_on: limit.charge_rules.as_ref().and_then(|rules| rules.clear_on.as_ref()).map(ToString::to_string),
        lease: limit.store_ref.lease.map(|terms| terms.describe()),
        candidate_of: limit.candidate_of.clone(),
        tier_of: limit.tier_of.clone(),
        ..LimitReport::default()
    }
}

pub fn set_effect(report: &mut LimitReport, effect: LimitEffect, detail: impl Into<String>) {
    report.effect = effect.label().to_owned();
    report.detail = detail.into();
}

/// One limit of a decision.
pub struct LimitFacts<'d> {
    pub limits: &'d [Arc<Limit>],
    /// Index of the limit in `limits`.
    pub index: usize,
    pub facts: &'d Facts<'d>,
    pub check: Option<&'d Check>,
    pub checked: Option<&'d LimitResult>,
    pub verdict: &'d Verdict,
}

impl LimitFacts<'_> {
    fn limit(&self) -> &Arc<Limit> {
        &self.limits[self.index]
    }

    /// Adds what the limit does, and why. `before`: the answer to a cost of 0 before the request.
    pub fn describe(&self, report: &mut LimitReport, display: &KeyDisplay, before: Option<Answer>) {
        let limit = self.limit();
        if limit.applies_to(self.facts) == Ok(true) {
            let mut key = String::new();
            let key_result = display.write_key(&mut key, limit.counted_key(), self.facts, limit.repeated);
            report.key = key_result.ok().map(|()| key);
            self.describe_override(report);
        }
        report.cost = self.check.map(|check| check.cost);
        let reserve = limit.cost.reserve().filter(|_| self.check.is_some());
        let estimate = reserve.and_then(|reserve| reserve.estimate(self.facts, limit.repeated, limit.not_integer).ok());
        let by_status = limit.cost.status_prices().filter(|_| self.check.is_some()).map(|_| limit.cost.to_string());
        report.estimate = estimate.map(|reservation| reservation.to_string()).or(by_status);
        let Some(LimitResult { outcome, chain_state, .. }) = self.checked else {
            let (effect, detail) = self.why_not_checked();
            return set_effect(report, effect, detail);
        };
        if let (Some(answer), Some(check)) = (outcome.answer(), self.check) {
            report.state = Some(describe_state(answer, check, before.map(|answer| answer.remaining), *outcome));
            report.fair = before.and_then(|answer| check.rule.tenant_share(&answer)).map(describe_tenant);
        }
        let (effect, detail) = self.describe_outcome(*outcome, *chain_state, report.state.as_ref());
        set_effect(report, effect, detail);
    }

    /// Adds the rate that the request states.
    fn describe_stated_rate(&self, report: &mut LimitReport) {
        let limit = self.limit();
        let Some(rate) = &limit.key_rate else { return };
        let own = match rate.budget_for(self.facts, limit.repeated) {
            Ok(OverrideBudget::Rule(rule)) => {
                report.rule = rule.describe();
                rule.describe()
            }
            Ok(OverrideBudget::Blocked) => "blocked".to_owned(),
            Ok(OverrideBudget::Unlimited) => "unlimited".to_owned(),
            Err(_) => return,
        };
        report.overridden = Some(format!("{own}, by {} ({})", rate.source, rate.describe()));
    }

    fn describe_override(&self, report: &mut LimitReport) {
        let limit = self.limit();
        self.describe_stated_rate(report);
        if !limit.overrides.has_any() {
            return;
        }
        let names = limit.budget_names("", self.facts, true).ok();
        let values = names.and_then(|names| names.values);
        let own = values.and_then(|values| limit.overrides.find_at(&values, || self.facts.now_ms()));
        let Some(entry) = own else { return };
        if let OverrideBudget::Rule(rule) = &entry.budget {
            report.rule = rule.describe();
        }
        let mut text = entry.describe_budget();
        if let Some(until) = entry.until_ms.and_then(|until_ms| Timestamp::from_millisecond(until_ms).ok()) {
            let _ = write!(text, " until {until}");
        }
        if let Some(note) = entry.note {
            let _ = write!(text, " ({note})");
        }
        report.overridden = Some(text);
    }

    /// Returns why there is no result of the limit.
    fn why_not_checked(&self) -> (LimitEffect, String) {
        let limit = self.limit();
        if self.check.is_some() && self.verdict.refused {
            return (LimitEffect::NotReached, "another limit refused before".to_owned());
        }
        if self.check.is_some() && limit.tier_of.is_some() {
            return (LimitEffect::NotReached, "an override blocks another of its networks".to_owned());
        }
        if limit.applies_to(self.facts) == Ok(false) {
            return (LimitEffect::Skipped, "a condition of `when` is false".to_owned());
        }
        let absent = limit
            .key
            .0
            .iter()
            .find(|part| !part.sources().is_empty() && matches!(part.value(self.facts, limit.repeated), Ok(None)));
        match (absent, &limit.after) {
            (Some(part), _) => {
                (LimitEffect::Skipped, format!("the request has no {} (missing = \"skip\")", part.display_name()))
            }
            (None, Some(base)) => {
                (LimitEffect::Skipped, format!("the limit {base}, which it comes after, does not apply"))
            }
            (None, None) => (LimitEffect::Skipped, "it does not apply".to_owned()),
        }
    }

    fn describe_outcome(
        &self,
        outcome: Outcome,
        chain_state: ChainState,
        state: Option<&LimitState>,
    ) -> (LimitEffect, String) {
        let limit = self.limit();
        match chain_state {
            ChainState::NotYet => {
                let base = limit.after.as_deref().unwrap_or_default();
                return (LimitEffect::Skipped, format!("the limit {base} still has capacity"));
            }
            ChainState::HandedOver => {
                let next = self.limits.iter().find(|next| next.after.as_ref() == Some(&limit.name));
                let next = next.map_or("", |next| &next.name);
                let why = match outcome.answer().filter(|answer| answer.is_banned()) {
                    _ if outcome == Outcome::Blocked => "its override blocks the key".to_owned(),
                    Some(banned) => format!("the key is banned{}", self.describe_ban_end(banned.retry_ms)),
                    None => "it is exhausted".to_owned(),
                };
                return (LimitEffect::HandsOver, format!("{why}, and the limit {next} decides instead"));
            }
            ChainState::InForce => {}
        }
        if !outcome.is_admitted() {
            let effect = match &limit.over {
                _ if limit.mode == Mode::Shadow => LimitEffect::WouldRefuse,
                Over::Annotate if outcome.is_over() => LimitEffect::Annotates,
                Over::Divert(_) if outcome.is_over() => LimitEffect::Diverts,
                _ => LimitEffect::Refuses,
            };
            return (effect, self.describe_refusal(outcome, state));
        }
        match (outcome, state) {
            (Outcome::Unlimited, _) => (LimitEffect::Admits, "the override of this key is unlimited".to_owned()),
            (Outcome::Open, _) => (LimitEffect::Admits, "the store is unavailable (on_error = \"open\")".to_owned()),
            (_, Some(state)) => {
                let left = format!("{} of {} left after it", state.remaining_after, state.quota);
                match outcome.answer().map_or(0, |answer| answer.retry_ms) {
                    0 => (LimitEffect::Admits, left),
                    delay_ms => (LimitEffect::Delays, format!("it waits {delay_ms} ms in the queue; {left}")),
                }
            }
            (_, None) => (LimitEffect::Admits, String::new()),
        }
    }

    fn describe_refusal(&self, outcome: Outcome, state: Option<&LimitState>) -> String {
        let limit = self.limit();
        let cost = self.check.map_or(1, |check| check.cost);
        match (outcome, state) {
            (Outcome::Store(answer) | Outcome::Local(answer), Some(state)) if answer.is_banned() => {
                let ban = match answer.ban {
                    BanAnswer::Begun => "this refusal begins a ban of the key",
                    _ => "the key is banned",
                };
                match answer.retry_ms {
                    NEVER => format!("{ban}, and it costs {cost}, more than the {} that can ever be left", state.quota),
                    retry_ms => {
                        format!("{ban}{}; passes in {}", self.describe_ban_end(retry_ms), format_wait(retry_ms))
                    }
                }
            }
            (Outcome::Store(answer) | Outcome::Local(answer), Some(state)) if answer.retry_ms == NEVER => {
                format!("it costs {cost}, more than the {} that can ever be left", state.quota)
            }
            (Outcome::Store(answer) | Outcome::Local(answer), Some(state)) => {
                let left = state.remaining.unwrap_or(state.remaining_after);
                let wait = format_wait(answer.retry_ms);
                format!("{left} of {} left, and it costs {cost}; passes in {wait}", state.quota)
            }
            _ => refusal_title(outcome, limit).into_owned(),
        }
    }

    /// Describes the time at which a ban lets the key pass; nothing if it never does.
    fn describe_ban_end(&self, retry_ms: i64) -> String {
        let end_ms = Some(self.facts.now_ms().saturating_add(retry_ms)).filter(|_| retry_ms != NEVER);
        end_ms.and_then(format_instant).map_or_else(String::new, |instant| format!(" until {instant}"))
    }

    /// Returns the charge of the limit, if it was charged.
    pub fn made_charge(&self) -> Option<MadeCharge> {
        let check = self.check?;
        let answer = self.checked.filter(|checked| checked.is_charged)?.outcome.answer()?;
        let check = check.clone().correction(check.cost, answer.receipt);
        Some(MadeCharge { limit: self.limit().clone(), check })
    }
}

fn describe_tenant(share: TenantShare) -> TenantReport {
    let TenantShare { active, weight, total_weight, rate, backlog, reserve } = share;
    TenantReport { weight, total_weight, active, rate_per_second: rate, must_leave: backlog, reserve }
}

/// Describes what a key has left. `remaining`: what it has before the request.
pub fn describe_state(answer: &Answer, check: &Check, remaining: Option<i64>, outcome: Outcome) -> LimitState {
    let policy = check.rule.policy();
    let is_local = matches!(outcome, Outcome::Local(_));
    LimitState {
        quota: policy.quota,
        window_ms: policy.window_ms,
        remaining,
        remaining_after: answer.remaining,
        retry_after_ms: (!answer.admitted && answer.retry_ms != NEVER).then_some(answer.retry_ms),
        reset_ms: answer.reset_ms,
        source: if is_local { "local" } else { "store" }.to_owned(),
    }
}

/// Formats a wait with the precision that matters: `430 ms`, `12.5 s`, `3 h 2 min`.
fn format_wait(ms: i64) -> String {
    let (seconds, minutes) = (ms / 1000, ms / 60_000);
    match ms {
        ..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{seconds}.{} s", ms % 1000 / 100),
        60_000..3_600_000 => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}
