//! How many requests may be retried: a fraction of the requests of the last 10 seconds, and a few in any case. Pure:
//! time is an argument. One per worker and upstream; used by `proxy::outbound::retry_policy`.

use crate::rate::RecentCounts;
use crate::upstream::Fraction;

/// Length of the window, in seconds.
const WINDOW_SECONDS: usize = 10;
/// Retries that are permitted within the window in any case.
const MIN_RETRIES: usize = 10;

/// `retry` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRule {
    /// Maximum number of attempts per request, the first included.
    pub attempts: usize,
    /// Retries per request.
    pub budget: Fraction,
    pub on: RetryOn,
}

/// The errors after which a request is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOn {
    pub connect: bool,
    pub reset: bool,
    pub timeout: bool,
    /// 502, 503 and 504.
    pub statuses: [bool; 3],
}

impl RetryRule {
    /// The default: only requests that no server has seen are sent to another server.
    pub const DEFAULT: RetryRule = RetryRule {
        attempts: 1,
        budget: Fraction::FIFTH,
        on: RetryOn { connect: true, reset: false, timeout: false, statuses: [false; 3] },
    };
}

/// Requests and retries of the last 10 seconds.
#[derive(Debug, Default)]
pub struct RetryBudget {
    requests: RecentCounts<WINDOW_SECONDS>,
    retries: RecentCounts<WINDOW_SECONDS>,
}

impl RetryBudget {
    /// Records a request that is sent for the first time.
    pub fn count_request(&mut self, now_ms: u64) {
        self.requests.add(now_ms / 1000, 1);
    }

    /// Returns whether a request may be retried. If so, counts the retry.
    pub fn take_retry(&mut self, share: Fraction, now_ms: u64) -> bool {
        let second = now_ms / 1000;
        let requests = usize::try_from(self.requests.sum(second)).unwrap_or(usize::MAX);
        let retries = usize::try_from(self.retries.sum(second)).unwrap_or(usize::MAX);
        let may = retries < share.of_count(requests) + MIN_RETRIES;
        self.retries.add(second, u64::from(may));
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_budget_is_a_fraction_of_recent_requests() {
        let mut budget = RetryBudget::default();
        let retries = |budget: &mut RetryBudget, now_ms| {
            std::iter::repeat_with(|| budget.take_retry(Fraction::FIFTH, now_ms))
                .take(10_000)
                .filter(|may| *may)
                .count()
        };
        assert_eq!(retries(&mut budget, 0), 10, "a few in any case");
        (0..1000).for_each(|_| budget.count_request(3_000));
        assert_eq!(retries(&mut budget, 9_999), 200);
        assert_eq!(retries(&mut budget, 10_000), 10, "those of the first second are forgotten");
        assert_eq!(retries(&mut budget, 12_999), 0);
        assert_eq!(retries(&mut budget, 13_000), 0, "the requests are, too");
        assert_eq!(retries(&mut budget, 60_000), 10);
        assert_eq!(retries(&mut budget, 59_000), 0, "time does not go back");
    }
}
