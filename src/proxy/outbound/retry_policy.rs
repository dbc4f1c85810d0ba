//! When a request may be sent to another server: the `retry` option of an upstream with its
//! budget. Pure but for the counters of the budget. Applied by `select::retry`, which also finds the other server.

use std::cell::RefCell;
use std::time::Duration;

use crate::ends::RetryReason;
use crate::upstream::retry_budget::{RetryBudget, RetryRule};

/// Servers that are tried for a connection before a request fails, even if `attempts` is smaller: no server has seen
/// the request yet.
const CONNECT_TRIES: usize = 3;

/// Upper bound of the first pause before a retry. It doubles with each failed server.
const BACKOFF_MS: u64 = 10;
/// Upper bound of all pauses.
const BACKOFF_MAX_MS: u64 = 100;

/// The `retry` option of one upstream, with the budget of one worker.
pub struct RetryPolicy {
    rule: RetryRule,
    budget: RefCell<RetryBudget>,
}

impl RetryPolicy {
    pub fn new(rule: Option<RetryRule>) -> RetryPolicy {
        RetryPolicy { rule: rule.unwrap_or(RetryRule::DEFAULT), budget: RefCell::default() }
    }

    /// Adds a new request to the budget, which permits retries for a fraction of the recent requests.
    pub fn count_request(&self, now_ms: u64) {
        self.budget.borrow_mut().count_request(now_ms);
    }

    /// Returns whether the rule permits a retry for `reason` after `failures` servers have failed the request.
    pub fn permits(&self, reason: RetryReason, failures: usize) -> bool {
        let (on, attempts) = (&self.rule.on, self.rule.attempts);
        let (is_on, attempts) = match reason {
            RetryReason::ConnectError => (on.connect, attempts.max(CONNECT_TRIES)),
            RetryReason::Reset => (on.reset, attempts),
            RetryReason::Timeout => (on.timeout, attempts),
            RetryReason::Status502 => (on.statuses[0], attempts),
            RetryReason::Status503 => (on.statuses[1], attempts),
            RetryReason::Status504 => (on.statuses[2], attempts),
            // These are sent again to any server, without a retry policy: no server has processed the request.
            RetryReason::StaleConnection | RetryReason::Refused => (false, attempts),
        };
        is_on && failures < attempts
    }

    /// Takes one retry from the budget. Returns false if the budget is used up.
    pub fn take_retry(&self, now_ms: u64) -> bool {
        self.budget.borrow_mut().take_retry(self.rule.budget, now_ms)
    }
}

/// Waits for a short random time before a request is sent to another server, so that many requests which failed
/// together do not arrive there together. `failures`: the servers that have failed the request so far.
pub async fn back_off(failures: usize) {
    let max_ms = (BACKOFF_MS << failures.min(8)).min(BACKOFF_MAX_MS);
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=max_ms))).await;
}
