//! Commands that watch a running gateway: `tap` prints requests, `top` the keys that limits refuse most.
//!
//! `cli::gateway` finds the admin listener. `events` reads event streams of it, and `terminal` switches the terminal to
//! a full-screen view and back; `screen` is that of `top`.
//!
//! To add such a command, add a file with its options and a function that returns an exit code, and a variant of
//! `Command` in `cli`.

mod events;
mod screen;
pub mod tap;
mod terminal;
pub mod top;
