//! What the config allows a client connection, and when it has used that up. Read by `connection` and its protocols.

use std::time::Duration;

use super::Worker;
use crate::http::context::Client;
use crate::http::deadline::{Awaited, Phase};

/// What the config in force at the accept says of the connection, which may outlive many.
pub struct Bounds {
    pub header_timeout: Duration,
    pub keepalive_timeout: Duration,
    pub half_close_timeout: Duration,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    pub max_streams: u32,
    /// Of an HTTP/2 connection as a whole: its streams have their own.
    pub stream_timeout: Duration,
    pub min_response_rate: u64,
    pub http2: bool,
}

impl Bounds {
    pub fn of(client: &Client) -> Bounds {
        let view = client.local.view();
        let server = &view.snapshot.config.server;
        Bounds {
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

/// A deadline that the request itself did not answer for ends the connection.
pub fn has_ended(client: &Client, worker: &Worker) -> bool {
    if client.deadline().is_cut() || client.deadline().is_gone() {
        return true;
    }
    let expired = client.deadline().expired().map(Phase::timeout);
    let expired = expired.or_else(|| client.deadline().expired_request().map(Awaited::timeout));
    let expired = expired.or_else(|| client.deadline().ends_slow().map(Some));
    expired.inspect(|reason| worker.count_timeout(*reason)).is_some()
}
