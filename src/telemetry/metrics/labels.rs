//! Closed sets of label values. The metric families declare them; the code that counts uses them.

use crate::labels::{Label, labels};

labels! {
    /// Result of one limit for a request; the `decision` label of `limit_decisions_total`.
    Decision:
    Allow = "allow",
    Deny = "deny",
    ShadowDeny = "shadow_deny",
    /// Over the limit, and forwarded with a header.
    Annotate = "annotate",
    /// Over the limit, and forwarded to another upstream.
    Divert = "divert",
    /// Admitted, but delayed until its turn.
    Delayed = "delayed",
    Bypass = "bypass",
    ErrorOpen = "error_open",
    ErrorClosed = "error_closed",
    LocalAllow = "local_allow",
    LocalDeny = "local_deny",
}

labels! {
    /// How a decision would differ if a candidate were in force in place of its incumbent; the `effect` label of
    /// `candidate_decisions_total`.
    CandidateEffect:
    /// Both admit the request, or both refuse it.
    Agree = "agree",
    /// The incumbent admits the request, and the candidate would refuse it.
    WouldRefuse = "would_refuse",
    /// The incumbent refuses the request, and the candidate would admit it.
    WouldAdmit = "would_admit",
}

labels! {
    /// Why a routed request was refused; the `reason` label of `rejections_total`.
    Reason:
    /// The limit is exhausted.
    Exhausted = "exhausted",
    /// The cost exceeds what the limit can ever hold.
    NeverFits = "never_fits",
    /// A part of the limit's key is missing.
    MissingKey = "missing_key",
    /// A value that the limit reads occurs more than once, or servers differ in how they read it.
    RepeatedKey = "repeated_key",
    /// A value that the limit reads as an integer is not one.
    NotInteger = "not_integer",
    /// The limit reads the body, and the body is too long, of another type, or malformed.
    UnreadableKey = "unreadable_key",
    /// The key has an override with rate 0.
    Blocked = "blocked",
    /// The store is unavailable and the limit has `on_error = "closed"`.
    StoreDown = "store_down",
    /// The request might have to be delayed, and `max_delayed` requests already are.
    MaxDelayed = "max_delayed",
    /// The route has `auth`, and the request has no valid credentials.
    Unauthorized = "unauthorized",
    /// The auth server of the route failed.
    AuthServer = "auth_server",
    /// The password of the request cannot be verified, because too many others wait.
    PasswordQueueFull = "password_queue_full",
    /// The client address is on the route's `deny` list.
    Denied = "denied",
    /// The route already serves `max_in_flight` requests.
    MaxInFlight = "max_in_flight",
    /// The circuit breaker of the upstream refuses requests.
    UpstreamBreaker = "upstream_breaker",
    /// The circuit breaker of the route refuses requests.
    RouteBreaker = "route_breaker",
    /// The process admits as many requests per second as it may.
    OverloadQps = "overload_qps",
    /// The process has as many requests in flight as it may.
    OverloadInFlight = "overload_in_flight",
    /// Responses take too long on average.
    OverloadLatency = "overload_latency",
    /// The load average is too high, and the process is at its measured capacity.
    OverloadLoad = "overload_load",
    /// The process uses too much CPU time.
    OverloadCpu = "overload_cpu",
}

labels! {
    /// Result of a request to an auth server; the `outcome` label of `forward_auth_total`.
    ForwardAuthOutcome:
    Admitted = "admitted",
    /// The client got the response of the auth server.
    Refused = "refused",
    /// The auth server failed, and the request passed without an identity.
    ErrorOpen = "error_open",
    /// The auth server failed, and the request was refused.
    ErrorClosed = "error_closed",
}

/// A value of the `reason` label of `http_rejected_total`: a [`Cutoff`], or the reason why a request is ambiguous
/// HTTP.
pub trait Rejection: Label {}

