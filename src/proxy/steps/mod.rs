//! The steps of a request, one file or directory for each.
//!
//! - `pipeline`: the list of the steps from a head to the decision; `door`: what the steps need from the door through
//!   which the request came; `live`: how requests of clients and questions of other proxies pass
//! - `arrival`: the first steps of every received request; `forwarded_head`: makes the head that everything reads and
//!   the server gets
//! - `auth`: authenticates the client
//! - `shedding`: refuses requests because of the process rule or a circuit breaker
//! - `limits`: applies the route's limits; `request_body`: reads and opens the body
//! - `dispatch`: runs the route's action; `stated_headers`: what it tells the server of the client; `serve_file`:
//!   answers with a file
//! - `outgoing_request`: the request as servers get it; `forward`: the flow of one request over all of its attempts;
//!   `select`: from an upstream to a connection; `breaker_watch`: reports the results to circuit breakers;
//!   `mirror`: copies of requests for another upstream
//! - `tunnel`: upgraded connections; `client_io`: the byte stream in front of a parser
//! - `response`: what the client gets; `compress`: compression; `finish_response`: the end of every request

pub(crate) mod arrival;
pub(crate) mod auth;
pub(crate) mod breaker_watch;
pub(crate) mod client_io;
pub(crate) mod compress;
pub(crate) mod dispatch;
pub(crate) mod door;
pub(crate) mod finish_response;
pub(crate) mod forward;
pub(crate) mod forwarded_head;
pub(crate) mod limits;
mod live;
pub(crate) mod mirror;
pub(crate) mod outgoing_request;
pub(crate) mod pipeline;
pub(crate) mod request_body;
pub mod response;
pub(crate) mod select;
pub(crate) mod serve_file;
pub(crate) mod shedding;
pub(crate) mod stated_headers;
pub(crate) mod tunnel;
