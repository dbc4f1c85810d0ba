//! Sliding window of counters; twin of `lua/sliding_window.lua`, same names, same order.
//!
//! Two counters: the older one is weighted by the share of it that the window still covers, so a
//! stretch as long as a window admits less than twice `limit`, and no burst is above it. More
//! counters, each a part of the window: all that the window touches count in full, so no stretch
//! as long as a window ever admits more than `limit`.

use super::algorithm::{COUNT, numbers};
use super::exact::{EXACT, div_ceil};
use super::params::{Field, Given, Misfit, PERIOD_MOST_MS, Param, RATE, at_most, misfit};
use super::records::{self, Recorded, RecordsState};
use super::{Algorithm, Number, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

/// At most `limit` in about any `window_ms`; `unit_ms` is the span of one counter, the whole
/// window if there are two.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    pub limit: i64,
    pub window_ms: i64,
    unit_ms: i64,
}

/// Counters from the one numbered `id` (time / `unit_ms`) backwards.
#[derive(Clone, Debug, PartialEq)]
pub struct CountersRecord {
    unit_ms: i64,
    window_ms: i64,
    id: i64,
    counts: Vec<i64>,
}

/// Above this a sum of counters, or a counter times the window, is not exact.
const MOST: i64 = EXACT - 1;
/// More counters than a window has, the newest and the oldest touched included.
const COUNTERS: i64 = 64;

const PRECISION_MOST: i64 = 60;
const PRECISION: Field<i64> = Field::<i64>::integer("precision", 2, PRECISION_MOST);

impl Algorithm for SlidingWindow {
    type State = RecordsState<CountersRecord>;

    const LEADING: Param = RATE.param;
    const OTHERS: &'static [Param] = &[PRECISION.param];

    const NUMBER: Number = COUNT;

    const OWN_NUMBERS: bool = true;

    fn build(given: &Given) -> Result<SlidingWindow, Misfit> {
        let rate = given.need(&RATE)?;
        let precision = given.get(&PRECISION).unwrap_or(2);
        let Some(window) = SlidingWindow::new(rate.count, rate.per_ms, precision) else {
            let what = format!("{precision} parts of {} ms are shorter than a millisecond", rate.per_ms);
            return Err(match given.get(&PRECISION) {
                Some(_) => misfit(PRECISION.name(), what, format!("at most {}", rate.per_ms)),
                None => misfit(RATE.name(), what, format!("the shortest period is {precision}ms")),
            });
        };
        at_most(window.largest(), rate.count)?;
        Ok(window)
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        vec![self.limit, self.window_ms, self.unit_ms]
    }

