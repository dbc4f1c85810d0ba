//! Closed sets of label values. The metric families declare them; the code that counts uses them.

use crate::labels::labels;

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
    /// How a decision would differ if a candidate were in effect instead of its incumbent; the `effect` label of
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

labels! {
    /// The outcome of the copy of a request; the `outcome` label of `mirror_total`.
    MirrorOutcome:
    /// A server responded, with any status.
    Answered = "answered",
    /// No server responded in time.
    Failed = "failed",
    BodyTooLarge = "body_too_large",
    /// The client did not send its whole body, or the server did not want it.
    BodyIncomplete = "body_incomplete",
    /// The worker made as many copies as it may at a time.
    Busy = "busy",
}

labels! {
    /// Protocol of a client connection; the `protocol` label of `connections`.
    Protocol:
    Http11 = "http/1.1",
    Http2 = "h2",
    Http3 = "h3",
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
    /// The client disconnected before the handshake completed.
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
