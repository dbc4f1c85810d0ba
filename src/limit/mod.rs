//! Throttling: all limits of one request, decided together. [`Limiter::decide`] is the door;
//! behind it `key` says whose budget, `algo` does the arithmetic, `store` keeps the state.

pub mod algo;
pub mod key;
pub mod rule;
pub mod store;

use std::sync::Arc;

use crate::route::Route;
use key::{Facts, Parts};
use rule::{Answer, Limit, Missing, Mode, NEVER, OnError};
use store::memory::Memory;
use store::{Check, Decision, ErrorKind, Op, Store, StoreError};

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
}

impl Outcome {
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => Some(answer),
            Outcome::Open | Outcome::Closed | Outcome::MissingKey => None,
        }
    }

    pub fn admitted(&self) -> bool {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => answer.admitted,
            Outcome::Open => true,
            Outcome::Closed | Outcome::MissingKey => false,
        }
    }
}

impl Limiter {
    pub fn new(store: Store, local: Arc<Memory>, prefix: &str) -> Limiter {
        Limiter { store, local, prefix: prefix.to_owned() }
    }

    /// Asks every limit of `route`; charges all of them or none.
    pub async fn decide(&self, route: &Route, facts: &Facts<'_>) -> Verdict {
        let checks = route.limits.iter().map(|limit| self.check(limit, facts, limit.cost.of(facts)));
        self.decide_checks(Op::Take, &route.limits, checks).await
    }

    /// Takes or peeks, with one check per limit; `None` where a part of the key is absent.
    pub async fn decide_checks(
        &self,
        op: Op,
        limits: &[Arc<Limit>],
        checks: impl Iterator<Item = Option<Check>>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let mut asked = Vec::with_capacity(limits.len());
        for (index, (limit, check)) in limits.iter().zip(checks).enumerate() {
            match check {
                Some(check) => asked.push((index, check)),
                None if limit.missing == Missing::Skip => {}
                None => {
                    verdict.refused |= limit.mode == Mode::Enforce;
                    verdict.checks.push(Checked { limit: index, outcome: Outcome::MissingKey });
                }
            }
        }
        if verdict.refused || asked.is_empty() {
            return verdict;
        }
        let (indexes, checks): (Vec<usize>, Vec<Check>) = asked.into_iter().unzip();
        match self.store.run(op, checks).await {
            Ok(decision) => verdict.absorb(&indexes, decision, Outcome::Store),
            Err(StoreError { checks, .. }) => self.degrade(op, &mut verdict, &indexes, checks),
        }
        verdict
    }

    /// The check of `limit` for whom `parts` name; `None` when one of them is absent.
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
    fn degrade(&self, op: Op, verdict: &mut Verdict, indexes: &[usize], checks: Vec<Check>) {
        let mut local = (Vec::new(), Vec::new());
        for (index, check) in indexes.iter().zip(checks) {
            let outcome = match check.limit.on_error {
                OnError::Open => Outcome::Open,
                OnError::Closed => Outcome::Closed,
                OnError::Local => {
                    local.0.push(*index);
                    local.1.push(check);
                    continue;
                }
            };
            verdict.refused |= outcome == Outcome::Closed && check.limit.mode == Mode::Enforce;
            verdict.checks.push(Checked { limit: *index, outcome });
        }
        if !local.1.is_empty() && !verdict.refused {
            let decision = self.local.run(op, &local.1, store::now_ms());
            verdict.absorb(&local.0, decision, Outcome::Local);
        }
    }
}

impl Verdict {
    fn absorb(&mut self, indexes: &[usize], decision: Decision, outcome: fn(Answer) -> Outcome) {
        self.refused |= !decision.admitted;
        for (index, answer) in indexes.iter().zip(decision.answers) {
            self.checks.push(Checked { limit: *index, outcome: outcome(answer) });
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
        self.checks
            .iter()
            .filter(|checked| !checked.outcome.admitted() && route.limits[checked.limit].mode == Mode::Enforce)
    }
}
