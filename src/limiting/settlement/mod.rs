//! Settles charges by the usage that a response reports in its body, such as the tokens of an LLM response. The body
//! is read on a copy while it streams: no byte is delayed or changed, and the state is bounded, however long the
//! response is.
//!
//! - `reserve`: the estimate that is charged before.
//! - `api`: the APIs that the path of a request tells apart.
//! - `sources`: where responses report usage: JSON pointers, events, headers, and the dialects of LLM APIs.
//! - `texts`: where they have their output.
//! - `weights`: what the usage costs, by the model of the response.
//! - `readings`: the numbers read so far, and whether they are final.
//! - `scan`: the scanner of one response. It selects the format and decodes gzip.
//! - `byte_order`: texts with a byte order mark, and those that are not UTF-8.
//! - `path_tree`, `json`, `lines`, `events`, `gzip`: the parsers, without I/O.
//! - `include_usage`: changes a request so that the server reports the usage of its stream.
//!
//! Example: a request was charged an estimate of 1000 tokens. The last event of its response reports 300, so 700 are
//! refunded. If the stream breaks off before that event, the 1000 remain, or more if it delivered more.
//!
//! Usage that is not proven is not refunded: without the final report, the charge is the largest one of the estimate,
//! the usage read so far, and what the content that passed costs at least.

pub mod api;
pub mod byte_order;
pub mod events;
pub mod gzip;
pub mod include_usage;
pub mod json;
pub mod lines;
pub mod path_tree;
pub mod readings;
pub mod reserve;
pub mod scan;
pub mod sources;
pub mod texts;
pub mod weights;
