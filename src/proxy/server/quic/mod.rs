//! QUIC (RFC 9000) below HTTP/3. The library `quinn-proto` has the state machine; each worker drives its own
//! connections, on its own thread, through its own socket.
//!
//! - `endpoint.rs`: the endpoint of one worker, and what the workers of a listener share.
//! - `socket.rs`: its UDP socket.
//! - `cid.rs`: connection IDs, which name the worker.
//! - `settings.rs`: bounds and TLS of connections.
//!
//! `worker::quic` opens the sockets and accepts connections; `http3::connection` drives one.

pub(crate) mod cid;
pub(crate) mod endpoint;
pub(crate) mod settings;
pub(crate) mod socket;
