//! Integer conversions and bounds that several sections share.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Allowed sizes of a kernel socket buffer, in bytes.
pub const KERNEL_BUFFER: RangeInclusive<u64> = 0..=1 << 30;

pub fn to_usize(value: Option<i64>) -> Option<usize> {
    value.and_then(|value| usize::try_from(value).ok())
}

pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
