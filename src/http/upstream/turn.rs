//! A request's turn at an upstream whose servers take only so many at once: it gets a server with room, or
//! waits for one in a line that all workers share. Called by `acquire` and `retry`, only where something is capped.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::connect::ConnectFault;
use super::course::{Course, Overflow, Turn, Unserved};
use super::servers::Servers;
use crate::http::deadline::RequestDeadline;
use crate::upstream::caps::{CapRule, UpstreamLoad};

/// What becomes free without a word, such as a server that is no longer passed over, is looked for so often.
const GLANCE: Duration = Duration::from_millis(100);

impl Servers {
    /// A server with room, if there is one and nobody waits for it.
    pub(super) fn turn_now(&self, course: &Course) -> Result<Option<Turn>, ConnectFault> {
        let load = self.upstream.load();
        if load.line.len() == 0 { self.take(load, course) } else { Ok(None) }
    }

    /// Waits for a server with room, behind those that came before.
    pub(super) async fn turn(
        &self,
        rule: &CapRule,
        course: &mut Course,
        deadline: &RequestDeadline,
    ) -> Result<Turn, Unserved> {
        if let Some(turn) = self.turn_now(course)? {
            return Ok(turn);
        }
        let load = self.upstream.load().clone();
        // None of those that some servers have failed already.
        let max = if course.failures() > 0 { 0 } else { rule.waiting.saturating_mul(self.count()) };
        let place = load.line.join(max).ok_or(Unserved::Overflow(Overflow::QueueFull))?;
        let _waits = deadline.hold_back();
        // One time for all the turns of a request.
        let end = *course.waits_until.get_or_insert_with(|| Instant::now() + Duration::from_millis(rule.waiting_ms));
        loop {
            let turn = poll_fn(|cx| {
                if !place.is_first(cx.waker()) {
                    return Poll::Pending;
                }
                match self.take(&load, course) {
                    Ok(None) => {
                        self.claim(&load);
                        Poll::Pending
                    }
                    Ok(Some(turn)) => Poll::Ready(Ok(turn)),
                    Err(fault) => Poll::Ready(Err(Unserved::Connect(fault))),
                }
            });
            match timeout_at(end.min(Instant::now() + GLANCE), turn).await {
                Ok(turn) => return turn,
                Err(_) if Instant::now() >= end => return Err(Unserved::Overflow(Overflow::QueueTimeout)),
                Err(_) => {}
            }
        }
    }

    /// A server with room, if there is one now.
    fn take(&self, load: &Arc<UpstreamLoad>, course: &Course) -> Result<Option<Turn>, ConnectFault> {
        loop {
            let Some(server) = self.pick_free(load, course)? else { return Ok(None) };
            // Else another worker was quicker.
            if let Some(permit) = server.enter(load) {
                return Ok(Some((server, permit)));
            }
        }
    }

    /// What requests wait for: connections that others keep are asked for.
    fn claim(&self, load: &UpstreamLoad) {
        let lineup = self.lineup();
        for server in lineup.servers.iter().filter(|server| server.lacks_connection(load)) {
            if !server.give_way() {
                server.state.claim.make(self.worker);
            }
        }
    }

    /// How many servers there are.
    fn count(&self) -> usize {
        self.lineup().servers.len()
    }
}
