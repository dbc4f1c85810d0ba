//! Decides all limits of a request together. The limiter turns each limit into a check, sends all checks to the
//! store in one call, and decides from memory while the store is unavailable. Each worker has one limiter per config.
//!
//! - `split_checks`: separates checks for the store from outcomes that are known already.
//! - `candidates`: tries limits instead of another one (`candidate_of`).
//! - `leased_checks`: decides hot keys from units that were debited in advance.
//! - `known_refusals`: finds refusals that need no store.
//! - `without_store`: decides while the store is unavailable.
//! - `refund`: refunds units without a receipt.

mod candidates;
mod known_refusals;
mod leased_checks;
mod refund;
mod split_checks;
mod without_store;

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout_at};

use crate::limiting::algorithm::Rule;
use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::chain::{self, ChainState, Evaluation};
use crate::limiting::charges::ChargedAt;
use crate::limiting::charges::guard::{ChargeGuard, guard_charges};
use crate::limiting::charges::manager::{ChargeManager, PendingCall};
use crate::limiting::decision::{Check, CheckCharges, Decision, ErrorKind, Op, Role, SharedChecks, StoreError};
use crate::limiting::gateways::Gateways;
use crate::limiting::integers::{COST_MAX, ValueError};
use crate::limiting::key::Missing;
use crate::limiting::key::SourceValues;
use crate::limiting::key::state_key::KeyError;
use crate::limiting::limit::charge_rules::ChargeRules;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::limiter::candidates::CandidateSet;
use crate::limiting::limiter::leased_checks::LeasedChecks;
use crate::limiting::limiter::split_checks::SplitChecks;
use crate::limiting::overrides::table::OverrideBudget;
use crate::limiting::source::Facts;
use crate::limiting::store::once::{MarkUse, SingleUseMark};
use crate::limiting::store::{Store, Stores};
use crate::limiting::verdict::{Outcome, RefusedKey, Verdict};

/// Decides the limits of requests for one worker.
pub struct Limiter {
    charges: Rc<ChargeManager>,
    gateways: Arc<Gateways>,
    prefix: String,
}

/// A breaker tries the store again after this many milliseconds.
pub const STORE_RETRY_MS: i64 = 2000;

/// A decision about the checks of a request.
struct CheckedDecision {
    decision: Decision,
    charges: CheckCharges,
    /// Guard of the charges, if the end of the request may change them.
    guard: Option<Box<ChargeGuard>>,
    /// Keys that were refused, by the index of their check.
    refused_keys: Vec<RefusedKey>,
}

/// The charge rules of each check of a request: how the request's outcome changes the charge. `None` if it does not.
type OutcomeRules = Vec<Option<Arc<ChargeRules>>>;

/// The limits that the checks of a request belong to: check `i` is of the limit at `indexes[i]`.
struct CheckedLimits<'a> {
    all: &'a [Arc<Limit>],
    indexes: Vec<usize>,
}

impl<'a> CheckedLimits<'a> {
    fn iter(&self) -> impl Iterator<Item = &'a Arc<Limit>> {
        self.indexes.iter().map(|index| &self.all[*index])
    }

    fn outcome_rules(&self) -> OutcomeRules {
        self.iter().map(|limit| limit.charge_rules.clone()).collect()
    }
}

impl Check {
    /// Makes a check of `limit` by the limit's rule, without overrides.
    pub fn new(limit: &Limit, key: String, cost: i64) -> Check {
        let role = Role {
            shadow: limit.mode == Mode::Shadow,
            forwards: limit.forwards_excess(),
            needs_unit: cost == 0 && limit.settles(),
            ..Role::default()
        };
        // Algorithms add to the number, and the sum must stay below 2^53.
        let tag = if limit.rule.needs_tag() { rand::random_range(0..1 << 52) } else { 0 };
        Check {
            ban: limit.ban.as_ref().map(|ban| Box::new(ban.check_of(&key))),
            limit: limit.store_ref.clone(),
            rule: limit.rule.clone(),
            key,
            cost,
            input_tokens: 0,
            role,
            override_values: None,
            tag,
            tenant: None,
        }
    }
}

impl Limiter {
    /// Creates a limiter that decides by `store`, with state keys below `prefix`. With a `previous` limiter on the same
    /// store, both share the charges of running requests.
    pub fn new(store: Store, previous: Option<&Limiter>, stores: &Stores, prefix: &str) -> Limiter {
        Limiter {
            charges: previous.map_or_else(|| ChargeManager::new(store, stores), |previous| previous.charges.clone()),
            gateways: stores.gateways.clone(),
            prefix: prefix.to_owned(),
        }
    }

