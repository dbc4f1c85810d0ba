//! The pipeline to one Redis server. The input is the decisions of requests; the output is their results. Decisions
//! wait in a queue, and one call carries as many of them as possible.
//!
//! - `lane`: the way to one server: queue, connection and tasks together.
//! - `waiting`: one decision that waits, and why there may be no result.
//! - `queue`: the waiting decisions, and when the next call is sent.
//! - `pump`: the task that sends calls and distributes the replies.
//! - `codec`: encodes decisions as a call of the script, and decodes replies and errors.
//! - `msgpack`: integers in MessagePack.
//!
//! A new field of a check goes through `codec` and the header of `lua/gate.lua`, which describe the same format.

pub mod codec;
pub mod lane;
pub(crate) mod msgpack;
pub(crate) mod pump;
pub(crate) mod queue;
pub(crate) mod waiting;
