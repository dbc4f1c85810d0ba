//! Gets a connection for a request: selects a server, or waits for one with capacity, and connects to it. Called by
//! `forward` before each attempt.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;

use crate::ends::{End, RetryReason};
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::outbound::dial::ConnectError;
use crate::proxy::outbound::pool::ServerLease;
use crate::proxy::outbound::select::endpoint::WorkerEndpoint;
use crate::proxy::outbound::select::retry_state::{Acquired, RetryState};
use crate::proxy::outbound::select::worker_upstream::WorkerUpstream;
use crate::proxy::steps::select::reserve::reserve_or_wait;
use crate::proxy::steps::select::retry::begin_retry;
use crate::proxy::words::refusal::Refusal;
use crate::upstream::caps::{CapRule, InFlight};

/// Gets a connection to a server on which the request has not failed. Reuses an idle connection unless `state` requires
/// a new one. `connect` bounds the time to open one connection.
///
/// # Errors
/// No server accepted a connection, or none had capacity.
pub async fn acquire(
    servers: &WorkerUpstream,
    state: &mut RetryState,
    connect: Duration,
    deadline: &RequestDeadline,
) -> Result<Acquired, Refusal> {
    state.acquired_ms = servers.pools.now_ms();
    if let Some(rule) = &servers.upstream.settings.caps {
        return Box::pin(acquire_limited(servers, rule, state, connect, deadline)).await;
    }
    let server = select(servers, state)?;
    let mut acquired = match server.take_ready(&state.need, servers.max_idle) {
        Some(connection) => Acquired { server, connection },
        // Boxed because it is rare, and larger than the rest of a request's state.
        None => Box::pin(connect_any(servers, server, state, connect)).await?,
    };
    if servers.upstream.settings.counts_all_workers() {
        acquired.connection.count_in_flight(InFlight::count_unlimited(&acquired.server.state));
    }
    Ok(acquired)
}

fn select(servers: &WorkerUpstream, state: &RetryState) -> Result<Rc<WorkerEndpoint>, End> {
    servers.selector.select(state).inspect_err(|fault| servers.record_no_server(*fault))
}

/// Connects to `server`, and to others if it does not accept a connection.
async fn connect_any(
    servers: &WorkerUpstream,
    mut server: Rc<WorkerEndpoint>,
    state: &mut RetryState,
    limit: Duration,
) -> Result<Acquired, End> {
    let mut shortages = 0;
    loop {
        let _counted = servers.upstream.settings.counts_all_workers().then(|| InFlight::count_unlimited(&server.state));
        let error = match server.connect(&state.need, limit, servers.max_idle).await {
            Ok(connection) => return Ok(Acquired { server, connection }),
            Err(error) => error,
        };
        if error.end == End::FileDescriptors {
            match servers.free_descriptors(&mut shortages).await {
                true => continue,
                false => return Err(error.end),
            }
        }
        log_connect_error(servers, &server, &error);
        if !begin_retry(servers, state, &server, RetryReason::ConnectError) {
            return Err(error.end);
        }
        server = select(servers, state)?;
        if let Some(connection) = server.take_ready(&state.need, servers.max_idle) {
            return Ok(Acquired { server, connection });
        }
    }
}

/// Gets a connection if servers have limits. First reserves a server, which may require waiting in the queue.
///
/// # Errors
/// No server had capacity in time, or none accepted a connection.
async fn acquire_limited(
    servers: &WorkerUpstream,
    rule: &CapRule,
    state: &mut RetryState,
    connect: Duration,
    deadline: &RequestDeadline,
) -> Result<Acquired, Refusal> {
    let mut shortages = 0;
    loop {
        let (server, slot) = match state.reserved.take() {
            Some(reservation) => reservation,
            None => reserve_or_wait(servers, rule, state, deadline).await?,
        };
        let error = match connect_reserved(servers, &server, state, connect, &mut shortages).await {
            Ok(mut connection) => {
                connection.count_in_flight(slot);
                return Ok(Acquired { server, connection });
            }
            Err(error) => error,
        };
        drop(slot);
        match error.end {
            End::FileDescriptors => return Err(error.end.into()),
            // Another request took the connection, or we skipped the idle ones as too old: at the cap, an old
            // connection beats none.
            End::ConnectMaxConnections => {
                if !server.close_unused() {
                    state.need.since_ms = None;
                }
                yield_now().await;
            }
            _ => {
                log_connect_error(servers, &server, &error);
                if !begin_retry(servers, state, &server, RetryReason::ConnectError) {
                    return Err(error.end.into());
                }
            }
        }
    }
}

/// Returns an idle connection to a reserved server, or a new one. A shortage of file descriptors is not a fault of the
/// server: the request keeps its reservation while some are freed.
async fn connect_reserved(
    servers: &WorkerUpstream,
    server: &Rc<WorkerEndpoint>,
    state: &RetryState,
    limit: Duration,
    shortages: &mut u32,
) -> Result<ServerLease, ConnectError> {
    loop {
        if let Some(connection) = server.take_ready(&state.need, servers.max_idle) {
            return Ok(connection);
        }
        match server.connect(&state.need, limit, servers.max_idle).await {
            Err(error) if error.end == End::FileDescriptors => {
                if !servers.free_descriptors(shortages).await {
                    return Err(error);
                }
            }
            connected => return connected,
        }
    }
}

/// Logs a failed connection with the error of the system.
fn log_connect_error(servers: &WorkerUpstream, server: &WorkerEndpoint, error: &ConnectError) {
    if let Some(kind) = error.end.row().log_kind {
        servers.failure_log.log_failure(kind, server.label(), error);
    }
}
