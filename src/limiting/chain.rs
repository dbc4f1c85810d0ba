//! Chained limits (`after`): a limit that applies only once another one, its base, is exhausted, and then decides in
//! its place. Example: 100 requests per day for free, then 10 per minute.
//!
//! - If the base does not apply to a request (its `when`, a skipped key, an unlimited override), neither does the limit
//!   after it.
//! - If the limit after it does not apply, the base decides alone.
//! - If the base is blocked for the key, or its key is unreadable, the limit after it decides from the start.

use std::sync::Arc;

use crate::limiting::answer::{Answer, NEVER};
use crate::limiting::decision::{Check, Role};
use crate::limiting::integers::ValueError;
use crate::limiting::limit::{Limit, OnError};
use crate::limiting::source::UnreadableBody;

/// Evaluation of a limit for a request, before the store is called.
pub enum Evaluation {
    /// The store decides this check.
    Check(Check),
    /// An earlier check of the limit, at this index, decides for another descriptor that has the same budget.
    Shared(usize),
    /// The limit does not apply.
    NotApplicable,
    /// The part of the key with that index is missing, and the limit has `missing = "refuse"`.
    MissingKey(usize),
    /// A value that the limit reads is ambiguous or no integer.
    Unclear(ValueError),
    /// The key reads the body, and servers may interpret this body in different ways.
    UnreadableBody(UnreadableBody),
    /// An override blocks this state key.
    Blocked(ChainState, String),
    /// An override exempts the key. The check is there if its usage is kept.
    Unlimited(Option<Box<Check>>),
}

impl Evaluation {
    /// Returns the check that the store decides, if it decides one.
    pub fn check(&self) -> Option<&Check> {
        match self {
            Evaluation::Check(check) => Some(check),
            _ => None,
        }
    }
}

/// How the answer of a limit counts if limits are evaluated one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// The answer counts. Only such limits are charged.
    InForce,
    /// The limit refuses, and the next limit of the chain decides instead.
    HandedOver,
    /// The limit before it still has capacity, so this one was not charged.
    NotYet,
}

/// Sets the roles of chained checks. In `limits`, every base comes before the limits after it.
pub fn link_chains(limits: &[Arc<Limit>], evaluations: &mut [Evaluation]) {
    let mut base_of: Vec<Option<usize>> = vec![None; limits.len()];
    for index in 0..limits.len() {
        let Some(name) = &limits[index].after else { continue };
        // The last one: a rate limit request may have several descriptors with the same limits.
        let base = limits[..index].iter().rposition(|limit| limit.name == *name);
        let (before, from) = evaluations.split_at_mut(index);
        let evaluation = &mut from[0];
        let next = match (base.map(|base| &mut before[base]), &*evaluation) {
            (Some(Evaluation::Check(check)), Evaluation::Check(_)) => {
                check.role.base = true;
                base_of[index] = base;
                continue;
            }
            (Some(Evaluation::Check(check)), Evaluation::Unlimited(_)) => {
                check.role.base = true;
                Evaluation::NotApplicable
            }
            (
                Some(Evaluation::Blocked(chain_state, _)),
                Evaluation::Check(_) | Evaluation::Shared(_) | Evaluation::Unlimited(_),
            ) => {
                *chain_state = ChainState::HandedOver;
                continue;
            }
            (Some(Evaluation::Blocked(..)), _) => continue,
            // The base or the limit after it refuses, unless it is in shadow mode.
            (Some(Evaluation::Unclear(_) | Evaluation::UnreadableBody(_)), _)
            | (Some(Evaluation::Check(_)), Evaluation::Unclear(_) | Evaluation::UnreadableBody(_)) => continue,
            _ => Evaluation::NotApplicable,
        };
        *evaluation = next;
    }
    // Indexes of limits become indexes of checks.
    let mut places = vec![0; limits.len()];
    let mut place = 0;
    for (index, evaluation) in evaluations.iter_mut().enumerate() {
        let Evaluation::Check(check) = evaluation else { continue };
        places[index] = place;
        place += 1;
        check.role.after = base_of[index].map(|base| places[base]);
    }
}

