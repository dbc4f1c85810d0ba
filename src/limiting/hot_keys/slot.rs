//! The unspent units of one lease and the time when it ends, in one atomic word. So a unit is spent once, and never
//! after the end, whichever workers race for it.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// Bits of the word that hold the units; the others hold the end in ms.
const UNIT_BITS: u32 = 20;
/// Maximum number of units of a lease.
pub const UNITS_MAX: u64 = (1 << UNIT_BITS) - 1;

/// The unspent units of one lease. An empty slot is 0.
#[derive(Debug, Default)]
pub struct LeaseSlot(AtomicU64);

/// The content of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotContent {
    pub units: u64,
    /// When the lease ends, in ms of the clock that `now_ms` of all methods has.
    pub ends_ms: u64,
}

impl SlotContent {
    fn from_word(word: u64) -> SlotContent {
        SlotContent { units: word & UNITS_MAX, ends_ms: word >> UNIT_BITS }
    }

    fn to_word(self) -> u64 {
        self.ends_ms << UNIT_BITS | self.units.min(UNITS_MAX)
    }

    /// Returns the units that can still be spent at `now_ms`.
    pub fn spendable(self, now_ms: u64) -> u64 {
        if now_ms < self.ends_ms { self.units } else { 0 }
    }
}

impl LeaseSlot {
    pub fn content(&self) -> SlotContent {
        SlotContent::from_word(self.0.load(Ordering::Acquire))
    }

    /// Puts a lease into the slot and returns what was in it, which can no longer be spent.
    pub fn replace(&self, lease: SlotContent) -> SlotContent {
        SlotContent::from_word(self.0.swap(lease.to_word(), Ordering::AcqRel))
    }

    /// Spends `units`, all or none. Returns what is left, or `None` if there are too few or the lease has ended.
    pub fn spend(&self, units: u64, now_ms: u64) -> Option<SlotContent> {
        self.change(|content| {
            let left = content.spendable(now_ms).checked_sub(units)?;
            Some(SlotContent { units: left, ..content })
        })
    }

    /// Puts `units` back that were spent from the lease that ends at `ends_ms`. Returns false if the slot no longer
    /// has a lease with that end: then the units are lost.
    pub fn put_back(&self, units: u64, ends_ms: u64) -> bool {
        let change = |content: SlotContent| {
            let units = content.units + units;
            (content.ends_ms == ends_ms && units <= UNITS_MAX).then_some(SlotContent { units, ends_ms })
        };
        self.change(change).is_some()
    }

    /// Empties the slot if it has the lease that ends at `ends_ms`, and returns its units. Only the first call for a
    /// lease returns any.
    pub fn take_rest(&self, ends_ms: u64) -> u64 {
        let mut rest = 0;
        self.change(|content| {
            rest = content.units;
            (content.ends_ms == ends_ms).then_some(SlotContent::default())
        })
        .map_or(0, |_| rest)
    }

    /// Applies `change` to the content until no other thread interferes. Returns the new content, or `None` if there
    /// is nothing to change.
    fn change(&self, mut change: impl FnMut(SlotContent) -> Option<SlotContent>) -> Option<SlotContent> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let next = change(SlotContent::from_word(word))?;
            match self.0.compare_exchange_weak(word, next.to_word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(next),
                Err(changed) => word = changed,
            }
        }
    }
}
