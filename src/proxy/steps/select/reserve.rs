//! Reserves a server for a request where servers have limits of concurrent requests or connections. If all of them are
//! at their limits, the request waits in a queue that all workers share. Used by `acquire` and `retry`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::ends::End;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::outbound::select::place::CapacityPermit;
use crate::proxy::outbound::select::retry_state::{Reservation, RetryState};
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::words::refusal::Refusal;
use crate::upstream::caps::{CapRule, UpstreamLoad};
use crate::upstream::queue::{Arrival, ServerPace, Turn};

/// Interval at which a waiting request checks for a server without being woken. Some changes wake no waiting request,
/// such as a server that becomes usable again.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// Reserves a server below its limits, if there is one and no other request waits for it.
pub(super) fn try_reserve(servers: &WorkerUpstream, state: &mut RetryState) -> Result<Option<Reservation>, End> {
    let load = servers.upstream.load();
    if load.queue.len() == 0 { reserve(servers, load, state) } else { Ok(None) }
}

/// Reserves a server below its limits. Waits for one if others came earlier or are more important.
///
/// # Errors
/// The queue is full, the request has waited for too long, or there is no server to wait for.
pub(super) async fn reserve_or_wait(
    servers: &WorkerUpstream,
    rule: &CapRule,
    state: &mut RetryState,
    deadline: &RequestDeadline,
) -> Result<Reservation, Refusal> {
    if let Some(reservation) = try_reserve(servers, state)? {
        return Ok(reservation);
    }
    let (load, priority) = (servers.upstream.load().clone(), state.priority);
    // A request that has already failed on a server does not queue.
    let max = match state.failures() {
        0 => rule.waiting.saturating_mul(servers.selector.endpoints().servers.len()),
        _ => 0,
    };
    let sheds = load.adaptive.is_some() && max > 0;
    let arrival = Arrival { priority, max, now: Instant::now().into(), random: rand::random(), sheds };
    let place = load.queue.join(arrival);
    let place = place.ok_or_else(|| servers.refuse_waiting(priority, End::QueueFull))?;
    let _waits = deadline.hold_back();
    let end = *state.queue_until.get_or_insert_with(|| Instant::now() + Duration::from_millis(rule.waiting_ms));
    let pace = || load.adaptive.as_ref().map_or_else(ServerPace::default, |adaptive| adaptive.pace());
    let newest_first = rule.newest_first.as_ref();
    loop {
        let reservation = poll_fn(|cx| {
            match place.check_turn(cx.waker(), newest_first, pace(), Instant::now().into()) {
                Turn::First => {}
                Turn::Waits => return Poll::Pending,
                Turn::Over => return Poll::Ready(Err(End::QueueTimeout)),
            }
            match reserve(servers, &load, state) {
                Ok(None) => {
                    claim_connections(servers, &load);
                    Poll::Pending
                }
                Ok(Some(reservation)) => Poll::Ready(Ok(reservation)),
                Err(fault) => Poll::Ready(Err(fault)),
            }
        });
        let leave_after =
            newest_first.filter(|_| place.is_newest_first()).map(|rule| place.leaves_at(rule, pace()).into());
        let leaves = leave_after.map_or(end, |leave_after| end.min(leave_after));
        match timeout_at(leaves.min(Instant::now() + POLL_PERIOD), reservation).await {
            Ok(Err(end @ End::QueueTimeout)) => return Err(servers.refuse_waiting(priority, end)),
            Ok(reservation) => return reservation.map_err(Refusal::from),
            Err(_) if Instant::now() >= leaves => {
                return Err(servers.refuse_waiting(priority, End::QueueTimeout));
            }
            Err(_) => {}
        }
    }
}

/// Reserves a server below its limits, if there is one now, and a place below the adaptive limit.
fn reserve(
    servers: &WorkerUpstream,
    load: &Arc<UpstreamLoad>,
    state: &mut RetryState,
) -> Result<Option<Reservation>, End> {
    loop {
        if state.place.is_none() && load.adaptive.as_ref().is_some_and(|adaptive| !adaptive.has_place()) {
            return Ok(None);
        }
        let choice = servers.selector.select_below_limits(load, state);
        let Some(server) = choice.inspect_err(|fault| servers.record_no_server(*fault))? else { return Ok(None) };
        // Another worker may have taken the server's last slot, or the last place, in the meantime.
        if let Some(slot) = server.take_slot(load) {
            if state.place.is_none() && load.adaptive.is_some() {
                state.place = CapacityPermit::take(load);
            }
            if state.place.is_some() || load.adaptive.is_none() {
                return Ok(Some((server, slot)));
            }
        }
    }
}

/// Frees a connection slot on each server that is only at its limit of connections. Closes an idle connection of this
/// worker or, if there is none, claims one from another worker.
fn claim_connections(servers: &WorkerUpstream, load: &UpstreamLoad) {
    let endpoints = servers.selector.endpoints();
    for server in endpoints.servers.iter().filter(|server| server.lacks_connection(load)) {
        if !server.close_unused() {
            server.state.claim.claim_for(servers.worker);
        }
    }
}
