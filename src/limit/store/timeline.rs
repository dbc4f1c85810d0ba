//! Limit state on somebody else's time line: the memory store with the clock of a log, which also
//! keeps what it was asked last. Called by the replay, through the same limiter as live requests.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::memory::Memory;
use super::once::{Mark, Use};
use crate::limit::answer::Answer;
use crate::limit::decision::{Check, Decision, Op, Role};
use crate::limit::limits::Limit;

pub struct Timeline {
    memory: Memory,
    now_ms: Cell<i64>,
    last: RefCell<Option<(Vec<Check>, Decision)>>,
}

impl Timeline {
    pub fn new(max_keys: usize, limits: &[Arc<Limit>]) -> Timeline {
        let memory = Memory::new(max_keys);
        memory.divide(max_keys, limits, |_| None);
        Timeline { memory, now_ms: Cell::new(0), last: RefCell::new(None) }
    }

    pub fn now_ms(&self) -> i64 {
        self.now_ms.get()
    }

    pub fn once(&self, mark: Mark, now_ms: i64) -> Use {
        self.memory.once(mark, now_ms)
    }

    pub fn set_now(&self, now_ms: i64) {
        self.now_ms.set(now_ms);
    }

    /// The checks and answers of the latest [`Timeline::run`], once.
    pub fn take_last(&self) -> Option<(Vec<Check>, Decision)> {
        self.last.take()
    }

    pub fn run(&self, op: Op, checks: Vec<Check>) -> Decision {
        let decision = self.ask(op, &checks);
        self.last.replace(Some((checks, decision.clone())));
        decision
    }

    pub fn ask(&self, op: Op, checks: &[Check]) -> Decision {
        let now_ms = self.now_ms.get();
        if checks.iter().all(|check| check.rule.lease_ms().is_none()) {
            return self.memory.run(op, checks, now_ms);
        }
        let held: Vec<Check> = checks.iter().map(endless).collect();
        self.memory.run(op, &held, now_ms)
    }

    /// Corrects a charge; the tag of `check` is its receipt.
    pub fn adjust(&self, check: &Check) {
        let check = std::slice::from_ref(check);
        self.ask(Op::Adjust, check);
        let [Check { rule, .. }] = check else { return };
        if rule.lease_ms().is_none() {
            return;
        }
        // Without leases that run out, a key that holds none would stay.
        let peek = Check { cost: 0, role: Role::default(), ..check[0].clone() };
        let idle = |answer: &Answer| answer.remaining == rule.policy().quota;
        if self.ask(Op::Peek, &[peek]).answers.first().is_some_and(idle) {
            self.ask(Op::Reset, check);
        }
    }

    /// Keys still in use that had to go to make room for others.
    pub fn forgotten(&self) -> u64 {
        self.memory.forgotten()
    }
}

/// Leases are renewed for as long as their requests last, and in a log every request has an end.
fn endless(check: &Check) -> Check {
    Check { rule: check.rule.endless().map_or_else(|| check.rule.clone(), Arc::new), ..check.clone() }
}
