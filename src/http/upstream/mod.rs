//! One exchange with an upstream server, over HTTP/1.1 of our own: `connect` opens connections,
//! `pool` keeps them, `acquire` gets one of the server that `servers` says is next, `h1` is the wire
//! form, `exchange` moves one request and its answer. Used by `forward`.

mod acquire;
pub(crate) mod asked;
pub(crate) mod check;
pub(crate) mod connect;
pub(crate) mod course;
pub(crate) mod early;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod forward;
pub(crate) mod forwarding;
pub mod h1;
pub(crate) mod http2;
pub mod interim;
mod lineup;
pub(crate) mod linger;
pub(crate) mod outgoing;
mod patience;
pub(crate) mod pool;
mod rate_allowance;
mod retry;
pub(crate) mod sender;
pub(crate) mod servers;
mod trouble;
mod turn;
