//! Refusals: every reason why a client gets an error from the gateway itself, with its status and its text. `problem`
//! and `grpc` turn a refusal into a response, `cause` into a reason for the log.

use http::StatusCode;

use crate::auth::AuthFault;
use crate::limiting::Outcome;
use crate::limiting::answer::NEVER;
use crate::proxy::head::reject::Reject;
use crate::proxy::outbound::error::UpstreamError;
use crate::proxy::words::reason::EndReason;
use crate::proxy::words::reason::Setting;
use crate::snapshot::Reason;

/// Why a question of another proxy is not decided, or a receipt is not redeemed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionFault {
    /// `trusted_proxies` does not list the peer.
    UntrustedPeer,
    /// Nobody may ask about this name.
    UnknownName,
    /// The facts about the request are missing, repeated, malformed, or contradict each other; this sentence says
    /// which.
    Facts(&'static str),
    /// The receipt is malformed, was made elsewhere, or is for another name.
    InvalidReceipt,
    /// The receipt was redeemed before.
    UsedReceipt,
    /// The charges of the receipt have expired.
    ExpiredReceipt,
    /// The store is unavailable, so the receipt was not redeemed; it may count as used.
    StoreUnavailable,
}

impl QuestionFault {
    fn status(self) -> StatusCode {
        match self {
            QuestionFault::UntrustedPeer => StatusCode::FORBIDDEN,
            QuestionFault::UnknownName => StatusCode::NOT_FOUND,
            QuestionFault::Facts(_) | QuestionFault::InvalidReceipt => StatusCode::BAD_REQUEST,
            QuestionFault::UsedReceipt => StatusCode::CONFLICT,
            QuestionFault::ExpiredReceipt => StatusCode::GONE,
            QuestionFault::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the reason that the log shows.
    pub fn reason(self) -> EndReason {
        match self {
            QuestionFault::UntrustedPeer => EndReason::DecidePeer,
            QuestionFault::UnknownName => EndReason::DecideName,
            QuestionFault::Facts(_) => EndReason::DecideFacts,
            QuestionFault::InvalidReceipt
            | QuestionFault::UsedReceipt
            | QuestionFault::ExpiredReceipt
            | QuestionFault::StoreUnavailable => EndReason::Receipt,
        }
    }

    fn detail(self) -> &'static str {
        match self {
            QuestionFault::UntrustedPeer => "only proxies in trusted_proxies may ask here",
            QuestionFault::UnknownName => {
                "no [decide.NAME] and no route has this name, or a limit of the route cannot decide for other proxies"
            }
            QuestionFault::Facts(sentence) => sentence,
            QuestionFault::InvalidReceipt => {
                "the receipt is invalid: it was cut off, made elsewhere, or is for another name"
            }
            QuestionFault::UsedReceipt => "the receipt has been redeemed before",
            QuestionFault::ExpiredReceipt => "the receipt has expired, as its charges have",
            QuestionFault::StoreUnavailable => {
                "the limit store is unavailable, so it is not known whether the receipt was redeemed"
            }
        }
    }
}

/// Why a request is not forwarded, or its exchange failed.
#[derive(Debug)]
pub enum Refusal {
    /// The request head is invalid or ambiguous.
    InvalidHead(Reject),
    NoRoute,
    /// The question of another proxy cannot be answered.
    Question(QuestionFault),
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
    /// The process or an upstream is protected from the request.
    Shed(Shed),
    /// `max_tunnels` connections have already switched protocols.
    MaxTunnels,
    /// The announced body is larger than the route's `max_body`.
    TooLarge,
    /// A limit refuses the request; the verdict tells which.
    Limited,
    /// The exchange with the upstream failed.
    Upstream(UpstreamError),
}

/// A request that is refused to protect the process or an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    pub reason: Reason,
    pub setting: Setting,
    /// When the client may try again, with a jitter so that clients do not return together.
    pub retry_ms: u64,
}

impl Refusal {
    /// Returns the status of the error response.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::InvalidHead(reject) => reject.status(),
            Refusal::NoRoute | Refusal::NoRedirect => StatusCode::NOT_FOUND,
            Refusal::Question(fault) => fault.status(),
            Refusal::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Denied => StatusCode::FORBIDDEN,
            Refusal::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Refusal::AuthServer
            | Refusal::PasswordQueueFull
            | Refusal::MaxInFlight
            | Refusal::MaxTunnels
            | Refusal::Shed(_) => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Limited => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Upstream(error) => error.status(),
        }
    }

    /// Returns whether the request was refused before any server or the route itself began to serve it.
    pub fn precedes_service(&self) -> bool {
        match self {
            Refusal::Upstream(error) => {
                matches!(error, UpstreamError::QueueFull | UpstreamError::QueueTimeout | UpstreamError::Overloaded(_))
            }
            Refusal::NoRedirect => false,
            _ => true,
        }
    }

    /// Returns the time after which the client may retry, in milliseconds, if the gateway can name one. Limits name
    /// their own.
    pub fn retry_ms(&self) -> Option<i64> {
        match self {
            Refusal::Shed(shed) => Some(i64::try_from(shed.retry_ms).unwrap_or(i64::MAX)),
            Refusal::Upstream(UpstreamError::Overloaded(wait)) => i64::try_from(wait.as_millis()).ok(),
            _ => None,
        }
    }

    /// Returns one sentence for the client: what is wrong and, if there is a remedy, what to do.
    pub fn detail(&self) -> &'static str {
        match self {
            Refusal::InvalidHead(reject) => reject.explanation(),
            Refusal::NoRoute => "no route matches this host, path and method",
            Refusal::Question(fault) => fault.detail(),
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
            Refusal::Shed(shed) => match shed.reason {
                Reason::UpstreamBreaker | Reason::RouteBreaker => {
                    "the upstream servers are failing or too slow, so requests are paused; try again later"
                }
                _ => "the gateway is overloaded; try again shortly",
            },
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
