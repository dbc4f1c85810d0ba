//! Serves client connections over HTTP/1.1, HTTP/2 and HTTP/3, from the accepted socket to its close.
//!
//! Input: sockets from `worker::accept`. Output: requests, passed to `doors::request` one by one, each with a
//! `RequestDeadline`, and responses that are written to the client. `connection` has the state of a connection, and the
//! table of how long a client can stay in each phase.
//!
//! - `serve`: serves one connection; `preface` detects its protocol; `http1` and `http2` speak it
//! - `http3`: connections of HTTP/3, over `quic`
//! - `tls`, `proxy_protocol`: the handshakes before HTTP
//! - `parse_failure`: heads that cannot be parsed

pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod http3;
pub(crate) mod parse_failure;
pub(crate) mod preface;
pub(crate) mod proxy_protocol;
pub(crate) mod quic;
pub(crate) mod serve;
pub(crate) mod tls;
