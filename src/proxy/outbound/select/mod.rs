//! Selects the server of a request and gets a connection to it.
//!
//! Input is an upstream with the state of one request. Output is a connection to one of its servers (`Acquired`), or an
//! `UpstreamError`. The files, in the order in which a request meets them:
//!
//! - `worker_upstream`: the upstream in this worker, with its selector, pools, retry policy and counters
//! - `retry_state`: what the request has tried so far, and what it needs of its connection
//! - `acquire`: the entry point; returns a connection
//! - `selector`: selects the server, by the balancer of `crate::upstream::balance`
//! - `reserve`: for servers with limits: reserves a server, or waits in the queue
//! - `place`: the place of a request below the adaptive limit; `refuse`: refusals without capacity
//! - `endpoint`: one server in one worker, with its connections, and what it reports to the other workers
//! - `retry`: whether a failed request is retried on another server
//!
//! To add a balancer, see `crate::upstream::balance`. To add a reason for a retry, see `retry_policy`.

pub(crate) mod acquire;
pub(crate) mod endpoint;
pub(crate) mod place;
pub(crate) mod refuse;
pub(crate) mod reserve;
pub(crate) mod retry;
pub(crate) mod retry_state;
pub(crate) mod selector;
pub(crate) mod worker_upstream;
