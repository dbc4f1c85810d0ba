//! The time where no store tells it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Time that neither steps nor goes back: this machine's clock as it was at the start, and what has
/// passed since. It stands still while the machine sleeps.
pub struct Steady {
    started: Instant,
    started_ms: i64,
}

impl Steady {
    pub fn start() -> Steady {
        Steady { started: Instant::now(), started_ms: now_ms() }
    }

    pub fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.started_ms.saturating_add(passed)
    }
}

/// This machine's clock. May step back: every algorithm clamps.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
