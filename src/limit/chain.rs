//! Limits that come one after another: the `after` limit is asked only once its base is exhausted,
//! and decides in its place. Called by the limiter for routes that have such limits.
//!
//! - The base does not apply to a request (`when`, a skipped key, no end to its budget): neither
//!   does what comes after it.
//! - What comes after does not apply: the base refuses for itself.
//! - The base is blocked for the key, or cannot tell whose budget is meant: what comes after decides
//!   from the start.

use std::sync::Arc;

use super::answer::{Answer, NEVER};
use super::decision::{Check, Role};
use super::integers::Unclear;
use super::limits::{Limit, OnError};
use super::source::UnreadableBody;
use super::standing::Standing;

/// What a limit has to say to a request, before any store is asked.
pub enum Ask {
    Check(Check),
    /// It does not apply.
    Nothing,
    /// The part of the key at that place is missing and `missing = "refuse"`.
    Missing(usize),
    /// It cannot be told what the request states.
    Unclear(Unclear),
    /// Its key goes by the body, of which nobody can tell what servers make.
    UnreadableBody(UnreadableBody),
    Blocked(Standing),
    Unlimited,
}

/// Gives the checks their roles. `limits` has every base before what comes after it.
pub fn link(limits: &[Arc<Limit>], asks: &mut [Ask]) {
    let mut base_of: Vec<Option<usize>> = vec![None; limits.len()];
    for index in 0..limits.len() {
        let Some(name) = &limits[index].after else { continue };
        let base = limits[..index].iter().position(|limit| limit.name == *name);
        let (before, from) = asks.split_at_mut(index);
        let ask = &mut from[0];
        let next = match (base.map(|base| &mut before[base]), &*ask) {
            (Some(Ask::Check(check)), Ask::Check(_)) => {
                check.role.base = true;
                base_of[index] = base;
                continue;
            }
            (Some(Ask::Check(check)), Ask::Unlimited) => {
                check.role.base = true;
                Ask::Nothing
            }
            (Some(Ask::Blocked(standing)), Ask::Check(_) | Ask::Unlimited) => {
                *standing = Standing::HandedOver;
                continue;
            }
            (Some(Ask::Blocked(_)), _) => continue,
            // Refused, by the base or by what comes after it, unless that is a shadow.
            (Some(Ask::Unclear(_) | Ask::UnreadableBody(_)), _)
            | (Some(Ask::Check(_)), Ask::Unclear(_) | Ask::UnreadableBody(_)) => continue,
            _ => Ask::Nothing,
        };
        *ask = next;
    }
    // Places among all limits become places among the checks.
    let mut places = vec![0; limits.len()];
    let mut place = 0;
    for (index, ask) in asks.iter_mut().enumerate() {
        let Ask::Check(check) = ask else { continue };
        places[index] = place;
        place += 1;
        check.role.after = base_of[index].map(|base| places[base]);
    }
}

/// The roles among the checks that are decided here while the store is away, and which checks have
/// nothing to say: a base that is open then always has room. One that comes after a local base and
/// is closed leaves it to the base to refuse.
pub fn keep_local(checks: &mut [Check]) -> Vec<bool> {
    let mut silent = vec![false; checks.len()];
    let mut places = Vec::with_capacity(checks.len());
    let mut place = 0;
    for index in 0..checks.len() {
        let on_error = checks[index].limit.on_error;
        if let Some(base) = checks[index].role.after.take() {
            match (checks[base].limit.on_error, on_error) {
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
        place += usize::from(on_error == OnError::Local && !silent[index]);
    }
    silent
}

/// The standing of the check at `place`. Its wait, if it refuses, ends with that of its base too.
pub fn resolve(role: Role, place: usize, answers: &mut [Answer]) -> Standing {
    let Some(answer) = answers.get(place) else { return Standing::InForce };
    let base = role.after.and_then(|base| answers.get(base)).copied();
    match base {
        Some(base) if base.admitted => Standing::NotYet,
        _ if answer.admitted => Standing::InForce,
        base => {
            if let Some(base) = base.filter(|base| base.retry_ms != NEVER)
                && (answer.retry_ms == NEVER || base.retry_ms < answer.retry_ms)
            {
                answers[place].retry_ms = base.retry_ms;
            }
            if role.base { Standing::HandedOver } else { Standing::InForce }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(roles: &[Role], answers: &[(bool, i64)]) -> Vec<(Standing, i64)> {
        let answer = |(admitted, retry_ms)| Answer { admitted, remaining: 0, retry_ms, reset_ms: 0, receipt: 0 };
        let mut answers: Vec<Answer> = answers.iter().copied().map(answer).collect();
        let standings: Vec<Standing> =
            roles.iter().enumerate().map(|(place, role)| resolve(*role, place, &mut answers)).collect();
        standings.into_iter().zip(answers).map(|(standing, answer)| (standing, answer.retry_ms)).collect()
    }

    #[test]
    fn whoever_has_room_first_ends_the_wait() {
        use Standing::{HandedOver, InForce, NotYet};
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
