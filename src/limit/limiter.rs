//! The door to all limits: gathers what each limit has to say to a request, asks the store once,
//! and decides without it when it is away. One per worker, made by its view.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::algo::Rule;
use super::answer::{Answer, NEVER};
use super::chain::{self, Ask};
use super::decision::{Check, Decision, ErrorKind, Op, Role, Shares, StoreError};
use super::desk::{ChargedAt, Desk, OpenCall};
use super::held::Held;
use super::hold_times::HoldTimes;
use super::integers::Unclear;
use super::key::Missing;
use super::limits::{Limit, Mode, OnError};
use super::local::local_rule;
use super::names::Unnamed;
use super::overrides::Budget;
use super::source::{Facts, SourceValues};
use super::standing::Standing;
use super::store::Store;
use super::store::memory::Memory;
use super::store::once::{Mark, Use};
use super::verdict::{Checked, Outcome, Verdict};
use crate::metrics::{Gateways, Metrics};

/// A worker's way to limit decisions.
pub struct Limiter {
    desk: Rc<Desk>,
    gateways: Arc<Gateways>,
    prefix: String,
}

/// After this long a breaker has tried the store again.
pub const STORE_RETRY_MS: i64 = 2000;

/// A decision, and what it leaves to be done later.
type Taken = (Decision, Option<Box<Held>>);

impl Limiter {
    /// `previous`: the limiter whose store is used on.
    pub fn new(
        store: Store,
        previous: Option<&Limiter>,
        (local, hold_times): (&Arc<Memory>, &Arc<HoldTimes>),
        prefix: &str,
        metrics: &Metrics,
    ) -> Limiter {
        Limiter {
            desk: previous.map_or_else(
                || Desk::new(store, local.clone(), hold_times.clone(), metrics),
                |previous| previous.desk.clone(),
            ),
            gateways: metrics.gateways.clone(),
            prefix: prefix.to_owned(),
        }
    }

    /// The worker's back office of the store.
    pub fn desk(&self) -> &Rc<Desk> {
        &self.desk
    }

    /// Asks every one of `limits` about a request of the past, but those that `skipped` names; charges all of
    /// them or none. What its end would have given back stays charged.
    pub async fn decide_past(
        &self,
        limits: &[Arc<Limit>],
        facts: &Facts<'_>,
        skipped: impl Fn(&Limit) -> bool,
    ) -> Verdict {
        let mut asks = self.asks(limits, facts);
        for (ask, _) in asks.iter_mut().zip(limits).filter(|(_, limit)| skipped(limit)) {
            *ask = Ask::Nothing;
        }
        self.decide_asks(Op::Take, limits, asks, false).await
    }

    /// What each of `limits` has to say to a request.
    pub fn asks(&self, limits: &[Arc<Limit>], facts: &Facts) -> Vec<Ask> {
        let asks = limits.iter().map(|limit| match limit.applies(facts) {
            Ok(false) => Ok(Ask::Nothing),
            Ok(true) => match limit.key.unreadable(&facts.body) {
                Some(why) => Ok(Ask::UnreadableBody(why)),
                None => limit.cost_of(facts).map(|cost| self.ask(limit, facts, cost)),
            },
            Err(unclear) => Err(unclear),
        });
        asks.map(|ask| ask.unwrap_or_else(Ask::Unclear)).collect()
    }

    /// Takes or peeks, with one ask per limit. `hold`: the limits learn how the request ends.
    pub async fn decide_asks(&self, op: Op, limits: &[Arc<Limit>], mut asks: Vec<Ask>, hold: bool) -> Verdict {
        let chained = limits.iter().any(|limit| limit.after.is_some());
        if chained {
            chain::link(limits, &mut asks);
        }
        let mut verdict = Verdict::default();
        let (mut own, mut slots) = (Vec::new(), Vec::new());
        let (mut indexes, mut checks) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for (index, ask) in asks.into_iter().enumerate() {
            let (outcome, standing) = match ask {
                Ask::Check(check) => {
                    if !Arc::ptr_eq(&check.rule, &check.limit.rule) {
                        own.push((index, check.rule.clone()));
                    }
                    if check.rule.lease_ms().is_some() {
                        slots.push((index, check.cost));
                    }
                    indexes.push(index);
                    checks.push(check);
                    continue;
                }
                Ask::Nothing => continue,
                Ask::Missing(part) => (Outcome::MissingKey { part }, Standing::InForce),
                Ask::Unclear(Unclear::Ambiguous) => (Outcome::RepeatedKey, Standing::InForce),
                Ask::Unclear(Unclear::NotInteger) => (Outcome::NotInteger, Standing::InForce),
                Ask::UnreadableBody(why) => (Outcome::UnreadableKey(why), Standing::InForce),
                Ask::Unlimited => (Outcome::Unlimited, Standing::InForce),
                Ask::Blocked(standing) => (Outcome::Blocked, standing),
            };
            let enforced = limits[index].mode == Mode::Enforce && standing == Standing::InForce;
            verdict.refused |= enforced && !outcome.admitted();
            verdict.checks.push(Checked { limit: index, outcome, standing, own: None });
        }
        if verdict.refused || checks.is_empty() {
            return verdict;
        }
        if op == Op::Peek || !self.known_to_refuse(&mut verdict, &indexes, &checks) {
            self.ask_store(op, &mut verdict, &indexes, checks, hold).await;
        }
        for (index, rule) in own {
            if let Some(checked) = verdict.checks.iter_mut().find(|checked| checked.limit == index) {
                checked.own = Some(rule);
            }
        }
        if verdict.refused {
            slots.into_iter().for_each(|(index, cost)| self.guess_wait(&mut verdict, index, &limits[index], cost));
        }
        verdict
    }

