//! Why no response came from upstream. Told by `forward` and where a body is read, and to clients by `http::answer`.

use super::connect::ConnectFault;
use super::course::Overflow;

/// Why no response came from upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// No server accepted a connection: the last one for this.
    Connect(ConnectFault),
    /// No server had room.
    Overflow(Overflow),
    /// A server accepted the request and closed the connection or broke HTTP.
    Broken,
    /// No response head in time.
    Timeout,
    /// No response head within the time that the client allowed.
    ClientDeadline,
    /// The client's body is larger than the route allows.
    TooLarge,
    /// The client's body did not come in time.
    UploadTimeout,
    /// The client of a gRPC call sent no message for `stream_timeout`.
    CallTimeout,
    /// The client's body is not what its framing says.
    UploadBroken,
    /// The client went away before the end of its body.
    ClientLeft,
}

impl UpstreamFailure {
    /// The client ended the exchange, not a server and not the gateway.
    pub fn is_by_client(self) -> bool {
        match self {
            UpstreamFailure::TooLarge
            | UpstreamFailure::UploadTimeout
            | UpstreamFailure::UploadBroken
            | UpstreamFailure::ClientLeft
            | UpstreamFailure::CallTimeout
            | UpstreamFailure::ClientDeadline => true,
            UpstreamFailure::Connect(_)
            | UpstreamFailure::Overflow(_)
            | UpstreamFailure::Broken
            | UpstreamFailure::Timeout => false,
        }
    }
}
