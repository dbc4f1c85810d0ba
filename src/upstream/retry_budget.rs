//! How many requests may be retried: a fraction of the requests of the last 10 seconds, and a few in any case. Pure:
//! time is an argument. One per worker and upstream; used by `proxy::outbound::retry_policy`.

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

/// Requests and retries within one second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    sent: usize,
    retries: usize,
}

/// Requests and retries of the last 10 seconds.
#[derive(Debug, Default)]
pub struct RetryBudget {
    seconds: [Second; WINDOW_SECONDS],
    now: u64,
}

impl RetryBudget {
    /// Records a request that is sent for the first time.
    pub fn count_request(&mut self, now_ms: u64) {
        self.current_second(now_ms).sent += 1;
    }

    /// Returns whether a request may be retried. If so, counts the retry.
    pub fn take_retry(&mut self, share: Fraction, now_ms: u64) -> bool {
        self.current_second(now_ms);
        let (sent, retries) =
            self.seconds.iter().fold((0, 0), |(sent, retries), second| (sent + second.sent, retries + second.retries));
        let may = retries < share.of_count(sent) + MIN_RETRIES;
        self.current_second(now_ms).retries += usize::from(may);
        may
    }

    /// Returns the current second. Clears those that have left the window.
    fn current_second(&mut self, now_ms: u64) -> &mut Second {
        let now = now_ms / 1000;
        for late in (self.now + 1..=now).rev().take(WINDOW_SECONDS) {
            self.seconds[slot(late)] = Second::default();
        }
        self.now = self.now.max(now);
        &mut self.seconds[slot(self.now)]
    }
}

fn slot(second: u64) -> usize {
    usize::try_from(second % WINDOW_SECONDS as u64).unwrap_or(0)
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
