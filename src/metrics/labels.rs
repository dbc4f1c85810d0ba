//! The closed sets of label values. Used by the families and by whoever counts on them.

use http::StatusCode;

use crate::labels::{Label, labels};

labels! {
    /// What became of one limit's part in a request; the `decision` label of
    /// `limit_decisions_total`.
    Decision:
    Allow = "allow",
    Deny = "deny",
    ShadowDeny = "shadow_deny",
    /// Admitted, but held back until its turn.
    Delayed = "delayed",
    Bypass = "bypass",
    ErrorOpen = "error_open",
    ErrorClosed = "error_closed",
    LocalAllow = "local_allow",
    LocalDeny = "local_deny",
}

labels! {
    /// Why a routed request was refused; the `reason` label of `rejections_total`.
    Reason:
    /// A limit is exhausted.
    Exhausted = "exhausted",
    /// The cost is above all the limit can ever hold.
    NeverFits = "never_fits",
    /// A part of the limit's key is missing.
    MissingKey = "missing_key",
    /// What the limit reads stands there more than once, or servers differ in reading it.
    RepeatedKey = "repeated_key",
    /// Where the limit reads an integer stands something else.
    NotInteger = "not_integer",
    /// The limit goes by the body, and it is too long, of another type, or broken.
    UnreadableKey = "unreadable_key",
    /// The key's override is a rate of 0.
    Blocked = "blocked",
    /// The store is away and the limit is `on_error = "closed"`.
    StoreDown = "store_down",
    /// It might have to wait for its turn, and as many requests as may do already.
    MaxDelayed = "max_delayed",
    /// The client's address is on the route's `deny` list.
    Denied = "denied",
    /// The route serves `max_in_flight` requests already.
    MaxInFlight = "max_in_flight",
}

/// The `reason` label of `http_rejected_total`: a [`Cutoff`], or why a request is unclear HTTP.
pub trait Rejection: Label {}

labels! {
    /// Why a request or a connection got no further, whatever its route's limits say.
    Cutoff:
    /// There are as many connections as may be.
    MaxConnections = "max_connections",
    /// Likewise of one address.
    MaxConnectionsPerIp = "max_connections_per_ip",
    /// The system grants no more of them: for a connection to an upstream server.
    FileDescriptors = "file_descriptors",
    /// Likewise no local port or memory.
    Resources = "resources",
    HeaderTimeout = "header_timeout",
    /// The client left before the end of its head. In the access log also later.
    ClientLeft = "client_left",
    BodyTimeout = "body_timeout",
    StreamTimeout = "stream_timeout",
    /// Less of an answer was taken than there has to be on average.
    SlowReader = "slow_reader",
    /// No PROXY header where one is due.
    ProxyHeader = "proxy_header",
    /// Neither side of a tunnel has said anything for too long.
    TunnelTimeout = "tunnel_timeout",
    /// As many connections as may have switched protocols.
    MaxTunnels = "max_tunnels",
    BodyTooLarge = "body_too_large",
    /// The certificate of the connection is not for the host.
    Misdirected = "misdirected",
    /// The parser cannot read the head.
    MalformedHead = "malformed_head",
    HeadTooLarge = "head_too_large",
    TargetTooLong = "target_too_long",
    /// TLS on a listener that does not speak it,
    TlsHello = "tls_hello",
    /// and HTTP/2 likewise.
    Http2Preface = "http2_preface",
    /// On HTTP/2: more frames that only cost than go with answers,
    H2Frames = "h2_frames",
    /// more requests taken back than answered,
    H2Resets = "h2_resets",
    /// more mistakes on streams, or pieces of one head, than can be meant well,
    H2Abuse = "h2_abuse",
    /// or frames that are none, or at the wrong time.
    H2Protocol = "h2_protocol",
    /// A head or trailers over HTTP/2 that are malformed, so that their stream is reset: a field name is no lower-case
    /// token,
    H2FieldName = "h2_field_name",
    /// a value has a control character,
    H2FieldValue = "h2_field_value",
    /// a pseudo field is unknown, missing, repeated, malformed, or in the wrong place,
    H2PseudoField = "h2_pseudo_field",
    /// a field describes the connection,
    H2ConnectionField = "h2_connection_field",
    /// `content-length` is no number, is given twice, or announces a body where there can be none,
    H2ContentLength = "h2_content_length",
    /// or trailers do not end their stream.
    H2Trailers = "h2_trailers",
}

