//! The columns of the table of ends.

use http::StatusCode;

use crate::grpc::GrpcCode;
use crate::labels::labels;

/// One row of the table. `EndRow::new` has what each needs; the other facts default to those of most rows.
#[derive(Debug)]
pub struct EndRow {
    pub blame: Blame,
    /// Status of the response. 0: there is none, or its head was sent before.
    pub status: u16,
    /// Code of the response to a gRPC call. `None` if no call gets one.
    pub grpc: Option<GrpcCode>,
    /// The `reason` in the access log and in metrics. Neighbours may share one.
    pub label: &'static str,
    /// One sentence for the client: what is wrong and, if there is a remedy, what to do. Empty if nobody gets it, or if
    /// only the place that refuses can say it.
    pub text: &'static str,
    /// The text for the log, if it is another one.
    logged: &'static str,
    /// A description of the end for the manual, in Markdown. The text, if it is empty.
    meaning: &'static str,
    /// The option that governs this end.
    pub setting: Option<&'static str>,
    /// The metric that counts it.
    pub counted: Counted,
    /// The effect on the charges of limits.
    pub refund: Refund,
    /// The most lenient strictness that still refuses this fault of a head. `None` if it is no such fault.
    pub min_strictness: Option<MinStrictness>,
    /// The `outcome` of `upstream_requests_total`. `None` if no server was involved.
    pub outcome: Option<UpstreamOutcome>,
    /// The `kind` of the log line about a failure of an upstream. `None` if there is no line.
    pub log_kind: Option<UpstreamFailureKind>,
    /// Why the request may be sent to another server: the option of `retry` that permits it, and the counter. `None` if
    /// sending it again is not safe: after an invalid response, for example, the server has acted on the request.
    pub retry: Option<RetryReason>,
    /// True if the end counts as a failure of the server for `eject`, and of the upstream for circuit breakers. Ends
    /// that the client or the gateway causes do not.
    pub is_upstream_failure: bool,
    /// A server or the route itself has begun to serve the request.
    pub follows_service: bool,
}

/// The party to blame for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    Client,
    /// A limit refuses the request as configured.
    Limit,
    Gateway,
    Upstream,
    Operator,
}

/// The metric that counts an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// None of its own: the response is counted by its status.
    No,
    /// `http_rejected_total`.
    Http,
    /// `rejections_total`, without a limit.
    Route,
    /// `rejections_total`, by the limit that decides.
    Limit,
}

/// The effect of an end on the charges of limits. All but `Response` hold only as far as is known whether a server got
/// a part of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refund {
    /// The rules of the limit decide by the status of the response.
    Response,
    /// No server got the request: `connect_error` of `refund_on` applies.
    Unsent,
    /// No server got the request, so limits refund it unless they opt out.
    Overload,
    /// After a server got a part: `client_abort` of `refund_on` applies.
    Abort,
}

/// The most lenient strictness that still refuses a fault of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinStrictness {
    /// The fault leaves nothing to forward, or it endangers other requests of the connection.
    Always,
    /// `Defensive` has no safe repair. `Monitor` counts the fault and lets the request pass.
    Defensive,
    /// `Defensive` and `Monitor` repair the fault, or forward the request in a form that all servers read alike.
    Strict,
}

labels! {
    /// Result of a request sent to an upstream; the `outcome` label of `upstream_requests_total`.
    UpstreamOutcome:
    /// The response head arrived.
    Ok = "ok",
    /// The client disconnected before the response head arrived, or its connection was closed.
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

impl UpstreamOutcome {
    /// Returns the `error.type` of the span of an attempt that ended without a response.
    pub fn span_error(self) -> &'static str {
        match self {
            UpstreamOutcome::Timeout | UpstreamOutcome::ClientTimeout => "timeout",
            UpstreamOutcome::UploadFailed | UpstreamOutcome::ClientLeft => "upload",
            _ => "broken",
        }
    }
}

labels! {
    /// The kind of an upstream failure, as logged.
    UpstreamFailureKind:
    Connect = "connect",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The connection ended without a response, or the response was invalid HTTP.
    Broken = "broken",
    /// No response began in time.
    Timeout = "timeout",
    /// The response was cut off.
    CutOff = "cut_off",
    /// The response paused for too long.
    Stalled = "stalled",
    /// All servers were busy, and the queue was full or too slow.
    Overflow = "overflow",
}