    /// Manager of the charges made through this limiter.
    pub fn charges(&self) -> &Rc<ChargeManager> {
        &self.charges
    }

    /// Evaluates each of `limits` for a request as far as that is possible without the store. `keys` has the values of
    /// keys: the facts themselves, unless a log has the keys.
    pub fn evaluate_all(&self, limits: &[Arc<Limit>], facts: &Facts, keys: &impl SourceValues) -> Vec<Evaluation> {
        limits.iter().map(|limit| self.evaluate_hits(limit, facts, keys, 1)).collect()
    }

    /// Evaluates `limit` like [`evaluate_all`](Self::evaluate_all). Each hit costs what a request costs.
    pub fn evaluate_hits(&self, limit: &Arc<Limit>, facts: &Facts, keys: &impl SourceValues, hits: i64) -> Evaluation {
        match self.try_evaluate(limit, facts, keys, hits) {
            // A value that cannot be read does not matter if the limit does not apply for another reason.
            Ok(Evaluation::UnreadableBody(_)) | Err(_) if limit.skips_whatever_body(keys) => Evaluation::NotApplicable,
            Ok(evaluation) => evaluation,
            Err(unclear) => Evaluation::Unclear(unclear),
        }
    }

    fn try_evaluate(
        &self,
        limit: &Arc<Limit>,
        facts: &Facts,
        keys: &impl SourceValues,
        hits: i64,
    ) -> Result<Evaluation, ValueError> {
        if !limit.applies_to(facts)? {
            return Ok(Evaluation::NotApplicable);
        }
        if let Some(why) = limit.unreadable_body(facts) {
            return Ok(Evaluation::UnreadableBody(why));
        }
        let price = limit.price_of(facts)?;
        let mut evaluation = self.evaluate(limit, keys, price.units.saturating_mul(hits).min(COST_MAX));
        if let Evaluation::Check(check) = &mut evaluation {
            check.input_tokens = price.input_tokens;
        }
        Ok(evaluation)
    }

    /// Decides a request by `limits`, with one element of `evaluations` for each. With [`Op::Peek`], nothing is
    /// charged. With `hold`, the verdict contains a guard of the charges that the end of the request may change.
    pub fn decide(
        &self,
        op: Op,
        limits: &[Arc<Limit>],
        evaluations: Vec<Evaluation>,
        hold: bool,
    ) -> impl Future<Output = Verdict> {
        self.decide_until(op, limits, evaluations, hold, None)
    }

    /// Does the same, but waits for the store until `end` at most, and then decides without it. If the store had the
    /// decision already, it may charge it.
    pub async fn decide_until(
        &self,
        op: Op,
        limits: &[Arc<Limit>],
        mut evaluations: Vec<Evaluation>,
        hold: bool,
        end: Option<Instant>,
    ) -> Verdict {
        let candidates = CandidateSet::link(limits, &mut evaluations);
        if limits.iter().any(|limit| limit.after.is_some()) {
            chain::link_chains(limits, &mut evaluations);
        }
        let (split, mut verdict) = self.split_evaluations(op, limits, evaluations);
        let SplitChecks { mut checks, indexes, own_rules, slots, unlimited } = split;
        let mut checked_limits = CheckedLimits { all: limits, indexes };
        match (&candidates, verdict.refused) {
            (None, true) => return verdict,
            (Some(set), true) => set.keep_relevant(limits, &verdict, &mut checked_limits.indexes, &mut checks),
            (_, false) => {}
        }
        if checks.is_empty() {
            self.record_unlimited(op, &unlimited, &verdict);
            self.compare_candidates(op, candidates, limits, &mut verdict);
            return verdict;
        }
        let leased = match self.charges.store.hot_keys().filter(|_| hold && op == Op::Take) {
            Some(hot_keys) => LeasedChecks::spend(hot_keys, &mut checked_limits.indexes, &mut checks),
            None => LeasedChecks::default(),
        };
        if !checks.is_empty()
            && (op == Op::Peek || !self.refuse_from_memory(&mut verdict, &checked_limits, &mut checks))
        {
            self.decide_by_store(op, &mut verdict, &checked_limits, checks, hold, end).await;
        }
        leased.finish(&mut verdict, &self.charges, &self.gateways);
        for (index, rule) in own_rules {
            if let Some(checked) = verdict.checks.iter_mut().find(|checked| checked.limit == index) {
                checked.override_rule = Some(rule);
            }
        }
        if verdict.refused {
            slots.into_iter().for_each(|(index, cost)| self.estimate_wait(&mut verdict, index, &limits[index], cost));
        }
        self.record_unlimited(op, &unlimited, &verdict);
        self.compare_candidates(op, candidates, limits, &mut verdict);
        verdict
    }