    /// A refusal for want of slots says when a lease ends; most requests end long before.
    fn guess_wait(&self, verdict: &mut Verdict, index: usize, limit: &Limit, cost: i64) {
        let Some(checked) = verdict.checks.iter_mut().find(|checked| checked.limit == index) else { return };
        let rule = checked.own.as_ref().unwrap_or(&limit.rule);
        let (answer, slots) = match &mut checked.outcome {
            Outcome::Store(answer) => (answer, rule.most()),
            Outcome::Local(answer) => (answer, local_rule(rule, &self.gateways).most()),
            _ => return,
        };
        if answer.admitted || answer.retry_ms == NEVER {
            return;
        }
        if let Some(wait_ms) = self.desk.hold_times.wait_ms(limit.id, cost - answer.remaining, slots) {
            answer.retry_ms = answer.retry_ms.min(wait_ms);
        }
    }

    async fn ask_store(&self, op: Op, verdict: &mut Verdict, indexes: &[usize], checks: Vec<Check>, hold: bool) {
        let chained = checks.iter().any(|check| check.role.base);
        let roles: Vec<Role> = if chained { checks.iter().map(|check| check.role).collect() } else { Vec::new() };
        match self.run_all(op, checks, hold).await {
            Ok((decision, held)) => {
                verdict.held = held;
                verdict.absorb(indexes, &roles, decision, Outcome::Store);
            }
            Err(StoreError { checks, .. }) => self.degrade(op, verdict, indexes, checks, hold),
        }
    }

    /// What `limit` has to say to whom `facts` name, apart from its `when`.
    pub fn ask(&self, limit: &Arc<Limit>, facts: &impl SourceValues, cost: i64) -> Ask {
        match self.check(limit, facts, cost) {
            Ok((check, None)) => Ask::Check(check),
            Ok((_, Some(Outcome::Blocked))) => Ask::Blocked(Standing::InForce),
            Ok((_, Some(_))) => Ask::Unlimited,
            Err(Unnamed::Ambiguous) => Ask::Unclear(Unclear::Ambiguous),
            Err(Unnamed::Missing(_)) if limit.missing == Missing::Skip => Ask::Nothing,
            Err(Unnamed::Missing(part)) => Ask::Missing(part),
        }
    }

    /// The check of `limit` by the numbers of the key, and what the key has instead of numbers.
    pub fn check(
        &self,
        limit: &Arc<Limit>,
        facts: &impl SourceValues,
        cost: i64,
    ) -> Result<(Check, Option<Outcome>), Unnamed> {
        let overridden = limit.overrides.any();
        let names = limit.names(&self.prefix, facts, overridden || limit.may_hold(&limit.rule))?;
        let mut check = Check::new(limit, names.state, cost);
        let own = names.values.as_deref().filter(|_| overridden).and_then(|values| limit.overrides.find(values));
        let instead = match own {
            None => None,
            Some(Budget::Rule(rule)) => {
                check.rule = rule;
                None
            }
            Some(Budget::Blocked) => Some(Outcome::Blocked),
            Some(Budget::Unlimited) => Some(Outcome::Unlimited),
        };
        check.whose = names.values.filter(|_| may_hold(&check)).map(String::into_boxed_str);
        Ok((check, instead))
    }

    /// The clock of this gateway's own memory.
    pub fn memory_ms(&self) -> i64 {
        self.desk.local.now_ms()
    }

    /// The rule by which this gateway decides alone.
    pub fn local_rule(&self, rule: &Arc<Rule>) -> Arc<Rule> {
        local_rule(rule, &self.gateways)
    }

    /// The store alone: for those who manage state.
    pub fn store(&self) -> &Store {
        &self.desk.store
    }

    /// The same on the stand-in's state.
    pub fn run_local(&self, op: Op, check: Check) -> Option<Answer> {
        self.desk.local.run_now(op, &[check]).answers.first().copied()
    }

    /// The same of a mark that can be made once.
    pub fn once_local(&self, mark: Mark) -> Use {
        self.desk.local.once(mark, self.memory_ms())
    }

    fn known_to_refuse(&self, verdict: &mut Verdict, indexes: &[usize], checks: &[Check]) -> bool {
        let Some(answers) = self.desk.store.known_refusals(checks) else { return false };
        verdict.absorb(indexes, &[], Decision { admitted: false, answers }, Outcome::Store);
        true
    }

