//! Explains what the gateway does with one request, and why, without sending it: `sluicegate explain`,
//! `POST /-/explain` and the cases of `sluicegate test`.
//!
//! Input: a request as a client would send it (`input`), a config and a limiter. Output: an [`Explanation`], as JSON or
//! as text (`text`). `steps` takes the request through `proxy::steps::pipeline`, the list of steps that requests of
//! clients take; `question` does so for what other proxies ask, and `descriptors` explains a rate limit request of
//! Envoy. `door` says how an explanation takes each step, and `walk` has its state. `parser` reads the head, `client`
//! finds the address, `routes` says why other routes do not match, `limits` asks the limits, `limit_report` and
//! `conditions` describe them, `action` describes what follows, and `verdict` the end. What needs the network is not
//! asked; a note says so. `offline` decides without a gateway. `cases` runs the test cases of a config.
//!
//! A new step of a request appears in explanations by itself. If it depends on more than the request and the config,
//! add a method to `proxy::steps::door::Door`, and say in `door` what an explanation assumes.

mod action;
pub mod cases;
mod client;
mod conditions;
mod descriptors;
mod door;
mod explanation;
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
