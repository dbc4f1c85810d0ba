//! Which limits are likely to refuse: a decision over several slots asks them first. Kept by
//! `nodes.rs`, used by `spread.rs`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use crate::limit::decision::Check;

/// Limits whose refusals are remembered.
const LIKELY_MAX: usize = 10_000;

/// Which limits refused last.
#[derive(Default)]
pub struct Likely {
    clock: Cell<u64>,
    last: RefCell<HashMap<String, u64>>,
}

impl Likely {
    pub fn of(&self, check: &Check) -> u64 {
        self.last.borrow().get(&check.limit.name).copied().unwrap_or(0)
    }

    pub fn refused(&self, check: &Check) {
        self.clock.set(self.clock.get() + 1);
        let mut last = self.last.borrow_mut();
        if last.len() >= LIKELY_MAX {
            last.clear();
        }
        last.insert(check.limit.name.clone(), self.clock.get());
    }
}
