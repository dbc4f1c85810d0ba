//! One exchange with an upstream server, over HTTP/1.1 of our own: `connect` opens connections,
//! `pool` keeps them, `servers` says whose is next, `h1` is the wire form, `exchange` moves one request and its answer. Used by
//! `forward`.

mod asked;
pub(crate) mod check;
pub(crate) mod connect;
pub(crate) mod early;
pub(crate) mod exchange;
pub(crate) mod forward;
pub(crate) mod forwarding;
pub mod h1;
pub(crate) mod http2;
pub(crate) mod linger;
pub(crate) mod outgoing;
pub(crate) mod pool;
pub(crate) mod sender;
pub(crate) mod servers;
pub(crate) mod turn;
