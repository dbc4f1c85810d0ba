//! HTTP as a request meets it: `gateway` is the page; the others are its lines. Called by the
//! workers, once per request.

pub mod answer;
pub(crate) mod complaints;
pub(crate) mod connections;
pub(crate) mod context;
pub(crate) mod deadline;
pub(crate) mod delay;
pub mod downstream;
pub(crate) mod fields;
pub(crate) mod gateway;
pub(crate) mod headers;
pub(crate) mod key_body;
pub(crate) mod limits;
pub(crate) mod onward;
pub(crate) mod trace;
pub(crate) mod tunnel;
pub(crate) mod under_way;
pub mod untrusted;
pub mod upstream;
