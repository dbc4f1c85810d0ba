//! The cause of a refused or incomplete request: the `reason` and `setting` that the access log shows. Problem
//! documents show the setting too, to clients that `hints` lists.

use crate::labels::Label;
use crate::limiting::Outcome;
use crate::limiting::source::UnreadableBody;
use crate::proxy::account::refusal;
use crate::proxy::account::refusal::Refusal;
use crate::proxy::head::reject::Reject;
use crate::proxy::words::reason::{EndReason, Setting};
use crate::telemetry::metrics::{Cutoff, Reason};

/// Why a request was refused or not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// One label of a closed set.
    pub reason: &'static str,
    /// The option that governs this outcome. `None` if no option does.
    pub setting: Option<Setting>,
    /// The gateway or an upstream server is at fault, regardless of the status that the client got.
    pub is_server_fault: bool,
}

impl Cause {
    /// Returns the cause of a refusal. `outcome`: the outcome of the limit that refused the request, if one did.
    pub fn from_refusal(refusal: &Refusal, outcome: Option<Outcome>) -> Cause {
        let by_server = refusal.status().is_server_error() || outcome == Some(Outcome::Closed);
        let cause = |reason: &'static str, setting| Cause { reason, setting, is_server_fault: by_server };
        match refusal {
            Refusal::InvalidHead(Reject::PathSlash) => cause(Reject::PathSlash.label(), Some(Setting::EncodedSlashes)),
            Refusal::InvalidHead(reject) => {
                cause(reject.label(), reject.depends_on_strictness().then_some(Setting::Strictness))
            }
            Refusal::NoRoute => EndReason::NoRoute.into(),
            Refusal::Question(fault) => cause(fault.reason().label(), None),
            Refusal::NoRedirect => EndReason::NoRedirect.into(),
            Refusal::Denied => cause(Reason::Denied.label(), Some(Setting::Deny)),
            Refusal::Unauthorized(_) => cause(Reason::Unauthorized.label(), Some(Setting::Auth)),
            Refusal::AuthServer => cause(Reason::AuthServer.label(), Some(Setting::OnError)),
            Refusal::PasswordQueueFull => cause(Reason::PasswordQueueFull.label(), Some(Setting::Auth)),
            Refusal::MaxInFlight => cause(Reason::MaxInFlight.label(), Some(Setting::MaxInFlight)),
            Refusal::Shed(shed) => cause(shed.reason.label(), Some(shed.setting)),
            Refusal::Misdirected => Cutoff::Misdirected.into(),
            Refusal::MaxTunnels => cause(Cutoff::MaxTunnels.label(), Some(Setting::MaxTunnels)),
            Refusal::TooLarge => Cutoff::BodyTooLarge.into(),
            Refusal::Limited => {
                let reason = outcome.map_or(Reason::Exhausted, refusal::refusal_reason);
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
            Refusal::Upstream(error) => {
                Cause { reason: error.label(), setting: error.setting(), is_server_fault: !error.is_by_client() }
            }
        }
    }
}

impl From<EndReason> for Cause {
    fn from(reason: EndReason) -> Cause {
        let setting = match reason {
            EndReason::Shutdown => Some(Setting::ShutdownTimeout),
            EndReason::AuthRefused => Some(Setting::Auth),
            _ => None,
        };
        let by_server = !matches!(
            reason,
            EndReason::NoRoute
                | EndReason::AuthRefused
                | EndReason::DecidePeer
                | EndReason::DecideName
                | EndReason::DecideFacts
                | EndReason::Receipt
                | EndReason::NoRedirect
                | EndReason::BodyMalformed
                | EndReason::ClientTimeout
                | EndReason::H2ConnectionError
        );
        Cause { reason: reason.label(), setting, is_server_fault: by_server }
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
            // No option lets invalid HTTP or abuse pass.
            _ => None,
        };
        Cause { reason: cutoff.label(), setting, is_server_fault: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::proxy::outbound::dial::ConnectFault;
    use crate::proxy::outbound::error::UpstreamError;

    #[test]
    fn server_faults_are_classified_independent_of_the_status() {
        let limited = |outcome| Cause::from_refusal(&Refusal::Limited, Some(outcome)).is_server_fault;
        assert!(limited(Outcome::Closed));
        assert!(!limited(Outcome::Blocked) && !limited(Outcome::QueueFull));
        for (refusal, by_server) in [
            (Refusal::Denied, false),
            (Refusal::TooLarge, false),
            (Refusal::NoRoute, false),
            (Refusal::Upstream(UpstreamError::ClientLeft), false),
            (Refusal::Upstream(UpstreamError::BodyTimeout), false),
            (Refusal::Upstream(UpstreamError::ClientDeadline), false),
            (Refusal::Upstream(UpstreamError::CallTimeout), false),
            (Refusal::MaxInFlight, true),
            (Refusal::MaxTunnels, true),
            (Refusal::Upstream(UpstreamError::ResponseTimeout(Duration::ZERO)), true),
            (Refusal::Upstream(UpstreamError::Connect(ConnectFault::Tls)), true),
            (Refusal::Upstream(UpstreamError::Connect(ConnectFault::Descriptors)), true),
            (Refusal::Upstream(UpstreamError::QueueFull), true),
        ] {
            assert_eq!(Cause::from_refusal(&refusal, None).is_server_fault, by_server, "{refusal:?}");
        }
        for reason in EndReason::ALL {
            let is_own = matches!(reason, EndReason::Shutdown | EndReason::CompressionFailed);
            let by_server = is_own || reason.label().starts_with("upstream_");
            assert_eq!(Cause::from(*reason).is_server_fault, by_server, "{reason:?}");
        }
        // A cutoff that ends a response is caused by a slow reader, a slow sender or a silent tunnel.
        assert!(Cutoff::ALL.iter().all(|cutoff| !Cause::from(*cutoff).is_server_fault));
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
