//! State of the control thread that the admin listener shows: lifecycle phase, last reload, history of configs and own
//! address. Written by the control thread, read by the admin pages and the contact.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::labels::labels;
use crate::net::ListenAddr;
use crate::reload::history::ConfigHistory;
use crate::reload::job::ContentDigest;
use crate::reload::open_files::OpenFiles;

pub struct SharedState {
    lifecycle: AtomicU8,
    polling: AtomicBool,
    /// A reload that the watcher did not request happened in the meantime.
    overtaken: AtomicBool,
    started: Instant,
    last_reload: Mutex<Value>,
    /// Parts of the active config that could not be applied, each with its error.
    unapplied: Mutex<Vec<String>>,
    pub history: ConfigHistory,
    /// Digest of the files that a change over HTTP wrote.
    written: Mutex<Option<ContentDigest>>,
    admin: Mutex<Option<ListenAddr>>,
    /// Config files that are still being written.
    pub open_files: Arc<OpenFiles>,
}

labels! {
    Lifecycle:
    Starting = "starting",
    Ready = "ready",
    /// Stopping: readiness fails while requests are still served.
    Draining = "draining",
}

labels! {
    /// How edits of the config files are noticed.
    Watching:
    Events = "events",
    /// The files are polled, because the system gives no events.
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
            unapplied: Mutex::default(),
            history: ConfigHistory::default(),
            written: Mutex::new(None),
            admin: Mutex::new(None),
            open_files: Arc::default(),
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

    pub fn enter_phase(&self, lifecycle: Lifecycle) {
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

    /// Returns the last attempted reload; `null` before the first.
    pub fn last_reload(&self) -> Value {
        self.last_reload.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a reload. `overtakes` is true if the watcher did not request it.
    pub fn remember_reload(&self, record: Value, overtakes: bool) {
        *self.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = record;
        if overtakes {
            self.overtaken.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the errors of the parts of the active config that could not be applied.
    pub fn unapplied(&self) -> Vec<String> {
        self.unapplied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_unapplied(&self, errors: Vec<String>) {
        *self.unapplied.lock().unwrap_or_else(PoisonError::into_inner) = errors;
    }

    /// Returns the address of the admin listener, with its real port.
    pub fn admin_addr(&self) -> Option<ListenAddr> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_admin_addr(&self, addr: ListenAddr) {
        *self.admin.lock().unwrap_or_else(PoisonError::into_inner) = Some(addr);
    }

    /// Records the digest of the files that a change over HTTP wrote and loads. `None`: another reload came after it.
    pub fn set_written(&self, digest: Option<ContentDigest>) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = digest;
    }

    /// Returns whether a change over HTTP wrote files with this digest, so that the watcher need not load them again.
    pub fn was_written(&self, digest: &ContentDigest) -> bool {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(digest)
    }

    /// Returns true once after a reload that the watcher did not request: the watcher's last digest may not be what
    /// was loaded.
    pub fn take_was_overtaken(&self) -> bool {
        self.overtaken.swap(false, Ordering::Relaxed)
    }
}

/// Formats a time as `2026-01-31T23:59:59Z`.
pub fn format_rfc3339(time: SystemTime) -> String {
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
            assert_eq!(format_rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
