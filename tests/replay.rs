//! `sluicegate replay`: the real program on logs of every format, what it says of them, and its exit
//! codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod replay {
    mod dir;
    mod end;
    mod input;
    mod model;
    mod progress;
    mod speed;
    mod tightest;
    mod told;
    mod traffic;
}
