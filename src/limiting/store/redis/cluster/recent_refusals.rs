//! Which limits refused recently. A decision over several slots starts with them, because after a refusal the other
//! slots need not be charged.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use crate::limiting::decision::Check;

/// Maximum number of limits whose refusals are remembered.
const LIMITS_MAX: usize = 10_000;

/// Order of the recent refusals.
#[derive(Default)]
pub struct RecentRefusals {
    /// Number of refusals so far.
    clock: Cell<u64>,
    /// Number of the last refusal, by the id of the limit.
    last: RefCell<HashMap<u64, u64>>,
}

impl RecentRefusals {
    /// Returns how recently the limit refused: the larger, the more recent; 0 for never.
    pub fn last_refusal(&self, check: &Check) -> u64 {
        self.last.borrow().get(&check.limit.id).copied().unwrap_or(0)
    }

    /// Records a refusal.
    pub fn record_refusal(&self, check: &Check) {
        self.clock.set(self.clock.get() + 1);
        let mut last = self.last.borrow_mut();
        if last.len() >= LIMITS_MAX {
            last.clear();
        }
        last.insert(check.limit.id, self.clock.get());
    }
}
