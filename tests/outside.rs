//! The running program as others see it: clients that nobody here wrote in front of it, each asked for what it is used
//! for in its own terms. `tests/apps.sh` installs their libraries.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

mod outside {
    mod browser;
    mod curl;
    mod grpc;
    mod nghttp;
    mod node;
    mod python;
    mod site;
}
