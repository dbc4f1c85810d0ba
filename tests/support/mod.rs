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

/// Longest wait for something that usually happens at once. A busy machine may take that long. Less than the longest defaults
/// of the gateway (60 s), which must not make a condition true instead of what a test expects.
pub const WAIT_MAX: Duration = Duration::from_secs(45);

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
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < WAIT_MAX, "not true after {WAIT_MAX:?}: {what}");
        // A page of metrics costs as much CPU time as the first pauses: a test that waits longer leaves it to others.
        std::thread::sleep((since.elapsed() / 20).clamp(POLL_INTERVAL, 10 * POLL_INTERVAL));
    }
}
