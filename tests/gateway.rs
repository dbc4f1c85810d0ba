//! The running program over real sockets: what clients and upstreams see, byte by byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "support/program.rs"]
mod support;

mod gateway {
    mod exchange;
    mod headers;
    mod lifecycle;
    mod limits;
    mod metrics;
    mod refusals;
    mod routing;
    mod slow;
    mod strict;
    mod upstreams;
}
