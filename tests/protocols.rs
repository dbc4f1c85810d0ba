//! The running program over what carries HTTP besides plain TCP, with real clients of each protocol, and what
//! it carries besides requests and answers.

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

mod protocols {
    mod acme;
    mod acme_enemies;
    mod acme_reloads;
    mod acme_servers;
    mod grpc;
    mod h2;
    mod h2_abuse;
    mod h2_bodies;
    mod h2_connect;
    mod h2_malformed;
    mod h2_readers;
    mod h2_strict;
    mod h2_time;
    mod manual;
    mod proxy_out;
    mod proxy_protocol;
    mod spoof;
    mod tls;
    mod tls_clients;
    mod tls_enemies;
    mod tls_files;
    mod tls_manual;
    mod tls_slow;
    mod upgrade;
    mod upstream_floods;
    mod upstream_http2;
    mod upstream_http2_fields;
    mod upstream_resend;
    mod upstream_tls;
    mod upstream_unix;
}