    /// Records the usage of keys that overrides exempt, if the request is admitted: nothing is charged to them, but a bill
    /// may be about them.
    fn record_unlimited(&self, op: Op, checks: &[Check], verdict: &Verdict) {
        if op == Op::Take && !verdict.refused {
            checks.iter().for_each(|check| self.charges.decisions.ledger.record_admitted(check));
        }
    }

    /// Compares candidates with their incumbents, if there are any, and records the keys that they would affect.
    fn compare_candidates(
        &self,
        op: Op,
        candidates: Option<CandidateSet>,
        limits: &[Arc<Limit>],
        verdict: &mut Verdict,
    ) {
        let Some(candidates) = candidates else { return };
        verdict.comparisons = candidates.compare(limits, verdict, |limit, outcome, key| {
            if op == Op::Take {
                self.charges.decisions.record_key(limit, outcome, key);
            }
        });
    }

    /// Replaces the wait of a `concurrency` refusal by an estimate from recent hold times. The store only knows when
    /// the next lease expires, and most requests end long before their lease.
    fn estimate_wait(&self, verdict: &mut Verdict, index: usize, limit: &Limit, cost: i64) {
        let Some(checked) = verdict.checks.iter_mut().find(|checked| checked.limit == index) else { return };
        let rule = checked.override_rule.as_ref().unwrap_or(&limit.rule);
        let (answer, slots) = match &mut checked.outcome {
            Outcome::Store(answer) => (answer, rule.max_cost()),
            Outcome::Local(answer) => (answer, self.gateways.local_rule(rule).max_cost()),
            _ => return,
        };
        if answer.admitted || answer.retry_ms == NEVER || answer.is_banned() {
            return;
        }
        if let Some(wait_ms) =
            self.charges.hold_times.estimate_wait_ms(limit.store_ref.id, cost - answer.remaining, slots)
        {
            answer.retry_ms = answer.retry_ms.min(wait_ms);
        }
    }

    async fn decide_by_store(
        &self,
        op: Op,
        verdict: &mut Verdict,
        limits: &CheckedLimits<'_>,
        checks: Vec<Check>,
        hold: bool,
        end: Option<Instant>,
    ) {
        let is_chained = checks.iter().any(|check| check.role.base);
        let roles: Vec<Role> = if is_chained { checks.iter().map(|check| check.role).collect() } else { Vec::new() };
        // A decision is recorded even if its client disconnects.
        let keeps_usage = |check: &Check| check.may_change() || check.limit.usage_days.is_some();
        let is_watched = hold && op == Op::Take && checks.iter().any(keeps_usage);
        let rules = is_watched.then(|| limits.outcome_rules());
        // The calls are boxed, so that the future of a decision in memory is not larger for them.
        let result = match (self.charges.store.run_in_process(op, &checks), end, rules) {
            (Some(decision), _, rules) => Ok(complete_decision(&self.charges, op, checks, decision, rules)),
            (None, Some(end), _) => Box::pin(self.call_store_until(op, checks, end)).await,
            (None, None, Some(rules)) => Box::pin(self.take_in_task(checks, rules)).await,
            (None, None, None) => Box::pin(call_store(&self.charges, op, Rc::new(checks), None)).await,
        };
        match result {
            Ok(CheckedDecision { decision, charges, guard, refused_keys }) => {
                verdict.guard = guard;
                verdict.keep_refused(&limits.indexes, refused_keys);
                verdict.add_decision(&limits.indexes, &roles, (decision, charges), Outcome::Store);
            }
            Err(StoreError { kind, checks }) => self.decide_without_store(kind, op, verdict, limits, checks, hold),
        }
    }