impl Rejection for Cutoff {}

labels! {
    /// What became of a request sent to an upstream; the `outcome` label of `upstream_requests_total`.
    UpstreamOutcome:
    /// The head of an answer came.
    Ok = "ok",
    /// The client left before it came, or its connection was ended.
    ClientLeft = "client_left",
    /// The client's body was too large, malformed or too slow.
    UploadFailed = "upload_failed",
    ConnectError = "connect_error",
    /// The TLS handshake failed.
    TlsError = "tls_error",
    Timeout = "timeout",
    /// No response began within the deadline of the client.
    ClientTimeout = "client_timeout",
    Broken = "broken",
    /// No server had room, and as many requests as may waited already,
    QueueFull = "queue_full",
    /// or it waited for too long.
    QueueTimeout = "queue_timeout",
}

labels! {
    /// Why a request was sent once more; the `reason` label of `upstream_retries_total`.
    RetryReason:
    /// A kept connection turned out closed.
    StaleConnection = "stale_connection",
    /// A server of HTTP/2 said that it has not looked at it.
    Refused = "refused",
    ConnectError = "connect_error",
    /// The connection ended before an answer.
    Reset = "reset",
    Timeout = "timeout",
    Status502 = "502",
    Status503 = "503",
    Status504 = "504",
}

impl RetryReason {
    pub fn of_status(status: StatusCode) -> Option<RetryReason> {
        match status {
            StatusCode::BAD_GATEWAY => Some(RetryReason::Status502),
            StatusCode::SERVICE_UNAVAILABLE => Some(RetryReason::Status503),
            StatusCode::GATEWAY_TIMEOUT => Some(RetryReason::Status504),
            _ => None,
        }
    }
}

labels! {
    /// What a client connection speaks; the `protocol` label of `connections`.
    Protocol:
    Http11 = "http/1.1",
    Http2 = "h2",
    /// In the TLS handshake, where it is agreed on.
    Handshake = "handshake",
}

labels! {
    /// How a TLS handshake ended; the `result` label of `tls_handshakes_total`.
    HandshakeResult:
    Full = "full",
    /// An earlier session went on: no certificate was shown by either side.
    Resumed = "resumed",
    Timeout = "timeout",
    /// The client left before the end.
    Aborted = "aborted",
    /// The first bytes were no TLS: plain HTTP, most often.
    NotTls = "not_tls",
    /// No version, cipher or protocol that both sides know.
    Incompatible = "incompatible",
    /// The client showed no certificate where one is required,
    NoClientCertificate = "no_client_certificate",
    /// or one that is not valid here.
    BadClientCertificate = "bad_client_certificate",
    /// The client broke off, most often because it does not trust the certificate.
    Alert = "alert",
    /// What the client sent is against the protocol.
    Invalid = "invalid",
    /// The gateway drains.
    Draining = "draining",
    /// None has been issued yet for the name that was asked for.
    NoCertificate = "no_certificate",
    /// An ACME server got its proof, and nothing more.
    AcmeChallenge = "acme_challenge",
}

labels! {
    /// How an order at an ACME server ended; the `result` label of `acme_orders_total`.
    OrderResult:
    Issued = "issued",
    /// The server did not get its proof.
    ChallengeFailed = "challenge_failed",
    /// It said no.
    Refused = "refused",
    /// It could not be asked, or what it answered is not ACME.
    Unreachable = "unreachable",
    Timeout = "timeout",
    /// The state directory could not be used.
    NoState = "no_state",
}

labels! {
    /// What became of a span.
    SpanResult:
    Exported = "exported",
    /// No room: the collector is slower than the requests, or away.
    Dropped = "dropped",
    /// The collector did not take it.
    Failed = "failed",
}
