//! The state that the compressed responses of one worker share: an encoder to use again, a buffer, and counters.

use std::cell::RefCell;

use crate::proxy::render::compress::encoder::EncoderCache;
use crate::route::compress::CompressionAlgorithm;
use crate::telemetry::metrics::{CompressionCounters, Metrics};

/// An output buffer that has grown larger is released.
const OUTPUT_KEPT: usize = 256 * 1024;

/// State of compression on one worker.
pub struct WorkerCompression {
    pub cache: EncoderCache,
    /// Receives the output of one call. Empty between polls.
    pub output: RefCell<Vec<u8>>,
    /// Counters, indexed by algorithm.
    counters: [CompressionCounters; CompressionAlgorithm::ALL.len()],
}

impl WorkerCompression {
    pub fn new(metrics: &Metrics) -> WorkerCompression {
        let of = |algorithm| metrics.compression_counters(algorithm);
        WorkerCompression {
            cache: EncoderCache::default(),
            output: RefCell::default(),
            counters: [CompressionAlgorithm::Zstd, CompressionAlgorithm::Br, CompressionAlgorithm::Gzip].map(of),
        }
    }

    pub fn counters(&self, algorithm: CompressionAlgorithm) -> &CompressionCounters {
        &self.counters[algorithm as usize]
    }

    /// Empties the output buffer, and releases it if it has grown.
    pub fn shrink_output(&self, output: &mut Vec<u8>) {
        output.clear();
        output.shrink_to(OUTPUT_KEPT);
    }
}
