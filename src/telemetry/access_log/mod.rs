//! Access log: one line per request, in the format and at the target that the config sets.
//!
//! Input: `proxy::account` and the connections hand over one [`LogRecord`] per request that ended. Output:
//! `line` formats it as JSON, combined or a `template` of fields, with secrets removed by `mask`; the `writer`
//! thread writes it. Neither a slow reader nor a full disk blocks a worker: the queue is bounded, and lines that do
//! not fit are dropped and counted. `control` opens and reopens the target.
//!
//! To add a field, add it to `template` and to `LogRecord` (`record`), fill it in `proxy::account::log_entry`, format
//! it in `line` and describe it in `docs/reference/log-fields.md`.

mod line;
mod mask;
mod record;
mod settings;
mod template;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use prometheus::IntCounter;

pub use crate::telemetry::access_log::line::{escape_json, format_json};
pub use crate::telemetry::access_log::mask::{Masks, is_secret_name};
pub use crate::telemetry::access_log::record::{Attempt, AttemptEnd, Attempts, LogRecord};
pub use crate::telemetry::access_log::settings::{AccessLogSettings, LineFormat, LogTarget};
pub use crate::telemetry::access_log::template::{LogField, Template, TemplatePiece};
use crate::telemetry::access_log::writer::{LogMessage, LogWriter};
use crate::telemetry::metrics::Metrics;

/// Maximum number of queued lines, and of their bytes. Further lines are dropped and counted.
const WAITING_MAX: usize = 8192;
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Handle through which workers queue lines. Clones are cheap.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<LogMessage>,
    state: Arc<QueueState>,
    dropped: IntCounter,
}

/// State shared by both ends of the queue.
#[derive(Default)]
struct QueueState {
    /// Bytes of the queued lines.
    waiting: AtomicUsize,
    /// Set when the file must be reopened.
    reopen: AtomicBool,
}

impl AccessLog {
    /// Starts the writer thread, which ends once every clone is dropped.
    ///
    /// # Errors
    /// If the system refuses to create a thread.
    pub fn start(metrics: &Metrics) -> std::io::Result<(AccessLog, JoinHandle<()>)> {
        let errors = metrics.access_log_write_errors.clone();
        AccessLog::start_named("access log", metrics.access_log_dropped.clone(), errors)
    }

    /// Starts a writer thread for another log, which messages call `name`. `dropped` counts lines that did not fit in
    /// the queue, `errors` those that could not be written.
    ///
    /// # Errors
    /// If the system refuses to create a thread.
    pub fn start_named(
        name: &'static str,
        dropped: IntCounter,
        errors: IntCounter,
    ) -> std::io::Result<(AccessLog, JoinHandle<()>)> {
        let (lines, inbox) = sync_channel(WAITING_MAX);
        let state = Arc::<QueueState>::default();
        let writer = LogWriter::new(name, state.clone(), errors);
        let thread = std::thread::Builder::new().name(name.replace(' ', "-")).spawn(move || writer.run(&inbox))?;
        Ok((AccessLog { lines, state, dropped }, thread))
    }

    /// Queues the line of a request that has ended.
    pub fn queue_line(&self, settings: Arc<AccessLogSettings>, record: &LogRecord) {
        let line = line::format_line(&settings, record);
        self.queue_text(settings, line);
    }

    /// Queues a line that ends with a line feed.
    pub fn queue_text(&self, settings: Arc<AccessLogSettings>, line: String) {
        let bytes = line.len();
        let fits = self.state.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= WAITING_BYTES_MAX;
        if !fits || self.lines.try_send(LogMessage::Line(settings, line)).is_err() {
            self.state.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.dropped.inc();
        }
    }

    /// Opens the target of `settings` before the first line, so that a mistake is reported at once.
    pub fn open_target(&self, settings: &Arc<AccessLogSettings>) {
        // If the queue is full, there are lines, and the first of them opens the target.
        let _ = self.lines.try_send(LogMessage::Open(settings.clone()));
    }

    /// Closes the file, which may have been renamed, and opens it again.
    pub fn reopen_file(&self) {
        self.state.reopen.store(true, Ordering::Relaxed);
        let _ = self.lines.try_send(LogMessage::CheckState);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(capacity: usize) -> (AccessLog, std::sync::mpsc::Receiver<LogMessage>) {
        let (lines, inbox) = sync_channel(capacity);
        let dropped = IntCounter::new("dropped", "lines").unwrap();
        (AccessLog { lines, state: Arc::default(), dropped }, inbox)
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let settings = Arc::new(AccessLogSettings::default());
        let (log, inbox) = log(1);
        log.queue_line(settings.clone(), &LogRecord::default());
        log.queue_line(settings, &LogRecord::default());
        assert_eq!(log.dropped.get(), 1);
        assert!(
            matches!(inbox.recv(), Ok(LogMessage::Line(_, line)) if log.state.waiting.load(Ordering::Relaxed) == line.len())
        );
    }

    #[test]
    fn the_bytes_that_wait_are_bounded() {
        let settings = Arc::new(AccessLogSettings::default());
        let (log, _inbox) = log(100);
        let record = LogRecord { path: "a".repeat(WAITING_BYTES_MAX / 2), ..LogRecord::default() };
        log.queue_line(settings.clone(), &record);
        log.queue_line(settings, &record);
        assert_eq!(log.dropped.get(), 1);
        assert!(log.state.waiting.load(Ordering::Relaxed) < WAITING_BYTES_MAX);
    }
}
