//! The memory that encoders of streaming responses may use, over all workers (`max_compress_memory`). A slow client
//! holds an encoder for as long as it reads, so without a bound many slow clients would use up the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::route::compress::CompressionAlgorithm;

const KIB: u64 = 1024;

/// Bytes that are reserved for encoders. All workers share them.
#[derive(Default)]
pub struct CompressionMemory(AtomicU64);

/// The reservation of one encoder, until it is dropped.
pub struct MemoryPermit {
    memory: Arc<CompressionMemory>,
    bytes: u64,
}

/// Returns the most memory that an encoder allocates, as measured, rounded up.
const fn encoder_bytes(algorithm: CompressionAlgorithm) -> u64 {
    match algorithm {
        CompressionAlgorithm::Gzip => 512 * KIB,
        CompressionAlgorithm::Zstd => 2048 * KIB,
        CompressionAlgorithm::Br => 4736 * KIB,
    }
}

impl CompressionMemory {
    /// Reserves the memory of an encoder, unless more than `max` bytes would be reserved then.
    pub fn reserve(self: &Arc<Self>, algorithm: CompressionAlgorithm, max: u64) -> Option<MemoryPermit> {
        let bytes = encoder_bytes(algorithm);
        let next = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(MemoryPermit { memory: self.clone(), bytes })
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_returned() {
        let memory = Arc::<CompressionMemory>::default();
        let max = encoder_bytes(CompressionAlgorithm::Gzip) * 3;
        let mut permits: Vec<_> = (0..5).filter_map(|_| memory.reserve(CompressionAlgorithm::Gzip, max)).collect();
        assert_eq!(permits.len(), 3);
        assert!(memory.reserve(CompressionAlgorithm::Br, max).is_none());
        permits.pop();
        assert!(memory.reserve(CompressionAlgorithm::Gzip, max).is_some());
        assert!(memory.reserve(CompressionAlgorithm::Gzip, max).is_some());
        drop(permits);
        assert_eq!(memory.0.load(Ordering::Relaxed), 0);
    }
}
