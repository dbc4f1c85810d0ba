//! Requests in the order in which they start: a log has them in that of their ends, or of several
//! writers. Called by the replay.

use std::collections::VecDeque;

use super::source::Logged;

/// Requests that are held back until none that starts before them can be expected.
#[derive(Default)]
pub struct StartOrder {
    /// By start, those of one start as they came.
    waiting: VecDeque<(i64, Box<Logged>)>,
    /// The end of the line read last. One line of a far future so changes little.
    head_ms: i64,
}

/// Requests that last longer may be met too late.
const WINDOW_MS: i64 = 60_000;
/// So may those of a busier log.
const WAITING_MAX: usize = 32_768;

impl StartOrder {
    pub fn push(&mut self, logged: Logged) {
        let start_ms = logged.entry.start_ms;
        self.head_ms = start_ms.saturating_add(logged.entry.duration_ms.unwrap_or(0));
        let request = (start_ms, Box::new(logged));
        match self.waiting.back() {
            Some((last, _)) if *last > start_ms => {
                let place = self.waiting.partition_point(|(start, _)| *start <= start_ms);
                self.waiting.insert(place, request);
            }
            _ => self.waiting.push_back(request),
        }
    }

    /// The next request whose time has come; at the `end` of the logs any.
    pub fn pop(&mut self, end: bool) -> Option<Logged> {
        let (start_ms, _) = self.waiting.front()?;
        let due = end || self.waiting.len() > WAITING_MAX || self.head_ms - start_ms > WINDOW_MS;
        if due { self.waiting.pop_front().map(|(_, logged)| *logged) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::parse;
    use super::super::source::LogPlace;
    use super::*;

    #[test]
    fn what_waits_is_bounded() {
        let line = br#"::1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
        let mut order = StartOrder::default();
        for line_number in 1..=40_000 {
            order.push(Logged { entry: parse(line, false).unwrap(), place: LogPlace { source: 0, line: line_number } });
            let out = order.pop(false).map(|logged| logged.place.line);
            assert_eq!(out, line_number.checked_sub(32_768).filter(|line| *line > 0), "in their order");
            assert!(order.waiting.len() <= WAITING_MAX);
        }
    }
}
