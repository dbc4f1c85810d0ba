//! Clocks of this machine, for decisions that need no time of a store.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A clock that never steps: the wall clock at its start plus the time that has passed since. It stops while the
/// machine is suspended.
pub struct SteadyClock {
    started: Instant,
    /// Wall clock at the start, since 1970.
    wall: Duration,
}

impl SteadyClock {
    pub fn start() -> SteadyClock {
        let started = Instant::now();
        SteadyClock { started, wall: since_1970() }
    }

    pub fn now_ms(&self) -> i64 {
        in_ms(self.wall.saturating_add(self.started.elapsed()))
    }
}

/// Reads the wall clock, in ms since 1970. It may step back; every algorithm tolerates that.
pub fn now_ms() -> i64 {
    in_ms(since_1970())
}

/// Reads the time since the machine has started, in ms. It never steps, and includes time in which the machine was
/// suspended.
pub fn uptime_ms() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    tv_sec.unsigned_abs().saturating_mul(1000).saturating_add(tv_nsec.unsigned_abs() / 1_000_000)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn in_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
