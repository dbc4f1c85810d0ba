//! Throttling: all limits of one request, decided together. [`Limiter::decide`] is the door;
//! behind it `when` says whether a limit applies, `key` whose budget, `overrides` how much,
//! `algo` does the arithmetic, `store` keeps the state. What is still to do once an admitted
//! request ends is in `held`, which goes with the request.

pub mod afterwards;
pub mod algo;
mod chain;
pub mod denials;
pub mod desk;
pub mod held;
pub mod inputs;
pub mod jwt;
pub mod key;
mod limiter;
pub mod overrides;
pub mod rule;
pub mod store;
pub mod when;

use std::sync::Arc;

use crate::route::Route;
use algo::Rule;
pub use chain::Ask;
use held::Held;
pub use limiter::{Limiter, STORE_RETRY_MS};
use rule::{Answer, Limit, Mode, NEVER};
use store::{Decision, Role};

/// What became of a request, limit by limit.
#[derive(Debug, Default)]
pub struct Verdict {
    pub refused: bool,
    pub checks: Vec<Checked>,
    /// What the limits want once the request ends; most want nothing.
    pub held: Option<Box<Held>>,
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

    /// The enforced limit for which an admitted request has to wait longest, and how long.
    pub fn delay_ms(&self, route: &Route) -> Option<(usize, i64)> {
        let answers = self.checks.iter().filter_map(|checked| Some((checked.limit, checked.outcome.answer()?)));
        answers
            .filter(|(limit, answer)| {
                answer.admitted && answer.retry_ms > 0 && route.limits[*limit].mode == Mode::Enforce
            })
            .map(|(limit, answer)| (limit, answer.retry_ms))
            .max_by_key(|(_, delay_ms)| *delay_ms)
            .filter(|_| !self.refused)
    }

    /// Turns an admitted request away, because it cannot wait for its turn at `limit`.
    pub fn turn_away(&mut self, limit: usize, route: &Route) {
        self.refused = true;
        let held = self.held.take();
        for checked in &mut self.checks {
            if let Outcome::Store(answer) | Outcome::Local(answer) = &mut checked.outcome {
                answer.admitted &= checked.limit != limit;
                answer.remaining += held.as_ref().map_or(0, |held| held.cost(&route.limits[checked.limit]));
            }
        }
        if let Some(held) = held {
            held.refuse();
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
