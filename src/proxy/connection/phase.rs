//! The phases of a client connection with their legal transitions, and the reasons for which the gateway ends one.
//!
//! ```text
//! Handshake --> Head --> Requests --> Upgraded        any phase --> Closed
//!                ^        |    ^
//!                |        v    |
//!                +------- Idle-+   (Resting after half a second)
//! ```

use crate::ends::End;

/// Phase of a connection: the event that it waits for. The module `connection` lists the bounds of each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// PROXY header and TLS handshake. Each has a timer of its own.
    Handshake,
    /// The rest of a request head. Over HTTP/2 this is the connection preface only: later heads arrive next to other
    /// requests and have their own timer.
    Head,
    /// Requests. Each has a timer of its own, and the connection has none.
    Requests,
    /// The first byte of a further request.
    Idle,
    /// The first byte of a further request, for half a second already. An HTTP/1.1 connection drops its parser and
    /// buffers, and the gateway may close the connection to free a file descriptor or memory.
    Resting,
    /// The two sides of a tunnel (HTTP/1.1 only). The timer is that of the request that opened it.
    Upgraded,
    /// Nothing: the client has gone. The state exists for as long as an exchange with an upstream server lingers.
    Closed,
}

impl Phase {
    /// Returns the reason that is counted when this phase exceeds its limit. Handshakes are counted by their result,
    /// and the end of an idle connection is not a failure.
    pub fn end(self) -> Option<End> {
        match self {
            Phase::Head => Some(End::HeaderTimeout),
            _ => None,
        }
    }

    /// Returns whether the connection waits for the first byte of a further request.
    pub fn is_idle(self) -> bool {
        matches!(self, Phase::Idle | Phase::Resting)
    }

    /// Returns whether a request is under way, or the tunnel that it became.
    pub fn has_requests(self) -> bool {
        matches!(self, Phase::Requests | Phase::Upgraded)
    }

    /// Returns whether the state machine has a transition from this phase to `next`.
    pub(super) fn may_become(self, next: Phase) -> bool {
        match self {
            Phase::Handshake => matches!(next, Phase::Handshake | Phase::Head | Phase::Closed),
            Phase::Head => matches!(next, Phase::Idle | Phase::Requests | Phase::Closed),
            Phase::Requests => matches!(next, Phase::Requests | Phase::Idle | Phase::Upgraded | Phase::Closed),
            Phase::Idle | Phase::Resting => !matches!(next, Phase::Handshake | Phase::Upgraded),
            Phase::Upgraded => matches!(next, Phase::Closed),
            Phase::Closed => false,
        }
    }
}

/// Reason for which the gateway ends a connection, in any phase. A later variant replaces an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionEnd {
    /// The client reads responses below the minimum rate, and requests on the connection are over, too.
    SlowReader,
    /// The client has shut down its side, and its time to read the responses is up.
    HalfClosed,
    /// The worker has run out of time to drain.
    Cut,
}

/// State of the GOAWAY with which the gateway ends an HTTP/2 connection. A later variant replaces an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GoAway {
    No,
    /// The connection accepts no new streams, and ends after its last one.
    Graceful,
    /// The client has violated the protocol: all requests end, also those without an error.
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Phase; 7] =
        [Phase::Handshake, Phase::Head, Phase::Requests, Phase::Idle, Phase::Resting, Phase::Upgraded, Phase::Closed];

    #[test]
    fn every_phase_may_close_and_no_phase_follows_that() {
        for phase in ALL {
            assert_eq!(phase.may_become(Phase::Closed), phase != Phase::Closed, "{phase:?}");
            assert!(!Phase::Closed.may_become(phase), "{phase:?}");
        }
    }

    #[test]
    fn a_connection_is_upgraded_by_a_request_and_serves_no_other() {
        for phase in ALL {
            assert_eq!(phase.may_become(Phase::Upgraded), phase == Phase::Requests, "{phase:?}");
            assert_eq!(Phase::Upgraded.may_become(phase), phase == Phase::Closed, "{phase:?}");
        }
    }

    #[test]
    fn a_later_end_replaces_an_earlier_one() {
        assert!(
            ConnectionEnd::SlowReader < ConnectionEnd::HalfClosed && ConnectionEnd::HalfClosed < ConnectionEnd::Cut
        );
        assert!(None < Some(ConnectionEnd::SlowReader));
        assert!(GoAway::No < GoAway::Graceful && GoAway::Graceful < GoAway::Error);
    }
}
