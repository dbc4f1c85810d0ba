//! Which address counts as the client's: PROXY protocol headers, forwarding headers, and attempts to forge them.

mod headers;
mod proxy_protocol;
mod spoofing;
