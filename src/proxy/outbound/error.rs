//! Why no response came from an upstream server: one error type for the whole way of a request, from the choice of a
//! server to the head of the response. Made by `select`, `exchange` and `forward`. Everything that depends on the kind
//! of error is a method here: status, reason, governing setting, retry, metrics and log texts.

use std::fmt;
use std::time::Duration;

use http::StatusCode;

use crate::proxy::connection::upload::UploadState;
use crate::proxy::outbound::dial::ConnectFault;
use crate::proxy::outbound::http1::ProtocolFault;
use crate::proxy::outbound::retry_policy::RetryReason;
use crate::proxy::words::failure_log::UpstreamFailureKind;
use crate::proxy::words::reason::{EndReason, Setting, client_closed_status};
use crate::telemetry::access_log::SendFault;
use crate::telemetry::metrics::{Cutoff, UpstreamOutcome};

/// Why no response came from an upstream server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// No server accepted a connection; the fault is that of the last one tried.
    Connect(ConnectFault),
    /// All servers are at their limit of concurrent requests, and the queue is full.
    QueueFull,
    /// All servers were at their limit for as long as the request may wait in the queue.
    QueueTimeout,
    /// The upstream is overloaded (`adaptive`). Its client may retry after this time.
    Overloaded(Duration),
    /// The server closed the connection before the first byte of a response.
    Closed,
    /// The server stated over HTTP/2 that it has not processed the request.
    NotProcessed,
    /// The server sent something that HTTP does not allow.
    Protocol(ProtocolFault),
    /// No response head arrived within this time.
    ResponseTimeout(Duration),
    /// No response head arrived within the deadline that the client set (`grpc-timeout`).
    ClientDeadline,
    /// The client's body is larger than the route allows.
    BodyTooLarge,
    /// The client's body did not arrive in time.
    BodyTimeout,
    /// The client's body contradicts its framing.
    BodyMalformed,
    /// The client of a gRPC call sent no message for `stream_timeout`.
    CallTimeout,
    /// The client disconnected before the end of its body.
    ClientLeft,
}

impl UpstreamError {
    /// Returns the error for a request body that ended in `state` before it was complete.
    pub fn from_upload(state: UploadState) -> UpstreamError {
        match state {
            UploadState::TooLarge => UpstreamError::BodyTooLarge,
            UploadState::Left => UpstreamError::ClientLeft,
            UploadState::Broken | UploadState::Running | UploadState::Done | UploadState::Unread => {
                UpstreamError::BodyMalformed
            }
        }
    }

    /// Returns the status of the response that the client gets instead.
    pub fn status(self) -> StatusCode {
        match self {
            UpstreamError::Connect(fault) if fault.is_shortage() => StatusCode::SERVICE_UNAVAILABLE,
            UpstreamError::QueueFull | UpstreamError::QueueTimeout | UpstreamError::Overloaded(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            UpstreamError::Connect(_)
            | UpstreamError::Closed
            | UpstreamError::NotProcessed
            | UpstreamError::Protocol(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::ResponseTimeout(_) | UpstreamError::ClientDeadline => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            UpstreamError::BodyTimeout | UpstreamError::CallTimeout => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::BodyMalformed => StatusCode::BAD_REQUEST,
            UpstreamError::ClientLeft => client_closed_status(),
        }
    }

    /// Returns one sentence for the client: what is wrong and, if there is one, the remedy.
    pub fn detail(self) -> &'static str {
        match self {
            UpstreamError::Connect(fault) => connect_detail(fault),
            UpstreamError::QueueFull => "all upstream servers are busy and the queue is full; try again shortly",
            UpstreamError::QueueTimeout => {
                "all upstream servers were busy for as long as the request could wait in the queue; try again shortly"
            }
            UpstreamError::Overloaded(_) => "the upstream servers are overloaded; try again shortly",
            UpstreamError::Closed | UpstreamError::NotProcessed | UpstreamError::Protocol(_) => {
                "the upstream server closed the connection or sent an invalid response"
            }
            UpstreamError::ResponseTimeout(_) => "the upstream server did not respond in time",
            UpstreamError::ClientDeadline => {
                "the upstream server did not respond within the deadline of the client (grpc-timeout)"
            }
            UpstreamError::BodyTooLarge => "the request body is larger than allowed here",
            UpstreamError::BodyTimeout => "the request body did not arrive in time",
            UpstreamError::BodyMalformed => "the request body does not match its framing",
            UpstreamError::CallTimeout => "the client sent no message in time (stream_timeout)",
            UpstreamError::ClientLeft => "the client disconnected before the end of the request body",
        }
    }

    /// Returns the `reason` of the access log.
    pub fn label(self) -> &'static str {
        match self {
            UpstreamError::Connect(ConnectFault::Tls) => EndReason::UpstreamTls.label(),
            UpstreamError::Connect(ConnectFault::Descriptors) => Cutoff::FileDescriptors.label(),
            UpstreamError::Connect(ConnectFault::Resources) => Cutoff::Resources.label(),
            UpstreamError::Connect(_) => EndReason::UpstreamConnect.label(),
            UpstreamError::QueueFull => EndReason::UpstreamQueueFull.label(),
            UpstreamError::QueueTimeout => EndReason::UpstreamQueueTimeout.label(),
            UpstreamError::Overloaded(_) => EndReason::UpstreamOverloaded.label(),
            UpstreamError::Closed | UpstreamError::NotProcessed | UpstreamError::Protocol(_) => {
                EndReason::UpstreamBroken.label()
            }
            UpstreamError::ResponseTimeout(_) => EndReason::UpstreamTimeout.label(),
            UpstreamError::ClientDeadline => EndReason::ClientTimeout.label(),
            UpstreamError::BodyTooLarge => Cutoff::BodyTooLarge.label(),
            UpstreamError::BodyTimeout => Cutoff::BodyTimeout.label(),
            UpstreamError::BodyMalformed => EndReason::BodyMalformed.label(),
            UpstreamError::CallTimeout => Cutoff::StreamTimeout.label(),
            UpstreamError::ClientLeft => Cutoff::ClientLeft.label(),
        }
    }