    async fn run_all(&self, op: Op, checks: Vec<Check>, hold: bool) -> Result<Taken, StoreError> {
        let watched = hold && op == Op::Take && checks.iter().any(may_hold);
        match self.desk.store.run_at_once(op, &checks) {
            Some(decision) => {
                let held = if watched { held(&self.desk, checks, &decision, ChargedAt::Store) } else { None };
                Ok((decision, held))
            }
            None if watched => self.take_for_good(checks).await,
            None => ask(&self.desk, op, Rc::new(checks), false).await,
        }
    }

    /// Takes even if the request goes away meanwhile, so that what it holds is given back.
    async fn take_for_good(&self, checks: Vec<Check>) -> Result<Taken, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (desk, call) = (self.desk.clone(), OpenCall::begin(&self.desk));
        let checks = Rc::new(checks);
        let asked = checks.clone();
        spawn_local(async move {
            // What nobody takes is dropped, and settles itself.
            let _ = reply.send(ask(&desk, Op::Take, asked, true).await);
            drop(call);
        });
        answer.await.unwrap_or_else(|_| {
            // The task failed; what it has charged is not known.
            self.desk.store.count(ErrorKind::Internal);
            self.desk.release(&checks);
            Err(StoreError { kind: ErrorKind::Internal, checks: Rc::unwrap_or_clone(checks) })
        })
    }

    /// The verdict without the store: each limit by its own `on_error`, the local ones together.
    fn degrade(&self, op: Op, verdict: &mut Verdict, indexes: &[usize], mut checks: Vec<Check>, hold: bool) {
        let silent = chain::keep_local(&mut checks);
        let (mut local, mut asked) = (Vec::new(), Vec::new());
        for ((index, check), silent) in indexes.iter().zip(checks).zip(silent) {
            if silent {
                let (outcome, standing) = (Outcome::Open, Standing::NotYet);
                verdict.checks.push(Checked { limit: *index, outcome, standing, own: None });
                continue;
            }
            let outcome = match check.limit.on_error {
                OnError::Open => Outcome::Open,
                OnError::Closed => Outcome::Closed,
                OnError::Local => {
                    local.push(*index);
                    asked.push(check);
                    continue;
                }
            };
            verdict.refused |= outcome == Outcome::Closed && check.limit.mode == Mode::Enforce;
            verdict.checks.push(Checked { limit: *index, outcome, standing: Standing::InForce, own: None });
        }
        if !asked.is_empty() && !verdict.refused {
            self.decide_alone(op, verdict, &local, asked, hold);
        }
    }

    /// Decides by this gateway's share of the limits.
    fn decide_alone(&self, op: Op, verdict: &mut Verdict, indexes: &[usize], mut checks: Vec<Check>, hold: bool) {
        let most: Vec<i64> = checks.iter().map(|check| check.rule.most()).collect();
        checks.iter_mut().for_each(|check| check.rule = local_rule(&check.rule, &self.gateways));
        let roles: Vec<Role> = checks.iter().map(|check| check.role).collect();
        let mut decision = self.desk.local.run_now(op, &checks);
        for ((check, most), answer) in checks.iter().zip(most).zip(&mut decision.answers) {
            // More than the share ever holds may well fit once the store is back.
            if answer.retry_ms == NEVER && check.cost <= most {
                answer.retry_ms = STORE_RETRY_MS;
            }
        }
        if hold && op == Op::Take && checks.iter().any(may_hold) {
            verdict.held = held(&self.desk, checks, &decision, ChargedAt::Local);
        }
        verdict.absorb(indexes, &roles, decision, Outcome::Local);
    }
}

/// `watch`: what is charged there is held until the request ends.
async fn ask(desk: &Rc<Desk>, op: Op, checks: Shares, watch: bool) -> Result<Taken, StoreError> {
    match desk.store.decide(op, &checks).await {
        Ok(decision) => {
            let held = match watch {
                true => held(desk, Rc::unwrap_or_clone(checks), &decision, ChargedAt::Store),
                false => None,
            };
            Ok((decision, held))
        }
        Err(kind) => {
            let checks = Rc::unwrap_or_clone(checks);
            if watch && kind.is_unsure() {
                desk.release(&checks);
            }
            Err(StoreError { kind, checks })
        }
    }
}

/// Whether the end of the request may change what the check takes.
fn may_hold(check: &Check) -> bool {
    check.limit.may_hold(&check.rule)
}

/// What a decision leaves to be done later; all of it if the request has to wait for its turn.
fn held(desk: &Rc<Desk>, checks: Vec<Check>, decision: &Decision, place: ChargedAt) -> Option<Box<Held>> {
    let answers = &decision.answers;
    let waits = decision.admitted && answers.iter().any(|answer| answer.admitted && answer.retry_ms > 0);
    let charged = checks.into_iter().zip(answers).filter(|(check, answer)| {
        let watched = waits || check.limit.afterwards.as_ref().is_some_and(|wants| wants.watches());
        watched && decision.charged(check.role, **answer)
    });
    Held::new(desk, charged.map(|(check, answer)| (check, *answer)), place, waits)
}
