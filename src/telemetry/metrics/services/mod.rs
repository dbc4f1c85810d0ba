//! Metrics of the decisions that the gateway makes for other proxies.
//!
//! Input: the results that `proxy::doors::decide` and `proxy::doors::grpc` count. Output: counters.
//!
//! - `decide`: questions over HTTP.
//! - `rpc`: gRPC calls and the descriptors of rate limit requests.
//!
//! To add a service, add a file with its counters here, and a field of `Metrics`.

pub(super) mod decide;
pub(super) mod rpc;
