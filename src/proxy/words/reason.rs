//! The closed sets of words that the access log gives for a request without the regular response of its route: `reason`
//! says why, and `setting` names the option that governs it. Errors and refusals convert to them.

use http::StatusCode;

use crate::labels::labels;

labels! {
    /// Reasons in the access log that are not also labels of `rejections_total` or `http_rejected_total`.
    EndReason:
    /// No memory was left to compress the response.
    CompressionFailed = "compression_failed",
    /// No route matches the request.
    NoRoute = "no_route",
    /// `trusted_proxies` does not list the peer, which asks on a listener with `serve = "decide"`.
    DecidePeer = "decide_peer",
    /// Another proxy asks about a name that does not exist.
    DecideName = "decide_name",
    /// Another proxy does not state which request it asks about, or contradicts itself.
    DecideFacts = "decide_facts",
    /// A receipt of a decision was not redeemed.
    Receipt = "receipt",
    /// The auth server refused the request; the client got its response.
    AuthRefused = "auth_refused",
    /// The redirect map of the route does not list the path.
    NoRedirect = "no_redirect",
    /// No server accepted a connection.
    UpstreamConnect = "upstream_connect",
    /// The TLS handshake with a server failed, or its certificate is not trusted.
    UpstreamTls = "upstream_tls",
    /// A server closed the connection or violated HTTP before its response.
    UpstreamBroken = "upstream_broken",
    /// A server closed the connection or violated HTTP within its response.
    UpstreamCutOff = "upstream_cut_off",
    /// No response began in time.
    UpstreamTimeout = "upstream_timeout",
    /// All servers were busy, and the queue was full.
    UpstreamQueueFull = "upstream_queue_full",
    /// All servers were busy for as long as the request could wait.
    UpstreamQueueTimeout = "upstream_queue_timeout",
    /// The servers are overloaded, so requests are refused (`adaptive`).
    UpstreamOverloaded = "upstream_overloaded",
    /// The request body does not match its framing.
    BodyMalformed = "body_malformed",
    /// No response began within the deadline of the client.
    ClientTimeout = "client_timeout",
    /// The gateway closed the HTTP/2 connection for something that the client sent besides this request.
    H2ConnectionError = "h2_connection_error",
    /// The gateway was stopped.
    Shutdown = "shutdown",
}

labels! {
    /// Options, by their names in the config.
    Setting:
    Strictness = "strictness",
    EncodedSlashes = "encoded_slashes",
    Deny = "deny",
    Auth = "auth",
    MaxInFlight = "max_in_flight",
    Breaker = "breaker",
    Overload = "overload",
    MaxBody = "max_body",
    MaxKeyBody = "max_key_body",
    MaxDelayed = "max_delayed",
    MaxConnections = "max_connections",
    MaxHeaderBytes = "max_header_bytes",
    OnError = "on_error",
    Missing = "missing",
    Repeated = "repeated",
    NotInteger = "not_integer",
    HeaderTimeout = "header_timeout",
    BodyTimeout = "body_timeout",
    ConnectTimeout = "connect_timeout",
    ResponseTimeout = "response_timeout",
    StreamTimeout = "stream_timeout",
    MinResponseRate = "min_response_rate",
    ProxyProtocol = "proxy_protocol",
    TunnelTimeout = "tunnel_timeout",
    MaxTunnels = "max_tunnels",
    Http2 = "http2",
    Tls = "tls",
    MaxWaiting = "max_waiting",
    WaitingTimeout = "waiting_timeout",
    Adaptive = "adaptive",
    ShutdownTimeout = "shutdown_timeout",
}

/// Returns the status 499, which nginx uses for a client that disconnected before its response.
pub fn client_closed_status() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