labels! {
    /// Why a request is sent once more. The labels are those of `upstream_retries_total`.
    RetryReason:
    /// An idle connection turned out to be closed.
    StaleConnection = "stale_connection",
    /// The server stated over HTTP/2 that it has not processed the request.
    Refused = "refused",
    /// The server accepted no connection.
    ConnectError = "connect_error",
    /// The connection ended before a response.
    Reset = "reset",
    /// No response arrived in time.
    Timeout = "timeout",
    Status502 = "502",
    Status503 = "503",
    Status504 = "504",
}

impl RetryReason {
    /// Returns the reason for a retry after a response with this status, if there is one.
    pub fn from_status(status: StatusCode) -> Option<RetryReason> {
        match status {
            StatusCode::BAD_GATEWAY => Some(RetryReason::Status502),
            StatusCode::SERVICE_UNAVAILABLE => Some(RetryReason::Status503),
            StatusCode::GATEWAY_TIMEOUT => Some(RetryReason::Status504),
            _ => None,
        }
    }
}

impl EndRow {
    /// Makes a row with the facts that no two kinds of ends share.
    pub(super) const fn new(blame: Blame, status: u16, label: &'static str, text: &'static str) -> EndRow {
        EndRow {
            blame,
            status,
            grpc: None,
            label,
            text,
            logged: "",
            meaning: "",
            setting: None,
            counted: Counted::No,
            refund: Refund::Response,
            min_strictness: None,
            outcome: None,
            log_kind: None,
            retry: None,
            is_upstream_failure: false,
            follows_service: false,
        }
    }

    pub(super) const fn setting(mut self, option: &'static str) -> EndRow {
        self.setting = Some(option);
        self
    }

    pub(super) const fn means(mut self, meaning: &'static str) -> EndRow {
        self.meaning = meaning;
        self
    }

    pub(super) const fn logged(mut self, text: &'static str) -> EndRow {
        self.logged = text;
        self
    }

    pub(super) const fn counted(mut self, counted: Counted) -> EndRow {
        self.counted = counted;
        self
    }

    pub(super) const fn refund(mut self, refund: Refund) -> EndRow {
        self.refund = refund;
        self
    }

    /// The exchange with a server ends so.
    pub(super) const fn outcome(mut self, outcome: UpstreamOutcome) -> EndRow {
        self.outcome = Some(outcome);
        self.follows_service = true;
        self
    }

    /// The upstream failed in this way.
    pub(super) const fn failure(mut self, kind: UpstreamFailureKind) -> EndRow {
        self.log_kind = Some(kind);
        self.is_upstream_failure = true;
        self.follows_service = true;
        self
    }

    pub(super) const fn retry(mut self, reason: RetryReason) -> EndRow {
        self.retry = Some(reason);
        self
    }

    pub(super) const fn blame(mut self, blame: Blame) -> EndRow {
        self.blame = blame;
        self
    }

    pub(super) const fn grpc(mut self, code: GrpcCode) -> EndRow {
        self.grpc = Some(code);
        self
    }

    /// The gateway lacks resources for a connection, so no server was involved.
    pub(super) const fn shortage(mut self) -> EndRow {
        (self.blame, self.status, self.outcome, self.counted) = (Blame::Gateway, 503, None, Counted::Http);
        self.own_bound()
    }

    /// The gateway's own bounds or resources are the cause, not the server.
    pub(super) const fn own_bound(mut self) -> EndRow {
        self.is_upstream_failure = false;
        self
    }

    /// No server was asked.
    pub(super) const fn unserved(mut self) -> EndRow {
        self.follows_service = false;
        self
    }

    /// The route itself ends the request so.
    pub(super) const fn by_route(mut self) -> EndRow {
        self.follows_service = true;
        self
    }

    pub(super) const fn min_strictness(mut self, min_strictness: MinStrictness) -> EndRow {
        self.min_strictness = Some(min_strictness);
        self
    }

    /// Returns the text for the log.
    pub fn log_text(&self) -> &'static str {
        if self.logged.is_empty() { self.text } else { self.logged }
    }

    /// Returns what happened, for the manual.
    pub fn meaning(&self) -> &'static str {
        if self.meaning.is_empty() { self.text } else { self.meaning }
    }

    /// Returns whether `rejections_total` counts this end.
    pub(super) const fn is_rejection(&self) -> bool {
        matches!(self.counted, Counted::Route | Counted::Limit)
    }
}
