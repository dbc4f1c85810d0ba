//! Units that the configured limits left to their keys in the last ten minutes, and the time since which each limit
//! has its settings. Owned by the control thread.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::limiting::limit::{Limit, LimitTable};
use crate::telemetry::metrics::{HeadroomSums, LimitRegistry};

/// Readings of the counts of all limits, one at the start of each part of the longest window, the oldest first.
pub struct HeadroomHistory {
    started: Instant,
    readings: VecDeque<HeadroomReading>,
    /// The active limits by name, each with the time since when it has its settings.
    limits: HashMap<String, (Arc<Limit>, Instant)>,
}

struct HeadroomReading {
    at: Instant,
    sums: HashMap<String, HeadroomSums>,
}

impl HeadroomHistory {
    pub fn new(now: Instant) -> HeadroomHistory {
        // Counts start with the process.
        let first = HeadroomReading { at: now, sums: HashMap::new() };
        HeadroomHistory { started: now, readings: VecDeque::from([first]), limits: HashMap::new() }
    }

    /// Reads the counts if a part of the window has begun, and drops readings from before the window. `first` and
    /// `last`: when the oldest and the newest part began.
    pub fn read_counts(&mut self, (first, last): (Instant, Instant), counts: &LimitRegistry) {
        if self.readings.back().is_none_or(|reading| reading.at < last) {
            self.readings.push_back(HeadroomReading { at: last, sums: counts.sum_all() });
        }
        while self.readings.get(1).is_some_and(|second| second.at <= first) {
            self.readings.pop_front();
        }
    }

    /// Records which of the active limits have changed. Limits of the first call are active since the start.
    pub fn record_limits(&mut self, limits: &LimitTable, now: Instant) {
        self.limits.retain(|name, _| limits.index_of(name).is_some());
        let new_since = if self.limits.is_empty() { self.started } else { now };
        for limit in limits.iter() {
            let since = match self.limits.get(&limit.name) {
                Some((known, since)) if Arc::ptr_eq(known, limit) || **known == **limit => *since,
                Some(_) => now,
                None => new_since,
            };
            self.limits.insert(limit.name.clone(), (limit.clone(), since));
        }
    }

    /// Returns what the limit `name` left since the window began.
    pub fn find_headroom(&self, name: &str, counts: &LimitRegistry) -> HeadroomSums {
        let then = self.readings.front().and_then(|first| first.sums.get(name)).copied().unwrap_or_default();
        counts.find(name).map(|gauges| gauges.sum_headroom().since(then)).unwrap_or_default()
    }

    /// Returns since when the limit `name` has its settings.
    pub fn unchanged_since(&self, name: &str) -> Option<Instant> {
        self.limits.get(name).map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limiting::algorithm::SPECS;
    use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
    use crate::limiting::limit::Mode;

    fn limits(count: i64) -> LimitTable {
        let rate = ParamValue::Rate(Rate { count, per_ms: 1000 });
        let values = SPECS[0].params().map(|param| (param.name, (param.name == "rate").then(|| rate.clone())));
        let rule = (SPECS[0].build)(&OptionValues::new(values.collect(), false)).unwrap();
        LimitTable::new(vec![Limit::bare("daily", rule, Mode::Enforce)])
    }

    #[test]
    fn counts_are_those_since_the_window_began() {
        let (counts, start) = (LimitRegistry::default(), Instant::now());
        let mut history = HeadroomHistory::new(start);
        let count = counts.get_or_create("daily").headroom.shard_for(1);
        let admitted = |history: &HeadroomHistory| history.find_headroom("daily", &counts).admitted.iter().sum::<u64>();
        for minute in 0..30 {
            let at = |minute| start + Duration::from_secs(60 * minute);
            history.read_counts((at(minute.max(10) - 10), at(minute)), &counts);
            count.count_admission(5, 10);
            assert_eq!(admitted(&history), minute.min(10) + 1);
            assert!(history.readings.len() <= 11);
        }
        assert_eq!(history.find_headroom("other", &counts), HeadroomSums::default());
    }

    #[test]
    fn a_changed_limit_is_noticed_and_an_equal_one_is_not() {
        let start = Instant::now();
        let mut history = HeadroomHistory::new(start);
        let at = |seconds| start + Duration::from_secs(seconds);
        history.record_limits(&limits(10), at(2));
        history.record_limits(&limits(10), at(70));
        assert_eq!(history.unchanged_since("daily"), Some(start));
        history.record_limits(&limits(11), at(72));
        assert_eq!(history.unchanged_since("daily"), Some(at(72)));
        history.record_limits(&LimitTable::default(), at(74));
        assert_eq!(history.unchanged_since("daily"), None);
    }
}
