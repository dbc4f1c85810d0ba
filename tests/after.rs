//! What happens after a limit's decision, in the running program: charges that follow the outcome,
//! requests that wait for their turn, leases, refusals known in advance, and shares of the limits
//! while the store is away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, its helpers too"
)]

mod stores;
mod support;

mod after {
    mod denials;
    mod ends;
    mod grpc_ends;
    mod keys;
    mod leases;
    mod leaving;
    mod outage;
    mod outcome;
    mod reloads;
    mod returning;
    mod shares;
    mod turns;
}
