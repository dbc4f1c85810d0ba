//! Helpers of all tests: the gateway as a process, clients, and upstream servers that record every byte.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod app;
pub mod ca;
pub mod client;
pub mod dns;
pub mod faketime;
pub mod frames;
pub mod gateway;
pub mod h2;
pub mod h2_server;
pub mod h3;
pub mod http;
pub mod limiting;
pub mod machine;
pub mod manual;
pub mod memory;
pub mod nginx;
pub mod pebble;
pub mod ports;
pub mod relay;
pub mod scenario;
pub mod tls;
pub mod token;
pub mod upstream;

use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for something that usually happens at once. A busy machine may take that long.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// Pause between two checks of a condition.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Replaces a file atomically, so that a file watcher never sees a part of it.
pub fn write_atomically(path: &Path, text: &(impl AsRef<[u8]> + ?Sized)) {
    let next = path.with_file_name("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// Waits until `done` returns true. Panics after [`WAIT_MAX`]; `what` names the condition in the message.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !done() {
        assert!(Instant::now() < end, "not true after {WAIT_MAX:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
