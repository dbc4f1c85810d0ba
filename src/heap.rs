//! Returns unused memory to the system after a thread has freed much of it: the control thread after a reload, a
//! worker once a flood of connections has closed or come to rest ([`HeapTrimmer`]).
//!
//! mimalloc keeps freed memory and returns it later, as a part of further allocations. A thread that is idle afterwards
//! allocates nothing, so it would keep the memory forever. `mi_collect(true)` returns it at once, but the crate offers
//! this only as an unsafe foreign function, and this crate forbids unsafe code. mimalloc calls the same routine
//! (`mi_heap_collect(heap, true)`) in `_mi_malloc_generic`, when the system refuses an allocation and before it tries
//! that once more. So this module asks for memory that no system grants. The test in `tests/http1/idle_connections.rs`
//! fails if a version of mimalloc no longer collects then.

use std::cell::Cell;
use std::hint::black_box;

/// 2 MiB less than 2^48 bytes: more than the address space of a process on x86-64 or arm64, so that the system refuses.
/// From `MI_MAX_ALLOC_SIZE` on, which is 2^48 bytes less 128 KiB, mimalloc itself would refuse, and not collect.
const TOO_MUCH: usize = (1 << 48) - (1 << 21);

/// Turns transparent huge pages off for this process. With them, the kernel backs the first byte of a buffer with 2
/// MiB: an idle HTTP/2 connection would hold all of buffers of which it has used a few hundred bytes. Without effect on
/// a system that does not know the setting.
pub fn disable_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Returns the memory that the calling thread has freed to the system. Takes some milliseconds, depending on how much
/// that is.
pub fn release_free_memory() {
    // Some pages are freed late in one collection, and only the next one returns them.
    for _ in 0..2 {
        let mut memory = Vec::<u8>::new();
        let result = memory.try_reserve_exact(TOO_MUCH);
        // Without this the compiler might remove an allocation that nobody uses.
        black_box((result.is_err(), memory));
    }
}

/// Tracks how much memory the connections of a worker use, in kilobytes. A connection at rest counts as one.
#[derive(Default)]
pub struct HeapTrimmer {
    parsers: Cell<usize>,
    /// The largest use since memory was last returned.
    peak: Cell<usize>,
    /// Ticks since the last check.
    ticks: Cell<u32>,
}

/// Kilobytes of a parser with its buffers.
const PARSER_KB: usize = 18;
/// Smaller drops, in kilobytes, are not worth a collection. Nor are those of less than this share of the peak: what is
/// returned costs the kernel time when it is needed again.
const MIN_DROP_KB: usize = 1000;
const MIN_DROP_SHARE: usize = 8;
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

    /// Called on each tick of a worker whose resting connections and shared buffers use `kilobytes`. Returns unused
    /// memory if they and the parsers use less than before.
    pub fn tick(&self, kilobytes: usize) {
        let total_kb = kilobytes + self.parsers.get() * PARSER_KB;
        self.peak.set(self.peak.get().max(total_kb));
        self.ticks.set(self.ticks.get() + 1);
        if self.ticks.get() >= CHECK_TICKS {
            self.ticks.set(0);
            let drop = self.peak.get() - total_kb;
            if drop >= MIN_DROP_KB && drop * MIN_DROP_SHARE >= self.peak.get() {
                self.peak.set(total_kb);
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
    fn a_worker_returns_memory_when_its_use_has_dropped_and_checks_once_a_second() {
        let trimmer = HeapTrimmer::default();
        let second = |connections| (0..CHECK_TICKS).for_each(|_| trimmer.tick(connections));
        second(MIN_DROP_KB * 2);
        trimmer.tick(0);
        assert_eq!(trimmer.peak.get(), MIN_DROP_KB * 2, "it is not yet time");
        second(MIN_DROP_KB);
        assert_eq!(trimmer.peak.get(), MIN_DROP_KB);
        second(1);
        assert_eq!(trimmer.peak.get(), MIN_DROP_KB, "the drop is too small");
        let many = MIN_DROP_KB * MIN_DROP_SHARE;
        second(many * 2);
        second(many * 2 - MIN_DROP_KB);
        assert_eq!(trimmer.peak.get(), many * 2, "the drop is too small a share");
        second(many);
        assert_eq!(trimmer.peak.get(), many);
    }

    #[test]
    fn parsers_that_are_gone_are_a_drop() {
        let trimmer = HeapTrimmer::default();
        let parsers: Vec<_> = (0..100).map(|_| trimmer.count_parser()).collect();
        (0..CHECK_TICKS).for_each(|_| trimmer.tick(1000));
        assert_eq!(trimmer.peak.get(), 1000 + 100 * PARSER_KB);
        drop(parsers);
        (0..CHECK_TICKS).for_each(|_| trimmer.tick(1000));
        assert_eq!(trimmer.peak.get(), 1000);
    }
}
