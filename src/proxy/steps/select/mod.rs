//! Gets a connection to a server of the upstream. Called by `forward` for every attempt.
//!
//! Input is an upstream with the state of one request. Output is a connection to one of its servers (`Acquired`), or an
//! `Refusal`. In the order in which a request meets them:
//!
//! - `acquire`: the entry point; returns a connection
//! - `reserve`: for servers with limits: reserves a server, or waits in the queue; `refuse`: refusals without capacity
//! - `retry`: whether a failed request is retried on another server

pub(crate) mod acquire;
pub(crate) mod refuse;
pub(crate) mod reserve;
pub(crate) mod retry;
