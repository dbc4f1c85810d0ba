//! The histogram of the time that requests spend in the gateway itself, without waiting for others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::telemetry::metrics::exposition::series;
use crate::telemetry::metrics::shards::{Count, Shards};

/// Upper bounds of the buckets in nanoseconds: from 10 µs to 1 s.
const BOUNDS_NS: [u64; 14] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// Times of one worker by bucket. A time above the last bound counts only in the total.
#[derive(Default)]
#[repr(C, align(64))]
pub struct OverheadCounts {
    sum_ns: Count,
    buckets: [Count; BOUNDS_NS.len()],
    above: Count,
}

impl OverheadCounts {
    pub fn observe(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let place = BOUNDS_NS.iter().position(|bound| time_ns <= *bound);
        place.map_or(&self.above, |place| &self.buckets[place]).inc();
        self.sum_ns.add(time_ns);
    }
}

/// Exports the counts of all workers.
pub struct OverheadCollector {
    shards: Arc<Shards<OverheadCounts>>,
    desc: Desc,
}

impl OverheadCollector {
    pub fn new(shards: Arc<Shards<OverheadCounts>>) -> prometheus::Result<OverheadCollector> {
        let help =
            "Time that requests spent in the gateway until the head of the response, without waiting for others.";
        let name = "sluicegate_gateway_overhead_seconds".to_owned();
        Ok(OverheadCollector { shards, desc: Desc::new(name, help.to_owned(), Vec::new(), HashMap::new())? })
    }
}

impl Collector for OverheadCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    #[expect(clippy::cast_precision_loss, reason = "the text format knows doubles only")]
    fn collect(&self) -> Vec<proto::MetricFamily> {
        let (mut cumulative, mut count, mut sum_ns) = ([0; BOUNDS_NS.len()], 0, 0);
        for part in self.shards.iter() {
            let mut below = 0;
            for (cumulative, bucket) in cumulative.iter_mut().zip(&part.buckets) {
                below += bucket.get();
                *cumulative += below;
            }
            count += below + part.above.get();
            sum_ns += part.sum_ns.get();
        }
        let bounds = BOUNDS_NS.map(|bound| bound as f64 / 1e9);
        let metric = series::histogram_metric(&bounds, &cumulative, count, sum_ns as f64 / 1e9, &[]);
        vec![series::build_family(&self.desc, proto::MetricType::HISTOGRAM, vec![metric])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up_and_a_bucket_holds_its_bound() {
        let shards = Arc::<Shards<OverheadCounts>>::default();
        [9, 10, 11].map(Duration::from_micros).into_iter().for_each(|time| shards.shard_for(1).observe(time));
        [1_000_001, u64::MAX].map(Duration::from_micros).into_iter().for_each(|time| shards.shard_for(2).observe(time));
        let collector = OverheadCollector::new(shards).unwrap();
        let families = collector.collect();
        let histogram = families[0].get_metric()[0].get_histogram();
        let counts: Vec<u64> = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect();
        assert_eq!((counts[0], counts[1], counts[13], histogram.get_sample_count()), (2, 3, 3, 5));
    }
}
