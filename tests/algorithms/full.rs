//! The script on a full server: existing keys are decided exactly, a decision that would create a key is not made at
//! all, and a shadow limit drops its own key. Compared with the memory store under the same rule.

use rand::Rng;
use sluicegate::limiting::answer::{Answer, BanAnswer};
use sluicegate::limiting::decision::{Check, Decision, ErrorKind, Op};
use sluicegate::limiting::store::memory::MemoryStore;

use super::twin::{NOW, assert_same_state, random_limits};
use crate::support::limiting::fake_redis::Gate;

#[test]
fn a_full_redis_continues_with_existing_keys() {
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    let mut without_room = 0;
    for _ in 0..30 {
        let (memory, gate) = (MemoryStore::new(1_000_000), Gate::load());
        let limits = random_limits(rng);
        let (mut now, mut receipt) = (NOW, 0);
        for call in 0..100 {
            now += if rng.random_bool(0.5) { rng.random_range(0..5) } else { rng.random_range(0..2000) };
            let full = rng.random_bool(0.9);
            gate.keys.borrow_mut().full = full;
            let decisions = crate::support::limiting::random_decisions(&limits, 8, receipt, rng);
            let expected: Vec<Result<Decision, ErrorKind>> = decisions
                .iter()
                .map(
                    |(op, checks)| {
                        if full { on_full(&memory, *op, checks, now) } else { Ok(memory.run(*op, checks, now)) }
                    },
                )
                .collect();
            receipt = expected[0].as_ref().map_or(receipt, |decision| decision.answers[0].receipt);
            without_room += expected.iter().filter(|decision| decision.is_err()).count();
            assert_eq!(gate.try_decide(&decisions, now), expected, "call {call} at {now}, full {full}: {decisions:?}");
            assert_same_state(&gate, &memory, &decisions, now);
            for check in decisions.iter().flat_map(|(_, checks)| checks) {
                let missing = is_there(&memory, check, now) && !gate.keys.borrow().held.contains_key(&check.key);
                assert!(!missing, "{} does not exist after call {call}", check.key);
            }
        }
    }
    assert!(without_room > 500, "only {without_room} decisions had no memory");
}

fn is_there(memory: &MemoryStore, check: &Check, now: i64) -> bool {
    memory.state(&check.key, now).is_some_and(|(state, _)| !state.text().is_empty())
}

/// Returns the decision if every key that it would write exists.
fn on_full(memory: &MemoryStore, op: Op, checks: &[Check], now: i64) -> Result<Decision, ErrorKind> {
    match op {
        Op::Peek | Op::Reset => Ok(memory.run(op, checks, now)),
        Op::Adjust => {
            let answers = checks.iter().map(|check| match is_there(memory, check, now) {
                true => memory.run(op, std::slice::from_ref(check), now).answers[0],
                false => Answer {
                    admitted: false,
                    remaining: 0,
                    retry_ms: 0,
                    reset_ms: 0,
                    receipt: check.tag,
                    ban: BanAnswer::None,
                },
            });
            Ok(Decision { admitted: true, answers: answers.collect() })
        }
        Op::Take => {
            let before = memory.run(Op::Peek, checks, now);
            let charges = before.find_charged(checks);
            let new = checks.iter().zip(&before.answers).enumerate().filter(|(place, (check, answer))| {
                let is_stored = charges.contains(*place) || !answer.admitted;
                let step = check.decide(None, now);
                // A ban refuses in place of a limit that admits.
                let is_replaced = answer.ban == BanAnswer::InForce && step.answer.admitted;
                is_stored && !is_there(memory, check, now) && step.next.is_some() && !is_replaced
            });
            let new: Vec<Check> = new.map(|(_, (check, _))| check.clone()).collect();
            if new.iter().any(|check| !check.role.shadow) {
                return Err(ErrorKind::OutOfMemory);
            }
            // Counts of refusals are dropped, too.
            let bans = checks.iter().filter_map(|check| Some(check.ban.as_ref()?.to_look()));
            let new_bans: Vec<Check> = bans.filter(|ban| !is_there(memory, ban, now)).collect();
            let decision = memory.run(op, checks, now);
            let new: Vec<Check> = new.into_iter().map(|check| Check { ban: None, ..check }).chain(new_bans).collect();
            memory.run(Op::Reset, &new, now);
            Ok(decision)
        }
    }
}
