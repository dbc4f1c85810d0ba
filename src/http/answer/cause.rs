//! Why an answer is not that of the route's action, or broke off, and which setting governs that. For the
//! access log, and for problem documents where they may say it.

use crate::http::answer::refusal::{self, Refusal};
use crate::http::downstream::reject::Reject;
use crate::http::upstream::connect::ConnectFault;
use crate::http::upstream::course::Overflow;
use crate::http::upstream::failure::UpstreamFailure;
use crate::labels::{Label, labels};
use crate::limit::Outcome;
use crate::limit::source::UnreadableBody;
use crate::metrics::{Cutoff, Reason};

labels! {
    /// Beside the labels of `rejections_total` and `http_rejected_total`.
    EndReason:
    NoRoute = "no_route",
    /// No server accepted a connection.
    UpstreamConnect = "upstream_connect",
    /// No TLS with a server that may be trusted.
    UpstreamTls = "upstream_tls",
    /// A server closed the connection or broke HTTP before its answer,
    UpstreamBroken = "upstream_broken",
    /// or within it.
    UpstreamCutOff = "upstream_cut_off",
    UpstreamTimeout = "upstream_timeout",
    /// No server had room, and as many requests as may waited already,
    UpstreamQueueFull = "upstream_queue_full",
    /// or it waited for too long.
    UpstreamQueueTimeout = "upstream_queue_timeout",
    /// The request's body is not what its framing says.
    BodyMalformed = "body_malformed",
    /// No response began within the deadline of the client.
    ClientTimeout = "client_timeout",
    /// The HTTP/2 connection was ended for what its client sent beside this request.
    H2ConnectionError = "h2_connection_error",
    /// The gateway was stopped.
    Shutdown = "shutdown",
}

labels! {
    /// Options by their names in the config.
    Setting:
    Strictness = "strictness",
    EncodedSlashes = "encoded_slashes",
    Deny = "deny",
    MaxInFlight = "max_in_flight",
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
    ShutdownTimeout = "shutdown_timeout",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Of a closed set.
    pub reason: &'static str,
    /// `None`: nothing that can be set.
    pub setting: Option<Setting>,
    /// A server is to blame, this one or the one behind it, whatever status the client has seen.
    pub by_server: bool,
}

impl Cause {
    /// Of a request that was refused, or whose exchange failed. `outcome`: of the limit that refused it.
    pub fn of(refusal: &Refusal, outcome: Option<Outcome>) -> Cause {
        let by_server = refusal.status().is_server_error() || outcome == Some(Outcome::Closed);
        let cause = |reason: &'static str, setting| Cause { reason, setting, by_server };
        match refusal {
            Refusal::Gate(Reject::PathSlash) => cause(Reject::PathSlash.label(), Some(Setting::EncodedSlashes)),
            Refusal::Gate(reject) => cause(reject.label(), reject.depends().then_some(Setting::Strictness)),
            Refusal::NoRoute => EndReason::NoRoute.into(),
            Refusal::Denied => cause(Reason::Denied.label(), Some(Setting::Deny)),
            Refusal::MaxInFlight => cause(Reason::MaxInFlight.label(), Some(Setting::MaxInFlight)),
            Refusal::Misdirected => Cutoff::Misdirected.into(),
            Refusal::MaxTunnels => cause(Cutoff::MaxTunnels.label(), Some(Setting::MaxTunnels)),
            Refusal::TooLarge | Refusal::Upstream(UpstreamFailure::TooLarge) => Cutoff::BodyTooLarge.into(),
            Refusal::Limited => {
                let reason = outcome.map_or(Reason::Exhausted, refusal::reason);
                let setting = match reason {
                    Reason::StoreDown => Some(Setting::OnError),
                    Reason::MissingKey => Some(Setting::Missing),
                    Reason::RepeatedKey => Some(Setting::Repeated),
                    Reason::NotInteger => Some(Setting::NotInteger),
                    Reason::MaxDelayed => Some(Setting::MaxDelayed),
                    _ if outcome == Some(Outcome::UnreadableKey(UnreadableBody::TooLong)) => Some(Setting::MaxKeyBody),
                    _ => None,
                };
                cause(reason.label(), setting)
            }
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Tls)) => EndReason::UpstreamTls.into(),
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Descriptors)) => {
                cause(Cutoff::FileDescriptors.label(), None)
            }
            Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Resources)) => {
                cause(Cutoff::Resources.label(), None)
            }
            Refusal::Upstream(UpstreamFailure::Connect(fault)) => {
                let late = *fault == ConnectFault::TimedOut;
                cause(EndReason::UpstreamConnect.label(), late.then_some(Setting::ConnectTimeout))
            }
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueFull)) => EndReason::UpstreamQueueFull.into(),
            Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueTimeout)) => {
                EndReason::UpstreamQueueTimeout.into()
            }
            Refusal::Upstream(UpstreamFailure::Broken) => EndReason::UpstreamBroken.into(),
            Refusal::Upstream(UpstreamFailure::Timeout) => EndReason::UpstreamTimeout.into(),
            Refusal::Upstream(UpstreamFailure::ClientDeadline) => EndReason::ClientTimeout.into(),
            Refusal::Upstream(UpstreamFailure::UploadTimeout) => Cutoff::BodyTimeout.into(),
            Refusal::Upstream(UpstreamFailure::CallTimeout) => Cutoff::StreamTimeout.into(),
            Refusal::Upstream(UpstreamFailure::UploadBroken) => EndReason::BodyMalformed.into(),
            Refusal::Upstream(UpstreamFailure::ClientLeft) => Cutoff::ClientLeft.into(),
        }
    }
}

