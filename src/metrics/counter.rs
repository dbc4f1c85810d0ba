//! Counters with labels of their own, counted by each worker for itself. Made by `Metrics`.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use super::shards::{Count, Shard, Shards};
use super::shown;

/// One worker's part of one series. It stays on the thread that it counts for.
#[derive(Clone)]
pub struct Counter {
    shard: Arc<Shard<Count>>,
    stays: PhantomData<Rc<()>>,
}

impl Counter {
    pub fn inc(&self) {
        self.shard.inc();
    }
}

/// A family; all clones are the same.
#[derive(Clone)]
pub struct Counters {
    desc: Desc,
    series: Arc<Mutex<Series>>,
}

/// By the values of the labels, in the order of the description.
type Series = BTreeMap<Vec<String>, Arc<Shards<Count>>>;

impl Counters {
    /// `labels` in the order of their names; without any, the one series exists from the start.
    pub fn new(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Counters> {
        let first = labels.is_empty().then(|| (Vec::new(), Arc::default()));
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(format!("sluicegate_{name}"), help.to_owned(), labels, HashMap::new())?;
        Ok(Counters { desc, series: Arc::new(Mutex::new(first.into_iter().collect())) })
    }

    /// The part of `worker` in the series of these `values`, which exists from now on.
    pub fn of(&self, worker: usize, values: &[&str]) -> Counter {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let shard = self.lock().entry(values).or_default().of(worker);
        Counter { shard, stays: PhantomData }
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
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
            shown::counter(shards.iter().map(Count::get).sum(), &labels.collect::<Vec<_>>())
        });
        vec![shown::family(&self.desc, proto::MetricType::COUNTER, metrics.collect())]
    }
}
