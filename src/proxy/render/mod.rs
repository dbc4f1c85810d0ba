//! Pieces of responses that depend on nothing but their arguments.
//!
//! Input: limits' answers, headers of the client, bytes. Output: headers, texts and encoded bytes.
//!
//! - `ratelimit`: rate limit headers
//! - `accept`: the format of an error that the client prefers; `escape`: makes values safe in it
//! - `call_ids`: the JSON-RPC calls that a refusal names
//! - `compress`: encoders of response bodies

pub(crate) mod accept;
pub(crate) mod call_ids;
pub(crate) mod compress;
pub(crate) mod escape;
pub(crate) mod ratelimit;
