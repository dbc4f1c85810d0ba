//! Vocabulary of config reloads, shared by the control thread, which executes them, and the admin listener, which
//! requests and reports them.
//!
//! `job` defines requests and outcomes of reloads, `change` those of edits and rollbacks over HTTP, `diff` describes
//! what changed between two configs, `history` keeps the last configs, `files` reads and names config files,
//! `open_files` knows which of them are still being written, and `loader` runs such reads on a thread of its own.

pub(crate) mod change;
pub mod diff;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod job;
pub(crate) mod loader;
pub(crate) mod open_files;
