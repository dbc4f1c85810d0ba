//! A request's turn at an upstream whose servers take only so many at once: it gets a server with room, or
//! waits for one in a line that all workers share. Called by `servers`, and only where something is capped.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::asked::AskedServer;
use super::connect::ConnectFault;
use super::servers::{Acquired, Course, Servers, Unserved};
use crate::http::complaints::UpstreamTrouble;
use crate::http::deadline::RequestDeadline;
use crate::labels::labels;
use crate::metrics::RetryReason;
use crate::upstream::caps::{CapRule, InFlight, UpstreamLoad};

/// What becomes free without a word, such as a server that is no longer passed over, is looked for so often.
const GLANCE: Duration = Duration::from_millis(100);

/// A server, and a request's place there.
pub(super) type Turn = (Rc<AskedServer>, InFlight);

labels! {
    /// Why a request has had no turn.
    Overflow:
    /// As many as may wait do.
    QueueFull = "queue_full",
    QueueTimeout = "queue_timeout",
}

impl Servers {
    /// A connection to a server with room, at the servers' turns.
    ///
    /// # Errors
    /// When there is none in time, or no server accepted one.
    pub(super) async fn acquire_capped(
        &self,
        rule: &CapRule,
        course: &mut Course,
        connect: Duration,
        deadline: &RequestDeadline,
    ) -> Result<Acquired, Unserved> {
        let mut shortages = 0;
        loop {
            let (server, permit) = match course.turn.take() {
                Some(turn) => turn,
                None => self.turn(rule, course, deadline).await?,
            };
            let connected = loop {
                let connected = match server.ready(course, self.max_idle) {
                    Some(connection) => Ok(connection),
                    None => server.connect(course, connect, self.max_idle).await,
                };
                match connected {
                    // The server has not seen it: the request keeps its turn.
                    Err(error) if error.fault == ConnectFault::Descriptors => {
                        if !self.frees_descriptors(&mut shortages).await {
                            return Err(Unserved::Connect(error.fault));
                        }
                    }
                    connected => break connected,
                }
            };
            let error = match connected {
                Ok(mut connection) => {
                    connection.count(permit);
                    return Ok(Acquired { server, connection });
                }
                Err(error) => error,
            };
            drop(permit);
            // Another request was quicker, or what there is was not wanted: better that than none.
            if error.fault == ConnectFault::MaxConnections {
                if !server.give_way() {
                    course.since_ms = None;
                }
                yield_now().await;
                continue;
            }
            self.complain(&server, &error);
            if !self.may_again(course, &server, RetryReason::ConnectError) {
                return Err(Unserved::Connect(error.fault));
            }
        }
    }

    /// A server with room, if there is one and nobody waits for it.
    pub(super) fn turn_now(&self, course: &Course) -> Result<Option<Turn>, ConnectFault> {
        let load = self.upstream.load();
        if load.line.len() == 0 { self.take(load, course) } else { Ok(None) }
    }

    /// Waits for a server with room, behind those that came before.
    async fn turn(&self, rule: &CapRule, course: &mut Course, deadline: &RequestDeadline) -> Result<Turn, Unserved> {
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

    pub(super) fn complain(&self, server: &AskedServer, error: &super::connect::ConnectError) {
        let kind = match error.fault {
            ConnectFault::Tls => UpstreamTrouble::Tls,
            _ => UpstreamTrouble::Connect,
        };
        self.complaints.tell(kind, server.label(), error);
    }
}
