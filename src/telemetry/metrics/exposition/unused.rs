//! Leaves out series that were never used, for configs with thousands of routes and limits. Called by `Metrics`.

use std::collections::{HashMap, HashSet};

use prometheus::proto::{Metric, MetricFamily, MetricType};

/// Which series `/metrics` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownSeries {
    All,
    /// Those that have counted something, and one of each family.
    Used,
}

/// Labels of gauges that count something for one route or limit, such as requests in progress. Other gauges are a
/// state, such as `up`, so that 0 says something.
const COUNTED_LABELS: [&str; 2] = ["route", "limit"];

/// The gauges of routes and limits that were not 0 in an earlier text, by family: their labels. They stay, so that a
/// chart shows their return to 0.
#[derive(Default)]
pub struct UsedGauges(HashMap<String, HashSet<Vec<String>>>);

impl UsedGauges {
    /// Removes the series that have counted nothing, except the first one if none has: queries find the family.
    pub fn drop_unused(&mut self, family: &mut MetricFamily) {
        let before = family.take_metric();
        let used: Vec<bool> = match family.get_field_type() {
            MetricType::COUNTER => before.iter().map(|metric| metric.get_counter().get_value() > 0.0).collect(),
            MetricType::HISTOGRAM => {
                before.iter().map(|metric| metric.get_histogram().get_sample_count() > 0).collect()
            }
            MetricType::GAUGE if before.first().is_some_and(is_counted) => self.note_gauges(family.name(), &before),
            _ => vec![true; before.len()],
        };
        let first_shown = used.iter().position(|is_used| *is_used).unwrap_or(0);
        let shown = before.into_iter().zip(used).enumerate();
        let shown = shown.filter(|(place, (_, is_used))| *is_used || *place == first_shown);
        family.set_metric(shown.map(|(_, (metric, _))| metric).collect());
    }

    /// Returns which gauges of a family are not 0, or were not 0 in an earlier text. Forgets gauges that no longer
    /// exist.
    fn note_gauges(&mut self, family: &str, metrics: &[Metric]) -> Vec<bool> {
        let known = self.0.remove(family).unwrap_or_default();
        let mut used_labels = HashSet::new();
        let is_used = |metric: &Metric| {
            let labels: Vec<String> = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
            let is_used = metric.get_gauge().get_value() != 0.0 || known.contains(&labels);
            if is_used {
                used_labels.insert(labels);
            }
            is_used
        };
        let used = metrics.iter().map(is_used).collect();
        self.0.insert(family.to_owned(), used_labels);
        used
    }
}

fn is_counted(gauge: &Metric) -> bool {
    gauge.get_label().iter().any(|label| COUNTED_LABELS.contains(&label.name()))
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

    use super::*;

    fn names(used: &mut UsedGauges, collector: &impl Collector) -> Vec<String> {
        let mut family = collector.collect().remove(0);
        used.drop_unused(&mut family);
        let mut names: Vec<String> =
            family.get_metric().iter().map(|metric| metric.get_label()[0].value().to_owned()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_used_series_remain_and_one_of_a_family_without_any() {
        let counters = IntCounterVec::new(Opts::new("a", "a"), &["route"]).unwrap();
        let histograms = HistogramVec::new(HistogramOpts::new("b", "b"), &["route"]).unwrap();
        let gauges = IntGaugeVec::new(Opts::new("c", "c"), &["limit"]).unwrap();
        let states = IntGaugeVec::new(Opts::new("d", "d"), &["server"]).unwrap();
        for name in ["one", "two", "three"] {
            drop(counters.with_label_values(&[name]));
            drop(histograms.with_label_values(&[name]));
            drop(gauges.with_label_values(&[name]));
            drop(states.with_label_values(&[name]));
        }
        let mut used = UsedGauges::default();
        assert_eq!([names(&mut used, &counters).len(), names(&mut used, &histograms).len()], [1, 1]);
        assert_eq!([names(&mut used, &gauges).len(), names(&mut used, &states).len()], [1, 3]);
        counters.with_label_values(&["two"]).inc();
        histograms.with_label_values(&["three"]).observe(0.0);
        assert_eq!([names(&mut used, &counters), names(&mut used, &histograms)], [["two"], ["three"]]);
        // A gauge that was seen above 0 stays at 0.
        gauges.with_label_values(&["two"]).set(5);
        assert_eq!(names(&mut used, &gauges), ["two"]);
        gauges.with_label_values(&["two"]).set(0);
        gauges.with_label_values(&["one"]).set(-1);
        assert_eq!(names(&mut used, &gauges), ["one", "two"]);
        // One that was removed and comes back is new.
        gauges.remove_label_values(&["two"]).unwrap();
        assert_eq!(names(&mut used, &gauges), ["one"]);
        drop(gauges.with_label_values(&["two"]));
        assert_eq!(names(&mut used, &gauges), ["one"]);
    }
}
