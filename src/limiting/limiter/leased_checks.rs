//! Decides the checks of a request that have leases from these, before the store decides the others. If another limit
//! refuses the request, its units go back to the leases.
//!
//! A check is decided by the store if its limit has no lease, is in shadow mode or may change the charge later, or if
//! its key is not hot. So are all checks of a request if one of them comes after another or has a queue.

use std::rc::Rc;
use std::sync::Arc;

use crate::limiting::charges::lease_grants::request_lease;
use crate::limiting::charges::manager::ChargeManager;
use crate::limiting::clock;
use crate::limiting::decision::{Check, Decision, FewVec, Role};
use crate::limiting::gateways::Gateways;
use crate::limiting::hot_keys::{HotKey, HotKeys, SpentUnits};
use crate::limiting::verdict::{Outcome, Verdict};

/// The checks of one request that have a hot key.
#[derive(Default)]
pub struct LeasedChecks {
    /// Checks that were decided, each with the index of its limit.
    decided: Vec<(usize, Check, SpentUnits)>,
    /// Checks whose lease is used up, so that the store decides them.
    for_store: Vec<(usize, Check, Arc<HotKey>)>,
}

/// Returns whether the check may be decided from a lease.
fn has_lease(check: &Check) -> bool {
    check.limit.lease.is_some() && check.role == Role::default() && check.cost > 0 && !check.may_change()
}

impl LeasedChecks {
    /// Spends units for the checks of a request whose keys are hot, and removes these checks. `indexes` has the limit
    /// of each check.
    pub fn spend(hot_keys: &HotKeys, indexes: &mut FewVec<usize>, checks: &mut Vec<Check>) -> LeasedChecks {
        let mut leased = LeasedChecks::default();
        let needs_store = |check: &Check| check.role.after.is_some() || check.role.base || check.rule.has_queue();
        if !checks.iter().any(has_lease) || checks.iter().any(needs_store) {
            return leased;
        }
        let now_ms = clock::uptime_ms();
        let mut place = 0;
        while let Some(check) = checks.get(place) {
            let hot = if has_lease(check) { hot_keys.find_hot(check, now_ms) } else { None };
            match hot.map(|key| (key.spend(check.cost.unsigned_abs(), now_ms), key)) {
                Some((Some(spent), _)) => {
                    leased.decided.push((indexes.remove(place), checks.remove(place), spent));
                    continue;
                }
                Some((None, key)) => leased.for_store.push((indexes[place], check.clone(), key)),
                None => {}
            }
            place += 1;
        }
        leased
    }

    /// Adds the results of the checks that were decided, once the store has decided the others. Requests the leases
    /// that the keys need next.
    pub fn finish(self, verdict: &mut Verdict, manager: &Rc<ChargeManager>, gateways: &Gateways) {
        let LeasedChecks { decided, for_store } = self;
        if decided.is_empty() && for_store.is_empty() {
            return;
        }
        let now_ms = clock::uptime_ms();
        for (index, check, key) in for_store {
            let result = verdict.checks.iter().find(|result| result.limit == index);
            if let Some(Outcome::Store(answer)) = result.map(|result| &result.outcome) {
                key.record_answer(answer, now_ms);
                request_next(manager, gateways, &key, &check, now_ms);
            }
        }
        if decided.is_empty() {
            return;
        }
        for (index, check, spent) in decided {
            let key = spent.key().clone();
            let answer = if verdict.refused { spent.answer_without_charge() } else { spent.answer() };
            if !verdict.refused {
                spent.commit();
            }
            let decision = Decision { admitted: !verdict.refused, answers: vec![answer] };
            let checks = [check];
            if !verdict.refused {
                manager.decisions.record_decision(&checks, &decision);
            }
            let charges = decision.find_charged(&checks);
            verdict.add_decision(&[index], &[], (decision, charges), Outcome::Store);
            request_next(manager, gateways, &key, &checks[0], now_ms);
        }
        verdict.checks.sort_by_key(|result| result.limit);
    }
}

/// Requests the next lease of a key if it needs one.
fn request_next(manager: &Rc<ChargeManager>, gateways: &Gateways, key: &Arc<HotKey>, check: &Check, now_ms: u64) {
    if let Some(grant) = key.begin_grant(gateways.effective_count(), now_ms) {
        request_lease(manager, grant, check);
    }
}
