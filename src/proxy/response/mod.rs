//! Responses to the client, and the end of each request.
//!
//! Input: a response of an upstream server, or a refusal. Output: the response with its headers and its body, one
//! access log entry, and the metrics of the request.
//!
//! - `refusal`: every error that the gateway reports, with status and text; `cause`: its reason and setting for the log
//! - `refusal_response`: errors with configured bodies; `problem`: problem documents; `grpc`: errors for gRPC clients;
//!   `api_error`: errors of LLM APIs
//! - `error_page`: errors for browsers and as text, the files of `error_pages`, and replaced responses of servers
//! - `local_responses`: echo server, redirects, ACME proof
//! - `ratelimit`: rate limit headers
//! - `compress`: compression; `edits`: the header changes of the route
//! - `body`: the response body; `unread_body`: request bodies that nobody read
//! - `account`: metrics, charges and deadline of one request; `log_entry`: its access log entry and span
//!
//! To add a refusal: add a variant to `Refusal` and fill in the matches that the compiler reports: status and text
//! (`refusal`), gRPC code (`grpc`), reason (`cause`) and metric (`account`). Then document the reason in the access log
//! reference. Failures of upstream servers are variants of `outbound::error::UpstreamError` instead.

pub(crate) mod account;
pub(crate) mod api_error;
pub(crate) mod body;
pub(crate) mod cause;
pub(crate) mod compress;
pub(crate) mod edits;
pub(crate) mod error_page;
pub(crate) mod grpc;
pub(crate) mod local_responses;
pub(crate) mod log_entry;
pub mod problem;
pub(crate) mod ratelimit;
pub(crate) mod refusal;
pub(crate) mod refusal_record;
pub(crate) mod refusal_response;
pub(crate) mod unread_body;
