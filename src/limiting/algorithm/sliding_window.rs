//! Sliding window of counters. Twin of `lua/sliding_window.lua`: same names, same order.
//!
//! - With two counters (`precision = 2`), each covers a whole window. The older one is weighted by the share of it that
//!   the sliding window still covers. An interval as long as the window admits less than twice `limit`.
//! - With more counters, each covers a part of the window, and every counter that the sliding window touches counts in
//!   full. An interval as long as the window never admits more than `limit`.

use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::interface::{COUNT, parse_numbers};
use crate::limiting::algorithm::params::{
    Field, OptionError, OptionValues, PERIOD_MAX_MS, Param, RATE, check_count, option_error,
};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// Admits at most about `limit` units in any interval of `window_ms`. One counter covers `unit_ms`: the whole window if
/// there are two counters.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    pub limit: i64,
    pub window_ms: i64,
    unit_ms: i64,
}

/// Counters, the newest first. The newest has the number `id`, which is its time divided by `unit_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct CountersRecord {
    unit_ms: i64,
    window_ms: i64,
    id: i64,
    counts: Vec<i64>,
}

/// Up to this number, a sum of counters, or a counter times the window, is exact.
const COUNT_MAX: i64 = EXACT - 1;
/// An upper bound of the counters that a window touches.
const COUNTERS: i64 = 64;

const PRECISION_MAX: i64 = 60;
const PRECISION: Field<i64> = Field::<i64>::integer("precision", 2, PRECISION_MAX);

impl Algorithm for SlidingWindow {
    type State = RecordsState<CountersRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[PRECISION.param];

