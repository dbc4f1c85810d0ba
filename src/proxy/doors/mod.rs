//! The ways into the proxy. Each reads a request and enters `steps::pipeline`.
//!
//! - `request`: requests of HTTP clients
//! - `decide`: listeners with `serve = "decide"`, which respond to other proxies
//! - `grpc`: listeners with `serve = "grpc"`, which respond to Envoy
//!
//! All end in `steps::finish_response`. `explain` is another way in, which serves nothing.

pub(crate) mod decide;
pub(crate) mod grpc;
pub(crate) mod request;
