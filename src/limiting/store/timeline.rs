//! A memory store for the replay of logs. The caller sets its clock, and it remembers the last decision. The replay
//! uses it through the same limiter as live requests.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Decision, Op, Role};
use crate::limiting::limit::Limit;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::once::{MarkUse, SingleUseMark};

/// Runs what waits for nothing but a store in this process, which never waits. `None` if it waits nevertheless.
pub fn run_now<T>(running: impl Future<Output = T>) -> Option<T> {
    match pin!(running).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// A memory store whose clock is set by the caller.
pub struct Timeline {
    memory: MemoryStore,
    now_ms: Cell<i64>,
    last: RefCell<Option<(Vec<Check>, Decision)>>,
}

impl Timeline {
    /// Creates a store for at most `max_keys` keys of `limits`.
    pub fn new(max_keys: usize, limits: &[Arc<Limit>]) -> Timeline {
        let memory = MemoryStore::new(max_keys);
        memory.set_shares(max_keys, limits, |_| None);
        Timeline { memory, now_ms: Cell::new(0), last: RefCell::new(None) }
    }

    pub fn now_ms(&self) -> i64 {
        self.now_ms.get()
    }

    pub fn use_mark(&self, mark: SingleUseMark, now_ms: i64) -> MarkUse {
        self.memory.use_mark(mark, now_ms)
    }

    pub fn set_now(&self, now_ms: i64) {
        self.now_ms.set(now_ms);
    }

    /// Takes the checks and the decision of the latest [`Timeline::run`].
    pub fn take_last(&self) -> Option<(Vec<Check>, Decision)> {
        self.last.take()
    }

    /// Runs `op` and remembers the decision.
    pub fn run(&self, op: Op, checks: Vec<Check>) -> Decision {
        let decision = self.run_unrecorded(op, &checks);
        self.last.replace(Some((checks, decision.clone())));
        decision
    }

    /// Runs `op` at the current time of the log.
    fn run_unrecorded(&self, op: Op, checks: &[Check]) -> Decision {
        let now_ms = self.now_ms.get();
        if checks.iter().all(|check| check.rule.lease_ms().is_none()) {
            return self.memory.run(op, checks, now_ms);
        }
        let leases: Vec<Check> = checks.iter().map(with_endless_lease).collect();
        self.memory.run(op, &leases, now_ms)
    }

    /// Corrects a charge. The tag of `check` is its receipt.
    pub fn adjust(&self, check: &Check) {
        let check = std::slice::from_ref(check);
        self.run_unrecorded(Op::Adjust, check);
        let [Check { rule, .. }] = check else { return };
        if rule.lease_ms().is_none() {
            return;
        }
        // Leases never expire here, so a key without leases has to be deleted.
        let peek = Check { cost: 0, role: Role::default(), ..check[0].clone() };
        let idle = |answer: &Answer| answer.remaining == rule.policy().quota;
        if self.run_unrecorded(Op::Peek, &[peek]).answers.first().is_some_and(idle) {
            self.clear(&check[0]);
        }
    }

    /// Resets the key of `check`. A ban of it stays.
    pub fn clear(&self, check: &Check) {
        self.run_unrecorded(Op::Reset, &[Check { ban: None, ..check.clone() }]);
    }

    /// Returns the number of live keys that were evicted.
    pub fn evicted_count(&self) -> u64 {
        self.memory.evicted_count()
    }
}

/// Replaces the rule by one with endless leases. A gateway renews the leases of a request until it ends, and in a log
/// every request has an end.
fn with_endless_lease(check: &Check) -> Check {
    Check { rule: check.rule.with_endless_lease().map_or_else(|| check.rule.clone(), Arc::new), ..check.clone() }
}
