//! Whether a request that a server has failed goes to another. Called by `acquire` and `forward`.

use std::rc::Rc;

use super::asked::AskedServer;
use super::course::Course;
use super::servers::Servers;
use crate::metrics::RetryReason;

/// Servers asked for a connection before a request fails, however seldom it may be sent.
const CONNECT_TRIES: usize = 3;

impl Servers {
    /// Whether a request that `server` failed for `reason` may go to another, which is counted. Nothing is
    /// sent to those that are passed over: they failed others. Where servers are capped one of them must have
    /// room now: who cannot go where others can is not to stand before them.
    pub fn may_again(&self, course: &mut Course, server: &Rc<AskedServer>, reason: RetryReason) -> bool {
        let (on, attempts) = (&self.retry.on, self.retry.attempts);
        let now_ms = self.pools.now_ms();
        let (is_on, attempts) = match reason {
            RetryReason::ConnectError => (on.connect, attempts.max(CONNECT_TRIES)),
            RetryReason::Reset => (on.reset, attempts),
            RetryReason::Timeout => (on.timeout, attempts),
            RetryReason::Status502 => (on.statuses[0], attempts),
            RetryReason::Status503 => (on.statuses[1], attempts),
            RetryReason::Status504 => (on.statuses[2], attempts),
            RetryReason::StaleConnection | RetryReason::Refused => (false, attempts),
        };
        course.tried.push(server.clone());
        if !is_on || course.tried.len() >= attempts {
            return false;
        }
        let lineup = self.lineup();
        let sent = reason != RetryReason::ConnectError;
        let takes = |other: &Rc<AskedServer>| !course.has_tried(other) && (!sent || other.state.is_usable(now_ms));
        if !lineup.servers.iter().any(takes) {
            return false;
        }
        if self.upstream.settings.caps.is_some() {
            course.turn = self.turn_now(course).ok().flatten();
            if course.turn.is_none() {
                return false;
            }
        }
        let may = self.budget.borrow_mut().again(self.retry.budget, now_ms);
        if may {
            self.outcomes.count_retry(reason);
        } else {
            self.outcomes.over_budget.inc();
            course.turn = None;
        }
        may
    }
}
