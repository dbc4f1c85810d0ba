//! The dashboard: its page and policy, its live stream, the link that logs a browser in, and its screens in a real
//! Chromium (`browser.rs` runs the scripts beside it).

mod browser;
mod live;
mod page;
mod pictures;
mod ui_command;
