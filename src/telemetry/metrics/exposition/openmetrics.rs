//! Writes all families in the OpenMetrics text format, version 1.0, with exemplars. Called by `Metrics`.
//!
//! OpenMetrics differs from the older text format: a counter's family has no `_total`, bounds of buckets are written
//! like `1.0`, units are stated, and `# EOF` ends the text.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use crate::telemetry::exemplars::Exemplar;
use crate::telemetry::metrics::counts::BucketExemplars;

/// Exemplars of a family by the value of its only label.
pub struct FamilyExemplars {
    pub family: &'static str,
    pub by_label: BTreeMap<String, BucketExemplars>,
}

/// Units that end a name. The unit of a family is part of its name.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

/// Returns the text of all families.
pub fn encode(families: &[MetricFamily], exemplars: &FamilyExemplars) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a string does not fail.
        let _ = write_family(&mut text, family, exemplars);
    }
    text.push_str("# EOF\n");
    text
}

fn write_family(text: &mut String, family: &MetricFamily, exemplars: &FamilyExemplars) -> fmt::Result {
    let counter_name = family.name().strip_suffix("_total");
    let (name, kind) = match (family.get_field_type(), counter_name) {
        (MetricType::COUNTER, Some(name)) => (name, "counter"),
        (MetricType::GAUGE, _) => (family.name(), "gauge"),
        (MetricType::HISTOGRAM, _) => (family.name(), "histogram"),
        _ => (family.name(), "unknown"),
    };
    writeln!(text, "# TYPE {name} {kind}")?;
    let has_unit = |unit: &&&str| name.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_'));
    if let Some(unit) = UNITS.iter().find(has_unit) {
        writeln!(text, "# UNIT {name} {unit}")?;
    }
    writeln!(text, "# HELP {name} {}", Escaped(family.help()))?;
    let of_family = exemplars.by_label.iter().filter(|_| exemplars.family == family.name());
    let by_label: BTreeMap<&str, &BucketExemplars> =
        of_family.map(|(label, buckets)| (label.as_str(), buckets)).collect();
    for metric in family.get_metric() {
        let labels = metric.get_label();
        match kind {
            "counter" => write_sample(text, name, "_total", labels, None, metric.get_counter().get_value())?,
            "unknown" => write_sample(text, name, "", labels, None, metric.get_counter().get_value())?,
            "gauge" => write_sample(text, name, "", labels, None, metric.get_gauge().get_value())?,
            _ => {
                let buckets = labels.first().and_then(|label| by_label.get(label.value()).copied());
                write_histogram(text, name, metric, buckets)?;
            }
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
fn write_histogram(text: &mut String, name: &str, metric: &Metric, exemplars: Option<&BucketExemplars>) -> fmt::Result {
    let (labels, histogram) = (metric.get_label(), metric.get_histogram());
    let finite = histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let bounds = finite.map(|bucket| (format!("{:?}", bucket.upper_bound()), bucket.cumulative_count()));
    let all = bounds.chain([("+Inf".to_owned(), histogram.get_sample_count())]);
    for (place, (bound, count)) in all.enumerate() {
        write_sample(text, name, "_bucket", labels, Some(&bound), count as f64)?;
        let exemplar = exemplars.and_then(|exemplars| exemplars.get(place).copied().flatten());
        if let Some(Exemplar { trace_id, seconds, time_ms }) = exemplar {
            let (whole, ms) = (time_ms / 1000, time_ms % 1000);
            text.pop();
            writeln!(text, " # {{trace_id=\"{trace_id:032x}\"}} {seconds} {whole}.{ms:03}")?;
        }
    }
    write_sample(text, name, "_count", labels, None, histogram.get_sample_count() as f64)?;
    write_sample(text, name, "_sum", labels, None, histogram.get_sample_sum())
}

/// Writes a line. `bound`: the value of the label `le`.
fn write_sample(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &[LabelPair],
    bound: Option<&str>,
    value: f64,
) -> fmt::Result {
    write!(text, "{name}{suffix}")?;
    let pairs = labels.iter().map(|label| (label.name(), label.value())).chain(bound.map(|bound| ("le", bound)));
    let mut start = '{';
    for (label, value) in pairs {
        write!(text, "{start}{label}=\"{}\"", Escaped(value))?;
        start = ',';
    }
    if start == ',' {
        text.push('}');
    }
    match value {
        value if value.is_nan() => writeln!(text, " NaN"),
        value if value.is_infinite() => writeln!(text, " {}Inf", if value > 0.0 { '+' } else { '-' }),
        value => writeln!(text, " {value}"),
    }
}

/// A text in which backslashes, quotes and line breaks are escaped.
struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            _ => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use prometheus::{Gauge, Histogram, HistogramOpts, IntCounterVec, Opts};

    use super::*;

    #[test]
    fn names_bounds_and_units_follow_the_format() {
        let counter = IntCounterVec::new(Opts::new("sent_bytes_total", "A \"quote\"."), &["to"]).unwrap();
        counter.with_label_values(&["a\\\"\n"]).inc_by(3);
        let gauge = Gauge::new("load_ratio", "Load.").unwrap();
        gauge.set(f64::INFINITY);
        let options = HistogramOpts::new("time_seconds", "Time.").buckets(vec![0.001, 1.0]).const_label("route", "api");
        let histogram = Histogram::with_opts(options).unwrap();
        [0.000_488_281_25, 0.5, 3.0].into_iter().for_each(|seconds| histogram.observe(seconds));
        let mut found = BucketExemplars::default();
        found[1] = Some(Exemplar { trace_id: 0xabc, seconds: 0.5, time_ms: 1_700_000_000_007 });
        let by_label = BTreeMap::from([("api".to_owned(), found)]);
        let families = [counter.collect(), gauge.collect(), histogram.collect()].concat();
        let expected = r#"# TYPE sent_bytes counter
# UNIT sent_bytes bytes
# HELP sent_bytes A \"quote\".
sent_bytes_total{to="a\\\"\n"} 3
# TYPE load_ratio gauge
# UNIT load_ratio ratio
# HELP load_ratio Load.
load_ratio +Inf
# TYPE time_seconds histogram
# UNIT time_seconds seconds
# HELP time_seconds Time.
time_seconds_bucket{route="api",le="0.001"} 1
time_seconds_bucket{route="api",le="1.0"} 2 # {trace_id="00000000000000000000000000000abc"} 0.5 1700000000.007
time_seconds_bucket{route="api",le="+Inf"} 3
time_seconds_count{route="api"} 3
time_seconds_sum{route="api"} 3.50048828125
# EOF
"#;
        assert_eq!(encode(&families, &FamilyExemplars { family: "time_seconds", by_label }), expected);
    }
}
