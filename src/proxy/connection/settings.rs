//! The settings that bound a client connection.

use std::time::Duration;

use crate::config::ServerSettings;

/// Settings of `[server]` for the connections that are accepted while they are active.
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
    pub fn new(server: &ServerSettings) -> ConnectionSettings {
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
