//! The time where no store tells it.

use std::time::{SystemTime, UNIX_EPOCH};

/// This machine's clock. May step back: every algorithm clamps.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
