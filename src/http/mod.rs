//! HTTP as a request meets it: [`gateway`] is the page; the others are its lines. Called by the
//! workers, once per request.

pub mod answer;
pub mod context;
pub mod deadline;
pub mod delay;
pub mod downstream;
pub mod gateway;
pub mod headers;
pub mod upstream;