    fn noted(note: &str) -> Option<SlidingWindow> {
        let &[limit @ 1..=MOST, window_ms @ 1..=PERIOD_MOST_MS, unit_ms] = &*numbers(note)? else { return None };
        let windows = (2..=PRECISION_MOST).filter_map(|precision| SlidingWindow::new(limit, window_ms, precision));
        windows.into_iter().find(|window| window.unit_ms == unit_ms && limit <= window.largest())
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window_ms: self.window_ms }
    }

    /// The counters of the window are summed up.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        2
    }

    fn share(&self, n: i64) -> SlidingWindow {
        SlidingWindow { limit: (self.limit / n).max(1), ..*self }
    }

    fn numbered(&self, limit: i64) -> SlidingWindow {
        SlidingWindow { limit, ..*self }
    }

    /// Also of what a counter holds.
    fn largest(&self) -> i64 {
        MOST / if self.weighted() { self.window_ms } else { COUNTERS }
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(&self, state: Option<&Self::State>, now: i64, delta: i64, receipt: i64) -> Option<(Self::State, i64)> {
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

impl Recorded for SlidingWindow {
    type Record = CountersRecord;

    fn owns(&self, record: &CountersRecord, _now: i64) -> bool {
        record.unit_ms == self.unit_ms && record.window_ms == self.window_ms
    }

    fn decide_one(&self, record: Option<&CountersRecord>, now: i64, cost: i64) -> Step<CountersRecord> {
        let mut counted = self.counts_at(record, now);

        let mut free = self.room(&counted);
        let admitted = cost == 0 || cost <= free;
        let mut retry_ms = 0;
        if cost > self.limit {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = self.fits_at(&counted, cost, free) - now;
        }
        if admitted && cost > 0 {
            counted.add(0, cost);
            free -= cost;
        }

        let reset_ms = self.clear_at(&counted, now) - now;
        let store = cost > 0 && (admitted || counted.mended);
        let receipt = counted.at;
        Step {
            answer: Answer { admitted, remaining: free.max(0), retry_ms, reset_ms, receipt },
            next: store.then(|| (self.stored(counted), reset_ms.max(1))),
        }
    }

    /// The receipt is the time of the charge; when its counter no longer counts nothing is given
    /// back.
    fn adjust_one(
        &self,
        record: Option<&CountersRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<(CountersRecord, i64, i64)> {
        let mut counted = self.counts_at(record, now);
        let mut place = 0;
        if delta < 0 {
            place = self.place_of(&counted, receipt)?;
        }
        let changed = (counted.get(place) + delta).min(self.largest()).max(0);
        counted.add(place, changed - counted.get(place));
        let reset_ms = self.clear_at(&counted, now) - now;
        Some((self.stored(counted), reset_ms.max(1), delta))
    }

    fn adopt(&self, record: &CountersRecord, now: i64) -> (CountersRecord, i64) {
        let living = SlidingWindow::of(record).counts_at(Some(record), now);
        let mut counted = Counted { id: now / self.unit_ms, counts: Vec::new(), at: now, mended: false };
        self.move_into(&mut counted, &living, record.unit_ms, now);
        let used = counted.counts.iter().sum();
        (self.stored(counted), used)
    }
}

impl records::Record for CountersRecord {
    fn life(&self, now: i64) -> i64 {
        let rule = SlidingWindow::of(self);
        rule.clear_at(&rule.counts_at(Some(self), now), now) - now
    }

    fn charged(&self, now: i64, cost: i64) -> CountersRecord {
        let rule = SlidingWindow::of(self);
        let mut counted = rule.counts_at(Some(self), now);
        let more = cost.min(rule.largest() - counted.get(0));
        counted.add(0, more);
        rule.stored(counted)
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    fn left(&self, now: i64, cost: i64, receipt: i64) -> f64 {
        let rule = SlidingWindow::of(self);
        let counted = rule.counts_at(Some(self), now);
        rule.place_of(&counted, receipt).map_or(0, |place| counted.get(place).min(cost)) as f64
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most a cost")]
    fn back(&self, now: i64, units: f64, receipt: i64) -> CountersRecord {
        let rule = SlidingWindow::of(self);
        let mut counted = rule.counts_at(Some(self), now);
        if let Some(place) = rule.place_of(&counted, receipt) {
            let given = counted.get(place).min(units as i64);
            counted.add(place, -given);
        }
        rule.stored(counted)
    }
}

/// Number of the counter that now falls into, the counters that still count from it backwards, the
/// time they hold for, and whether that has to be stored even after a refusal.
struct Counted {
    id: i64,
    counts: Vec<i64>,
    at: i64,
    mended: bool,
}

impl Counted {
    fn get(&self, place: usize) -> i64 {
        self.counts.get(place).copied().unwrap_or(0)
    }

    fn add(&mut self, place: usize, units: i64) {
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += units;
    }
}

impl SlidingWindow {
    /// `precision` 2: two weighted counters; more: so many strict ones in a window. `None` if a
    /// counter would span less than a millisecond.
    pub fn new(limit: i64, window_ms: i64, precision: i64) -> Option<SlidingWindow> {
        let unit_ms = if precision == 2 { window_ms } else { div_ceil(window_ms, precision) };
        (window_ms >= precision).then_some(SlidingWindow { limit, window_ms, unit_ms })
    }

    /// Whose basis the record is of.
    fn of(record: &CountersRecord) -> SlidingWindow {
        SlidingWindow { limit: 0, window_ms: record.window_ms, unit_ms: record.unit_ms }
    }

    fn weighted(&self) -> bool {
        self.unit_ms == self.window_ms
    }

    /// When the counter of that number no longer counts. Of a strict one the last ms may hold a charge
    /// made at its end, which is a whole window ago only a ms after that; a weighted one has lost its
    /// weight when the window after it ends.
    fn expiry(&self, id: i64) -> i64 {
        (id + 1) * self.unit_ms + self.window_ms
    }

    fn counts_at(&self, record: Option<&CountersRecord>, now: i64) -> Counted {
        let SlidingWindow { window_ms: window, unit_ms: unit, .. } = *self;
        let mut counted = Counted { id: now / unit, counts: Vec::new(), at: now, mended: false };
        let Some(record) = record else { return counted };

        let mut newest = record.id;
        // Further ahead than a whole window was left by another clock. It must be mended for good,
        // or the window would never pass.
        if newest * unit > now + window {
            (newest, counted.mended) = (counted.id + 1, true);
        }
        if newest > counted.id {
            (counted.id, counted.at) = (newest, newest * unit);
        }
        if self.expiry(newest) <= counted.at {
            return counted;
        }
        counted.counts.resize(usize::try_from(counted.id - newest).unwrap_or(0), 0);
        let living = (0..).zip(&record.counts).take_while(|(age, _)| self.expiry(newest - age) > counted.at);
        counted.counts.extend(living.map(|(_, count)| (*count).min(self.largest())));
        counted
    }

    /// The place of the counter that holds a charge of that time, if it still counts any.
    fn place_of(&self, counted: &Counted, charged_ms: i64) -> Option<usize> {
        let place = usize::try_from(counted.id - charged_ms.div_euclid(self.unit_ms)).ok()?;
        (counted.get(place) > 0).then_some(place)
    }

    /// Counters of another unit, each at the latest time its charges can be of.
    fn move_into(&self, counted: &mut Counted, from: &Counted, unit_ms: i64, now: i64) {
        for (age, count) in (0..).zip(&from.counts) {
            let latest = ((from.id - age + 1) * unit_ms - 1).min(now);
            let home = latest.div_euclid(self.unit_ms);
            if *count > 0 && self.expiry(home) > now {
                let place = usize::try_from(counted.id - home).unwrap_or(0);
                let sum = (counted.get(place) + count).min(self.largest());
                counted.add(place, sum - counted.get(place));
            }
        }
    }

    /// What could be taken now, below 0 if more than `limit` is taken.
    fn room(&self, counted: &Counted) -> i64 {
        let SlidingWindow { limit, window_ms: window, .. } = *self;
        if self.weighted() {
            let (count, before) = (counted.get(0), counted.get(1));
            let covered = window - (counted.at - counted.id * window);
            return ((limit - count) * window - before * covered).div_euclid(window);
        }
        limit - counted.counts.iter().sum::<i64>()
    }

    /// When a cost that is refused now fits, nothing else arriving.
    fn fits_at(&self, counted: &Counted, cost: i64, free: i64) -> i64 {
        let SlidingWindow { limit, window_ms: window, .. } = *self;
        if self.weighted() {
            let (count, before) = (counted.get(0), counted.get(1));
            if count + cost <= limit {
                return (counted.id + 1) * window - (limit - count - cost) * window / before;
            }
            return (counted.id + 2) * window - (limit - cost) * window / count;
        }
        let (mut excess, mut oldest) = (cost - free, counted.counts.len());
        for count in counted.counts.iter().rev() {
            oldest -= 1;
            excess -= count;
            if excess <= 0 {
                break;
            }
        }
        self.expiry(counted.id - i64::try_from(oldest).unwrap_or(COUNTERS))
    }

    /// When the newest counter with a charge no longer counts; now if there is none.
    fn clear_at(&self, counted: &Counted, now: i64) -> i64 {
        let newest = (0..).zip(&counted.counts).find(|(_, count)| **count > 0);
        newest.map_or(now, |(age, _)| self.expiry(counted.id - age))
    }

    fn stored(&self, Counted { id, mut counts, .. }: Counted) -> CountersRecord {
        let size = counts.iter().rposition(|count| *count > 0).map_or(1, |last| last + 1);
        counts.resize(size, 0);
        CountersRecord { unit_ms: self.unit_ms, window_ms: self.window_ms, id, counts }
    }
}
