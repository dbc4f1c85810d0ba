//! What ARCHITECTURE.md says of the code's shape, held by machine: who may name whom, what is pure, how long
//! a file may be, what is public. A rule that fails says what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod tidy {
    mod circles;
    mod layers;
    mod map;
    mod names;
    mod purity;
    mod reach;
    mod size;
    mod source;
}
