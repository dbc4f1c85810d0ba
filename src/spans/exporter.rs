//! The thread that sends spans: it gathers what comes within a second, and hands it to the exporter of the
//! OpenTelemetry library. A batch that the collector does not take in time is lost and counted. Started by
//! `Spans::start`.

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

use super::collector::CollectorClient;
use super::{Ended, SpanSettings};
use crate::metrics::{Metrics, SpanResult};
use crate::sampled::Sampled;

pub struct Exporter {
    exported: IntCounter,
    failed: IntCounter,
    told: Sampled,
    /// Of those who leave spans.
    alive: Weak<()>,
    /// That of the last batch, and where it goes.
    open: Option<(Arc<SpanSettings>, OtlpExporter)>,
    /// When the process ends: what waits is sent until then.
    end: Option<Instant>,
}

/// Spans of one call, and how long the first of them waits for others.
const BATCH_MAX: usize = 512;
const GATHERED: Duration = Duration::from_secs(1);
/// Between two looks for spans, once there is one: there is room for many more than come meanwhile.
const PAUSE: Duration = Duration::from_millis(20);
/// For a batch, from connecting to the answer; at the end of the process for all that waits.
const PATIENCE: Duration = Duration::from_secs(5);

impl Exporter {
    pub fn new(metrics: &Metrics, alive: Weak<()>) -> Exporter {
        Exporter {
            exported: metrics.spans(SpanResult::Exported),
            failed: metrics.spans(SpanResult::Failed),
            told: Sampled::default(),
            alive,
            open: None,
            end: None,
        }
    }

    pub fn run(mut self, inbox: &Receiver<Ended>) {
        // Until there is one, the thread costs nothing.
        let Ok(first) = inbox.recv() else { return };
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "no spans are sent"),
        };
        let mut next = Some(first);
        while let Some(Ended(settings, span)) = next.take().or_else(|| inbox.recv().ok()) {
            let mut batch = vec![*span];
            let until = Instant::now() + GATHERED;
            while batch.len() < BATCH_MAX {
                match inbox.try_recv() {
                    Ok(Ended(other, span)) if other == settings => batch.push(*span),
                    Ok(of_another_config) => {
                        next = Some(of_another_config);
                        break;
                    }
                    Err(TryRecvError::Disconnected) => break,
                    Err(TryRecvError::Empty) => match until.saturating_duration_since(Instant::now()) {
                        Duration::ZERO => break,
                        // Whoever leaves the next ones wakes nobody.
                        left => thread::sleep(left.min(PAUSE)),
                    },
                }
            }
            self.send(&runtime, &settings, batch);
        }
        // A name that nobody answers for may be looked up for minutes, which cannot be taken back.
        runtime.shutdown_background();
    }

    fn send(&mut self, runtime: &Runtime, settings: &Arc<SpanSettings>, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        if self.alive.strong_count() == 0 {
            self.end.get_or_insert_with(|| Instant::now() + PATIENCE);
        }
        let patience = self.end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()).min(PATIENCE));
        let sent = self.exporter(settings).and_then(|exporter| {
            match runtime.block_on(async { timeout(patience, exporter.export(batch)).await }) {
                Ok(taken) => taken.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {patience:?}")),
            }
        });
        match sent {
            Ok(()) => self.exported.inc_by(count),
            Err(error) => {
                self.failed.inc_by(count);
                if let Some(left_out) = self.told.due() {
                    tracing::warn!(
                        to = settings.to,
                        error,
                        spans = count,
                        left_out,
                        "the collector did not take spans"
                    );
                }
            }
        }
    }

    fn exporter(&mut self, settings: &Arc<SpanSettings>) -> Result<&OtlpExporter, String> {
        let kept = self.open.take().filter(|(of, _)| of == settings);
        let open = match kept {
            Some((_, exporter)) => exporter,
            None => exporter(settings)?,
        };
        Ok(&self.open.insert((settings.clone(), open)).1)
    }
}

fn exporter(settings: &SpanSettings) -> Result<OtlpExporter, String> {
    let client = CollectorClient::new(settings).map_err(|error| error.to_string())?;
    let mut exporter = OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(&settings.to)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(PATIENCE)
        // What waits meanwhile has no more room than it has.
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
    use crate::access_log::LogRecord;
    use crate::spans::{OpenSpan, Spans};

    #[test]
    fn settings_that_stay_the_same_over_a_reload_share_a_batch() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let metrics = Metrics::new().unwrap();
        let (spans, sender) = Spans::start(&metrics).unwrap();
        for _ in 0..3 {
            let (to, service, headers) = (to.clone(), String::new(), Vec::new());
            let settings = Arc::new(SpanSettings { to, per_mille: 1000, service, headers });
            OpenSpan::root(&settings).end(&spans, &LogRecord::default(), None);
        }
        let (mut only, _) = listener.accept().unwrap();
        let mut start = [0; 4];
        only.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"POST");
        only.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        drop(spans);
        sender.join().unwrap();
        assert_eq!(metrics.spans(SpanResult::Exported).get(), 3);
    }
}