    /// Evaluates `limit` for the client that `facts` describe, regardless of its `when`.
    pub fn evaluate(&self, limit: &Arc<Limit>, facts: &impl SourceValues, cost: i64) -> Evaluation {
        match self.make_check(limit, facts, cost) {
            Ok((check, None)) => Evaluation::Check(check),
            Ok((check, Some(Outcome::Blocked))) => Evaluation::Blocked(ChainState::InForce, check.key),
            Ok((check, Some(_))) => {
                Evaluation::Unlimited(limit.store_ref.usage_days.is_some().then(|| Box::new(check)))
            }
            Err(KeyError::Ambiguous) => Evaluation::Unclear(ValueError::Ambiguous),
            Err(KeyError::Missing(_)) if limit.missing == Missing::Skip => Evaluation::NotApplicable,
            Err(KeyError::Missing(part)) => Evaluation::MissingKey(part),
        }
    }

    /// Makes the check of `limit` for a key, with the rule of its override if it has one. The second value is the
    /// outcome of an override that is not a rule: blocked or unlimited.
    ///
    /// # Errors
    /// `facts` do not contain the key.
    pub fn make_check(
        &self,
        limit: &Arc<Limit>,
        facts: &impl SourceValues,
        cost: i64,
    ) -> Result<(Check, Option<Outcome>), KeyError> {
        let overridden = limit.overrides.has_any();
        let names = limit.budget_names(&self.prefix, facts, overridden || limit.may_change_charges())?;
        let mut check = Check::new(limit, names.state, cost);
        let own = names.values.as_deref().filter(|_| overridden).and_then(|values| {
            // A replay, and a test case, have a time of their own.
            match self.store() {
                Store::Timeline(timeline) => limit.overrides.find_at(values, || timeline.now_ms()),
                Store::Memory(_) | Store::Redis(_) => limit.overrides.find(values),
            }
        });
        let own = match (own.map(|entry| entry.budget), &limit.key_rate) {
            (None, Some(rate)) => Some(rate.budget_for(facts, limit.repeated).map_err(|_| KeyError::Ambiguous)?),
            (own, _) => own,
        };
        let instead = match own {
            None => None,
            Some(OverrideBudget::Rule(rule)) => {
                check.rule = rule;
                None
            }
            Some(OverrideBudget::Blocked) => Some(Outcome::Blocked),
            Some(OverrideBudget::Unlimited) => Some(Outcome::Unlimited),
        };
        if let Some(day) = &limit.month_day {
            let is_own = Arc::ptr_eq(&check.rule, &limit.rule);
            let rule = day.rule_for(&check.rule, is_own, facts, limit.repeated);
            if let Some(rule) = rule.map_err(|_| KeyError::Ambiguous)? {
                check.rule = rule;
            }
        }
        check.override_values = names.values.filter(|_| check.may_change()).map(String::into_boxed_str);
        if let Some(fair) = &limit.fair {
            check.set_tenant(fair.find_tenant(facts, limit.repeated)?);
        }
        if let Some(distinct) = &limit.distinct {
            distinct.set_value(&mut check, facts, limit.repeated)?;
        }
        Ok((check, instead))
    }

    /// Reads the clock of the in-memory store, in ms.
    pub fn memory_now_ms(&self) -> i64 {
        self.charges.local.now_ms()
    }

    /// Returns the time and the rule of a charge: those of this gateway's memory, whose rule is a share of `rule`, or
    /// those of the store, whose clock showed `store_ms` before. `None` if that is not known.
    pub fn time_and_rule(&self, is_local: bool, rule: &Arc<Rule>, store_ms: Option<i64>) -> Option<(i64, Arc<Rule>)> {
        match is_local {
            true => Some((self.memory_now_ms(), self.gateways.local_rule(rule))),
            false => Some((store_ms?, rule.clone())),
        }
    }

    /// Calls `visit` with the state keys of `limits`; see [`Store::visit_keys`].
    pub async fn visit_keys(
        &self,
        limits: &[&Arc<Limit>],
        part: &str,
        visit: &mut impl FnMut(&str),
    ) -> Result<(), ErrorKind> {
        let ids: Vec<u64> = limits.iter().map(|limit| limit.store_ref.id).collect();
        self.store().visit_keys(&ids, &self.prefix, part, visit).await
    }

    /// The store itself, for managing state.
    pub fn store(&self) -> &Store {
        &self.charges.store
    }

    /// Runs `op` on the in-memory state that replaces an unavailable store.
    pub fn run_in_memory(&self, op: Op, check: Check) -> Option<Answer> {
        self.charges.local.run_now(op, &[check]).answers.first().copied()
    }

