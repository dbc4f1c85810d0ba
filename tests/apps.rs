//! Applications that nobody here wrote, behind the gateway: every answer is compared with the one
//! that the application gives without it. `tests/apps.sh` installs them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

mod apps {
    mod django;
    mod files;
    mod httpbin;
    mod spans;
}