impl From<EndReason> for Cause {
    fn from(reason: EndReason) -> Cause {
        let setting = match reason {
            EndReason::UpstreamTimeout => Some(Setting::ResponseTimeout),
            EndReason::UpstreamQueueFull => Some(Setting::MaxWaiting),
            EndReason::UpstreamQueueTimeout => Some(Setting::WaitingTimeout),
            EndReason::Shutdown => Some(Setting::ShutdownTimeout),
            _ => None,
        };
        let by_server = !matches!(
            reason,
            EndReason::NoRoute | EndReason::BodyMalformed | EndReason::ClientTimeout | EndReason::H2ConnectionError
        );
        Cause { reason: reason.label(), setting, by_server }
    }
}

impl From<Cutoff> for Cause {
    fn from(cutoff: Cutoff) -> Cause {
        let setting = match cutoff {
            Cutoff::MaxConnections => Some(Setting::MaxConnections),
            Cutoff::HeaderTimeout => Some(Setting::HeaderTimeout),
            Cutoff::BodyTimeout => Some(Setting::BodyTimeout),
            Cutoff::StreamTimeout => Some(Setting::StreamTimeout),
            Cutoff::SlowReader => Some(Setting::MinResponseRate),
            Cutoff::TunnelTimeout => Some(Setting::TunnelTimeout),
            Cutoff::MaxTunnels => Some(Setting::MaxTunnels),
            Cutoff::Http2Preface => Some(Setting::Http2),
            Cutoff::TlsHello => Some(Setting::Tls),
            Cutoff::BodyTooLarge => Some(Setting::MaxBody),
            Cutoff::HeadTooLarge | Cutoff::TargetTooLong => Some(Setting::MaxHeaderBytes),
            Cutoff::ProxyHeader => Some(Setting::ProxyProtocol),
            // What is no HTTP, or not meant well.
            _ => None,
        };
        Cause { reason: cutoff.label(), setting, by_server: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn clients_are_not_told_apart_by_the_status_they_see() {
        let limited = |outcome| Cause::of(&Refusal::Limited, Some(outcome)).by_server;
        assert!(limited(Outcome::Closed));
        assert!(!limited(Outcome::Blocked) && !limited(Outcome::NoSeat));
        for (refusal, by_server) in [
            (Refusal::Denied, false),
            (Refusal::TooLarge, false),
            (Refusal::NoRoute, false),
            (Refusal::Upstream(UpstreamFailure::ClientLeft), false),
            (Refusal::Upstream(UpstreamFailure::UploadTimeout), false),
            (Refusal::Upstream(UpstreamFailure::ClientDeadline), false),
            (Refusal::Upstream(UpstreamFailure::CallTimeout), false),
            (Refusal::MaxInFlight, true),
            (Refusal::MaxTunnels, true),
            (Refusal::Upstream(UpstreamFailure::Timeout), true),
            (Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Tls)), true),
            (Refusal::Upstream(UpstreamFailure::Connect(ConnectFault::Descriptors)), true),
            (Refusal::Upstream(UpstreamFailure::Overflow(Overflow::QueueFull)), true),
        ] {
            assert_eq!(Cause::of(&refusal, None).by_server, by_server, "{refusal:?}");
        }
        for reason in EndReason::ALL {
            let by_server = reason.label().starts_with("upstream_") || *reason == EndReason::Shutdown;
            assert_eq!(Cause::from(*reason).by_server, by_server, "{reason:?}");
        }
        // Of what breaks off an answer: those who read slowly, send nothing, or say no more in a tunnel.
        assert!(Cutoff::ALL.iter().all(|cutoff| !Cause::from(*cutoff).by_server));
    }

    #[test]
    fn no_two_causes_have_the_same_reason() {
        let mut seen = HashSet::new();
        let ends = EndReason::ALL.iter().map(|reason| reason.label());
        let cutoffs = Cutoff::ALL.iter().map(|reason| reason.label());
        let rejects = Reject::ALL.iter().map(|reason| reason.label());
        let limits = Reason::ALL.iter().map(|reason| reason.label());
        for reason in ends.chain(cutoffs).chain(rejects).chain(limits) {
            assert!(seen.insert(reason), "{reason}");
        }
    }
}
