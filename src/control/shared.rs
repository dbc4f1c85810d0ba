//! What the admin listener shows of the control thread: the phase of life and the last reload.
//! Written by the control thread, read by the admin pages.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

pub struct Shared {
    lifecycle: AtomicU8,
    polling: AtomicBool,
    /// A reload that the watcher did not ask for came between.
    overtaken: AtomicBool,
    started: Instant,
    last_reload: Mutex<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Starting,
    Ready,
    /// Told to stop: readiness fails, requests are still served.
    Draining,
}

impl Lifecycle {
    pub fn label(self) -> &'static str {
        match self {
            Lifecycle::Starting => "starting",
            Lifecycle::Ready => "ready",
            Lifecycle::Draining => "draining",
        }
    }
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            lifecycle: AtomicU8::new(Lifecycle::Starting as u8),
            polling: AtomicBool::new(false),
            overtaken: AtomicBool::new(false),
            started: Instant::now(),
            last_reload: Mutex::new(Value::Null),
        }
    }
}

impl Shared {
    pub fn lifecycle(&self) -> Lifecycle {
        match self.lifecycle.load(Ordering::Relaxed) {
            0 => Lifecycle::Starting,
            1 => Lifecycle::Ready,
            _ => Lifecycle::Draining,
        }
    }

    pub fn enter(&self, lifecycle: Lifecycle) {
        self.lifecycle.store(lifecycle as u8, Ordering::Relaxed);
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// How edits of the config files are noticed: `events` or, where the system gives none, `poll`.
    pub fn watch(&self) -> &'static str {
        if self.polling.load(Ordering::Relaxed) { "poll" } else { "events" }
    }

    pub fn fall_back_to_polling(&self) {
        self.polling.store(true, Ordering::Relaxed);
    }

    /// The last reload that was tried, `null` before the first.
    pub fn last_reload(&self) -> Value {
        self.last_reload.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `overtakes`: not asked for by the watcher.
    pub fn remember_reload(&self, record: Value, overtakes: bool) {
        *self.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = record;
        if overtakes {
            self.overtaken.store(true, Ordering::Relaxed);
        }
    }

    /// True once after a reload that the watcher did not ask for: what the watcher saw last may
    /// not be what was loaded last.
    pub fn take_overtaken(&self) -> bool {
        self.overtaken.swap(false, Ordering::Relaxed)
    }
}

/// `2026-01-31T23:59:59Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 1 March of year 0, so that a leap day ends its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
