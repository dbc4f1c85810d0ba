//! The upstream side of a request: select a server, acquire a connection, exchange, retry.
//!
//! Input is an `OutgoingRequest`, a request as it leaves the gateway. Output is a response whose body is
//! streamed from the server, or an `UpstreamError`.
//!
//! - `outgoing_request`, `forwarded_headers`: the request as servers get it
//! - `forward`: the flow of one request over all of its attempts; read this first
//! - `breaker_watch`: reports the results of requests to circuit breakers, timed by `send_clock`
//! - `select`: from an upstream to a connection; `retry_policy`: when a request may be sent again
//! - `pools`, `pool`, `dial`: the connections of one worker, and how they are opened; `bulk`: larger reads at high
//!   rates
//! - `exchange`: one request and its response on one connection, implemented by `http1` and `http2`; `sender`: the
//!   bytes of an HTTP/1.1 request; `continue_timer`: the wait for `100 Continue`
//! - `interim`, `early_hints`: interim responses; `rate_allowance`: how many of them and of HTTP/2 frames a server may
//!   send
//! - `linger`: exchanges that continue after their client has disconnected
//! - `error`: every way to fail, with status, label, setting and texts
//! - `health_check`: one check of one server
//!
//! To add a kind of failure, add a variant to `UpstreamError`: the compiler then lists what to decide about it.

pub(crate) mod breaker_watch;
mod bulk;
mod continue_timer;
pub(crate) mod dial;
pub(crate) mod early_hints;
pub(crate) mod error;
pub(crate) mod exchange;
pub(crate) mod forward;
pub(crate) mod forwarded_headers;
pub(crate) mod health_check;
pub mod http1;
pub(crate) mod http2;
pub mod interim;
pub(crate) mod linger;
pub(crate) mod outgoing_request;
pub(crate) mod pool;
pub(crate) mod pools;
mod rate_allowance;
pub(crate) mod retry_policy;
pub mod select;
pub(crate) mod send_clock;
pub(crate) mod sender;
