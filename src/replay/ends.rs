//! Requests under way in a replay: what their limits get back once they end. Called by the replay.

use std::collections::BTreeMap;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::tightest::Back;
use crate::grpc::GRPC;
use crate::limit::afterwards::{End, ResponseTail};
use crate::limit::decision::Check;

/// By their ends, in order.
#[derive(Default)]
pub struct Ends {
    waiting: BTreeMap<(i64, u64), Vec<Correction>>,
    count: u64,
    /// Requests taken as ended before their time, because too many were under way.
    pub early: u64,
}

/// A change of a charge.
pub enum Correction {
    /// With the limits as they are: by the cost, of the charge whose receipt is the tag.
    Configured(Check),
    /// Where nobody is refused: of the limit with that tally.
    Unrefused(usize, Back),
}

/// How and when a request ended, as far as the log tells.
#[derive(Clone, Copy)]
pub struct Ending {
    status: Option<StatusCode>,
    pub at_ms: i64,
}

/// Bounds memory, whatever durations a log claims.
const WAITING_MAX: usize = 131_072;
/// nginx's number, and ours, for a client that went away before its answer.
const CLIENT_CLOSED: u16 = 499;

impl Ends {
    pub fn add(&mut self, ending: Ending, corrections: Vec<Correction>) {
        if !corrections.is_empty() {
            self.count += 1;
            self.waiting.insert((ending.at_ms, self.count), corrections);
        }
    }

    /// The corrections that are next by `now_ms`, and their time.
    pub fn due(&mut self, now_ms: i64) -> Option<(i64, Vec<Correction>)> {
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

impl Ending {
    pub fn new(status: Option<u16>, at_ms: i64) -> Ending {
        Ending { status: status.and_then(|status| StatusCode::from_u16(status).ok()), at_ms }
    }

    /// Units by which the charge of `check` changes; 0 too if the log does not tell.
    pub fn delta(&self, check: &Check) -> i64 {
        let Some(wants) = &check.limit.afterwards else { return 0 };
        // The log holds no trailers: what only they tell stays charged.
        let head = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(GRPC))]);
        let end = self.status.map(|status| match status.as_u16() {
            CLIENT_CLOSED => End::Aborted,
            _ => End::Answered { status, head: &head, tail: ResponseTail::Awaited },
        });
        match end {
            _ if wants.lease => -check.cost,
            Some(end) => wants.correction(end, check.cost).unwrap_or(0),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ends: &mut Ends, at_ms: i64) {
        let back = Back { key: 0, delta: -1, receipt: 0 };
        ends.add(Ending::new(None, at_ms), vec![Correction::Unrefused(0, back)]);
    }

    #[test]
    fn ends_come_in_order_and_too_many_come_early() {
        let mut ends = Ends::default();
        for at_ms in (0..=131_072).rev() {
            end(&mut ends, 10 + at_ms);
        }
        let due = |ends: &mut Ends, now_ms| ends.due(now_ms).map(|(at_ms, _)| at_ms);
        assert_eq!((due(&mut ends, 5), ends.early), (Some(5), 1), "one more than there is room for");
        assert_eq!(due(&mut ends, 5), None);
        assert_eq!((due(&mut ends, 12), due(&mut ends, 12), due(&mut ends, 12)), (Some(11), Some(12), None));
    }
}
