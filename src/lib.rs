//! Sluicegate: a reverse proxy and rate limit service with exact limits.
//!
//! `worker` accepts connections and `proxy` serves their requests. `route` matches a request to a route, `limiting`
//! decides whether it passes, and `upstream` keeps the state of the servers. `config` compiles the config file, and a
//! `snapshot` is the active config with its metrics. `control` reloads the config, `admin` serves the admin API, `acme`
//! renews certificates, `jwks` fetches keys of token issuers, `local_ca` issues development certificates, and
//! `telemetry` counts, logs and exports spans. `cli` is the command line, `replay` applies limits to an access log,
//! `explain` says what happens to a request, and `import` translates configs of nginx. `ends` is the table of all ways
//! in which a request can end. `envoy` has the messages and rules of rate limit requests over gRPC. ARCHITECTURE.md has
//! the map and the invariants.

mod acme;
mod admin;
pub mod auth;
mod canonical;
pub mod cli;
pub mod config;
pub mod contract;
mod control;
mod descriptors;
pub mod ends;
mod envoy;
mod explain;
mod file_stamp;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod geo;
mod grpc;
mod heap;
mod https_client;
pub mod import;
mod jwks;
mod labels;
pub mod limiting;
mod local_ca;
mod names;
mod net;
mod overload;
pub mod proxy;
mod rate;
mod received_headers;
pub mod reload;
mod replace_file;
mod replay;
pub mod route;
mod snapshot;
pub mod telemetry;
mod template;
mod text;
mod tls;
pub mod upstream;
mod worker;
