//! The running program over real sockets: its command line, its start, its reloads, and what clients and
//! upstreams see, byte by byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, its helpers too, and counts small numbers"
)]

mod stores;
mod support;

mod gateway {
    mod access_log;
    mod admin_requests;
    mod cli;
    mod client_view;
    mod descriptors;
    mod differential;
    mod exchange;
    mod handover;
    mod headers;
    mod http11;
    mod lifecycle;
    mod limits;
    mod logs;
    mod metrics;
    mod mutations;
    mod readers;
    mod refusals;
    mod reload;
    mod reload_program;
    mod requests;
    mod rest;
    mod routing;
    mod slow;
    mod socket_files;
    mod spans;
    mod start;
    mod strict;
    mod systemd;
    mod turned_away;
    mod upstreams;
}