    /// Returns the option that governs this error, if there is one.
    pub fn setting(self) -> Option<Setting> {
        match self {
            UpstreamError::Connect(ConnectFault::TimedOut) => Some(Setting::ConnectTimeout),
            UpstreamError::QueueFull => Some(Setting::MaxWaiting),
            UpstreamError::QueueTimeout => Some(Setting::WaitingTimeout),
            UpstreamError::Overloaded(_) => Some(Setting::Adaptive),
            UpstreamError::ResponseTimeout(_) => Some(Setting::ResponseTimeout),
            UpstreamError::BodyTooLarge => Some(Setting::MaxBody),
            UpstreamError::BodyTimeout => Some(Setting::BodyTimeout),
            UpstreamError::CallTimeout => Some(Setting::StreamTimeout),
            UpstreamError::Connect(_)
            | UpstreamError::Closed
            | UpstreamError::NotProcessed
            | UpstreamError::Protocol(_)
            | UpstreamError::ClientDeadline
            | UpstreamError::BodyMalformed
            | UpstreamError::ClientLeft => None,
        }
    }

    /// Returns why the request may be sent to another server: the reason names the option of `retry` that permits it,
    /// and the counter. `None` if it must not be retried. After an invalid response, for example, the server has acted
    /// on the request.
    pub fn retry_reason(self) -> Option<RetryReason> {
        match self {
            UpstreamError::Connect(_) => Some(RetryReason::ConnectError),
            UpstreamError::Closed | UpstreamError::NotProcessed => Some(RetryReason::Reset),
            UpstreamError::ResponseTimeout(_) => Some(RetryReason::Timeout),
            UpstreamError::QueueFull
            | UpstreamError::QueueTimeout
            | UpstreamError::Overloaded(_)
            | UpstreamError::Protocol(_)
            | UpstreamError::ClientDeadline
            | UpstreamError::BodyTooLarge
            | UpstreamError::BodyTimeout
            | UpstreamError::BodyMalformed
            | UpstreamError::CallTimeout
            | UpstreamError::ClientLeft => None,
        }
    }

    /// Returns whether the client ended the exchange, not a server and not the gateway.
    pub fn is_by_client(self) -> bool {
        match self {
            UpstreamError::ClientDeadline
            | UpstreamError::BodyTooLarge
            | UpstreamError::BodyTimeout
            | UpstreamError::BodyMalformed
            | UpstreamError::CallTimeout
            | UpstreamError::ClientLeft => true,
            UpstreamError::Connect(_)
            | UpstreamError::QueueFull
            | UpstreamError::QueueTimeout
            | UpstreamError::Overloaded(_)
            | UpstreamError::Closed
            | UpstreamError::NotProcessed
            | UpstreamError::Protocol(_)
            | UpstreamError::ResponseTimeout(_) => false,
        }
    }

