//! Limits as users, operators and the manual see them, through the running program: matching, live overrides,
//! the admin listener, and every page of the manual.

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

mod limits {
    mod admin;
    mod body_keys;
    mod manual;
    mod matching;
    mod matching_program;
    mod overrides;
}
