//! Returns unused memory to the system after a thread has freed much of it: the control thread after a reload, a
//! worker once a flood of connections has closed or come to rest ([`HeapTrimmer`]).
//!
//! mimalloc keeps freed memory and returns it later, as a part of further allocations. A thread that is idle afterwards
//! allocates nothing, so it would keep the memory for ever. `mi_collect(true)` returns it at once, but the crate offers
//! it only as an unsafe foreign function, and this crate forbids unsafe code. mimalloc calls the same routine
//! (`mi_heap_collect(heap, true)`) in `_mi_malloc_generic`, when the system refuses an allocation and before it tries
//! that once more. So this module asks for memory that no system grants. The test in `tests/http1/idle_connections.rs` fails if
//! a version of mimalloc no longer collects then.

use std::cell::Cell;
use std::hint::black_box;

/// 2 MiB less than 2^48 bytes: more than the address space of a process on x86-64 or arm64, so that the system refuses.
/// From `MI_MAX_ALLOC_SIZE` on, which is 2^48 bytes less 128 KiB, mimalloc would refuse by itself and not collect.
const TOO_MUCH: usize = (1 << 48) - (1 << 21);

/// Returns the memory that the calling thread has freed to the system. Takes some milliseconds, depending on how much
/// that is.
pub fn release_free_memory() {
    // Some pages are freed late in one collection, and only the next one returns them.
    for _ in 0..2 {
        let mut refused = Vec::<u8>::new();
        let result = refused.try_reserve_exact(TOO_MUCH);
        // Without this the compiler might remove an allocation that nobody uses.
        black_box((result.is_err(), refused));
    }
}

/// Tracks how much memory the connections of a worker use. The unit is a connection at rest, about 2 kB.
#[derive(Default)]
pub struct HeapTrimmer {
    parsers: Cell<usize>,
    /// The largest use since memory was last returned.
    peak: Cell<usize>,
    /// Ticks since the last check.
    ticks: Cell<u32>,
}

/// The weight of a parser with its buffers, about 18 kB.
const PARSER_WEIGHT: usize = 9;
/// Smaller drops are not worth a collection: about a megabyte.
const MIN_DROP: usize = 500;
/// Ticks between two checks, one second. Memory that is needed again at once is cheaper to keep.
const CHECK_TICKS: u32 = 10;

/// Counts a connection that has its parser, until it is dropped.
pub struct ParserCount<'a>(&'a HeapTrimmer);

impl HeapTrimmer {
    /// Counts one more parser.
    pub fn count_parser(&self) -> ParserCount<'_> {
        self.parsers.set(self.parsers.get() + 1);
        ParserCount(self)
    }

    /// Called on each tick of a worker that has `connections`. Returns unused memory if their use has halved.
    pub fn tick(&self, connections: usize) {
        let weight = connections + self.parsers.get() * PARSER_WEIGHT;
        self.peak.set(self.peak.get().max(weight));
        self.ticks.set(self.ticks.get() + 1);
        if self.ticks.get() >= CHECK_TICKS {
            self.ticks.set(0);
            if weight + MIN_DROP <= self.peak.get() && weight * 2 <= self.peak.get() {
                self.peak.set(weight);
                release_free_memory();
            }
        }
    }
}

impl Drop for ParserCount<'_> {
    fn drop(&mut self) {
        self.0.parsers.set(self.0.parsers.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocation_that_triggers_a_collection_is_refused() {
        assert!(Vec::<u8>::new().try_reserve_exact(TOO_MUCH).is_err());
        release_free_memory();
    }

    #[test]
    fn a_worker_returns_memory_when_its_use_has_halved_and_checks_once_a_second() {
        let trimmer = HeapTrimmer::default();
        let second = |connections| (0..CHECK_TICKS).for_each(|_| trimmer.tick(connections));
        second(2 * MIN_DROP);
        trimmer.tick(MIN_DROP);
        assert_eq!(trimmer.peak.get(), 2 * MIN_DROP, "it is not yet time");
        second(MIN_DROP);
        assert_eq!(trimmer.peak.get(), MIN_DROP);
        second(1);
        assert_eq!(trimmer.peak.get(), MIN_DROP, "the drop is too small");
    }
}
