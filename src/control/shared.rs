//! What the admin listener shows of the control thread: the phase of life and the last reload; and where it is.
//! Written by the control thread, read by the admin pages and the contact.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::labels::labels;
use crate::net::ListenAddr;

pub struct SharedState {
    lifecycle: AtomicU8,
    polling: AtomicBool,
    /// A reload that the watcher did not ask for came between.
    overtaken: AtomicBool,
    started: Instant,
    last_reload: Mutex<Value>,
    admin: Mutex<Option<ListenAddr>>,
}

labels! {
    Lifecycle:
    Starting = "starting",
    Ready = "ready",
    /// Told to stop: readiness fails, requests are still served.
    Draining = "draining",
}

labels! {
    /// How edits of the config files are noticed.
    Watching:
    Events = "events",
    /// Where the system gives no events.
    Poll = "poll",
}

impl Default for SharedState {
    fn default() -> SharedState {
        SharedState {
            lifecycle: AtomicU8::new(Lifecycle::Starting as u8),
            polling: AtomicBool::new(false),
            overtaken: AtomicBool::new(false),
            started: Instant::now(),
            last_reload: Mutex::new(Value::Null),
            admin: Mutex::new(None),
        }
    }
}

impl SharedState {
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

    pub fn watching(&self) -> Watching {
        if self.polling.load(Ordering::Relaxed) { Watching::Poll } else { Watching::Events }
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

    /// Where the admin listener is, with its real port.
    pub fn admin(&self) -> Option<ListenAddr> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn admin_listens_at(&self, addr: ListenAddr) {
        *self.admin.lock().unwrap_or_else(PoisonError::into_inner) = Some(addr);
    }

    /// True once after a reload that the watcher did not ask for: what the watcher saw last may
    /// not be what was loaded last.
    pub fn take_overtaken(&self) -> bool {
        self.overtaken.swap(false, Ordering::Relaxed)
    }
}

/// `2026-01-31T23:59:59Z`.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| String::new(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

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
