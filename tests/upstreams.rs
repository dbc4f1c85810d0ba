//! The running program in front of several servers that fail, lie, flap and are slow: who is asked, who is
//! passed over, and what is asked once more.

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

mod support;

mod upstreams {
    mod balance;
    mod blame;
    mod caps;
    mod dns;
    mod dns_enemies;
    mod eject;
    mod fleet;
    mod health;
    mod retry;
}
