//! Explains what the gateway does with one request, and why, without sending it: `sluicegate explain`,
//! `POST /-/explain` and the cases of `sluicegate test`.
//!
//! Input: a request as a client would send it (`input`), a config and a limiter. Output: an [`Explanation`], as JSON or
//! as text (`text`). `steps` takes the request through the functions of `proxy::doors::request`, in the same order. Each step
//! has a file: `parser` reads the head, `client` finds the address, `routes` says why other routes do not match,
//! `identity` reads the credentials, `limits` decides and `limit_report` and `conditions` describe the limits, `action`
//! what follows, and `verdict` the end. `question` takes the steps of another proxy's question, and `descriptors` those
//! of a rate limit request of Envoy. Steps that need the network are not taken; a note says so. `offline` decides
//! without a gateway. `cases` runs the test cases of a config, and `walk` has the state of an explanation.
//!
//! To explain a new step of a request, split its decision from its effects, and call it in `steps`.

mod action;
pub mod cases;
mod client;
mod conditions;
mod descriptors;
mod explanation;
mod identity;
mod input;
mod limit_report;
mod limits;
mod offline;
mod parser;
mod question;
mod routes;
mod steps;
pub mod text;
mod verdict;
mod walk;

pub use crate::envoy::rate_limit::{DESCRIPTORS_MAX, ENTRIES_MAX};
pub use crate::explain::descriptors::{DescriptorInput, RateLimitInput, explain_rate_limit};
pub use crate::explain::explanation::{Explanation, RequestDecision};
pub use crate::explain::input::{BODY_MAX, ExplainInput};
pub use crate::explain::offline::{explain_offline, explain_rate_limit_offline};
pub use crate::explain::steps::explain_request;
pub use crate::explain::walk::ExplainContext;
