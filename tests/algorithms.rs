//! The arithmetic of every algorithm, without a store: against its stated bounds, against models that can be
//! checked by reading, and against its Lua half.

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

mod algorithms {
    mod bounds;
    mod damaged;
    mod full;
    mod logs;
    mod twin;
}