/// Prepares chained checks for a decision without the store: sets the roles among the checks with
/// `on_error = "local"`, and returns for each check whether it has no effect. `on_error` has the setting of each.
///
/// - After an open base, a check has no effect: the base always has capacity.
/// - A closed check after a local base has no effect: the base refuses for itself.
pub fn keep_local_checks(checks: &mut [Check], on_error: &[OnError]) -> Vec<bool> {
    let mut silent = vec![false; checks.len()];
    let mut places = Vec::with_capacity(checks.len());
    let mut place = 0;
    for index in 0..checks.len() {
        if let Some(base) = checks[index].role.after.take() {
            match (on_error[base], on_error[index]) {
                _ if silent[base] => silent[index] = true,
                (OnError::Open, _) => silent[index] = true,
                (OnError::Local, OnError::Closed) => {
                    silent[index] = true;
                    checks[base].role.base = false;
                }
                (OnError::Local, OnError::Local) => checks[index].role.after = Some(places[base]),
                (OnError::Local, OnError::Open) | (OnError::Closed, _) => {}
            }
        }
        places.push(place);
        place += usize::from(on_error[index] == OnError::Local && !silent[index]);
    }
    silent
}

/// Returns the state of the check with index `place`. If it refuses, its wait is shortened to that of its base: the
/// request passes as soon as either of them admits it.
pub fn resolve_chain_state(role: Role, place: usize, answers: &mut [Answer]) -> ChainState {
    let Some(answer) = answers.get(place) else { return ChainState::InForce };
    let base = role.after.and_then(|base| answers.get(base)).copied();
    match base {
        Some(base) if base.admitted => ChainState::NotYet,
        _ if answer.admitted => ChainState::InForce,
        base => {
            if let Some(base) = base.filter(|base| base.retry_ms != NEVER)
                && (answer.retry_ms == NEVER || base.retry_ms < answer.retry_ms)
            {
                answers[place].retry_ms = base.retry_ms;
            }
            if role.base { ChainState::HandedOver } else { ChainState::InForce }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::answer::BanAnswer;

    fn resolved(roles: &[Role], answers: &[(bool, i64)]) -> Vec<(ChainState, i64)> {
        let answer = |(admitted, retry_ms)| Answer {
            admitted,
            remaining: 0,
            retry_ms,
            reset_ms: 0,
            receipt: 0,
            ban: BanAnswer::None,
        };
        let mut answers: Vec<Answer> = answers.iter().copied().map(answer).collect();
        let states: Vec<ChainState> =
            roles.iter().enumerate().map(|(place, role)| resolve_chain_state(*role, place, &mut answers)).collect();
        states.into_iter().zip(answers).map(|(chain_state, answer)| (chain_state, answer.retry_ms)).collect()
    }

    #[test]
    fn the_wait_ends_with_the_limit_that_admits_first() {
        use ChainState::{HandedOver, InForce, NotYet};
        let base = Role { base: true, ..Role::default() };
        let middle = Role { base: true, after: Some(0), ..Role::default() };
        let last = |after| Role { after: Some(after), ..Role::default() };
        let two = [base, last(0)];
        assert_eq!(resolved(&two, &[(true, 0), (true, 0)]), [(InForce, 0), (NotYet, 0)]);
        assert_eq!(resolved(&two, &[(false, 9), (true, 0)]), [(HandedOver, 9), (InForce, 0)]);
        assert_eq!(resolved(&two, &[(false, 9), (false, 5)]), [(HandedOver, 9), (InForce, 5)]);
        assert_eq!(resolved(&two, &[(false, 5), (false, 9)]), [(HandedOver, 5), (InForce, 5)]);
        assert_eq!(resolved(&two, &[(false, 5), (false, NEVER)]), [(HandedOver, 5), (InForce, 5)]);
        assert_eq!(resolved(&two, &[(false, NEVER), (false, 9)]), [(HandedOver, NEVER), (InForce, 9)]);
        let three = [base, middle, last(1)];
        let waits = resolved(&three, &[(false, 3), (false, 9), (false, 7)]);
        assert_eq!(waits, [(HandedOver, 3), (HandedOver, 3), (InForce, 3)]);
    }
}
