//! Metrics of compressed responses.

use prometheus::IntCounter;

use crate::labels::Label;
use crate::telemetry::metrics::counter::{Counter, Counters};
use crate::telemetry::metrics::families::Families;

#[derive(Clone)]
pub struct CompressionMetrics {
    bytes: Counters,
    /// Responses sent uncompressed because `max_compress_memory` was used up.
    pub skipped: IntCounter,
}

/// One worker's counters for one algorithm.
pub struct CompressionCounters {
    before: Counter,
    after: Counter,
}

impl CompressionMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<CompressionMetrics> {
        let bytes = families.sharded_counters(
            "compressed_bytes_total",
            "Bytes of compressed response bodies, before (in) and after (out) compression.",
            &["algorithm", "side"],
        )?;
        let skips = families.counter(
            "compressions_skipped_total",
            "Responses sent uncompressed because max_compress_memory was used up.",
        )?;
        Ok(CompressionMetrics { bytes, skipped: skips })
    }

    pub(super) fn counters_for(&self, worker: usize, algorithm: impl Label) -> CompressionCounters {
        let side = |side| self.bytes.shard_for(worker, &[algorithm.label(), side]);
        CompressionCounters { before: side("in"), after: side("out") }
    }
}

impl CompressionCounters {
    /// Counts bytes before compression.
    pub fn add_in(&self, bytes: usize) {
        self.before.add(bytes as u64);
    }

    /// Counts bytes after compression.
    pub fn add_out(&self, bytes: usize) {
        self.after.add(bytes as u64);
    }
}