    const NUMBER: Number = COUNT;

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<SlidingWindow, OptionError> {
        let rate = options.require(&RATE)?;
        let precision = options.get(&PRECISION).unwrap_or(2);
        let Some(window) = SlidingWindow::new(rate.count, rate.per_ms, precision) else {
            let what = format!("{precision} parts of {} ms are shorter than a millisecond", rate.per_ms);
            return Err(match options.get(&PRECISION) {
                Some(_) => option_error(PRECISION.name(), what, format!("at most {}", rate.per_ms)),
                None => option_error(RATE.name(), what, format!("the shortest period is {precision}ms")),
            });
        };
        check_count(window.max_number(), rate.count)?;
        Ok(window)
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, self.unit_ms]
    }

    fn decode_rule(encoded: &str) -> Option<SlidingWindow> {
        let &[limit @ 1..=COUNT_MAX, window_ms @ 1..=PERIOD_MAX_MS, unit_ms] = &*parse_numbers(encoded)? else {
            return None;
        };
        let windows = (2..=PRECISION_MAX).filter_map(|precision| SlidingWindow::new(limit, window_ms, precision));
        windows.into_iter().find(|window| window.unit_ms == unit_ms && limit <= window.max_number())
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    /// A decision adds up the counters of the window.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        2
    }

    fn share(&self, n: i64) -> SlidingWindow {
        SlidingWindow { limit: (self.limit / n).max(1), ..*self }
    }

    fn with_number(&self, limit: i64) -> SlidingWindow {
        SlidingWindow { limit, ..*self }
    }

    /// The bound also applies to a single counter.
    fn max_number(&self) -> i64 {
        COUNT_MAX / if self.is_weighted() { self.window_ms } else { COUNTERS }
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(
        &self,
        state: Option<&Self::State>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<Self::State>> {
        records::adjust(self, state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |CountersRecord { unit_ms, window_ms, id, counts }| {
            let mut text = format!("{unit_ms} {window_ms} {id}");
            for count in counts {
                text.push(' ');
                text.push_str(&count.to_string());
            }
            text
        })
    }
}

impl RecordAlgorithm for SlidingWindow {
    type Record = CountersRecord;

    fn matches(&self, record: &CountersRecord, _now: i64) -> bool {
        record.unit_ms == self.unit_ms && record.window_ms == self.window_ms
    }

    fn decide_one(&self, record: Option<&CountersRecord>, now: i64, cost: i64) -> Step<CountersRecord> {
        let mut counters = self.counts_at(record, now);

        let mut free = self.free_units(&counters);
        let admitted = cost == 0 || cost <= free;
        let mut retry_ms = 0;
        if cost > self.limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = self.fits_at(&counters, cost, free) - now;
        }
        if admitted && cost > 0 {
            counters.add(0, cost);
            free -= cost;
        }

        let reset_ms = self.reset_at(&counters, now) - now;
        let store = cost > 0 && (admitted || counters.is_repaired);
        let receipt = counters.at;
        Step {
            answer: Answer { admitted, remaining: free.max(0), retry_ms, reset_ms, receipt, ban: BanAnswer::None },
            next: store.then(|| (self.to_record(counters), reset_ms.max(1))),
        }
    }

    /// Corrects a charge; the receipt is its time. Nothing is refunded once its counter has left the window.
    fn adjust_one(
        &self,
        record: Option<&CountersRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<CountersRecord>> {
        let mut counters = self.counts_at(record, now);
        let mut index = 0;
        if delta < 0 {
            index = self.index_of(&counters, receipt)?;
        }
        let change = (counters.get(index) + delta).min(self.max_number()).max(0) - counters.get(index);
        counters.add(index, change);
        let reset_ms = self.reset_at(&counters, now) - now;
        Some((self.to_record(counters), reset_ms.max(1), change.abs()))
    }

    fn convert(&self, record: &CountersRecord, now: i64) -> (CountersRecord, i64) {
        let live = SlidingWindow::rule_of(record).counts_at(Some(record), now);
        let mut counters = LiveCounters { id: now / self.unit_ms, counts: Vec::new(), at: now, is_repaired: false };
        self.add_converted(&mut counters, &live, record.unit_ms, now);
        let used = counters.counts.iter().sum();
        (self.to_record(counters), used)
    }
}

impl records::UsageRecord for CountersRecord {
    fn lifetime(&self, now: i64) -> i64 {
        let rule = SlidingWindow::rule_of(self);
        rule.reset_at(&rule.counts_at(Some(self), now), now) - now
    }

    fn charged(&self, now: i64, cost: i64) -> CountersRecord {
        let rule = SlidingWindow::rule_of(self);
        let mut counters = rule.counts_at(Some(self), now);
        let more = cost.min(rule.max_number() - counters.get(0));
        counters.add(0, more);
        rule.to_record(counters)
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    fn charge_left(&self, now: i64, cost: i64, receipt: i64) -> f64 {
        let rule = SlidingWindow::rule_of(self);
        let counters = rule.counts_at(Some(self), now);
        rule.index_of(&counters, receipt).map_or(0, |index| counters.get(index).min(cost)) as f64
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most a cost")]
    fn refunded(&self, now: i64, units: f64, receipt: i64) -> CountersRecord {
        let rule = SlidingWindow::rule_of(self);
        let mut counters = rule.counts_at(Some(self), now);
        if let Some(index) = rule.index_of(&counters, receipt) {
            let refund = counters.get(index).min(units as i64);
            counters.add(index, -refund);
        }
        rule.to_record(counters)
    }
}

/// The counters that still count at the current time.
struct LiveCounters {
    /// Number of the current counter.
    id: i64,
    /// Counts, from the current counter backwards.
    counts: Vec<i64>,
    /// The time to which the counts apply.
    at: i64,
    /// The number of the newest counter was corrected, so the state has to be stored even after a refusal.
    is_repaired: bool,
}

impl LiveCounters {
    fn get(&self, index: usize) -> i64 {
        self.counts.get(index).copied().unwrap_or(0)
    }

    fn add(&mut self, index: usize, units: i64) {
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += units;
    }
}

impl SlidingWindow {
    /// Creates a window with `precision` counters: two weighted ones, or more strict ones. Returns `None` if a counter
    /// would cover less than a millisecond.
    pub fn new(limit: i64, window_ms: i64, precision: i64) -> Option<SlidingWindow> {
        let unit_ms = if precision == 2 { window_ms } else { div_ceil(window_ms, precision) };
        (window_ms >= precision).then_some(SlidingWindow { limit, window_ms, unit_ms })
    }

    /// Returns a rule with the basis of the record.
    fn rule_of(record: &CountersRecord) -> SlidingWindow {
        SlidingWindow { limit: 0, window_ms: record.window_ms, unit_ms: record.unit_ms }
    }

    /// Returns whether the window has two counters, of which the older one has a weight.
    pub fn is_weighted(&self) -> bool {
        self.unit_ms == self.window_ms
    }

    /// Returns when the counter with that number no longer counts. A charge at the very end of a strict counter leaves
    /// the window a whole window later; a weighted counter has no weight when the window after it ends.
    fn expiry(&self, id: i64) -> i64 {
        (id + 1) * self.unit_ms + self.window_ms
    }

    fn counts_at(&self, record: Option<&CountersRecord>, now: i64) -> LiveCounters {
        let SlidingWindow { window_ms: window, unit_ms: unit, .. } = *self;
        let mut counters = LiveCounters { id: now / unit, counts: Vec::new(), at: now, is_repaired: false };
        let Some(record) = record else { return counters };

        let mut newest = record.id;
        // A counter further ahead than a whole window comes from a clock that was wrong. It has to be corrected and
        // stored, or the window would never end.
        if newest * unit > now + window {
            (newest, counters.is_repaired) = (counters.id + 1, true);
        }
        if newest > counters.id {
            (counters.id, counters.at) = (newest, newest * unit);
        }
        if self.expiry(newest) <= counters.at {
            return counters;
        }
        counters.counts.resize(usize::try_from(counters.id - newest).unwrap_or(0), 0);
        let live = (0..).zip(&record.counts).take_while(|(age, _)| self.expiry(newest - age) > counters.at);
        counters.counts.extend(live.map(|(_, count)| (*count).min(self.max_number())));
        counters
    }

    /// Returns the index of the counter that contains a charge of that time, if it still counts.
    fn index_of(&self, counters: &LiveCounters, charged_ms: i64) -> Option<usize> {
        let index = usize::try_from(counters.id - charged_ms.div_euclid(self.unit_ms)).ok()?;
        (counters.get(index) > 0).then_some(index)
    }

    /// Adds counters of another length. The charges of each count at the latest time that they can have.
    fn add_converted(&self, counters: &mut LiveCounters, from: &LiveCounters, unit_ms: i64, now: i64) {
        for (age, count) in (0..).zip(&from.counts) {
            let latest = ((from.id - age + 1) * unit_ms - 1).min(now);
            let last_unit = latest.div_euclid(self.unit_ms);
            if *count > 0 && self.expiry(last_unit) > now {
                let index = usize::try_from(counters.id - last_unit).unwrap_or(0);
                let sum = (counters.get(index) + count).min(self.max_number());
                counters.add(index, sum - counters.get(index));
            }
        }
    }

    /// Returns how many units can be charged now; negative if more than `limit` are in the window.
    fn free_units(&self, counters: &LiveCounters) -> i64 {
        let SlidingWindow { limit, window_ms: window, .. } = *self;
        if self.is_weighted() {
            let (count, before) = (counters.get(0), counters.get(1));
            let covered = window - (counters.at - counters.id * window);
            return ((limit - count) * window - before * covered).div_euclid(window);
        }
        limit - counters.counts.iter().sum::<i64>()
    }

    /// Returns when a cost that is refused now will fit, if no other request arrives.
    fn fits_at(&self, counters: &LiveCounters, cost: i64, free: i64) -> i64 {
        let SlidingWindow { limit, window_ms: window, .. } = *self;
        if self.is_weighted() {
            let (count, before) = (counters.get(0), counters.get(1));
            if count + cost <= limit {
                return (counters.id + 1) * window - (limit - count - cost) * window / before;
            }
            return (counters.id + 2) * window - (limit - cost) * window / count;
        }
        let (mut excess, mut oldest) = (cost - free, counters.counts.len());
        for count in counters.counts.iter().rev() {
            oldest -= 1;
            excess -= count;
            if excess <= 0 {
                break;
            }
        }
        self.expiry(counters.id - i64::try_from(oldest).unwrap_or(COUNTERS))
    }

    /// Returns when the newest counter with a charge no longer counts; `now` if there is none.
    fn reset_at(&self, counters: &LiveCounters, now: i64) -> i64 {
        let newest = (0..).zip(&counters.counts).find(|(_, count)| **count > 0);
        newest.map_or(now, |(age, _)| self.expiry(counters.id - age))
    }

    fn to_record(&self, LiveCounters { id, mut counts, .. }: LiveCounters) -> CountersRecord {
        let size = counts.iter().rposition(|count| *count > 0).map_or(1, |last| last + 1);
        counts.resize(size, 0);
        CountersRecord { unit_ms: self.unit_ms, window_ms: self.window_ms, id, counts }
    }
}
