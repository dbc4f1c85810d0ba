//! Event streams of the admin listener, each in a file of its own. Their pages are listed in `pages`.
//!
//! Input: the counts and records of the gateway. Output: server-sent events, through channels of bounded length, so
//! that a client that reads slowly neither holds memory nor delays others. `live` sends what the gateway does once per
//! second to all its viewers (`admin::live_hub`); `summary` builds its events. `tap` sends requests as they end.
//!
//! To add a stream, take a slot with `take_stream_permit`, return `stream_response`, and end the stream with a new
//! config, so that access is checked again.

pub mod live;
pub mod summary;
pub mod tap;
