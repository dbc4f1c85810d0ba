//! The thread that sends spans: collects those of one second and passes them to the exporter of the OpenTelemetry
//! library. A batch that the collector does not accept in time is dropped and counted. Started by `Spans::start`.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prometheus::IntCounter;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::telemetry::metrics::{Metrics, SpanResult};
use crate::telemetry::sampled::LogSampler;
use crate::telemetry::spans::collector::CollectorClient;
use crate::telemetry::spans::{FinishedSpan, SpanSettings};

pub struct Exporter {
    exported: IntCounter,
    failed: IntCounter,
    sampler: LogSampler,
    /// Dead once no producer is left.
    alive: Weak<()>,
    /// Exporter of the last batch, with the settings it was created from.
    open: Option<(Arc<SpanSettings>, OtlpExporter)>,
    /// Set when the process ends: queued spans are sent until then.
    end: Option<Instant>,
}

/// Maximum number of spans per call, and how long the first one waits for more.
const BATCH_MAX: usize = 512;
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Pause between two reads of the queue while spans arrive; the queue holds many more than arrive in that time.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit for a batch, from connecting to the response; at the end of the process, for all queued spans.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

impl Exporter {
    pub fn new(metrics: &Metrics, alive: Weak<()>) -> Exporter {
        Exporter {
            exported: metrics.span_counter(SpanResult::Exported),
            failed: metrics.span_counter(SpanResult::Failed),
            sampler: LogSampler::default(),
            alive,
            open: None,
            end: None,
        }
    }

    pub fn run(mut self, inbox: &Receiver<FinishedSpan>) {
        // The thread costs nothing until the first span.
        let Ok(first) = inbox.recv() else { return };
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "cannot send spans"),
        };
        let mut next = Some(first);
        while let Some(FinishedSpan(settings, span)) = next.take().or_else(|| inbox.recv().ok()) {
            let mut batch = vec![*span];
            let until = Instant::now() + BATCH_WAIT;
            while batch.len() < BATCH_MAX {
                match inbox.try_recv() {
                    Ok(FinishedSpan(other, span)) if other == settings => batch.push(*span),
                    Ok(of_another_config) => {
                        next = Some(of_another_config);
                        break;
                    }
                    Err(TryRecvError::Disconnected) => break,
                    Err(TryRecvError::Empty) => match until.saturating_duration_since(Instant::now()) {
                        Duration::ZERO => break,
                        // During the pause, producers queue spans without waking this thread.
                        left => thread::sleep(left.min(PAUSE)),
                    },
                }
            }
            self.send_batch(&runtime, &settings, batch);
        }
        // A DNS lookup may take minutes and cannot be cancelled.
        runtime.shutdown_background();
    }

    fn send_batch(&mut self, runtime: &Runtime, settings: &Arc<SpanSettings>, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        if self.alive.strong_count() == 0 {
            self.end.get_or_insert_with(|| Instant::now() + SEND_TIMEOUT);
        }
        let limit =
            self.end.map_or(SEND_TIMEOUT, |end| end.saturating_duration_since(Instant::now()).min(SEND_TIMEOUT));
        let result = self.open_exporter(settings).and_then(|exporter| {
            match runtime.block_on(async { timeout(limit, exporter.export(batch)).await }) {
                Ok(taken) => taken.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no response within {limit:?}")),
            }
        });
        match result {
            Ok(()) => self.exported.inc_by(count),
            Err(error) => {
                self.failed.inc_by(count);
                if let Some(left_out) = self.sampler.take_turn() {
                    let to = shown_url(&settings.to);
                    tracing::warn!(
                        to,
                        error = error.replace(&settings.to, to),
                        spans = count,
                        left_out,
                        "the collector did not take spans"
                    );
                }
            }
        }
    }

    fn open_exporter(&mut self, settings: &Arc<SpanSettings>) -> Result<&OtlpExporter, String> {
        let previous = self.open.take().filter(|(of, _)| of == settings);
        let open = match previous {
            Some((_, exporter)) => exporter,
            None => exporter(settings)?,
        };
        Ok(&self.open.insert((settings.clone(), open)).1)
    }
}

/// Returns the URL without its query, which may contain a secret.
fn shown_url(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

fn exporter(settings: &SpanSettings) -> Result<OtlpExporter, String> {
    let client = CollectorClient::new(settings).map_err(|error| error.to_string())?;
    let mut exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(&settings.to)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(SEND_TIMEOUT)
        // A retry would let the queue overflow in the meantime.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .map_err(|error| error.to_string())?;
    let resource = Resource::builder()
        .with_service_name(settings.service.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    exporter.set_resource(&resource);
    Ok(exporter)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::telemetry::access_log::LogRecord;
    use crate::telemetry::spans::{OpenSpan, Spans};

    #[test]
    fn queries_of_collectors_are_not_logged() {
        assert_eq!(shown_url("https://h/v1/traces?api_key=canary"), "https://h/v1/traces");
        assert_eq!(shown_url("http://h:4318"), "http://h:4318");
    }

    #[test]
    fn settings_that_stay_the_same_over_a_reload_share_a_batch() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let metrics = Metrics::new().unwrap();
        let (spans, sender) = Spans::start(&metrics).unwrap();
        for _ in 0..3 {
            let (to, service, headers) = (to.clone(), String::new(), Vec::new());
            let settings = Arc::new(SpanSettings { to, per_mille: 1000, service, headers });
            OpenSpan::continue_trace(&settings, 1, 2).finish(&spans, &LogRecord::default(), None);
        }
        let (mut only, _) = listener.accept().unwrap();
        let mut start = [0; 4];
        only.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"POST");
        only.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        drop(spans);
        sender.join().unwrap();
        assert_eq!(metrics.span_counter(SpanResult::Exported).get(), 3);
    }
}
