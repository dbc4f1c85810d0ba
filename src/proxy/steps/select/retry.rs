//! Decides whether a failed request is retried on another server. Called by `acquire` after a failed connection, and by
//! `forward` after a failed exchange.

use std::rc::Rc;

use crate::ends::RetryReason;
use crate::proxy::outbound::select::endpoint::WorkerEndpoint;
use crate::proxy::outbound::select::retry_state::RetryState;
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::steps::select::reserve::try_reserve;

/// Returns whether a request that failed on `server` for `reason` may be retried on another server. If so, takes the
/// retry from the budget and counts it.
///
/// A request that was already sent is retried on usable servers only, because other requests have recently failed on
/// the others. If servers have limits, one is reserved for the retry now. A retry that only full servers could take
/// must not block requests that others can take.
pub fn begin_retry(
    servers: &WorkerUpstream,
    state: &mut RetryState,
    server: &Rc<WorkerEndpoint>,
    reason: RetryReason,
) -> bool {
    let now_ms = servers.pools.now_ms();
    state.tried.push(server.clone());
    if !servers.retry.permits(reason, state.failures()) {
        return false;
    }
    let endpoints = servers.selector.endpoints();
    let was_sent = reason != RetryReason::ConnectError;
    let is_candidate =
        |other: &Rc<WorkerEndpoint>| !state.has_tried(other) && (!was_sent || other.state.is_usable(now_ms));
    if !endpoints.servers.iter().any(is_candidate) {
        return false;
    }
    if servers.upstream.settings.caps.is_some() {
        state.reserved = try_reserve(servers, state).ok().flatten();
        if state.reserved.is_none() {
            return false;
        }
    }
    let may_retry = servers.retry.take_retry(now_ms);
    if may_retry {
        servers.outcomes.count_retry(reason);
    } else {
        servers.outcomes.count_over_budget();
        state.reserved = None;
    }
    may_retry
}
