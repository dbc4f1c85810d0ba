//! Results of recent requests in a sliding window of ten parts. Pure: time is an argument.

use crate::upstream::breaker::clients::ClientBits;
use crate::upstream::eject::Blame;

/// Number of parts of the window. The oldest part is dropped when a new one begins, so the window spans between nine
/// and ten parts.
const PARTS: usize = 10;

/// One result of a request, as the counts need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReport {
    /// The request is counted now. False for further facts about a request that was counted before.
    pub is_first: bool,
    pub is_slow: bool,
    pub is_error: bool,
    pub client: Blame,
}

/// Results of requests, with the clients that they concern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    pub requests: u64,
    pub slow: u64,
    pub errors: u64,
    /// Requests that were neither slow nor an error when they were counted.
    pub good: u64,
    pub failed_clients: ClientBits,
    pub served_clients: ClientBits,
}

impl CallReport {
    pub fn is_failed(&self) -> bool {
        self.is_slow || self.is_error
    }
}

impl CallCounts {
    /// Adds a report.
    pub fn add_report(&mut self, report: &CallReport) {
        self.requests += u64::from(report.is_first);
        self.slow += u64::from(report.is_slow);
        self.errors += u64::from(report.is_error);
        if report.is_failed() {
            self.failed_clients.add_client(report.client);
        } else if report.is_first {
            self.good += 1;
            self.served_clients.add_client(report.client);
        }
    }

    fn add_counts(&mut self, other: &CallCounts) {
        self.requests += other.requests;
        self.slow += other.slow;
        self.errors += other.errors;
        self.good += other.good;
        self.failed_clients.add_all(&other.failed_clients);
        self.served_clients.add_all(&other.served_clients);
    }

    /// Returns whether the upstream is to blame for the failures. It is not if at least `good` requests were served
    /// well, some of them for clients that met no failure, and only one client met failures, or not enough clients did.
    /// `is_enough` gets the number of clients that met failures, and the number of all.
    pub fn blames_upstream(&self, good: u64, is_enough: impl FnOnce(u64, u64) -> bool) -> bool {
        let mut clients = self.failed_clients;
        clients.add_all(&self.served_clients);
        let (failed, all) = (self.failed_clients.count(), clients.count());
        failed > 0 && (self.good < good || failed == all || failed > 1 && is_enough(failed, all))
    }
}

/// A sliding window of results.
#[derive(Debug, Default)]
pub struct CallWindow {
    parts: [CallCounts; PARTS],
    /// Number of the current part since time 0. Its place in `parts` is this number modulo `PARTS`.
    current: u64,
}

impl CallWindow {
    /// Adds a report at `now_ms`. The window spans `window_ms`.
    pub fn add_report(&mut self, window_ms: u64, now_ms: u64, report: &CallReport) {
        self.advance(window_ms, now_ms);
        self.parts[place_of(self.current)].add_report(report);
    }

    /// Returns the sum of the window at `now_ms`.
    pub fn total(&mut self, window_ms: u64, now_ms: u64) -> CallCounts {
        self.advance(window_ms, now_ms);
        let mut total = CallCounts::default();
        self.parts.iter().for_each(|part| total.add_counts(part));
        total
    }

    /// Drops the parts that have left the window. A report from another worker may be older than the current part by a
    /// millisecond; it is counted in the current part.
    fn advance(&mut self, window_ms: u64, now_ms: u64) {
        let part_ms = (window_ms / PARTS as u64).max(1);
        let number = now_ms / part_ms;
        let interval_count = number.saturating_sub(self.current);
        if interval_count >= PARTS as u64 {
            self.parts = Default::default();
        } else {
            (1..=interval_count).for_each(|step| self.parts[place_of(self.current + step)] = CallCounts::default());
        }
        self.current = self.current.max(number);
    }
}

fn place_of(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(client: u64, is_error: bool) -> CallReport {
        CallReport { is_first: true, is_slow: false, is_error, client: Blame::Client(client) }
    }

    #[test]
    fn results_leave_the_window_part_by_part() {
        let mut window = CallWindow::default();
        for second in 0..10 {
            window.add_report(10_000, second * 1000, &report(second, second % 2 == 0));
        }
        let requests = |window: &mut CallWindow, now_ms| window.total(10_000, now_ms).requests;
        assert_eq!(requests(&mut window, 9_999), 10);
        assert_eq!(window.total(10_000, 9_999).errors, 5);
        assert_eq!(requests(&mut window, 10_000), 9);
        assert_eq!(requests(&mut window, 15_500), 4);
        assert_eq!(requests(&mut window, 19_000), 0);
        window.add_report(10_000, 19_000, &report(1, false));
        assert_eq!(requests(&mut window, 1_000_000), 0);
        // A clock that is behind by a moment neither panics nor revives old parts.
        window.add_report(10_000, 999_990, &report(1, false));
        assert_eq!(requests(&mut window, 1_000_000), 1);
    }

    #[test]
    fn few_clients_are_not_enough_to_blame_an_upstream_that_serves_others() {
        let mut counts = CallCounts::default();
        (0..20).for_each(|_| counts.add_report(&report(1, true)));
        let blames = |counts: &CallCounts| counts.blames_upstream(10, |failed, all| 4 * failed >= all);
        assert!(blames(&counts), "nobody else is served");
        (0..9).for_each(|client| counts.add_report(&report(2 + client, false)));
        assert!(blames(&counts), "too few others are served");
        counts.add_report(&report(2, false));
        assert!(!blames(&counts));
        counts.add_report(&report(2, true));
        assert!(!blames(&counts), "two of ten clients");
        counts.add_report(&report(3, true));
        assert!(blames(&counts), "three of ten clients");
    }
}
