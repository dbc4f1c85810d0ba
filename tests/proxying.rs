//! Tests of the proxy: what clients and upstream servers see of a running gateway.
//!
//! Each module is one subject and one directory. `make test ONLY="http1 tls"` runs the tests of two subjects.

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

mod acme;
mod auth;
mod client_address;
mod compression;
mod cors;
mod envoy;
mod files;
mod forward_auth;
mod http1;
mod http2;
mod http3;
mod import;
mod interop;
mod manifests;
mod manual;
mod pages;
mod process;
mod redirects;
mod reload;
mod replay;
mod routing;
mod support;
mod tap;
mod telemetry;
mod tls;
mod upstreams;
