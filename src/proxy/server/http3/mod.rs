//! Serves HTTP/3 connections (RFC 9114): many requests at once, each on a QUIC stream with a timer of its own.
//!
//! Input: a QUIC connection that `worker::quic` has accepted. Requests go to `proxy::doors::request`. Everything above the
//! QUIC library is here: no frame is kept before its length is known to be allowed, and the rules for fields are the
//! same as in HTTP/2.
//!
//! - `connection.rs`: the loop of a connection: packets, timers, its end.
//! - `handshake.rs`: what follows the handshake: who the client is, and the control stream.
//! - `shared.rs`: the connection as its tasks share it: reading and writing of streams; `request_streams.rs`: their states.
//! - `streams.rs`: what happens on streams: heads, requests that are broken off, and the control streams of the client.
//! - `write_turns.rs`, `priority.rs`: which response writes next.
//! - `request_body.rs`, `response.rs`: a request's body, and the task that answers it.
//! - `unread_request.rs`: the rest of a request after its response.
//! - `tunnel_stream.rs`: a stream that has become a tunnel.
//! - `budget.rs`: counts frames that cost work and bring nothing.
//! - `varint.rs`, `frame.rs`, `request_reader.rs`, `unidirectional.rs`, `qpack/`, `fields.rs`: the codec, without I/O.
//! - `error.rs`: error codes.

pub(crate) mod budget;
pub(crate) mod connection;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod priority;
pub(crate) mod qpack;
pub(crate) mod request_body;
pub(crate) mod request_reader;
pub(crate) mod request_streams;
pub(crate) mod response;
pub(crate) mod shared;
pub(crate) mod streams;
pub(crate) mod tunnel_stream;
pub(crate) mod unidirectional;
pub(crate) mod unread_request;
pub(crate) mod varint;
pub(crate) mod write_turns;
