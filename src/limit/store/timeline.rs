//! Limit state on somebody else's time line: the memory store with the clock of a log, which also
//! keeps what it was asked last. Called by the replay, through the same limiter as live requests.

use std::cell::{Cell, RefCell};

use super::memory::Memory;
use crate::limit::decision::{Check, Decision, Op};

pub struct Timeline {
    memory: Memory,
    now_ms: Cell<i64>,
    last: RefCell<Option<(Vec<Check>, Decision)>>,
}

impl Timeline {
    pub fn new(max_keys: usize) -> Timeline {
        Timeline { memory: Memory::new(max_keys), now_ms: Cell::new(0), last: RefCell::new(None) }
    }

    pub fn set_now(&self, now_ms: i64) {
        self.now_ms.set(now_ms);
    }

    /// The checks and answers of the latest decision, once.
    pub fn take_last(&self) -> Option<(Vec<Check>, Decision)> {
        self.last.take()
    }

    pub fn run(&self, op: Op, checks: Vec<Check>) -> Decision {
        let decision = self.memory.run(op, &checks, self.now_ms.get());
        if op == Op::Take && decision.admitted {
            self.release(&checks, &decision);
        }
        self.last.replace(Some((checks, decision.clone())));
        decision
    }

    /// A log does not say what else was in flight: what is held until a request ends is given
    /// back at once.
    fn release(&self, checks: &[Check], decision: &Decision) {
        for (check, answer) in checks.iter().zip(&decision.answers) {
            if check.rule.name() == HELD && answer.admitted {
                let back = Check { cost: -check.cost, tag: answer.receipt, ..check.clone() };
                self.memory.run(Op::Adjust, &[back], self.now_ms.get());
            }
        }
    }
}

/// The algorithm whose charge ends with the request.
pub const HELD: &str = "concurrency";
