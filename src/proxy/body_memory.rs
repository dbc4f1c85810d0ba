//! Memory of large request bodies that are read before the limits decide. All workers share it. A body for which nothing
//! is left is not read, like one that is too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all such bodies at a time.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes that are reserved.
#[derive(Debug, Default)]
pub struct BodyMemory(AtomicU64);

/// The reservation of one body, until it is dropped.
#[derive(Debug)]
pub struct BodyPermit {
    memory: Arc<BodyMemory>,
    bytes: u64,
}

impl BodyMemory {
    /// Reserves memory for a body; `None` if too little is left.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<BodyPermit> {
        let next = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= BYTES_MAX);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(BodyPermit { memory: self.clone(), bytes })
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_returned() {
        let memory = Arc::<BodyMemory>::default();
        let half = memory.reserve(BYTES_MAX / 2).unwrap();
        assert!(memory.reserve(BYTES_MAX / 2 + 1).is_none() && memory.reserve(u64::MAX).is_none());
        let rest = memory.reserve(BYTES_MAX / 2);
        assert!(rest.is_some() && memory.reserve(1).is_none());
        drop(half);
        assert!(memory.reserve(BYTES_MAX / 2).is_some());
    }
}