    /// Uses `mark` in memory; see [`Store::use_mark`].
    pub fn use_mark_in_memory(&self, mark: SingleUseMark) -> MarkUse {
        self.charges.local.use_mark(mark, self.memory_now_ms())
    }

    /// Refuses the request without a call if the worker remembers a refusal of each check.
    fn refuse_from_memory(&self, verdict: &mut Verdict, limits: &CheckedLimits, checks: &mut [Check]) -> bool {
        let Some(answers) = self.charges.store.known_refusals(checks) else { return false };
        let decision = Decision { admitted: false, answers };
        self.charges.decisions.record_decision(checks, &decision);
        let charges = decision.find_charged(checks);
        verdict.keep_refused(&limits.indexes, take_refused_keys(checks, &decision));
        verdict.add_decision(&limits.indexes, &[], (decision, charges), Outcome::Store);
        true
    }

    /// Calls the store for checks that the end of the request does not change, and gives up at `end`.
    async fn call_store_until(&self, op: Op, checks: Vec<Check>, end: Instant) -> Result<CheckedDecision, StoreError> {
        let checks = Rc::new(checks);
        match timeout_at(end, call_store(&self.charges, op, checks.clone(), None)).await {
            Ok(decided) => decided,
            Err(_) => {
                self.charges.store.count_error(ErrorKind::ClientDeadline);
                Err(StoreError { kind: ErrorKind::ClientDeadline, checks: Rc::unwrap_or_clone(checks) })
            }
        }
    }

    /// Charges `checks` in a separate task. If the client disconnects in the meantime, the task still receives the
    /// reply and drops the guard, which settles the charges.
    async fn take_in_task(&self, checks: Vec<Check>, rules: OutcomeRules) -> Result<CheckedDecision, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (manager, call) = (self.charges.clone(), PendingCall::begin(&self.charges));
        let checks = Rc::new(checks);
        let shared = checks.clone();
        spawn_local(async move {
            // If the client has disconnected, the guard in the reply is dropped here, which settles the charges.
            let _ = reply.send(call_store(&manager, Op::Take, shared, Some(rules)).await);
            drop(call);
        });
        answer.await.unwrap_or_else(|_| {
            // The task panicked, so the charge may have happened.
            self.charges.store.count_error(ErrorKind::Internal);
            self.charges.release_leases(&checks);
            Err(StoreError { kind: ErrorKind::Internal, checks: Rc::unwrap_or_clone(checks) })
        })
    }
}

/// Calls the store. With `rules`, the charges are guarded until the request ends.
async fn call_store(
    manager: &Rc<ChargeManager>,
    op: Op,
    checks: SharedChecks,
    rules: Option<OutcomeRules>,
) -> Result<CheckedDecision, StoreError> {
    match manager.store.decide(op, &checks).await {
        Ok(decision) => Ok(complete_decision(manager, op, Rc::unwrap_or_clone(checks), decision, rules)),
        Err(kind) => {
            let checks = Rc::unwrap_or_clone(checks);
            if rules.is_some() && kind.is_unsure() {
                manager.release_leases(&checks);
            }
            Err(StoreError { kind, checks })
        }
    }
}

/// Records a decision of the store. With `rules`, the charges are guarded until the request ends.
fn complete_decision(
    manager: &Rc<ChargeManager>,
    op: Op,
    mut checks: Vec<Check>,
    decision: Decision,
    rules: Option<OutcomeRules>,
) -> CheckedDecision {
    if op == Op::Take {
        manager.decisions.record_decision(&checks, &decision);
    }
    let charges = decision.find_charged(&checks);
    let refused_keys = take_refused_keys(&mut checks, &decision);
    let charged = (&decision, charges);
    let guard = rules.and_then(|rules| guard_charges(manager, checks, rules, charged, ChargedAt::Store));
    CheckedDecision { decision, charges, guard, refused_keys }
}

/// Takes the keys that a refused request was refused for. Charges need none of them.
fn take_refused_keys(checks: &mut [Check], decision: &Decision) -> Vec<RefusedKey> {
    if decision.admitted {
        return Vec::new();
    }
    let places = checks.iter_mut().zip(&decision.answers).enumerate();
    let refusals = places.filter(|(_, (_, answer))| !answer.admitted);
    refusals
        .map(|(limit, (check, _))| RefusedKey { limit, key: check.take_counted_key(), cost: Some(check.cost) })
        .collect()
}
