//! The thread that writes the access log: collects queued lines, writes them in one call and keeps the file open.
//! Started by `AccessLog::start`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use prometheus::IntCounter;

use crate::telemetry::access_log::QueueState;
use crate::telemetry::access_log::settings::{AccessLogSettings, LogTarget};
use crate::telemetry::sampled::LogSampler;

pub enum LogMessage {
    /// A complete line, and the settings that name its target.
    Line(Arc<AccessLogSettings>, String),
    Open(Arc<AccessLogSettings>),
    /// Check the shared state.
    CheckState,
}

/// Permissions of a private file that the thread creates.
const PRIVATE_MODE: u32 = 0o600;
/// Maximum number of bytes collected before a write.
const BATCH_MAX: usize = 64 * 1024;
/// Pause between two reads of the queue, so that producers wake this thread at most 500 times a second.
const PAUSE: Duration = Duration::from_millis(2);
/// Interval at which the thread checks that the file still exists, and retries opening it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub struct LogWriter {
    /// Name of the log in messages.
    name: &'static str,
    state: Arc<QueueState>,
    /// Lines that could not be written.
    errors: IntCounter,
    log_sampler: LogSampler,
    /// `None` until the first line or an order to open.
    target: Option<LogTarget>,
    output: Option<File>,
    batch: Vec<u8>,
    /// The last line was written only in part.
    is_partial: bool,
    checked_at: Instant,
}

impl LogWriter {
    pub fn new(name: &'static str, state: Arc<QueueState>, errors: IntCounter) -> LogWriter {
        let (target, output) = (None, None);
        let (log_sampler, batch, is_partial, checked_at) = (LogSampler::default(), Vec::new(), false, Instant::now());
        LogWriter { name, state, errors, log_sampler, target, output, batch, is_partial, checked_at }
    }

    /// Writes queued lines as they arrive, at most [`PAUSE`] behind.
    pub fn run(mut self, inbox: &Receiver<LogMessage>) {
        while let Ok(first) = inbox.recv() {
            let mut next = Some(first);
            while let Some(message) = next {
                self.handle_message(message);
                next = inbox.try_recv().ok();
            }
            self.write_batch();
            // During the pause, producers queue lines without waking this thread.
            thread::sleep(PAUSE);
        }
    }

    fn handle_message(&mut self, message: LogMessage) {
        if self.state.reopen.swap(false, Ordering::Relaxed) {
            self.write_batch();
            self.open_target();
        }
        match message {
            LogMessage::Line(settings, line) => {
                self.state.waiting.fetch_sub(line.len(), Ordering::Relaxed);
                self.switch_target(&settings.to);
                self.batch.extend_from_slice(line.as_bytes());
                if self.batch.len() >= BATCH_MAX {
                    self.write_batch();
                }
            }
            LogMessage::Open(settings) => self.switch_target(&settings.to),
            LogMessage::CheckState => {}
        }
    }

    fn switch_target(&mut self, target: &LogTarget) {
        if self.target.as_ref() != Some(target) {
            self.write_batch();
            self.target = Some(target.clone());
            self.open_target();
        }
    }

    /// Closes the open target and opens the configured one.
    fn open_target(&mut self) {
        (self.output, self.is_partial, self.checked_at) = (None, false, Instant::now());
        let result = match &self.target {
            None => return,
            Some(LogTarget::Stdout) => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Some(LogTarget::File(path)) => OpenOptions::new().append(true).create(true).open(path),
            Some(LogTarget::PrivateFile(path)) => {
                OpenOptions::new().append(true).create(true).mode(PRIVATE_MODE).open(path)
            }
        };
        match result {
            Ok(file) => self.output = Some(file),
            Err(error) => self.log_error("cannot open", "", &error),
        }
    }

