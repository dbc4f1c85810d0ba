//! Encoders for response bodies; `steps::compress` decides which responses they get.
//!
//! - `negotiate`: selects the algorithm from `Accept-Encoding`
//! - `headers`: decides which responses are compressed, and changes their heads
//! - `stage`: compresses a body while it streams; `encoder`: one interface for the three libraries
//! - `memory`: bounds the memory of all encoders; `worker`: what the responses of a worker share
//!
//! To add an algorithm: add it to `CompressionAlgorithm`, and fill in the matches that the compiler reports.

pub(crate) mod encoder;
pub(crate) mod headers;
pub(crate) mod memory;
pub(crate) mod negotiate;
pub(crate) mod stage;
pub(crate) mod worker;
