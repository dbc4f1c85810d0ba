//! Why an exchange has no answer, in whatever its connection speaks.

use std::fmt;

use super::h1::ProtocolFault;

/// Why there is no answer.
#[derive(Debug)]
pub enum Trouble {
    /// The request body cannot be completed.
    Upload,
    /// The connection ended before the first byte of an answer.
    Closed,
    /// The server has not looked at the request.
    Refused,
    Fault(ProtocolFault),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Upload => f.write_str("the request body cannot be completed"),
            Trouble::Refused => f.write_str("the server took no further request on its connection"),
            Trouble::Closed => f.write_str("the connection ended without an answer"),
            Trouble::Fault(fault) => fault.fmt(f),
        }
    }
}
