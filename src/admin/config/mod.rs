//! The config over HTTP. `effective` shows the one in force.

pub mod effective;