    /// Returns whether the upstream failed, as circuit breakers count it: not the client, and not the gateway, which
    /// lacks resources or refuses by its own bounds.
    pub fn is_upstream_failure(self) -> bool {
        match self {
            UpstreamError::Connect(fault) => !fault.is_gateway_fault(),
            UpstreamError::QueueFull | UpstreamError::QueueTimeout => false,
            _ => !self.is_by_client(),
        }
    }

    /// Returns the `outcome` of `upstream_requests_total`. `None` if the gateway itself lacked the resources to
    /// connect, so that no server was involved.
    pub fn outcome(self) -> Option<UpstreamOutcome> {
        match self {
            UpstreamError::Connect(fault) if fault.is_shortage() => None,
            UpstreamError::Connect(ConnectFault::Tls) => Some(UpstreamOutcome::TlsError),
            UpstreamError::Connect(_) => Some(UpstreamOutcome::ConnectError),
            UpstreamError::QueueFull => Some(UpstreamOutcome::QueueFull),
            UpstreamError::QueueTimeout => Some(UpstreamOutcome::QueueTimeout),
            UpstreamError::Overloaded(_) => Some(UpstreamOutcome::Overloaded),
            UpstreamError::Closed | UpstreamError::NotProcessed | UpstreamError::Protocol(_) => {
                Some(UpstreamOutcome::Broken)
            }
            UpstreamError::ResponseTimeout(_) => Some(UpstreamOutcome::Timeout),
            UpstreamError::ClientDeadline => Some(UpstreamOutcome::ClientTimeout),
            UpstreamError::BodyTooLarge
            | UpstreamError::BodyTimeout
            | UpstreamError::BodyMalformed
            | UpstreamError::CallTimeout => Some(UpstreamOutcome::UploadFailed),
            UpstreamError::ClientLeft => Some(UpstreamOutcome::ClientLeft),
        }
    }

    /// Returns the `reason` of `http_rejected_total` under which the request is counted, if it is.
    pub fn rejection(self) -> Option<Cutoff> {
        match self {
            UpstreamError::Connect(ConnectFault::Descriptors) => Some(Cutoff::FileDescriptors),
            UpstreamError::Connect(ConnectFault::Resources) => Some(Cutoff::Resources),
            UpstreamError::BodyTooLarge => Some(Cutoff::BodyTooLarge),
            UpstreamError::BodyTimeout => Some(Cutoff::BodyTimeout),
            UpstreamError::CallTimeout => Some(Cutoff::StreamTimeout),
            _ => None,
        }
    }

    /// Returns the `kind` of the log line about this error. `None` for errors of the client, which are not logged
    /// there.
    pub fn log_kind(self) -> Option<UpstreamFailureKind> {
        match self {
            UpstreamError::Connect(ConnectFault::Tls) => Some(UpstreamFailureKind::Tls),
            UpstreamError::Connect(_) => Some(UpstreamFailureKind::Connect),
            UpstreamError::QueueFull | UpstreamError::QueueTimeout | UpstreamError::Overloaded(_) => {
                Some(UpstreamFailureKind::Overflow)
            }
            UpstreamError::Closed | UpstreamError::NotProcessed | UpstreamError::Protocol(_) => {
                Some(UpstreamFailureKind::Broken)
            }
            UpstreamError::ResponseTimeout(_) => Some(UpstreamFailureKind::Timeout),
            _ => None,
        }
    }

    /// Returns why the span of one attempt ended without a response.
    pub fn span_error(self) -> SendFault {
        match self {
            UpstreamError::ResponseTimeout(_) | UpstreamError::ClientDeadline => SendFault::Timeout,
            UpstreamError::BodyTooLarge
            | UpstreamError::BodyTimeout
            | UpstreamError::BodyMalformed
            | UpstreamError::CallTimeout
            | UpstreamError::ClientLeft => SendFault::Upload,
            UpstreamError::Connect(_)
            | UpstreamError::QueueFull
            | UpstreamError::QueueTimeout
            | UpstreamError::Overloaded(_)
            | UpstreamError::Closed
            | UpstreamError::NotProcessed
            | UpstreamError::Protocol(_) => SendFault::Broken,
        }
    }
}

