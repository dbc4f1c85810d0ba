//! How many requests may be sent once more: a part of those sent lately, and a few in any case. Pure: the
//! time is an argument. One for each worker and upstream, asked by `http::upstream::retry`.

use super::Fraction;

/// What counts as lately.
const SECONDS: usize = 10;
/// Within that time, whatever was sent.
const FLOOR: usize = 10;

/// `retry` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRule {
    /// How often a request is sent at most, the first time included.
    pub attempts: usize,
    /// Requests sent once more, for each one sent.
    pub budget: Fraction,
    pub on: RetryOn,
}

/// What a request is sent once more for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOn {
    pub connect: bool,
    pub reset: bool,
    pub timeout: bool,
    /// 502, 503 and 504.
    pub statuses: [bool; 3],
}

impl RetryRule {
    /// Where nothing is said: only what no server has seen is sent elsewhere.
    pub const DEFAULT: RetryRule = RetryRule {
        attempts: 1,
        budget: Fraction::FIFTH,
        on: RetryOn { connect: true, reset: false, timeout: false, statuses: [false; 3] },
    };
}

/// Requests of the last seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    sent: usize,
    again: usize,
}

#[derive(Debug, Default)]
pub struct RetryBudget {
    seconds: [Second; SECONDS],
    now: u64,
}

impl RetryBudget {
    /// A request is sent for the first time.
    pub fn sent(&mut self, now_ms: u64) {
        self.second(now_ms).sent += 1;
    }

    /// Whether a request may be sent once more, which is counted.
    pub fn again(&mut self, share: Fraction, now_ms: u64) -> bool {
        self.second(now_ms);
        let (sent, again) =
            self.seconds.iter().fold((0, 0), |(sent, again), second| (sent + second.sent, again + second.again));
        let may = again < share.of(sent) + FLOOR;
        self.second(now_ms).again += usize::from(may);
        may
    }

    fn second(&mut self, now_ms: u64) -> &mut Second {
        let now = now_ms / 1000;
        for late in (self.now + 1..=now).rev().take(SECONDS) {
            self.seconds[slot(late)] = Second::default();
        }
        self.now = self.now.max(now);
        &mut self.seconds[slot(self.now)]
    }
}

fn slot(second: u64) -> usize {
    usize::try_from(second % SECONDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_was_sent_lately_may_be_sent_again() {
        let mut budget = RetryBudget::default();
        let again = |budget: &mut RetryBudget, now_ms| {
            std::iter::repeat_with(|| budget.again(Fraction::FIFTH, now_ms)).take(10_000).filter(|may| *may).count()
        };
        assert_eq!(again(&mut budget, 0), 10, "a few in any case");
        (0..1000).for_each(|_| budget.sent(3_000));
        assert_eq!(again(&mut budget, 9_999), 200);
        assert_eq!(again(&mut budget, 10_000), 10, "those of the first second are forgotten");
        assert_eq!(again(&mut budget, 12_999), 0);
        assert_eq!(again(&mut budget, 13_000), 0, "the requests are, too");
        assert_eq!(again(&mut budget, 60_000), 10);
        assert_eq!(again(&mut budget, 59_000), 0, "time does not go back");
    }
}
