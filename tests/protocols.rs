//! The running program over what carries HTTP besides plain TCP, with real clients of each protocol.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

mod protocols {
    mod tls;
    mod tls_enemies;
}
