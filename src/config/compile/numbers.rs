//! Numbers of the config as the gateway counts, and bounds that several sections share.

use std::ops::RangeInclusive;
use std::time::Duration;

/// What the kernel keeps for a connection.
pub const KERNEL_BUFFER: RangeInclusive<u64> = 0..=1 << 30;

pub fn usize_of(value: Option<i64>) -> Option<usize> {
    value.and_then(|value| usize::try_from(value).ok())
}

pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
