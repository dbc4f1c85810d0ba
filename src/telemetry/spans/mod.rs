//! Spans: exports sampled requests to an OpenTelemetry collector.
//!
//! Input: `proxy::account::log_entry` starts an [`OpenSpan`] with a sampled request and ends it with the request.
//! Output: the `exporter` thread sends batches over HTTP (`collector`). A slow collector blocks no worker: the queue
//! is bounded, and spans that do not fit are dropped and counted.
//!
//! To add an attribute, set it in `span` and describe it in `docs/reference/log-fields.md`.

mod collector;
mod exporter;
mod span;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use http::{HeaderName, HeaderValue};
use opentelemetry_sdk::trace::SpanData;
use prometheus::IntCounter;

use crate::telemetry::metrics::{Metrics, SpanResult};
use crate::telemetry::spans::exporter::Exporter;
pub use crate::telemetry::spans::span::OpenSpan;

/// Settings of `[server] spans`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanSettings {
    /// URL of the collector, including the path for traces.
    pub to: String,
    /// Share of requests without a trace that are sampled, in 1/1000.
    pub per_mille: u64,
    pub service: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Maximum number of queued spans. Further spans are dropped and counted.
const WAITING_MAX: usize = 4096;

/// Handle through which workers queue spans. Clones are cheap.
#[derive(Clone)]
pub struct Spans {
    queue: SyncSender<FinishedSpan>,
    dropped: IntCounter,
    /// Dropped together with the last clone.
    _alive: Arc<()>,
}

/// A finished span and the settings that name its collector.
struct FinishedSpan(Arc<SpanSettings>, Box<SpanData>);

impl Spans {
    /// Starts the sending thread, which ends soon after every clone is dropped.
    ///
    /// # Errors
    /// If the system refuses to create a thread.
    pub fn start(metrics: &Metrics) -> std::io::Result<(Spans, JoinHandle<()>)> {
        let (queue, inbox) = sync_channel(WAITING_MAX);
        let alive = Arc::new(());
        let exporter = Exporter::new(metrics, Arc::downgrade(&alive));
        let thread = std::thread::Builder::new().name("spans".to_owned()).spawn(move || exporter.run(&inbox))?;
        Ok((Spans { queue, dropped: metrics.span_counter(SpanResult::Dropped), _alive: alive }, thread))
    }

    fn queue_span(&self, settings: Arc<SpanSettings>, span: SpanData) {
        if self.queue.try_send(FinishedSpan(settings, Box::new(span))).is_err() {
            self.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let metrics = Metrics::new().unwrap();
        let (queue, inbox) = sync_channel(1);
        let spans = Spans { queue, dropped: metrics.span_counter(SpanResult::Dropped), _alive: Arc::default() };
        let settings = Arc::new(SpanSettings {
            to: "http://127.0.0.1:4318/v1/traces".to_owned(),
            per_mille: 1000,
            service: "s".to_owned(),
            headers: Vec::new(),
        });
        for _ in 0..3 {
            OpenSpan::continue_trace(&settings, 1, 2).finish(
                &spans,
                &crate::telemetry::access_log::LogRecord::default(),
                None,
            );
        }
        assert_eq!(spans.dropped.get(), 2);
        assert!(inbox.recv().is_ok());
    }
}
