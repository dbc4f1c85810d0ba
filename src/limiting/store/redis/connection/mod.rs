//! Connections to Redis servers. Input is the URL of the store; output is, per server, a live connection or the reason
//! why there is none. Everything here runs in the background: requests never wait for a connection.
//!
//! - `dial`: opens one connection, plain or TLS, and logs in.
//! - `sentinel`: finds the current master.
//! - `await_reply`: waits for a reply, with a deadline that does not run while the worker is late.
//! - `link`: keeps one connection to a server: connects, checks it every second, and reconnects.
//! - `breaker`: the circuit breaker, as pure state.
//! - `health`: whether a server can be used (connection and breaker), and what metrics show of it.
//!
//! A new kind of address gets a variant of `store::address::Form`, and of `sentinel::Target` if its server may change.

pub(crate) mod await_reply;
pub(crate) mod breaker;
pub(crate) mod dial;
pub(crate) mod health;
pub(crate) mod link;
pub(crate) mod sentinel;