/// The text for the log.
impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamError::Connect(fault) => f.write_str(fault.label()),
            UpstreamError::QueueFull => {
                f.write_str("queue_full: all servers are busy and the queue is full (max_waiting)")
            }
            UpstreamError::Overloaded(_) => f.write_str("overloaded: the servers cannot keep up (adaptive)"),
            UpstreamError::QueueTimeout => f.write_str("queue_timeout: no server had capacity within waiting_timeout"),
            UpstreamError::Closed => f.write_str("the connection ended without a response"),
            UpstreamError::NotProcessed => f.write_str("the server accepts no further request on its connection"),
            UpstreamError::Protocol(fault) => fault.fmt(f),
            UpstreamError::ResponseTimeout(limit) => write!(f, "no response within {limit:?}"),
            UpstreamError::ClientDeadline
            | UpstreamError::BodyTooLarge
            | UpstreamError::BodyTimeout
            | UpstreamError::BodyMalformed
            | UpstreamError::CallTimeout
            | UpstreamError::ClientLeft => f.write_str(self.detail()),
        }
    }
}

fn connect_detail(fault: ConnectFault) -> &'static str {
    match fault {
        ConnectFault::Refused => "no upstream server accepts connections",
        ConnectFault::Unreachable => "no upstream server can be reached",
        ConnectFault::TimedOut => "no upstream server accepted a connection in time",
        ConnectFault::UnknownName => "the hostname of the upstream server has no address",
        ConnectFault::NoSocket => "the socket of the upstream server does not exist",
        ConnectFault::Permission => "the gateway is not permitted to connect to the upstream server",
        ConnectFault::Tls => "the TLS handshake with the upstream server failed",
        ConnectFault::Protocol => "the upstream server does not speak HTTP/2",
        ConnectFault::MaxConnections => "the upstream servers are at their limit of connections",
        ConnectFault::Descriptors => {
            "the gateway has no file descriptors left for a connection to the upstream server; try again shortly"
        }
        ConnectFault::Resources => {
            "the gateway has no local port or memory left for a connection to the upstream server; try again shortly"
        }
    }
}

impl From<ConnectFault> for UpstreamError {
    fn from(fault: ConnectFault) -> UpstreamError {
        UpstreamError::Connect(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_documented_statuses_reasons_and_settings() {
        let late = UpstreamError::ResponseTimeout(Duration::from_secs(5));
        for (error, status, reason, setting, is_by_client) in [
            (UpstreamError::Connect(ConnectFault::Refused), 502, "upstream_connect", None, false),
            (UpstreamError::Connect(ConnectFault::TimedOut), 502, "upstream_connect", Some("connect_timeout"), false),
            (UpstreamError::Connect(ConnectFault::MaxConnections), 502, "upstream_connect", None, false),
            (UpstreamError::Connect(ConnectFault::Tls), 502, "upstream_tls", None, false),
            (UpstreamError::Connect(ConnectFault::Descriptors), 503, "file_descriptors", None, false),
            (UpstreamError::Connect(ConnectFault::Resources), 503, "resources", None, false),
            (UpstreamError::QueueFull, 503, "upstream_queue_full", Some("max_waiting"), false),
            (UpstreamError::QueueTimeout, 503, "upstream_queue_timeout", Some("waiting_timeout"), false),
            (UpstreamError::Closed, 502, "upstream_broken", None, false),
            (UpstreamError::NotProcessed, 502, "upstream_broken", None, false),
            (UpstreamError::Protocol(ProtocolFault::Head), 502, "upstream_broken", None, false),
            (late, 504, "upstream_timeout", Some("response_timeout"), false),
            (UpstreamError::ClientDeadline, 504, "client_timeout", None, true),
            (UpstreamError::BodyTooLarge, 413, "body_too_large", Some("max_body"), true),
            (UpstreamError::BodyTimeout, 408, "body_timeout", Some("body_timeout"), true),
            (UpstreamError::BodyMalformed, 400, "body_malformed", None, true),
            (UpstreamError::CallTimeout, 408, "stream_timeout", Some("stream_timeout"), true),
            (UpstreamError::ClientLeft, 499, "client_left", None, true),
        ] {
            let found = (error.status().as_u16(), error.label(), error.setting().map(Setting::label));
            assert_eq!(found, (status, reason, setting), "{error:?}");
            assert_eq!(error.is_by_client(), is_by_client, "{error:?}");
            assert_eq!(error.log_kind().is_none(), is_by_client, "{error:?}: errors of clients are not logged");
        }
        assert_eq!(late.to_string(), "no response within 5s");
    }
}
