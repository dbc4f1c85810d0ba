//! Tests of the limiter: from the arithmetic of an algorithm to a running gateway with its stores.
//!
//! Each module is one subject and one directory. `make test ONLY="limits outages"` runs the tests of two subjects.

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

mod admin;
mod admin_api;
mod algorithms;
mod charges;
mod config;
mod dashboard;
mod decide;
mod edit;
mod explain;
mod hot_keys;
mod limits;
mod observability;
mod outages;
mod stores;
mod support;
