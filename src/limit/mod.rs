//! Throttling: all limits of one request, decided together. [`Limiter::decide`] is the door;
//! behind it `when` says whether a limit applies, `key` whose budget, `overrides` how much,
//! `algo` does the arithmetic, `store` keeps the state.

pub mod algo;
mod chain;
pub mod inputs;
pub mod jwt;
pub mod key;
pub mod overrides;
pub mod rule;
pub mod store;
pub mod when;

use std::sync::Arc;

use crate::route::Route;
use algo::Rule;
pub use chain::Ask;
use key::{Facts, Parts};
use overrides::Budget;
use rule::{Answer, Limit, Missing, Mode, NEVER, OnError};
use store::memory::Memory;
use store::{Check, Decision, ErrorKind, Op, Role, Store, StoreError};

/// A worker's way to limit decisions.
pub struct Limiter {
    store: Store,
    /// Answers for `on_error = "local"` while the store is away.
    local: Arc<Memory>,
    prefix: String,
}

/// What became of a request, limit by limit.
#[derive(Debug, Default)]
pub struct Verdict {
    pub refused: bool,
    pub checks: Vec<Checked>,
}

/// One limit's part in a verdict.
#[derive(Debug)]
pub struct Checked {
    /// Index into the route's limits.
    pub limit: usize,
    pub outcome: Outcome,
    pub standing: Standing,
    /// The rule of the key's override; `None`: the limit's own.
    pub own: Option<Arc<Rule>>,
}

/// A limit's place among limits that come one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its word counts. Only such a limit was charged, if it admitted.
    InForce,
    /// It refuses, and the limit that comes after it decides instead.
    HandedOver,
    /// The limit before it has room still; it was not charged.
    NotYet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store's answer, exact.
    Store(Answer),
    /// This gateway's own answer while the store is away.
    Local(Answer),
    /// Admitted unasked: the store is away and the limit is `on_error = "open"`.
    Open,
    /// Refused unasked: the store is away and the limit is `on_error = "closed"`.
    Closed,
    /// Refused: a part of the key is missing and the limit says `missing = "refuse"`.
    MissingKey,
    /// Refused: the key's override is a rate of 0.
    Blocked,
    /// Admitted: the key's override is "unlimited".
    Unlimited,
}

impl Outcome {
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => Some(answer),
            Outcome::Open | Outcome::Closed | Outcome::MissingKey | Outcome::Blocked | Outcome::Unlimited => None,
        }
    }

    pub fn admitted(&self) -> bool {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => answer.admitted,
            Outcome::Open | Outcome::Unlimited => true,
            Outcome::Closed | Outcome::MissingKey | Outcome::Blocked => false,
        }
    }
}

impl Limiter {
    pub fn new(store: Store, local: Arc<Memory>, prefix: &str) -> Limiter {
        Limiter { store, local, prefix: prefix.to_owned() }
    }

    /// Asks every limit of `route`; charges all of them or none.
    pub async fn decide(&self, route: &Route, facts: &Facts<'_>) -> Verdict {
        let asks = route.limits.iter().map(|limit| match limit.when.holds(facts) {
            true => self.ask(limit, facts, limit.cost.of(facts)),
            false => Ask::Nothing,
        });
        self.decide_asks(Op::Take, &route.limits, asks.collect()).await
    }

