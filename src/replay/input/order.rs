//! Sorts requests by their starts: a log lists them by their ends, or mixes several writers. Called by the replay.

use std::collections::VecDeque;

use crate::replay::input::source::Logged;

/// Requests held back until none that starts earlier is expected.
#[derive(Default)]
pub struct StartOrder {
    /// Requests by start, then in the order of the log.
    waiting: VecDeque<(i64, Box<Logged>)>,
    /// End of the line read last. A single line from the far future changes little.
    head_ms: i64,
}

/// Requests that last longer may be read too late.
const WINDOW_MS: i64 = 60_000;
/// Maximum number of requests held back; in a busier log some may be read too late.
const WAITING_MAX: usize = 32_768;

impl StartOrder {
    pub fn push_request(&mut self, logged: Logged) {
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

    /// Returns the next request that is due; at the `end` of the logs, any.
    pub fn pop_due(&mut self, end: bool) -> Option<Logged> {
        let (start_ms, _) = self.waiting.front()?;
        let due = end || self.waiting.len() > WAITING_MAX || self.head_ms - start_ms > WINDOW_MS;
        if due { self.waiting.pop_front().map(|(_, logged)| *logged) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::input::line::parse_line;
    use crate::replay::input::source::LogPlace;

    #[test]
    fn the_reorder_buffer_is_bounded() {
        let line = br#"::1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
        let mut order = StartOrder::default();
        for line_number in 1..=40_000 {
            order.push_request(Logged {
                entry: parse_line(line, false).unwrap(),
                place: LogPlace { source: 0, line: line_number },
            });
            let out = order.pop_due(false).map(|logged| logged.place.line);
            assert_eq!(out, line_number.checked_sub(32_768).filter(|line| *line > 0), "in their order");
            assert!(order.waiting.len() <= WAITING_MAX);
        }
    }
}
