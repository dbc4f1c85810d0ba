//! HTTP as a request meets it: [`gateway`] is the page; the others are its lines. Called by the
//! workers, once per request.

pub mod access_log;
mod account;
pub mod body;
pub mod canonical;
pub mod client;
pub mod delay;
mod echo;
mod fields;
mod forward;
mod forwarding;
pub mod gate;
pub mod gateway;
mod grpc;
pub mod headers;
pub mod hop;
pub mod inspect;
mod linger;
pub mod local;
pub mod reject;
pub mod respond;
pub mod slot;
mod unread;
mod upload;
pub mod upstream;
