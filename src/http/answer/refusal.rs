//! Why a request is refused, or its exchange failed: with which status, and in which words. Told by the page, by
//! `problem` and `grpc`.

use http::StatusCode;

use crate::http::downstream::reject::Reject;
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::course::Overflow;
use crate::http::upstream::failure::UpstreamFailure;
use crate::limit::Outcome;
use crate::limit::answer::NEVER;
use crate::snapshot::Reason;

/// Why a request is not forwarded, or its exchange failed.
#[derive(Debug)]
pub enum Refusal {
    /// Not a request that every server on the path would read alike.
    Gate(Reject),
    NoRoute,
    /// The certificate of the connection is not for this host.
    Misdirected,
    /// The client's address is on the route's `deny` list.
    Denied,
    /// The route serves `max_in_flight` requests already.
    MaxInFlight,
    /// There are `max_tunnels` connections that have switched protocols already.
    MaxTunnels,
    /// The announced body is larger than the route allows.
    TooLarge,
    /// A limit refuses; the verdict says which.
    Limited,
    Upstream(UpstreamFailure),
}

impl Refusal {
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Gate(reject) => reject.status(),
            Refusal::NoRoute => StatusCode::NOT_FOUND,
            Refusal::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Denied => StatusCode::FORBIDDEN,
            Refusal::MaxInFlight | Refusal::MaxTunnels | Refusal::Upstream(UpstreamFailure::Overflow(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Limited => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Upstream(UpstreamFailure::Connect(fault)) if fault.is_shortage() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::Upstream(UpstreamFailure::Timeout | UpstreamFailure::ClientDeadline) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Refusal::Upstream(UpstreamFailure::UploadTimeout | UpstreamFailure::CallTimeout) => {
                StatusCode::REQUEST_TIMEOUT
            }
            Refusal::Upstream(UpstreamFailure::UploadBroken) => StatusCode::BAD_REQUEST,
            Refusal::Upstream(UpstreamFailure::ClientLeft) => client_closed(),
            Refusal::Upstream(UpstreamFailure::Connect(_) | UpstreamFailure::Broken) => StatusCode::BAD_GATEWAY,
        }
    }

    /// One sentence for the client: what is wrong and, where there is one, the remedy.
    pub fn detail(&self) -> &'static str {
        match self {
            Refusal::Gate(reject) => reject.explanation(),
            Refusal::NoRoute => "no route takes this host, path and method",
            Refusal::Misdirected => {
                "this connection was made for another host, and its certificate is not for this one; make a new connection"
            }
            Refusal::Denied => "your address may not use this route",
            Refusal::MaxInFlight => "this route serves as many requests at once as it may; try again shortly",
            Refusal::MaxTunnels => "as many connections as may have switched protocols; try again later",
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => {
                "the request body is larger than allowed here"
            }
            Refusal::Limited => "request quota exceeded",
            Refusal::Upstream(UpstreamFailure::Connect(fault)) => connect_detail(*fault),
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueFull)) => {
                "the upstream servers have as many requests as they take, and as many as may are waiting; try again shortly"
            }
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueTimeout)) => {
                "no upstream server had room for the request in time; try again shortly"
            }
            Refusal::Upstream(UpstreamFailure::Broken) => "the upstream server broke off",
            Refusal::Upstream(UpstreamFailure::Timeout) => "the upstream server did not answer in time",
            Refusal::Upstream(UpstreamFailure::ClientDeadline) => {
                "the upstream server did not respond within the deadline of the client (grpc-timeout)"
            }
            Refusal::Upstream(UpstreamFailure::UploadTimeout) => "the request body did not arrive in time",
            Refusal::Upstream(UpstreamFailure::CallTimeout) => "the client sent no message in time (stream_timeout)",
            Refusal::Upstream(UpstreamFailure::UploadBroken) => "the request body is not what its framing says",
            Refusal::Upstream(UpstreamFailure::ClientLeft) => "the request body broke off",
        }
    }
}

fn connect_detail(fault: ConnectFault) -> &'static str {
    match fault {
        ConnectFault::Refused => "no upstream server accepts connections",
        ConnectFault::Unreachable => "no upstream server can be reached",
        ConnectFault::TimedOut => "no upstream server accepted a connection in time",
        ConnectFault::UnknownName => "the name of the upstream server has no address",
        ConnectFault::NoSocket => "the socket of the upstream server does not exist",
        ConnectFault::Permission => "the gateway may not connect to the upstream server",
        ConnectFault::Tls => "the TLS handshake with the upstream server failed",
        ConnectFault::Protocol => "the upstream server does not speak HTTP/2",
        ConnectFault::MaxConnections => "the upstream servers have as many connections as they take",
        ConnectFault::Descriptors => {
            "the gateway has no file descriptors left for a connection to the upstream server; try again shortly"
        }
        ConnectFault::Resources => {
            "the gateway has no local port or memory left for a connection to the upstream server; try again shortly"
        }
    }
}

/// The metric reason of a limit's refusal.
pub fn reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Closed => Reason::StoreDown,
        Outcome::MissingKey { .. } => Reason::MissingKey,
        Outcome::RepeatedKey => Reason::RepeatedKey,
        Outcome::NotInteger => Reason::NotInteger,
        Outcome::UnreadableKey(_) => Reason::UnreadableKey,
        Outcome::Blocked => Reason::Blocked,
        Outcome::NoSeat => Reason::MaxDelayed,
        _ if outcome.answer().is_some_and(|answer| answer.retry_ms == NEVER) => Reason::NeverFits,
        _ => Reason::Exhausted,
    }
}

/// nginx's number for a client that went away before its answer.
pub fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
