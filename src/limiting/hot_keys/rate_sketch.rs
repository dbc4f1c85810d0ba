//! Finds keys with many decisions per second, in fixed memory: a count-min sketch of the current second. It may count a
//! key too high, never too low. A key that is wrongly hot gets a lease that it hardly uses.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters in each of the two rows.
const CELLS: usize = 4096;
/// Bits of a counter that hold the count; the others hold the second.
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Decisions in the current second by the hash of their key: 64 KiB.
pub struct RateSketch(Box<[AtomicU64]>);

impl Default for RateSketch {
    fn default() -> RateSketch {
        RateSketch((0..2 * CELLS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl RateSketch {
    /// Counts a decision of the key with this `hash` at `now_ms`. Returns how many it had in this second; a count that
    /// other keys contributed to is too high.
    pub fn count(&self, hash: u64, now_ms: u64) -> i64 {
        let second = now_ms / 1000;
        let counts = [hash, hash.rotate_left(32)].into_iter().enumerate().map(|(row, bits)| {
            let cell = usize::try_from(bits % CELLS as u64).unwrap_or(0);
            self.0.get(row * CELLS + cell).map_or(0, |cell| count_in(cell, second))
        });
        i64::try_from(counts.min().unwrap_or(0)).unwrap_or(0)
    }
}

/// Increments one cell. If two workers race, one increment may be lost, which does not matter.
fn count_in(cell: &AtomicU64, second: u64) -> u64 {
    let word = cell.load(Ordering::Relaxed);
    let count = if word >> COUNT_BITS == second { (word & COUNT_MAX).min(COUNT_MAX - 1) + 1 } else { 1 };
    cell.store(second << COUNT_BITS | count, Ordering::Relaxed);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiting::usage::hash_key;

    #[test]
    fn keys_are_counted_by_the_second_and_never_too_low() {
        let sketch = RateSketch::default();
        let hashes: Vec<u64> = (0..2000).map(|key| hash_key(&format!("key {key}"))).collect();
        for second in 5..8_u64 {
            for round in 1..=9 {
                let now_ms = second * 1000 + u64::try_from(round).unwrap();
                assert!(hashes.iter().all(|hash| sketch.count(*hash, now_ms) >= round));
            }
            let high = hashes.iter().filter(|hash| sketch.count(**hash, second * 1000 + 999) > 2 * 10).count();
            assert!(high < 400, "{high} of 2000 keys are counted more than twice too high");
        }
    }
}
