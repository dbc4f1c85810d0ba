//! What hostile clients, operators, upstreams, stores and clocks try against the promises of docs/limits.md
//! on the running program, one file per promise.

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

mod attack {
    mod admin;
    mod alternatives;
    mod evictions;
    mod far_redis;
    mod faults_inside;
    mod full_redis;
    mod integers;
    mod linger;
    mod linger_http2;
    mod linger_tunnels;
    mod long_decisions;
    mod methods;
    mod numbers;
    mod odd_keys;
    mod real_time;
    mod refunds;
    mod repeated_keys;
    mod repeated_tokens;
    mod reservations;
    mod turns;
    mod wall_clock;
}
