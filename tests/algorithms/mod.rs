//! The arithmetic of each algorithm, without a store: against its stated bounds, against models that are simple
//! enough to be checked by reading, and against its twin in Lua.

mod bounds;
mod damaged;
mod fair;
mod full;
mod logs;
mod twin;