    fn write_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            if self.was_moved() {
                self.open_target();
            }
        }
        if self.is_partial {
            self.batch.insert(0, b'\n');
        }
        let (written, failed) = self.write_once();
        let (done, left) = self.batch.split_at(written);
        self.is_partial = done.last().map_or(self.is_partial, |last| *last != b'\n');
        // The line that was written in part ends in the lost text; it is counted once.
        let lost = left.split_inclusive(|byte| *byte == b'\n').filter(|line| *line != b"\n").count();
        if let Some(error) = failed {
            self.errors.inc_by(lost as u64);
            self.log_error("cannot write", ": lines are lost", &error);
        }
        self.batch.clear();
        // A burst must not keep its memory.
        self.batch.shrink_to(2 * BATCH_MAX);
    }

    /// Writes the batch. Returns the number of bytes written and why the rest was not.
    fn write_once(&self) -> (usize, Option<io::Error>) {
        let Some(mut file) = self.output.as_ref() else {
            return (0, Some(io::Error::new(io::ErrorKind::NotFound, "it is not open")));
        };
        let mut offset = 0;
        while offset < self.batch.len() {
            match file.write(&self.batch[offset..]) {
                Ok(0) => return (offset, Some(io::ErrorKind::WriteZero.into())),
                Ok(count) => offset += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (offset, Some(error)),
            }
        }
        (offset, None)
    }

    /// Returns whether the path leads to a different file than the open one, to none, or no file is open.
    fn was_moved(&self) -> bool {
        let Some(path) = self.target.as_ref().and_then(LogTarget::path) else { return self.output.is_none() };
        let own = self.output.as_ref().and_then(|file| file.metadata().ok());
        let there = path.metadata().ok();
        let id = |file: std::fs::Metadata| (file.dev(), file.ino());
        own.map(id) != there.map(id) || self.output.is_none()
    }

    fn log_error(&self, failed: &str, effect: &str, error: &io::Error) {
        if let Some(left_out) = self.log_sampler.take_turn() {
            let path = self.target.as_ref().and_then(LogTarget::path);
            let to = path.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
            let (name, left_out) = (self.name, Some(left_out).filter(|count| *count > 0));
            tracing::error!(to, %error, left_out, "{failed} the {name}{effect}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn writer() -> LogWriter {
        LogWriter::new("access log", Arc::default(), IntCounter::new("errors", "lines").unwrap())
    }

    fn to(path: PathBuf) -> Arc<AccessLogSettings> {
        Arc::new(AccessLogSettings { to: LogTarget::File(path), ..AccessLogSettings::default() })
    }

    fn write(writer: &mut LogWriter, to: &Arc<AccessLogSettings>, line: &str) {
        writer.state.waiting.fetch_add(line.len(), Ordering::Relaxed);
        writer.handle_message(LogMessage::Line(to.clone(), line.to_owned()));
        writer.write_batch();
    }

    #[test]
    fn a_renamed_log_is_kept_until_the_signal_and_a_deleted_one_is_recreated() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let (settings, mut writer) = (to(path.clone()), writer());
        write(&mut writer, &settings, "a\n");
        fs::rename(&path, &moved).unwrap();
        write(&mut writer, &settings, "b\n");
        assert_eq!(fs::read_to_string(&moved).unwrap(), "a\nb\n");
        writer.state.reopen.store(true, Ordering::Relaxed);
        writer.handle_message(LogMessage::CheckState);
        write(&mut writer, &settings, "c\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "c\n");
        fs::remove_file(&path).unwrap();
        writer.checked_at = Instant::now() - CHECK_INTERVAL;
        write(&mut writer, &settings, "d\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "d\n");
        assert_eq!((writer.errors.get(), writer.state.waiting.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn lines_lost_to_a_full_disk_are_counted_and_later_lines_are_complete() {
        let full = to(PathBuf::from("/dev/full"));
        let mut writer = writer();
        write(&mut writer, &full, "a\nb\n");
        assert_eq!(writer.errors.get(), 2);
        let dir = tempfile::tempdir().unwrap();
        let file = to(dir.path().join("log"));
        write(&mut writer, &file, "c\n");
        writer.is_partial = true;
        write(&mut writer, &file, "d\n");
        assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), "c\n\nd\n");
        assert_eq!(writer.errors.get(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let settings = to(dir.path().join("made/later/log"));
        let mut writer = writer();
        write(&mut writer, &settings, "a\n");
        fs::create_dir_all(dir.path().join("made/later")).unwrap();
        write(&mut writer, &settings, "b\n");
        assert_eq!(writer.errors.get(), 2);
        writer.checked_at = Instant::now() - CHECK_INTERVAL;
        write(&mut writer, &settings, "c\n");
        assert_eq!(fs::read_to_string(dir.path().join("made/later/log")).unwrap(), "c\n");
    }
}
