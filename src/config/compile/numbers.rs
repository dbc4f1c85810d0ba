//! Integer conversions that several sections share.

use std::time::Duration;

pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
