//! Metrics of taps.

use prometheus::IntCounter;

use crate::labels::labels;
use crate::telemetry::metrics::families::Families;

labels! {
    /// Result for a request that matched a tap.
    TapResult:
    Sent = "sent",
    SampledOut = "sampled_out",
    Lost = "lost",
}

#[derive(Clone)]
pub struct TapMetrics {
    pub sent: IntCounter,
    pub sampled_out: IntCounter,
    pub lost: IntCounter,
}

impl TapMetrics {
    pub(super) fn new(families: &Families) -> prometheus::Result<TapMetrics> {
        let help = "Requests that matched a tap, by what happened to their event.";
        let events = families.counters("tap_events_total", help, &["result"])?;
        let counter = |result: TapResult| events.with_label_values(&[result.label()]);
        Ok(TapMetrics {
            sent: counter(TapResult::Sent),
            sampled_out: counter(TapResult::SampledOut),
            lost: counter(TapResult::Lost),
        })
    }
}
