//! The settings that bound a client connection, and the check whether one of its timers has ended it.

use std::time::Duration;

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::connection::worker_context::WorkerContext;
use crate::proxy::context::ClientConnection;

/// Settings of the connection's listener and of `[server]`, as they were when it was accepted. A connection keeps
/// them across reloads.
pub struct ConnectionSettings {
    pub header_timeout: Duration,
    pub keepalive_timeout: Duration,
    pub half_close_timeout: Duration,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    pub max_streams: u32,
    /// Bounds an HTTP/2 connection as a whole, together with `min_response_rate`. Its streams have those of their
    /// routes.
    pub stream_timeout: Duration,
    pub min_response_rate: u64,
    pub http2: bool,
}

impl ConnectionSettings {
    /// Reads the settings in force.
    pub fn new(client: &ClientConnection) -> ConnectionSettings {
        let view = client.local.view();
        let server = &view.snapshot.config.server;
        ConnectionSettings {
            header_timeout: server.header_timeout,
            keepalive_timeout: server.keepalive_timeout,
            half_close_timeout: server.half_close_timeout,
            max_headers: server.max_headers,
            max_header_bytes: server.max_header_bytes,
            max_streams: server.max_streams,
            stream_timeout: server.stream_timeout,
            min_response_rate: server.min_response_rate,
            http2: server.http2,
        }
    }
}

/// Returns whether an HTTP/1.1 connection ends because it was cut or a timer has expired. Counts the reason. A request
/// that has reacted to its own timer, with an error response, does not end the connection.
pub fn has_ended(client: &ClientConnection, worker: &WorkerContext) -> bool {
    if client.connection().is_cut() || client.connection().is_half_close_over() {
        return true;
    }
    let expired = client.connection().expired_phase().map(Phase::cutoff);
    let expired = expired.or_else(|| client.connection().expired_request_wait().map(RequestWait::cutoff));
    let expired = expired.or_else(|| client.connection().slow_reader_cutoff().map(Some));
    expired.inspect(|reason| worker.count_cutoff(*reason)).is_some()
}
