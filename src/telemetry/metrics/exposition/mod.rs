//! Formats of metrics for Prometheus. `series` builds the metric values of the collectors, and `openmetrics` writes all
//! families in the newer text format, with exemplars.
//!
//! Input: the added-up counts of all workers. Output: metric values of the `prometheus` library, and text. To add a
//! format, write a file that encodes gathered families, call it in `Metrics`, and offer it in `admin::metrics_text`.

pub mod openmetrics;
pub mod series;

use prometheus::proto::{Metric, MetricFamily, MetricType};

/// Which series `/metrics` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownSeries {
    All,
    /// Those that have counted something, and one of each family.
    Used,
}

/// Removes the counters and histograms that have counted nothing, except the first one if none has: queries find the
/// family. A gauge is a state, so 0 is one too.
pub fn drop_unused(family: &mut MetricFamily) {
    let is_used = match family.get_field_type() {
        MetricType::COUNTER => |metric: &Metric| metric.get_counter().get_value() > 0.0,
        MetricType::HISTOGRAM => |metric: &Metric| metric.get_histogram().get_sample_count() > 0,
        _ => return,
    };
    let metrics = family.take_metric();
    let mut used: Vec<Metric> = metrics.iter().filter(|metric| is_used(metric)).cloned().collect();
    if used.is_empty() {
        used.extend(metrics.into_iter().next());
    }
    family.set_metric(used);
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

    use super::*;

    fn names(collector: &impl Collector) -> Vec<String> {
        let mut family = collector.collect().remove(0);
        drop_unused(&mut family);
        family.get_metric().iter().map(|metric| metric.get_label()[0].value().to_owned()).collect()
    }

    #[test]
    fn only_used_series_remain_and_one_of_a_family_without_any() {
        let counters = IntCounterVec::new(Opts::new("a", "a"), &["route"]).unwrap();
        let histograms = HistogramVec::new(HistogramOpts::new("b", "b"), &["route"]).unwrap();
        let gauges = IntGaugeVec::new(Opts::new("c", "c"), &["route"]).unwrap();
        for route in ["one", "two", "three"] {
            drop(counters.with_label_values(&[route]));
            drop(histograms.with_label_values(&[route]));
            drop(gauges.with_label_values(&[route]));
        }
        assert_eq!([names(&counters).len(), names(&histograms).len(), names(&gauges).len()], [1, 1, 3]);
        counters.with_label_values(&["two"]).inc();
        histograms.with_label_values(&["three"]).observe(0.0);
        assert_eq!([names(&counters), names(&histograms)], [["two"], ["three"]]);
    }
}
