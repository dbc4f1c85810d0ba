//! The access log: one JSON line per request on standard output. Lines are built when a response
//! has ended and written by a thread of their own, so a slow reader never holds a worker back.

use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use jiff::Timestamp;
use prometheus::IntCounter;
use serde_json::json;

/// Lines that may wait to be written; further ones are dropped and counted.
const WAITING_MAX: usize = 8192;

/// Where workers leave their lines. Cheap to clone.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<String>,
    dropped: IntCounter,
}

/// What is known of a request before its answer.
pub struct LogRecord {
    pub time: Timestamp,
    pub client: IpAddr,
    pub method: Method,
    pub host: String,
    /// Canonical, without the query, which may hold secrets.
    pub path: String,
    pub route: String,
    /// The limit that refused the request.
    pub refused_by: Option<String>,
}

/// A line in the making.
pub struct LogEntry {
    log: AccessLog,
    pub record: LogRecord,
    pub status: StatusCode,
    bytes: u64,
}

impl AccessLog {
    /// Starts the writer, which ends once every clone is gone.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(dropped: IntCounter) -> std::io::Result<(AccessLog, JoinHandle<()>)> {
        let (lines, inbox) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || write(&inbox))?;
        Ok((AccessLog { lines, dropped }, writer))
    }

    #[expect(clippy::cast_precision_loss, reason = "a duration in microseconds is far below 2^52")]
    fn write(&self, record: &LogRecord, status: StatusCode, bytes: u64, duration: Duration) {
        let line = json!({
            "time": format!("{:.3}", record.time),
            "client": record.client,
            "method": record.method.as_str(),
            "host": record.host,
            "path": record.path,
            "route": record.route,
            "status": status.as_u16(),
            "bytes": bytes,
            "duration_ms": duration.as_micros() as f64 / 1000.0,
            "refused_by": record.refused_by,
        });
        if self.lines.try_send(line.to_string()).is_err() {
            self.dropped.inc();
        }
    }
}

impl LogEntry {
    /// `status` stands if the request goes away before its answer.
    pub fn new(log: &AccessLog, record: LogRecord, status: StatusCode) -> LogEntry {
        LogEntry { log: log.clone(), record, status, bytes: 0 }
    }

    /// Counts bytes of the answer's body.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Hands the line over: the request has ended.
    pub fn write(&self, started: Instant) {
        self.log.write(&self.record, self.status, self.bytes, started.elapsed());
    }
}

/// Writes what waits, then flushes, so that a quiet log is never behind.
fn write(inbox: &Receiver<String>) {
    let mut out = BufWriter::new(std::io::stdout());
    while let Ok(first) = inbox.recv() {
        let mut next = Some(first);
        while let Some(line) = next {
            // A reader that went away is no reason to stop serving.
            let _ = writeln!(out, "{line}");
            next = inbox.try_recv().ok();
        }
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_and_what_does_not_fit_is_counted() {
        let dropped = IntCounter::new("dropped", "lines").unwrap();
        let (lines, inbox) = sync_channel(1);
        let log = AccessLog { lines, dropped: dropped.clone() };
        let record = LogRecord {
            time: Timestamp::UNIX_EPOCH,
            client: IpAddr::from([192, 0, 2, 1]),
            method: Method::GET,
            host: "a\"b".to_owned(),
            path: "/".to_owned(),
            route: "app".to_owned(),
            refused_by: None,
        };
        for _ in 0..2 {
            log.write(&record, StatusCode::OK, 5, Duration::from_micros(1500));
        }
        let line: serde_json::Value = serde_json::from_str(&inbox.recv().unwrap()).unwrap();
        let expected = json!({
            "time": "1970-01-01T00:00:00.000Z", "client": "192.0.2.1", "method": "GET", "host": "a\"b", "path": "/",
            "route": "app", "status": 200, "bytes": 5, "duration_ms": 1.5, "refused_by": null,
        });
        assert_eq!((line, dropped.get()), (expected, 1));
    }
}