    /// Takes or peeks, with one ask per limit.
    pub async fn decide_asks(&self, op: Op, limits: &[Arc<Limit>], mut asks: Vec<Ask>) -> Verdict {
        let chained = limits.iter().any(|limit| limit.after.is_some());
        if chained {
            chain::link(limits, &mut asks);
        }
        let mut verdict = Verdict::default();
        let mut own = Vec::new();
        let (mut indexes, mut checks) = (Vec::with_capacity(asks.len()), Vec::with_capacity(asks.len()));
        for (index, ask) in asks.into_iter().enumerate() {
            let (outcome, standing) = match ask {
                Ask::Check(check) => {
                    if !Arc::ptr_eq(&check.rule, &check.limit.rule) {
                        own.push((index, check.rule.clone()));
                    }
                    indexes.push(index);
                    checks.push(check);
                    continue;
                }
                Ask::Nothing => continue,
                Ask::Missing => (Outcome::MissingKey, Standing::InForce),
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
        let roles: Vec<Role> = if chained { checks.iter().map(|check| check.role).collect() } else { Vec::new() };
        match self.store.run(op, checks).await {
            Ok(decision) => verdict.absorb(&indexes, &roles, decision, Outcome::Store),
            Err(StoreError { checks, .. }) => self.degrade(op, &mut verdict, &indexes, checks),
        }
        for (index, rule) in own {
            if let Some(checked) = verdict.checks.iter_mut().find(|checked| checked.limit == index) {
                checked.own = Some(rule);
            }
        }
        verdict
    }

    /// What `limit` has to say to whom `parts` name, apart from its `when`.
    pub fn ask(&self, limit: &Arc<Limit>, parts: &impl Parts, cost: i64) -> Ask {
        let Some(mut check) = self.check(limit, parts, cost) else {
            return if limit.missing == Missing::Skip { Ask::Nothing } else { Ask::Missing };
        };
        match limit.overrides.find(&limit.key, parts) {
            None => {}
            Some(Budget::Rule(rule)) => check.rule = rule,
            Some(Budget::Blocked) => return Ask::Blocked(Standing::InForce),
            Some(Budget::Unlimited) => return Ask::Unlimited,
        }
        Ask::Check(check)
    }

    /// The check of `limit` by its own rule; `None` when a part of the key is absent.
    pub fn check(&self, limit: &Arc<Limit>, parts: &impl Parts, cost: i64) -> Option<Check> {
        let key = key::state_key(&self.prefix, &limit.name, limit.rule.name(), &limit.key, limit.missing, parts)?;
        Some(Check::new(limit, key, cost))
    }

    /// Whether other gateways use the same state.
    pub fn is_shared(&self) -> bool {
        !matches!(self.store, Store::Memory(_))
    }

    /// One check, answered by the store alone: for those who manage state.
    pub async fn run(&self, op: Op, check: Check) -> Result<Answer, ErrorKind> {
        let decision = self.store.run(op, vec![check]).await.map_err(|error| error.kind)?;
        decision.answers.first().copied().ok_or(ErrorKind::Reply)
    }

    /// The same on the stand-in's state.
    pub fn run_local(&self, op: Op, check: Check) -> Option<Answer> {
        self.local.run(op, &[check], store::now_ms()).answers.first().copied()
    }

    /// The verdict without the store: each limit by its own `on_error`, the local ones together.
    fn degrade(&self, op: Op, verdict: &mut Verdict, indexes: &[usize], mut checks: Vec<Check>) {
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
            let decision = self.local.run(op, &asked, store::now_ms());
            let roles: Vec<Role> = asked.iter().map(|check| check.role).collect();
            verdict.absorb(&local, &roles, decision, Outcome::Local);
        }
    }
}

impl Verdict {
    /// `roles` may be empty when no limit comes after another.
    fn absorb(&mut self, indexes: &[usize], roles: &[Role], mut decision: Decision, outcome: fn(Answer) -> Outcome) {
        self.refused |= !decision.admitted;
        for (place, index) in indexes.iter().enumerate() {
            let role = roles.get(place).copied().unwrap_or_default();
            let standing = chain::settle(role, place, &mut decision.answers);
            let Some(answer) = decision.answers.get(place) else { return };
            self.checks.push(Checked { limit: *index, outcome: outcome(*answer), standing, own: None });
        }
    }

    /// The enforced limits that refuse.
    pub fn violated<'r>(&self, route: &'r Route) -> impl Iterator<Item = &'r Arc<Limit>> {
        self.refusals(route).map(|checked| &route.limits[checked.limit])
    }

    /// The enforced limit that refuses for longest, which is what the client is told to wait for.
    pub fn strictest(&self, route: &Route) -> Option<&Checked> {
        self.refusals(route).max_by_key(|checked| match checked.outcome.answer() {
            Some(answer) if answer.retry_ms == NEVER => i64::MAX,
            Some(answer) => answer.retry_ms,
            None => 0,
        })
    }

    fn refusals(&self, route: &Route) -> impl Iterator<Item = &Checked> {
        self.checks.iter().filter(|checked| {
            let enforced = route.limits[checked.limit].mode == Mode::Enforce;
            enforced && checked.standing == Standing::InForce && !checked.outcome.admitted()
        })
    }
}
