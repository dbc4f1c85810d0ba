//! Mistakes and warnings about a config, and how people see them.
//!
//! Input: a mistake with its place in a file. Output: a [`report::Report`] with excerpts and remedies.
//!
//! - `report`: all mistakes of a config, rendered for a terminal, a log or programs
//! - `excerpt`: the lines around a mistake, with asterisks instead of secrets (`secret_options`)
//! - `hidden`: replaces values of `${...}`, which messages must not show
//! - `pattern_look`: values that look like patterns where the gateway compares whole values
//! - `codes`: a stable code for each kind of warning; `allow`: files that allow some of them
//!
//! To add a warning, give it a code in `codes` and describe it in the manual.

pub mod allow;
pub mod codes;
pub mod excerpt;
pub mod hidden;
pub mod pattern_look;
pub mod report;
pub mod secret_options;
