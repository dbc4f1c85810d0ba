//! Vocabulary of config reloads, shared by the control thread, which executes them, and the admin listener, which
//! requests and reports them.
//!
//! `job` defines requests and outcomes, `diff` describes what changed between two configs, and `loader` runs reads of
//! config files on a thread of its own.

pub mod diff;
pub(crate) mod job;
pub(crate) mod loader;
