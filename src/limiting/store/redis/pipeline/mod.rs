//! The pipeline to one Redis server. The input is the decisions of requests; the output is their results. Decisions
//! wait in a queue, and one call carries as many of them as possible.
//!
//! - `lane`: the way to one server: queue, connection and tasks together.
//! - `waiting`: one decision that waits, and why there may be no result.
//! - `queue`: the waiting decisions, and when the next call is sent.
//! - `pump`: the task that sends calls and distributes the replies.
//!
//! A new field of a check goes through `redis::codec` and the header of `lua/gate.lua`, which describe the same format.

pub mod lane;
pub(crate) mod pump;
pub(crate) mod queue;
pub(crate) mod waiting;