labels! {
    /// Why a request or connection was rejected before, or independently of, its route's limits.
    Cutoff:
    /// `max_connections` is reached.
    MaxConnections = "max_connections",
    /// `max_connections_per_ip` is reached.
    MaxConnectionsPerIp = "max_connections_per_ip",
    /// The process has no file descriptor left for a connection to an upstream server.
    FileDescriptors = "file_descriptors",
    /// The system has no local port or memory left for a connection to an upstream server.
    Resources = "resources",
    HeaderTimeout = "header_timeout",
    /// The client left before the end of its request head. The access log also uses it for later departures.
    ClientLeft = "client_left",
    BodyTimeout = "body_timeout",
    StreamTimeout = "stream_timeout",
    /// The client reads its response more slowly than `min_response_rate`.
    SlowReader = "slow_reader",
    /// The connection does not start with the required PROXY header.
    ProxyHeader = "proxy_header",
    /// Neither side of an upgraded connection sent anything for `tunnel_timeout`.
    TunnelTimeout = "tunnel_timeout",
    /// `max_tunnels` upgraded connections are open.
    MaxTunnels = "max_tunnels",
    BodyTooLarge = "body_too_large",
    /// The connection's certificate does not cover the requested host.
    Misdirected = "misdirected",
    /// The parser cannot read the request head.
    MalformedHead = "malformed_head",
    HeadTooLarge = "head_too_large",
    TargetTooLong = "target_too_long",
    /// TLS was sent to a plain-text listener.
    TlsHello = "tls_hello",
    /// HTTP/2 was sent to a listener that does not speak it.
    Http2Preface = "http2_preface",
    /// HTTP/2: more frames that cost work without carrying data than the responses justify.
    H2Frames = "h2_frames",
    /// HTTP/2: more requests were reset than answered.
    H2Resets = "h2_resets",
    /// HTTP/2: more stream errors, or fragments of one head, than a correct client produces.
    H2Abuse = "h2_abuse",
    /// HTTP/2: an invalid frame, or a frame at the wrong time.
    H2Protocol = "h2_protocol",
    /// HTTP/2 head or trailers: a header name is not a lower-case token. The stream is reset, as for the reasons
    /// below.
    H2FieldName = "h2_field_name",
    /// HTTP/2 head or trailers: a value contains a control character.
    H2FieldValue = "h2_field_value",
    /// HTTP/2 head or trailers: a pseudo-header is unknown, missing, repeated, malformed or misplaced.
    H2PseudoField = "h2_pseudo_field",
    /// HTTP/2 head or trailers: a connection-specific header is present.
    H2ConnectionField = "h2_connection_field",
    /// HTTP/2: `content-length` is not a number, is repeated, or announces a body where none is allowed.
    H2ContentLength = "h2_content_length",
    /// HTTP/2: trailers do not end their stream.
    H2Trailers = "h2_trailers",
}

impl Rejection for Cutoff {}

labels! {
    /// Result of a request sent to an upstream; the `outcome` label of `upstream_requests_total`.
    UpstreamOutcome:
    /// The response head arrived.
    Ok = "ok",
    /// The client left before the response head arrived, or its connection was closed.
    ClientLeft = "client_left",
    /// The client's body was too large, malformed or too slow.
    UploadFailed = "upload_failed",
    ConnectError = "connect_error",
    /// The TLS handshake with the server failed.
    TlsError = "tls_error",
    Timeout = "timeout",
    /// No response started before the client's own deadline.
    ClientTimeout = "client_timeout",
    Broken = "broken",
    /// Every server was busy and the queue was full.
    QueueFull = "queue_full",
    /// The request waited in the queue for longer than `queue_timeout`.
    QueueTimeout = "queue_timeout",
    /// The upstream is overloaded (`adaptive`).
    Overloaded = "overloaded",
}

labels! {
    /// Protocol of a client connection; the `protocol` label of `connections`.
    Protocol:
    Http11 = "http/1.1",
    Http2 = "h2",
    /// During the TLS handshake, which negotiates the protocol.
    Handshake = "handshake",
}

labels! {
    /// Result of a TLS handshake; the `result` label of `tls_handshakes_total`.
    HandshakeResult:
    Full = "full",
    /// An earlier session was resumed; neither side sent a certificate.
    Resumed = "resumed",
    Timeout = "timeout",
    /// The client left before the handshake completed.
    Aborted = "aborted",
    /// The first bytes were not TLS; most often they are plain HTTP.
    NotTls = "not_tls",
    /// The two sides have no version, cipher or protocol in common.
    Incompatible = "incompatible",
    /// A client certificate is required and the client sent none.
    NoClientCertificate = "no_client_certificate",
    /// The client certificate is not valid for this listener.
    BadClientCertificate = "bad_client_certificate",
    /// The client aborted the handshake, most often because it does not trust the certificate.
    Alert = "alert",
    /// The client violated the TLS protocol.
    Invalid = "invalid",
    /// The gateway is draining.
    Draining = "draining",
    /// No certificate has been issued yet for the requested name.
    NoCertificate = "no_certificate",
    /// An ACME server fetched its proof; the connection served nothing else.
    AcmeChallenge = "acme_challenge",
}

labels! {
    /// Result of an order at an ACME server; the `result` label of `acme_orders_total`.
    OrderResult:
    Issued = "issued",
    /// The ACME server could not validate the challenge.
    ChallengeFailed = "challenge_failed",
    /// The ACME server refused the order.
    Refused = "refused",
    /// The ACME server could not be reached, or its response is not ACME.
    Unreachable = "unreachable",
    Timeout = "timeout",
    /// The state directory could not be used.
    NoState = "no_state",
}

labels! {
    /// Result of a password check; the `result` label of `password_checks_total`.
    PasswordCheck:
    Match = "match",
    /// The password is wrong or the user unknown.
    Mismatch = "mismatch",
    /// The same credentials were verified recently.
    Cached = "cached",
    /// Too many passwords were waiting.
    QueueFull = "queue_full",
}

labels! {
    /// Result of exporting a span.
    SpanResult:
    Exported = "exported",
    /// The queue was full: the collector is slower than the requests, or unavailable.
    Dropped = "dropped",
    /// The collector rejected the span.
    Failed = "failed",
}
