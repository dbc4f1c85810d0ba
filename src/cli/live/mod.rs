//! Commands that watch a running gateway: `tap` prints requests, `top` the keys that limits refuse most.
//!
//! `gateway` finds the admin listener and talks to it, `events` reads its event streams, `visible` makes text of
//! clients safe to print, and `terminal` switches the terminal to a full-screen view and back; `screen` is that of
//! `top`.

mod events;
mod gateway;
mod screen;
pub mod tap;
mod terminal;
pub mod top;
mod visible;
