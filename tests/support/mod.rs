//! What the tests of the running program share: a gateway process, a client and upstream servers
//! that see every byte. Used by the test files beside this folder.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod app;
pub mod ca;
pub mod client;
pub mod dns;
pub mod faketime;
pub mod frames;
pub mod gateway;
pub mod h2;
pub mod h2_server;
pub mod http;
pub mod machine;
pub mod manual;
pub mod pebble;
pub mod ports;
pub mod relay;
pub mod tls;
pub mod token;
pub mod upstream;

use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for something that should happen at once, on a machine with other work to do.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often it is looked whether something has happened.
pub const GLANCE: Duration = Duration::from_millis(10);

/// Puts a file there whole, in place of another: who watches it may be first, and must not see a part.
pub fn put(path: &Path, text: &str) {
    let next = path.with_file_name("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// Waits until `done`, for what can only be seen by looking again.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "not so after {PATIENCE:?}: {what}");
        std::thread::sleep(GLANCE);
    }
}
