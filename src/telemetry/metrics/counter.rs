//! Sharded counters with labels: each worker counts in its own shard. Created by `Metrics`.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::telemetry::metrics::exposition::series;
use crate::telemetry::metrics::shards::{Count, Shard, Shards};

/// One worker's shard of one series. It stays on the thread that counts in it.
#[derive(Clone)]
pub struct Counter {
    shard: Arc<Shard<Count>>,
    stays: PhantomData<Rc<()>>,
}

impl Counter {
    pub fn inc(&self) {
        self.shard.inc();
    }

    pub fn add(&self, more: u64) {
        self.shard.add(more);
    }
}

/// A counter family. All clones share the same series.
#[derive(Clone)]
pub struct Counters {
    desc: Desc,
    series: Arc<Mutex<SeriesShards>>,
}

/// SeriesShards by label values, in the order of the family's label names.
type SeriesShards = BTreeMap<Vec<String>, Arc<Shards<Count>>>;

impl Counters {
    /// Creates a family. `labels` are sorted by name. A family without labels has its one series from the start.
    ///
    /// # Errors
    /// If the name or a label is not valid in Prometheus.
    pub fn new(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Counters> {
        let first = labels.is_empty().then(|| (Vec::new(), Arc::default()));
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())?;
        Ok(Counters { desc, series: Arc::new(Mutex::new(first.into_iter().collect())) })
    }

    /// Returns the shard of `worker` in the series with these label `values`, and creates the series if it is new.
    pub fn shard_for(&self, worker: usize, values: &[&str]) -> Counter {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let shard = self.lock().entry(values).or_default().shard_for(worker);
        Counter { shard, stays: PhantomData }
    }

    fn lock(&self) -> MutexGuard<'_, SeriesShards> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Counters {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let series = self.lock();
        let metrics = series.iter().map(|(values, shards)| {
            let labels = self.desc.variable_labels.iter().map(String::as_str).zip(values.iter().map(String::as_str));
            series::counter_metric(shards.iter().map(Count::get).sum(), &labels.collect::<Vec<_>>())
        });
        vec![series::build_family(&self.desc, proto::MetricType::COUNTER, metrics.collect())]
    }
}
