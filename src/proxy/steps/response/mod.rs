//! Responses that the gateway makes or changes.
//!
//! Input: a response of an upstream server, or a refusal. Output: the response with its headers and its body.
//!
//! - `refusal_response`: errors with configured bodies; `problem`: problem documents; `grpc`: errors for gRPC clients;
//!   `api_error`: errors of LLM APIs; `refusal_record`: the list of the last refusals
//! - `error_page`: errors for browsers and as text, the files of `error_pages`, and replaced responses of servers
//! - `preflight`: recognizes the preflights of browsers (CORS); `cors`: responses to them, and headers for pages of
//!   other origins
//! - `early_hints`: interim responses (103)
//! - `local_responses`: echo server, redirects, ACME proof
//! - `locations`: URLs and cookies of a server as those of the client
//! - `edits`: the header changes of the route; `unread_body`: request bodies that nobody read
//!
//! To add a refusal: add its row to the table of [`ends`](crate::ends), and return it where the request is refused.

pub(crate) mod api_error;
pub(crate) mod cors;
pub(crate) mod early_hints;
pub(crate) mod edits;
pub(crate) mod error_page;
pub(crate) mod grpc;
pub(crate) mod local_responses;
pub(crate) mod locations;
pub(crate) mod preflight;
pub mod problem;
pub(crate) mod refusal_record;
pub(crate) mod refusal_response;
pub(crate) mod unread_body;
