//! Connections to upstream servers, and exchanges over them. The steps `forward` and `select` use it.
//!
//! Input: a request as servers get it, and a server. Output: a response whose body is streamed from the server, or a
//! `Refusal`.
//!
//! - `select`: the upstreams of a worker, their servers and queues
//! - `retry_policy`: when a request may be sent again; `forwarded_headers`: what servers learn about the client
//! - `pools`, `pool`, `dial`: the connections of one worker, and how they are opened; `bulk`: larger reads at high
//!   rates
//! - `exchange`: one request and its response on one connection, implemented by `http1_exchange` and `http2_exchange`
//!   over the protocols in `http1` and `http2`; `sender`: the bytes of an HTTP/1.1 request; `continue_timer`: the wait
//!   for `100 Continue`; `send_clock`: when a request was sent
//! - `interim`: interim responses; `switched`: a server that has switched protocols
//! - `health_check`: one check of one server
//!
//! To add a kind of failure, add a row to the table of ends.

mod bulk;
mod continue_timer;
pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod forwarded_headers;
pub(crate) mod health_check;
pub mod http1;
pub(crate) mod http1_exchange;
pub(crate) mod http2;
pub mod http2_exchange;
pub mod interim;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod retry_policy;
pub(crate) mod select;
pub(crate) mod send_clock;
pub(crate) mod sender;
pub(crate) mod switched;
