//! Queue positions (turns) of requests that left before their turn. A store accepts a refund only of the last position
//! of a queue, because any other would leave a gap. Example: the positions 5 and 7 are unused, and 7 is the last. The
//! store accepts 7. The worker keeps 5, which the store accepts once a request has returned 6. So the positions of a
//! key are sent together, the newest first.

use std::cell::RefCell;
use std::collections::HashMap;

use tokio::time::Instant;

use crate::limiting::decision::{Check, Decision};

/// Unused queue positions by the id of the limit, then by state key.
#[derive(Default)]
pub struct QueueRefunds(RefCell<HashMap<u64, HashMap<String, UnusedPositions>>>);

#[derive(Default)]
struct UnusedPositions {
    refunds: Vec<QueueRefund>,
    /// True while a task sends the positions of this key to the store.
    under_way: bool,
}

/// One unused queue position.
#[derive(Debug)]
pub struct QueueRefund {
    /// The refund; its tag is the position.
    pub check: Check,
    /// When the position passes. Measured from the reply of the store, whose clock may differ from this machine's.
    pub passes_at: Instant,
}

/// Maximum number of keys of one limit whose positions are kept. Beyond that, keys for which no task runs are
/// forgotten.
const KEYS_MAX: usize = 1024;
/// Maximum number of positions in one call.
const BATCH_MAX: usize = 256;

impl QueueRefunds {
    /// Keeps an unused position. Returns true if the caller has to send the positions of its key.
    pub fn add(&self, refund: QueueRefund, now: Instant) -> bool {
        let mut limits = self.0.borrow_mut();
        let Check { limit, key, .. } = &refund.check;
        if !limits.contains_key(&limit.id) {
            // Nothing else removes limits that are no longer in the config.
            limits.retain(|_, keys| keys.values().any(|unused| unused.is_of_use(now)));
        }
        let keys = limits.entry(limit.id).or_default();
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, unused| unused.is_of_use(now));
        }
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, unused| unused.under_way);
        }
        let unused_units = keys.entry(key.clone()).or_default();
        unused_units.refunds.push(refund);
        !std::mem::replace(&mut unused_units.under_way, true)
    }

    /// Takes the positions of a limit's `key` to send now, the newest first. Those that have passed are dropped.
    pub fn take_batch(&self, limit: u64, key: &str, now: Instant) -> Vec<QueueRefund> {
        let mut limits = self.0.borrow_mut();
        let Some(unused) = limits.get_mut(&limit).and_then(|keys| keys.get_mut(key)) else { return Vec::new() };
        let mut batch = std::mem::take(&mut unused.refunds);
        batch.retain(|refund| refund.passes_at > now);
        batch.sort_by_key(|refund| std::cmp::Reverse(refund.check.tag));
        batch.truncate(BATCH_MAX);
        batch
    }

    /// Ends the call that sent `batch`. Positions that the store did not accept are kept. Without a reply the refunds
    /// may have happened, so they are not repeated. Returns true if other positions have arrived in the meantime.
    pub fn end_batch(&self, limit: u64, key: &str, batch: Vec<QueueRefund>, decision: Option<&Decision>) -> bool {
        let mut limits = self.0.borrow_mut();
        let Some(keys) = limits.get_mut(&limit) else { return false };
        let Some(unused) = keys.get_mut(key) else { return false };
        let more = !unused.refunds.is_empty();
        if let Some(decision) = decision {
            let answers = batch.into_iter().zip(&decision.answers);
            unused.refunds.extend(answers.filter(|(_, answer)| !answer.admitted).map(|(refund, _)| refund));
        }
        unused.under_way = more;
        if unused.refunds.is_empty() {
            keys.remove(key);
        }
        if keys.is_empty() {
            limits.remove(&limit);
        }
        more
    }
}

impl UnusedPositions {
    fn is_of_use(&self, now: Instant) -> bool {
        self.under_way || self.refunds.iter().any(|refund| refund.passes_at > now)
    }
}
