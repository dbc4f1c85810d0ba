//! The clock and the timers of client connections. A timer registers nothing with the runtime: the worker checks
//! the timers of all its connections on each tick, and a timer that is moved on every read costs one store.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The worker's coarse clock: milliseconds from its start to its last tick.
pub type Ticks = Rc<Cell<u64>>;

/// Interval at which a worker checks the timers. A timeout may expire this much late.
pub const TICK: Duration = Duration::from_millis(100);

/// Set in a [`Timer`] that has expired.
const EXPIRED: u64 = 1 << 63;
/// The due time of a timer that is off.
const OFF: u64 = EXPIRED - 1;

/// A point in time in milliseconds, and whether it has passed. One word, because each connection has several.
pub(super) struct Timer(Cell<u64>);

impl Timer {
    pub(super) fn off() -> Timer {
        Timer(Cell::new(OFF))
    }

    /// Starts or restarts the timer, to expire at `due_ms`.
    pub(super) fn arm(&self, due_ms: u64) {
        self.0.set(due_ms.min(OFF));
    }

    /// Stops the timer.
    pub(super) fn disarm(&self) {
        self.arm(OFF);
    }

    /// Returns whether the timer was started, even if it has expired since.
    pub(super) fn is_armed(&self) -> bool {
        self.due_ms() != OFF
    }

    pub(super) fn due_ms(&self) -> u64 {
        self.0.get() & !EXPIRED
    }

    /// Moves the timer into the future by `time`. A timer that is off stays off.
    pub(super) fn postpone(&self, time: Duration) {
        let due_ms = self.due_ms().saturating_add(to_ms(time)).min(OFF);
        self.0.set(self.0.get() & EXPIRED | due_ms);
    }

    /// Expires the timer now.
    pub(super) fn expire(&self) {
        self.0.set(self.0.get() | EXPIRED);
    }

    pub(super) fn has_expired(&self) -> bool {
        self.0.get() & EXPIRED != 0
    }

    /// Returns true once, on the first tick at or after the due time.
    pub(super) fn check(&self, now_ms: u64) -> bool {
        // One that has expired is later than any time.
        let expires = now_ms >= self.0.get();
        if expires {
            self.expire();
        }
        expires
    }
}

/// Returns the tick at which `time` from now has passed.
pub(super) fn due_in(ticks: &Ticks, time: Duration) -> u64 {
    ticks.get().saturating_add(to_ms(time))
}

/// Returns the milliseconds of `time`. A time that does not fit lasts for ever.
fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_expires_once_and_may_be_armed_again() {
        let timer = Timer::off();
        assert!(!timer.check(OFF - 1) && !timer.is_armed());
        timer.arm(100);
        assert_eq!([99, 100, 101].map(|now| timer.check(now)), [false, true, false]);
        assert!(timer.has_expired() && timer.is_armed());
        timer.arm(200);
        timer.postpone(Duration::from_millis(50));
        assert_eq!([200, 250].map(|now| timer.check(now)), [false, true]);
        timer.disarm();
        timer.postpone(Duration::from_secs(1));
        assert!(!timer.is_armed() && !timer.has_expired());
    }
}
