//! Operators who watch a gateway: `/-/tap`, `sluicegate tap` and `sluicegate top`.

mod commands;
mod hostile_readers;
mod requests;
mod stream;
mod terminal;
