//! Refusals: every reason why a client gets an error from the gateway itself, with its status and its text. `problem`
//! and `grpc` turn a refusal into a response, `cause` into a reason for the log.

use http::StatusCode;

use crate::auth::AuthFault;
use crate::limiting::Outcome;
use crate::limiting::answer::NEVER;
use crate::proxy::inbound::reject::Reject;
use crate::proxy::outbound::error::UpstreamError;
use crate::snapshot::Reason;

/// Why a request is not forwarded, or its exchange failed.
#[derive(Debug)]
pub enum Refusal {
    /// The request head is invalid or ambiguous.
    InvalidHead(Reject),
    NoRoute,
    /// The redirect map of the route does not list the path.
    NoRedirect,
    /// The certificate of the connection does not cover this host.
    Misdirected,
    /// The client's address is on the route's `deny` list.
    Denied,
    /// The client is not authenticated, and the route has `auth`.
    Unauthorized(AuthFault),
    /// The auth server of the route failed.
    AuthServer,
    /// Too many passwords wait for their verification.
    PasswordQueueFull,
    /// The route already serves `max_in_flight` requests.
    MaxInFlight,
    /// `max_tunnels` connections have already switched protocols.
    MaxTunnels,
    /// The announced body is larger than the route's `max_body`.
    TooLarge,
    /// A limit refuses the request; the verdict tells which.
    Limited,
    /// The exchange with the upstream failed.
    Upstream(UpstreamError),
}

impl Refusal {
    /// Returns the status of the error response.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::InvalidHead(reject) => reject.status(),
            Refusal::NoRoute | Refusal::NoRedirect => StatusCode::NOT_FOUND,
            Refusal::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Denied => StatusCode::FORBIDDEN,
            Refusal::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Refusal::AuthServer | Refusal::PasswordQueueFull | Refusal::MaxInFlight | Refusal::MaxTunnels => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Limited => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Upstream(error) => error.status(),
        }
    }

    /// Returns the time after which the client may retry, in milliseconds, if the gateway can name one. Limits name their
    /// own.
    pub fn retry_ms(&self) -> Option<i64> {
        match self {
            Refusal::Upstream(UpstreamError::Overloaded(wait)) => i64::try_from(wait.as_millis()).ok(),
            _ => None,
        }
    }

    /// Returns one sentence for the client: what is wrong and, if there is a remedy, what to do.
    pub fn detail(&self) -> &'static str {
        match self {
            Refusal::InvalidHead(reject) => reject.explanation(),
            Refusal::NoRoute => "no route matches this host, path and method",
            Refusal::NoRedirect => "this address leads nowhere",
            Refusal::Misdirected => {
                "the certificate of this connection does not cover this host; open a new connection"
            }
            Refusal::Unauthorized(AuthFault::Missing) => "this route requires credentials",
            Refusal::Unauthorized(AuthFault::Invalid) => "the credentials are not valid",
            Refusal::AuthServer => {
                "the gateway could not check who you are, because the auth server failed; try again shortly"
            }
            Refusal::Denied => "your address is not allowed on this route",
            Refusal::PasswordQueueFull => "too many passwords are being verified; try again shortly",
            Refusal::MaxInFlight => "this route is at its concurrency limit; try again shortly",
            Refusal::MaxTunnels => "too many upgraded connections; try again later",
            Refusal::TooLarge => "the request body is larger than allowed here",
            Refusal::Limited => "request quota exceeded",
            Refusal::Upstream(error) => error.detail(),
        }
    }
}

/// Returns the metric label `reason` of a limit's refusal.
pub fn refusal_reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Closed => Reason::StoreDown,
        Outcome::MissingKey { .. } => Reason::MissingKey,
        Outcome::RepeatedKey => Reason::RepeatedKey,
        Outcome::NotInteger => Reason::NotInteger,
        Outcome::UnreadableKey(_) => Reason::UnreadableKey,
        Outcome::Blocked => Reason::Blocked,
        Outcome::QueueFull => Reason::MaxDelayed,
        _ if outcome.answer().is_some_and(|answer| answer.retry_ms == NEVER) => Reason::NeverFits,
        _ => Reason::Exhausted,
    }
}
