//! The proxy: serves the requests of client connections.
//!
//! Input: connections that the workers accepted, and the config snapshot in force. Output: responses.
//!
//! - `connection`: client connections, their protocols and timeouts
//! - `request`: handles a request, one line per step; `arrival`: the first steps of every request; `request_context`:
//!   what the steps share
//! - `decide`: listeners with `serve = "decide"`, which respond to other proxies
//! - `grpc`: listeners with `serve = "grpc"`, which respond to Envoy
//! - `inbound`: reads a request strictly
//! - `forwarded_head`: makes the head that everything reads and the server gets
//! - `auth`: authenticates the client
//! - `shedding`: refuses requests because of the process rule or a circuit breaker; `jitter`: of the waits they state
//! - `limits`: applies the route's limits; `delay`: queues for delayed requests; `request_body`: reads and opens the
//!   body; `body_memory`: memory of large ones
//! - `shown_keys`: the keys of limits that the log shows
//! - `dispatch`: runs the route's action; `outbound`: exchanges with upstream servers
//! - `reason`: why a request has no regular response, as the log names it
//! - `finish_response`: the end of every request; `response`: what the client gets
//! - `context`: state per process, worker, snapshot and connection
//! - `headers`, `known_headers`, `trace`: rules for headers
//! - `failure_log`: sampled log lines about upstream failures and rejected clients
//!
//! To add a step to the page: write a function that takes the `RequestContext` and call it in `handle_request`. If it
//! can refuse a request, add a variant to `response::refusal::Refusal`.

pub(crate) mod arrival;
pub(crate) mod auth;
pub(crate) mod body_memory;
pub mod connection;
pub(crate) mod context;
pub(crate) mod decide;
pub(crate) mod delay;
pub(crate) mod dispatch;
pub(crate) mod failure_log;
pub(crate) mod finish_response;
pub(crate) mod forwarded_head;
pub(crate) mod grpc;
pub(crate) mod headers;
pub mod inbound;
pub(crate) mod jitter;
pub(crate) mod known_headers;
pub(crate) mod limits;
pub mod outbound;
pub(crate) mod reason;
pub(crate) mod request;
pub(crate) mod request_body;
pub(crate) mod request_context;
pub mod response;
pub(crate) mod shedding;
pub(crate) mod shown_keys;
pub(crate) mod trace;
