//! A new config or a new binary takes over from a running gateway.

mod config_files;
mod handover;
mod open_files;
mod program;
