//! Reading requests strictly: what the client sent, who the client is, and what is refused as ambiguous.
//!
//! Input: the head and body of a request. Output: its canonical host, path and method, the client's address, or a an
//! [`End`](crate::ends::End). Nothing here depends on routes, except for the strictness with which a route judges
//! faults, and its `rewrite`.
//!
//! - `validate`: checks a head; `canonical` and `method`: canonical host, path and method
//! - `rewritten`: the target that a route's `rewrite` makes of the canonical one
//! - `reject`: which strictness refuses which fault
//! - `described`: parses a head that another proxy describes
//! - `inspector`: finds what the HTTP/1.1 parser repairs; `http2_head`: checks what only HTTP/2 allows
//! - `raw_target`: encodes characters of a target that the parser refuses
//! - `identity`: the client's address; `untrusted_headers`: reports ignored forwarding headers
//! - `request_id`: the id of a request, received or new
//! - `hop`: what this gateway reports to the next hop about a connection
//! - `upgrade`, `extended_connect`: offers to switch protocols
//! - `body`: the request body, over any protocol
//! - `headers`: rules for headers; `frame_head`, `field_kind`: heads of HTTP/2 frames and kinds of fields
//!
//! To add a rejection: add a row to the table of `ends`, and report the fault where the head is read, through
//! [`reject::FaultPolicy::report`] if a strictness can let it pass.

pub mod body;
pub(crate) mod canonical;
pub(crate) mod described;
pub(crate) mod extended_connect;
pub(crate) mod field_kind;
pub(crate) mod frame_head;
pub(crate) mod headers;
pub(crate) mod hop;
pub(crate) mod http2_head;
pub(crate) mod identity;
pub mod inspector;
pub(crate) mod method;
pub(crate) mod raw_target;
pub mod reject;
pub(crate) mod request_id;
pub(crate) mod rewritten;
pub mod untrusted_headers;
pub(crate) mod upgrade;
pub(crate) mod validate;
