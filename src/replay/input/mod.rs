//! Reads access logs: `source` merges files, gzip and standard input into one stream of lines, `line` and `common`
//! parse a line into an `entry`, and `order` sorts requests by their starts.
//!
//! Input: bytes of any origin, never trusted. Output: requests in the order of their starts, and counts of lines that
//! could not be read. To add a format, parse it in a file of its own and try it in `line`.

pub(crate) mod common;
pub(crate) mod entry;
pub(crate) mod line;
pub(crate) mod order;
pub(crate) mod source;
