//! Families whose series come from records with a name, those of routes and of limits: a row says all that is to be
//! known about one.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};

use crate::telemetry::metrics::counts::{BUCKETS, Histogram};
use crate::telemetry::metrics::exposition::series;

/// A family of metrics of the records `R`.
pub struct FamilyRow<R> {
    /// The name without the prefix.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    /// The labels, without the one that names the record.
    pub labels: &'static [&'static str],
    /// Adds the series of one record.
    pub collect: fn(&R, &mut Series),
}

/// The series of a family that are being collected.
pub struct Series<'a> {
    labels: &'static [&'static str],
    /// The label of the record, and its value.
    record: (&'static str, &'a str),
    metrics: Vec<Metric>,
}

/// Calls its argument with each record and the record's name.
type VisitRecords<R> = dyn Fn(&mut dyn FnMut(&str, &R)) + Send + Sync;

/// Exports records as metric families.
pub struct RecordCollector<R: 'static> {
    rows: &'static [FamilyRow<R>],
    descs: Vec<Desc>,
    label: &'static str,
    visit: Box<VisitRecords<R>>,
}

impl<R> RecordCollector<R> {
    /// `label` names the record in each series. `visit` calls its argument with each record and the record's name.
    ///
    /// # Errors
    /// If a name or a label is not valid in Prometheus.
    pub fn new(
        label: &'static str,
        rows: &'static [FamilyRow<R>],
        visit: impl Fn(&mut dyn FnMut(&str, &R)) + Send + Sync + 'static,
    ) -> prometheus::Result<RecordCollector<R>> {
        let desc = |row: &FamilyRow<R>| {
            let labels = row.labels.iter().chain([&label]).map(|label| (*label).to_owned()).collect();
            Desc::new(format!("sluicegate_{}", row.name), row.help.to_owned(), labels, HashMap::new())
        };
        let descs = rows.iter().map(desc).collect::<prometheus::Result<_>>()?;
        Ok(RecordCollector { rows, descs, label, visit: Box::new(visit) })
    }
}

impl<R> Collector for RecordCollector<R> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.rows.iter().zip(&self.descs).map(|(row, desc)| {
            let mut metrics = Vec::new();
            (self.visit)(&mut |name, record| {
                let mut series =
                    Series { labels: row.labels, record: (self.label, name), metrics: std::mem::take(&mut metrics) };
                (row.collect)(record, &mut series);
                metrics = series.metrics;
            });
            series::build_family(desc, row.kind, metrics)
        });
        families.collect()
    }
}

impl Series<'_> {
    /// Adds a counter. `values` are the values of the row's labels.
    pub fn add_counter(&mut self, count: u64, values: &[&str]) {
        self.metrics.push(series::counter_metric(count, &self.pairs(values)));
    }

    pub fn add_gauge(&mut self, value: i64) {
        self.metrics.push(series::gauge_metric(value, &self.pairs(&[])));
    }

    pub fn add_number(&mut self, value: f64) {
        self.metrics.push(series::number_metric(value, &self.pairs(&[])));
    }

    /// Adds a histogram of durations. `values` are the values of the row's labels.
    pub fn add_histogram(&mut self, histogram: &Histogram, values: &[&str]) {
        let Histogram { cumulative, count, sum_seconds } = histogram;
        self.metrics.push(series::histogram_metric(&BUCKETS, cumulative, *count, *sum_seconds, &self.pairs(values)));
    }

    /// Returns the labels with their values, in the order of their names.
    fn pairs<'a>(&'a self, values: &[&'a str]) -> Vec<(&'a str, &'a str)> {
        let own = self.labels.iter().copied().zip(values.iter().copied());
        let mut pairs: Vec<_> = own.chain([self.record]).collect();
        pairs.sort_unstable();
        pairs
    }
}
