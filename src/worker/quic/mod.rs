//! HTTP/3 on a listener: UDP sockets, one for each worker, and the loop of each that receives packets and accepts
//! connections.
//!
//! - `open.rs`: opens the sockets of a listener, for all workers.
//! - `receive.rs`: the loop of one worker.
//! - `backoff.rs`: pauses while its socket fails.
//! - `admit.rs`: which connections are accepted, before anything is spent on their handshake.

mod admit;
mod backoff;
mod open;
mod receive;

pub use crate::worker::quic::open::{QuicOpener, WorkerSocket};
pub use crate::worker::quic::receive::run_endpoint;
