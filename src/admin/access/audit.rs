//! The audit log: one JSON line per change and per refused request, in a file if the config names one. The latest
//! lines are kept in memory for `GET /-/audit`.
//!
//! Lines contain neither tokens nor bodies nor queries. Every text has a bound and is ASCII, so that a hostile path
//! changes neither the length of a line nor a terminal. A thread writes the file; if it fails, lines are lost, counted
//! and reported, and the gateway continues.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Serialize;

use crate::admin::access::line_limiter::{LineKind, LineSummary};
use crate::admin::access::{AdminCaller, Peer};
use crate::telemetry::access_log::{AccessLog, AccessLogSettings, LogTarget};
use crate::telemetry::metrics::AdminMetrics;

/// One line of the audit log.
#[derive(Debug, Default, Serialize)]
pub struct AuditEntry {
    pub time: String,
    /// Name of the token; null if none is configured or the token is unknown.
    pub token: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub session: bool,
    pub role: Option<&'static str>,
    pub peer: String,
    pub method: String,
    pub path: String,
    pub status: u16,
    /// Why the request was refused: the end of the problem's type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<&'static str>,
    pub limit: Option<String>,
    pub key: Option<String>,
    pub generation_before: u64,
    pub generation_after: u64,
    pub change: Option<String>,
    /// Number of requests, in a line that sums them up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    pub request_id: Option<String>,
}

/// Fields of the audit line that only the page knows: what it changed, and for whom.
#[derive(Debug, Default)]
pub struct AuditNote {
    /// The limit, if the path does not name it.
    pub limit: Option<String>,
    /// The key as logs show it.
    pub key: Option<String>,
    pub change: Option<String>,
    /// The caller, if the page identified it, as the session page does.
    pub caller: Option<AdminCaller>,
}

pub struct AuditLog {
    recent: RefCell<RecentLines>,
    writer: RefCell<Option<Writer>>,
    metrics: AdminMetrics,
}

/// The latest lines, in one list per kind, so that many lines of one kind push out none of another.
#[derive(Default)]
struct RecentLines {
    kinds: [VecDeque<(u64, String)>; LineKind::ALL.len()],
    count: u64,
}

struct Writer {
    log: AccessLog,
    thread: JoinHandle<()>,
    settings: Arc<AccessLogSettings>,
}

/// Number of lines of each kind in memory.
const RECENT_MAX: usize = 50;
const PATH_MAX: usize = 512;
const TEXT_MAX: usize = 1024;
/// Time limit for writing the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl AuditEntry {
    /// Returns the line that sums up requests which had no line of their own.
    pub fn of_summary(summary: &LineSummary, generation: u64) -> AuditEntry {
        let what = match summary.kind {
            LineKind::Config | LineKind::Change => "more changes in the last minute",
            LineKind::Failed => "more failed requests and requests for sessions in the last minute",
            LineKind::Unproven => "more refused requests in the last minute",
        };
        let (token, peer) = match &summary.subject {
            Some(subject) => (subject.token.clone(), subject.peer.map_or_else(|| "any".to_owned(), Peer::label)),
            None => (None, "others".to_owned()),
        };
        AuditEntry {
            time: format_time(SystemTime::now()),
            token,
            peer,
            count: Some(summary.count),
            generation_before: generation,
            generation_after: generation,
            change: Some(what.to_owned()),
            ..AuditEntry::default()
        }
    }

    /// Returns the line, without its end.
    fn format(&self) -> String {
        let text = |text: &Option<String>| text.as_deref().map(|text| to_bounded_ascii(text, TEXT_MAX));
        let entry = AuditEntry {
            time: self.time.clone(),
            token: text(&self.token),
            peer: to_bounded_ascii(&self.peer, TEXT_MAX),
            method: to_bounded_ascii(&self.method, 32),
            path: to_bounded_ascii(&self.path, PATH_MAX),
            limit: text(&self.limit),
            key: text(&self.key),
            change: text(&self.change),
            request_id: text(&self.request_id),
            ..*self
        };
        serde_json::to_string(&entry).unwrap_or_default()
    }
}

impl AuditLog {
    pub fn new(metrics: &AdminMetrics) -> AuditLog {
        AuditLog { recent: RefCell::default(), writer: RefCell::default(), metrics: metrics.clone() }
    }

