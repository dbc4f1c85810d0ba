//! Replayed requests in progress, and what their limits refund at their end. Called by the replay.

use std::collections::BTreeMap;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::grpc::GRPC;
use crate::limiting::decision::Check;
use crate::limiting::limit::Limit;
use crate::limiting::limit::request_end::{RequestEnd, ResponseTail};
use crate::limiting::limit::settle::BodyUsage;
use crate::replay::tightest::NumberRefund;

/// Requests sorted by their ends.
#[derive(Default)]
pub struct RequestsInProgress {
    waiting: BTreeMap<(i64, u64), Vec<Correction>>,
    count: u64,
    /// Number of requests treated as ended early, because too many were in progress.
    pub early: u64,
}

/// A change of a charge.
pub enum Correction {
    /// Under the configured limits: changes the charge with the tag's receipt by the cost of the check.
    Configured(Check),
    /// Under the configured limits: resets the key.
    Cleared(Check),
    /// A refund for the limit with this tally, in the search for the tightest number.
    Unrefused(usize, NumberRefund),
}

/// How and when a request ended, as far as the log shows.
#[derive(Clone, Copy)]
pub struct LoggedEnd {
    status: Option<StatusCode>,
    pub at_ms: i64,
}

/// Maximum number of requests in progress. Bounds memory, even if a log claims very long durations.
const WAITING_MAX: usize = 131_072;
/// Status that nginx and this gateway log for a client that disconnected before its response.
const CLIENT_CLOSED: u16 = 499;

impl RequestsInProgress {
    pub fn add(&mut self, ending: LoggedEnd, corrections: Vec<Correction>) {
        if !corrections.is_empty() {
            self.count += 1;
            self.waiting.insert((ending.at_ms, self.count), corrections);
        }
    }

    /// Returns the next corrections that are due at `now_ms`, and their time.
    pub fn pop_due(&mut self, now_ms: i64) -> Option<(i64, Vec<Correction>)> {
        let first = self.waiting.first_entry()?;
        let (at_ms, _) = *first.key();
        if at_ms > now_ms {
            if self.waiting.len() <= WAITING_MAX {
                return None;
            }
            self.early += 1;
        }
        let (_, corrections) = self.waiting.pop_first()?;
        Some((at_ms.min(now_ms), corrections))
    }
}

impl LoggedEnd {
    pub fn new(status: Option<u16>, at_ms: i64) -> LoggedEnd {
        LoggedEnd { status: status.and_then(|status| StatusCode::from_u16(status).ok()), at_ms }
    }

    /// Returns whether the response in the log resets the keys of `limit`.
    pub fn clears(&self, limit: &Limit) -> bool {
        let (Some(rules), Some(status)) = (&limit.charge_rules, self.status) else { return false };
        let head = HeaderMap::new();
        rules.clears(RequestEnd::Response { status, head: &head, tail: ResponseTail::Whole(&head) }) == Some(true)
    }

    /// Returns the units by which the charge of `check`, a check of `limit`, changes; 0 also if the log does not
    /// contain it.
    pub fn charge_delta(&self, limit: &Limit, check: &Check) -> i64 {
        let Some(rules) = &limit.charge_rules else { return 0 };
        // Logs contain no trailers: what only they would contain stays charged.
        let head = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(GRPC))]);
        let end = self.status.map(|status| match status.as_u16() {
            CLIENT_CLOSED => RequestEnd::Aborted,
            _ => RequestEnd::Response { status, head: &head, tail: ResponseTail::Awaited },
        });
        match end {
            _ if rules.lease => -check.cost,
            Some(end) => rules.correction(end, check.cost, BodyUsage::Unread).unwrap_or(0),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ends: &mut RequestsInProgress, at_ms: i64) {
        let back = NumberRefund { key: 0, delta: -1, receipt: 0 };
        ends.add(LoggedEnd::new(None, at_ms), vec![Correction::Unrefused(0, back)]);
    }

    #[test]
    fn ends_come_in_order_and_too_many_come_early() {
        let mut ends = RequestsInProgress::default();
        for at_ms in (0..=131_072).rev() {
            end(&mut ends, 10 + at_ms);
        }
        let due = |ends: &mut RequestsInProgress, now_ms| ends.pop_due(now_ms).map(|(at_ms, _)| at_ms);
        assert_eq!((due(&mut ends, 5), ends.early), (Some(5), 1), "one more than there is room for");
        assert_eq!(due(&mut ends, 5), None);
        assert_eq!((due(&mut ends, 12), due(&mut ends, 12), due(&mut ends, 12)), (Some(11), Some(12), None));
    }
}
