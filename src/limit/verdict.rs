//! What became of a request, limit by limit. Made by the limiter, read by whoever answers.

use std::sync::Arc;

use super::algo::Rule;
use super::answer::{Answer, NEVER};
use super::chain;
use super::decision::{Decision, Role};
use super::held::Held;
use super::limits::{Limit, Mode};
use super::source::UnreadableBody;
use super::standing::Standing;

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
    /// Refused: the part of the key at that place is missing and the limit says `missing = "refuse"`.
    MissingKey { part: usize },
    /// Refused: what the limit reads stands there more than once, and it says `repeated = "refuse"`.
    RepeatedKey,
    /// Refused: where the limit reads an integer stands something else, and it says `not_integer = "refuse"`.
    NotInteger,
    /// Refused: its key goes by the body, of which nobody can tell what servers make.
    UnreadableKey(UnreadableBody),
    /// Refused: the key's override is a rate of 0.
    Blocked,
    /// Refused unasked: it might have to wait, and no more requests may.
    NoSeat,
    /// Admitted: the key's override is "unlimited".
    Unlimited,
}

impl Outcome {
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => Some(answer),
            Outcome::Open
            | Outcome::Closed
            | Outcome::MissingKey { .. }
            | Outcome::RepeatedKey
            | Outcome::NotInteger
            | Outcome::UnreadableKey(_)
            | Outcome::Blocked
            | Outcome::NoSeat
            | Outcome::Unlimited => None,
        }
    }

    pub fn admitted(&self) -> bool {
        match self {
            Outcome::Store(answer) | Outcome::Local(answer) => answer.admitted,
            Outcome::Open | Outcome::Unlimited => true,
            Outcome::Closed
            | Outcome::MissingKey { .. }
            | Outcome::RepeatedKey
            | Outcome::NotInteger
            | Outcome::UnreadableKey(_)
            | Outcome::Blocked
            | Outcome::NoSeat => false,
        }
    }
}

impl Verdict {
    /// No store was asked: at the limit of that place as many requests wait as may.
    pub fn without_seat(limit: usize) -> Verdict {
        let checked = Checked { limit, outcome: Outcome::NoSeat, standing: Standing::InForce, own: None };
        Verdict { refused: true, checks: vec![checked], held: None }
    }

    /// `roles` may be empty when no limit comes after another.
    pub fn absorb(
        &mut self,
        indexes: &[usize],
        roles: &[Role],
        mut decision: Decision,
        outcome: fn(Answer) -> Outcome,
    ) {
        self.refused |= !decision.admitted;
        for (place, index) in indexes.iter().enumerate() {
            let role = roles.get(place).copied().unwrap_or_default();
            let standing = chain::resolve(role, place, &mut decision.answers);
            let Some(answer) = decision.answers.get(place) else { return };
            self.checks.push(Checked { limit: *index, outcome: outcome(*answer), standing, own: None });
        }
    }

    /// The enforced limit for which an admitted request has to wait longest, and how long.
    pub fn delay_ms(&self, limits: &[Arc<Limit>]) -> Option<(usize, i64)> {
        let answers = self.checks.iter().filter_map(|checked| Some((checked.limit, checked.outcome.answer()?)));
        answers
            .filter(|(limit, answer)| answer.admitted && answer.retry_ms > 0 && limits[*limit].mode == Mode::Enforce)
            .map(|(limit, answer)| (limit, answer.retry_ms))
            .max_by_key(|(_, delay_ms)| *delay_ms)
            .filter(|_| !self.refused)
    }

    /// The enforced limits that refuse.
    pub fn violated<'l>(&self, limits: &'l [Arc<Limit>]) -> impl Iterator<Item = &'l Arc<Limit>> {
        self.refusals(limits).map(|checked| &limits[checked.limit])
    }

    /// The enforced limit that refuses for longest, which is what the client is told to wait for.
    pub fn strictest(&self, limits: &[Arc<Limit>]) -> Option<&Checked> {
        self.refusals(limits).max_by_key(|checked| match checked.outcome.answer() {
            Some(answer) if answer.retry_ms == NEVER => i64::MAX,
            Some(answer) => answer.retry_ms,
            None => 0,
        })
    }

    fn refusals(&self, limits: &[Arc<Limit>]) -> impl Iterator<Item = &Checked> {
        self.refusals_of(limits, Mode::Enforce)
    }

    /// The limits of that mode that refuse.
    pub fn refusals_of(&self, limits: &[Arc<Limit>], mode: Mode) -> impl Iterator<Item = &Checked> {
        self.checks.iter().filter(move |checked| {
            let meant = limits[checked.limit].mode == mode;
            meant && checked.standing == Standing::InForce && !checked.outcome.admitted()
        })
    }
}
