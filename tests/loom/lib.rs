//! The lock-free files of the crate, compiled with the atomics of loom.

#[path = "../../src/upstream/claim.rs"]
pub mod claim;
#[path = "../../src/rate.rs"]
pub mod rate;
#[path = "../../src/telemetry/sampled/mod.rs"]
pub mod sampled;
#[path = "../../src/telemetry/metrics/shards.rs"]
pub mod shards;
#[path = "../../src/limiting/hot_keys/slot.rs"]
pub mod slot;
