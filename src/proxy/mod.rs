//! The proxy: serves the requests of client connections.
//!
//! Input: connections that the workers accepted, and the active config snapshot. Output: responses. A directory uses
//! only those above it in this list:
//!
//! - `words`: rules for headers and waits, reasons, and log lines that all others use
//! - `render`: pieces of responses that only depend on their arguments: rate limit headers, formats, encoders
//! - `head`: reads a request strictly, over any protocol
//! - `connection`: the state of a client connection and its requests, their timeouts and bodies
//! - `outbound`: connections to upstream servers, and exchanges over them
//! - `context`: state per process, worker, snapshot and connection
//! - `account`: the life of one request: how it ends, its charges, metrics and log entry
//! - `steps`: what happens to a request, one file or directory for each step
//! - `doors`: the ways in: `request` for HTTP, `decide` and `grpc` for other proxies
//! - `server`: serves client connections over HTTP/1.1 and HTTP/2
//!
//! Read `steps::pipeline` first: it lists the steps of a request. To add a step, write a function in `steps`, and call
//! it there; what it needs besides the request and the config is a method of `steps::door::Door`. If it can refuse a
//! request, add a row to the table of `ends`.

pub(crate) mod account;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod doors;
pub mod head;
pub mod outbound;
pub(crate) mod render;
pub(crate) mod server;
pub mod steps;
pub(crate) mod words;
