//! Spans: what became of a request, told to an OpenTelemetry collector. Built on the worker when a sampled request
//! has ended, sent by a thread of their own, so that no collector, however slow, holds a worker back.
//! Fed by `http::answer::access_log`, started by `worker`.

mod collector;
mod exporter;
mod span;

pub use span::OpenSpan;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use http::{HeaderName, HeaderValue};
use opentelemetry_sdk::trace::SpanData;
use prometheus::IntCounter;

use crate::metrics::{Metrics, SpanResult};
use exporter::Exporter;

/// `[server] spans`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanSettings {
    /// URL of the collector, with the path for traces.
    pub to: String,
    /// Of requests that belong to no trace yet, how many are told of: of 1000.
    pub per_mille: u64,
    pub service: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Spans that may wait to be sent; further ones are dropped and counted.
const WAITING_MAX: usize = 4096;

/// Where workers leave their spans. Cheap to clone.
#[derive(Clone)]
pub struct Spans {
    queue: SyncSender<Ended>,
    dropped: IntCounter,
    /// Gone with the last of the clones.
    _alive: Arc<()>,
}

/// A span, and where it goes.
struct Ended(Arc<SpanSettings>, Box<SpanData>);

impl Spans {
    /// Starts the thread that sends them, which ends soon after every clone is gone.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(metrics: &Metrics) -> std::io::Result<(Spans, JoinHandle<()>)> {
        let (queue, inbox) = sync_channel(WAITING_MAX);
        let alive = Arc::new(());
        let exporter = Exporter::new(metrics, Arc::downgrade(&alive));
        let thread = std::thread::Builder::new().name("spans".to_owned()).spawn(move || exporter.run(&inbox))?;
        Ok((Spans { queue, dropped: metrics.spans(SpanResult::Dropped), _alive: alive }, thread))
    }

    fn push(&self, settings: Arc<SpanSettings>, span: SpanData) {
        if self.queue.try_send(Ended(settings, Box::new(span))).is_err() {
            self.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        let metrics = Metrics::new().unwrap();
        let (queue, inbox) = sync_channel(1);
        let spans = Spans { queue, dropped: metrics.spans(SpanResult::Dropped), _alive: Arc::default() };
        let settings = Arc::new(SpanSettings {
            to: "http://127.0.0.1:4318/v1/traces".to_owned(),
            per_mille: 1000,
            service: "s".to_owned(),
            headers: Vec::new(),
        });
        for _ in 0..3 {
            OpenSpan::root(&settings).end(&spans, &crate::access_log::LogRecord::default(), None);
        }
        assert_eq!(spans.dropped.get(), 2);
        assert!(inbox.recv().is_ok());
    }
}
