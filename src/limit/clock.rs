//! The time where no store tells it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time that neither steps nor goes back: this machine's clock as it was at the start, and what has
/// passed since. It stands still while the machine sleeps.
pub struct Steady {
    started: Instant,
    /// Since 1970.
    wall: Duration,
}

impl Steady {
    pub fn start() -> Steady {
        let started = Instant::now();
        Steady { started, wall: since_1970() }
    }

    pub fn now_ms(&self) -> i64 {
        in_ms(self.wall.saturating_add(self.started.elapsed()))
    }
}

/// This machine's clock. May step back: every algorithm clamps.
pub fn now_ms() -> i64 {
    in_ms(since_1970())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn in_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
