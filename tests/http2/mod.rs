//! HTTP/2 between the client and the gateway. HTTP/2 to upstream servers is in `upstreams`.

mod abuse;
mod bodies;
pub mod connect;
mod grpc;
mod held_places;
mod malformed;
mod requests;
mod slow_readers;
mod stream_states;
mod strict;
mod timeouts;
mod unread_bodies;
