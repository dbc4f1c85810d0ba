//! The ways into the proxy. Each reads a request and calls the steps in order.
//!
//! - `request`: requests of HTTP clients; read `handle_request` first
//! - `decide`: listeners with `serve = "decide"`, which respond to other proxies
//! - `grpc`: listeners with `serve = "grpc"`, which respond to Envoy
//!
//! All end in `steps::finish_response`.

pub(crate) mod decide;
pub(crate) mod grpc;
pub(crate) mod request;