    /// Adds a line to those in memory, and to the file if there is one.
    pub fn write(&self, entry: &AuditEntry, kind: LineKind, file: Option<&Path>) {
        let line = entry.format();
        if let Some(file) = file {
            self.with_writer(file, |writer| writer.log.queue_text(writer.settings.clone(), format!("{line}\n")));
        }
        let recent = &mut *self.recent.borrow_mut();
        recent.count += 1;
        let own = &mut recent.kinds[kind as usize];
        if own.len() >= RECENT_MAX {
            own.pop_front();
        }
        own.push_back((recent.count, line));
    }

    /// Opens the file before the first line, so that an error is reported at once.
    pub fn open_file(&self, file: &Path) {
        self.with_writer(file, |writer| writer.log.open_target(&writer.settings));
    }

    /// Closes the file, which may have been renamed, and opens it again.
    pub fn reopen_file(&self) {
        if let Some(writer) = &*self.writer.borrow() {
            writer.log.reopen_file();
        }
    }

    /// Returns the latest lines as JSON, the latest first.
    pub fn list_recent(&self) -> String {
        let recent = self.recent.borrow();
        let mut lines: Vec<&(u64, String)> = recent.kinds.iter().flatten().collect();
        lines.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        let lines: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        format!("{{\"entries\":[{}],\"lines_lost\":{}}}", lines.join(","), self.metrics.audit_lines_lost.get())
    }

    /// Writes the last lines, unless that takes too long.
    pub async fn close(&self) {
        let Some(Writer { log, thread, .. }) = self.writer.take() else { return };
        drop(log);
        let until = Instant::now() + FLUSH_TIMEOUT;
        while !thread.is_finished() && Instant::now() < until {
            tokio::time::sleep(FLUSH_TIMEOUT / 200).await;
        }
    }

    fn with_writer(&self, file: &Path, run: impl FnOnce(&Writer)) {
        let target = LogTarget::PrivateFile(file.to_path_buf());
        let mut writer = self.writer.borrow_mut();
        if writer.is_none() {
            let lost = &self.metrics.audit_lines_lost;
            match AccessLog::start_named("audit log", lost.clone(), lost.clone()) {
                Ok((log, thread)) => *writer = Some(Writer { log, thread, settings: Arc::default() }),
                Err(error) => {
                    lost.inc();
                    tracing::error!(%error, "cannot start the thread of the audit log: lines are lost");
                }
            }
        }
        let Some(writer) = &mut *writer else { return };
        if writer.settings.to != target {
            writer.settings = Arc::new(AccessLogSettings { to: target, ..AccessLogSettings::default() });
        }
        run(writer);
    }
}

/// Formats a time with milliseconds.
pub fn format_time(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

/// Escapes everything but visible ASCII and spaces, and cuts the text.
fn to_bounded_ascii(text: &str, most: usize) -> String {
    let mut output = String::new();
    for c in text.chars() {
        match c {
            ' '..='~' => output.push(c),
            _ => output.extend(c.escape_unicode()),
        }
        if output.len() > most {
            output.truncate(most);
            output.push_str("...");
            break;
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn entry(path: &str) -> AuditEntry {
        AuditEntry { path: path.to_owned(), ..AuditEntry::default() }
    }

    #[test]
    fn a_line_is_bounded_ascii_and_json() {
        let hostile = "\"\\\u{202e}\u{0}\r\n\u{1b}[2Jé".repeat(10_000);
        let all = || Some(hostile.clone());
        let line = AuditEntry {
            token: all(),
            peer: hostile.clone(),
            method: hostile.clone(),
            limit: all(),
            key: all(),
            change: all(),
            request_id: all(),
            ..entry(&hostile)
        }
        .format();
        assert!(line.len() < 16 * 1024, "{}", line.len());
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert!(
            value["path"].as_str().unwrap().starts_with("\"\\\\u{202e}\\u{0}\\u{d}\\u{a}\\u{1b}[2J\\u{e9}"),
            "{line}"
        );
    }

    #[test]
    fn the_latest_lines_of_each_kind_are_kept() {
        let log = AuditLog::new(&Metrics::new().unwrap().admin);
        log.write(&entry("/config"), LineKind::Config, None);
        (0..RECENT_MAX + 5).for_each(|i| log.write(&entry(&format!("/{i}")), LineKind::Change, None));
        log.write(&entry("/failed"), LineKind::Failed, None);
        let list: Value = serde_json::from_str(&log.list_recent()).unwrap();
        let entries = list["entries"].as_array().unwrap();
        let path = |i: usize| entries[i]["path"].as_str().unwrap();
        assert_eq!(entries.len(), RECENT_MAX + 2);
        assert_eq!([path(0), path(1), path(50), path(51)], ["/failed", "/54", "/5", "/config"]);
    }
}
