//! Request bodies as the HTTP library receives them, over both protocols.
//!
//! Input: bodies from `http1` and `http2`. Output: `proxy::head::body::RequestBody` for the steps of a request.
//!
//! - `incoming.rs`: the bodies, and what happens to one that is dropped before its end.
//! - `discard.rs`: reads and discards the rest of a body after the response, within bounds.

pub(crate) mod discard;
pub(crate) mod incoming;
