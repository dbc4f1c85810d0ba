//! Builds Prometheus metric values for the collectors of this directory.

use prometheus::core::Desc;
use prometheus::proto;

pub fn build_family(desc: &Desc, kind: proto::MetricType, metrics: Vec<proto::Metric>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Returns a metric without a value. `labels` are in the order of their names.
fn build_metric(labels: &[(&str, &str)]) -> proto::Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    proto::Metric::from_label(pairs.collect())
}

#[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
pub fn counter_metric(count: u64, labels: &[(&str, &str)]) -> proto::Metric {
    let (mut metric, mut counter) = (build_metric(labels), proto::Counter::default());
    counter.set_value(count as f64);
    metric.set_counter(counter);
    metric
}

#[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
pub fn gauge_metric(value: i64, labels: &[(&str, &str)]) -> proto::Metric {
    number_metric(value as f64, labels)
}

pub fn number_metric(value: f64, labels: &[(&str, &str)]) -> proto::Metric {
    let (mut metric, mut gauge) = (build_metric(labels), proto::Gauge::default());
    gauge.set_value(value);
    metric.set_gauge(gauge);
    metric
}

/// Returns a histogram. `cumulative`: for each of `bounds`, the number of values up to it.
pub fn histogram_metric(
    bounds: &[f64],
    cumulative: &[u64],
    count: u64,
    sum: f64,
    labels: &[(&str, &str)],
) -> proto::Metric {
    let buckets = bounds.iter().zip(cumulative).map(|(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*count);
        bucket
    });
    let (mut metric, mut histogram) = (build_metric(labels), proto::Histogram::default());
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(count);
    histogram.set_sample_sum(sum);
    metric.set_histogram(histogram);
    metric
}
