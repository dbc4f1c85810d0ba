//! The access log: one line per request, in the form and at the place that the config says. Lines are built
//! when a request has ended and written by a thread of their own, so that neither a slow reader nor a full
//! disk holds a worker back. Fed by `http::answer::account` and the connections, opened by `control`.

mod field;
mod line;
mod mask;
mod record;
mod settings;
mod template;
mod writer;

pub use mask::Masks;
pub use record::{Attempts, LogRecord, SendFault, SentEnd, SentRequest};
pub use settings::{AccessLogSettings, LineFormat, LogTarget};
pub use template::Template;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use prometheus::IntCounter;

use crate::metrics::Metrics;
use writer::{LogMessage, LogWriter};

/// Lines that may wait to be written, and their bytes; further ones are dropped and counted.
const WAITING_MAX: usize = 8192;
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where workers leave their lines. Cheap to clone.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<LogMessage>,
    state: Arc<QueueState>,
    dropped: IntCounter,
}

/// What both ends of the queue know.
#[derive(Default)]
struct QueueState {
    /// Bytes of the lines that wait.
    waiting: AtomicUsize,
    /// The file is to be opened anew.
    reopen: AtomicBool,
}

impl AccessLog {
    /// Starts the writer, which ends once every clone is gone.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(metrics: &Metrics) -> std::io::Result<(AccessLog, JoinHandle<()>)> {
        let (lines, inbox) = sync_channel(WAITING_MAX);
        let state = Arc::<QueueState>::default();
        let writer = LogWriter::new(state.clone(), metrics.access_log_write_errors.clone());
        let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&inbox))?;
        Ok((AccessLog { lines, state, dropped: metrics.access_log_dropped.clone() }, thread))
    }

    /// Hands over the line of a request that has ended.
    pub fn write(&self, settings: Arc<AccessLogSettings>, record: &LogRecord) {
        let line = line::write(&settings, record);
        let bytes = line.len();
        let fits = self.state.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= WAITING_BYTES_MAX;
        if !fits || self.lines.try_send(LogMessage::Line(settings, line)).is_err() {
            self.state.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.dropped.inc();
        }
    }

    /// Opens what `settings` name before there is a line for it, so that a mistake shows at once.
    pub fn open(&self, settings: &Arc<AccessLogSettings>) {
        // With a full queue there are lines, and the first opens it.
        let _ = self.lines.try_send(LogMessage::Open(settings.clone()));
    }

    /// Lets go of the file, which may have been moved away, and opens it anew.
    pub fn reopen(&self) {
        self.state.reopen.store(true, Ordering::Relaxed);
        let _ = self.lines.try_send(LogMessage::Look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(room: usize) -> (AccessLog, std::sync::mpsc::Receiver<LogMessage>) {
        let (lines, inbox) = sync_channel(room);
        let dropped = IntCounter::new("dropped", "lines").unwrap();
        (AccessLog { lines, state: Arc::default(), dropped }, inbox)
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let settings = Arc::new(AccessLogSettings::default());
        let (log, inbox) = log(1);
        log.write(settings.clone(), &LogRecord::default());
        log.write(settings, &LogRecord::default());
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
        log.write(settings.clone(), &record);
        log.write(settings, &record);
        assert_eq!(log.dropped.get(), 1);
        assert!(log.state.waiting.load(Ordering::Relaxed) < WAITING_BYTES_MAX);
    }
}
