//! Sluicegate: a reverse proxy with exact, distributed throttling built in.
//!
//! The modules, in the order a request meets them: `worker` accepts the connection, `http`
//! holds the one-page request function and what it calls, `route` matches, `limit` decides,
//! `upstream` picks a server. Around them: `config` turns text into a `snapshot`,
//! `control` watches, reloads and serves the admin listener, `metrics` counts, `cli` starts
//! it all, `replay` tries limits on an access log. ARCHITECTURE.md draws the same map with its invariants.

mod access_log;
pub mod cli;
pub mod config;
mod control;
mod descriptors;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc;
mod heap;
pub mod http;
mod labels;
pub mod limit;
pub mod metrics;
mod net;
mod replay;
pub mod route;
mod sampled;
mod snapshot;
mod spans;
mod tls;
pub mod upstream;
mod worker;
mod written;
