//! The contract of each limit: the most that it admits, in sentences with the numbers of the config. The command line
//! prints them.
//!
//! - `bound`: the arithmetic of the bounds in docs/guarantees/bounds.md
//! - `clauses`: the sentences of one limit
//! - `report`: text and JSON
//!
//! To add an algorithm, add its [`bound::Bound`]. A sentence with a number needs a randomised run in
//! `tests/limits/contract.rs`, which tries to break it on both stores.

pub mod bound;
pub mod clauses;
pub mod report;
