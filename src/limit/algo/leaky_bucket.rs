//! Leaky bucket in exact integers; twin of `lua/leaky_bucket.lua`, same names, same order. Units
//! leave evenly, never closer than `per_ms / rate`; what comes faster waits for its slot, at most
//! `queue_ms`, and is refused beyond.
//!
//! The state counts what has not left, whatever the queue: the next free slot of a record is
//! `used / rate` ms after its time, exactly.

use super::algorithm::numbers;
use super::exact::div_ceil;
use super::params::{Field, Given, Misfit, Param, RATE, Rate, misfit};
use super::records::{self, Recorded, RecordsState};
use super::refill::{LedgerMark, MOST, Marks, RefillRecord};
use super::told::duration;
use super::{Algorithm, Number, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

/// `rate` units leave every `per_ms`; one waits at most `queue_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub queue_ms: i64,
    /// Admit the same requests, but at once.
    pub nodelay: bool,
    /// Charges may have to be given back.
    pub refunds: bool,
}

/// A day.
const QUEUE_MOST_MS: i64 = 86_400_000;
/// Slots are told apart by their microsecond.
const SLOTS_PER_MS: i64 = 1000;

const QUEUE: Field<i64> = Field::<i64>::duration("queue", 0, QUEUE_MOST_MS).amount();
const NODELAY: Field<bool> = Field::<bool>::flag("nodelay");

impl Algorithm for LeakyBucket {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const OTHERS: &'static [Param] = &[QUEUE.param, NODELAY.param];

    const NUMBER: Number = Number { name: "queue_ms", words: "queue", least: 0 };

    const OWN_NUMBERS: bool = true;

    fn build(given: &Given) -> Result<LeakyBucket, Misfit> {
        let written = given.need(&RATE)?;
        let Rate { count: rate, per_ms } = written.reduced();
        if rate > per_ms * SLOTS_PER_MS {
            let help = format!("the largest count for this period is {}", written.per_ms * SLOTS_PER_MS);
            return Err(misfit(RATE.name(), "slots would be closer than a microsecond", help));
        }
        let queue_ms = given.get(&QUEUE).unwrap_or(0);
        let nodelay = given.get(&NODELAY).unwrap_or(false);
        let bucket = LeakyBucket { rate, per_ms, queue_ms, nodelay, refunds: given.refunds };
        if queue_ms > bucket.largest() {
            let help = format!("the longest `queue` for this rate is {}ms", bucket.largest());
            return Err(misfit(QUEUE.name(), "it is too long to stay exact", help));
        }
        Ok(bucket)
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        let LeakyBucket { rate, per_ms, queue_ms, nodelay, refunds } = *self;
        let mut params = vec![rate, per_ms, queue_ms, i64::from(nodelay)];
        params.extend(refunds.then_some(1));
        params
    }

    fn noted(note: &str) -> Option<LeakyBucket> {
        let numbers = numbers(note)?;
        let (&[rate, per_ms, queue_ms, nodelay @ 0..=1], refunds) = numbers.split_first_chunk()? else { return None };
        let refunds = match refunds {
            [] => false,
            [1] => true,
            _ => return None,
        };
        let bucket = LeakyBucket { rate, per_ms, queue_ms, nodelay: nodelay == 1, refunds };
        let sound = (1..=MOST).contains(&per_ms)
            && (1..=per_ms * SLOTS_PER_MS).contains(&rate)
            && (0..=bucket.largest()).contains(&queue_ms);
        sound.then_some(bucket)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst(), window_ms: div_ceil(self.full(), self.rate) }
    }

    /// The same longest wait, as far as that holds whole units.
    /// Where charges may be given back, marks are kept and read.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        if self.refunds { 4 } else { 1 }
    }

    fn share(&self, n: i64) -> LeakyBucket {
        let units = (self.burst() / n).max(1);
        let per_ms = self.per_ms * n;
        let queue_ms = div_ceil((units - 1) * per_ms, self.rate);
        let part = LeakyBucket { per_ms, queue_ms, ..*self };
        if part.burst() > units { LeakyBucket { queue_ms: queue_ms - 1, ..part } } else { part }
    }

    fn numbered(&self, queue_ms: i64) -> LeakyBucket {
        LeakyBucket { queue_ms, ..*self }
    }

    /// At most a cost and a queue's length are added to what is taken: 2 queue rate + 3 per.
    fn largest(&self) -> i64 {
        ((MOST - self.rate - 2 * self.per_ms) / self.rate).min(QUEUE_MOST_MS)
    }

    fn told(&self) -> String {
        format!("{} per {}, queue {}", self.rate, duration(self.per_ms), duration(self.queue_ms))
    }

    fn told_number(&self) -> String {
        format!("queue {} at {} per {}", duration(self.queue_ms), self.rate, duration(self.per_ms))
    }

    fn delays(&self) -> bool {
        !self.nodelay && self.queue_ms > 0
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(&self, state: Option<&Self::State>, now: i64, delta: i64, receipt: i64) -> Option<(Self::State, i64)> {
        records::adjust(self, state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |record| record.text(4))
    }
}

impl Recorded for LeakyBucket {
    type Record = RefillRecord;

    fn owns(&self, record: &RefillRecord, now: i64) -> bool {
        record.same_basis(&self.record(0, now))
    }

    fn decide_one(&self, record: Option<&RefillRecord>, now: i64, cost: i64) -> Step<RefillRecord> {
        let LeakyBucket { rate, per_ms: per, nodelay, .. } = *self;
        let (before, mended) = self.level(record, now);
        let mut used = before;
        let (full, burst) = (self.full(), self.burst());

        let need = cost.min(burst + 1) * per;
        let over = used + need - full;
        let admitted = cost == 0 || over <= 0;
        let mut retry_ms = 0;
        if cost > burst {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = div_ceil(over, rate);
        } else if cost > 0 && !nodelay {
            retry_ms = div_ceil(used, rate);
        }
        if admitted {
            used += need;
        }

        let reset_ms = div_ceil(used, rate);
        let store = cost > 0 && (admitted || mended);
        let remaining = ((full - used) / per).max(0);
        let receipt = if nodelay { now } else { self.slot(used, now) };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt },
            next: store.then(|| {
                let marks = if admitted { self.marks_after(record, before, now) } else { Marks::default() };
                (RefillRecord { marks, ..self.record(used, now) }, reset_ms)
            }),
        }
    }

    /// The receipt is the time of the charge, and as much is given back as is still there of it for
    /// certain. Where requests wait for their slots it is the slot after the charge, and only the
    /// last one can be given back: those behind others would leave a hole.
    fn adjust_one(
        &self,
        record: Option<&RefillRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<(RefillRecord, i64, i64)> {
        let LeakyBucket { rate, per_ms: per, nodelay, .. } = *self;
        let (before, _) = self.level(record, now);
        let (mut used, mut more) = (before, 0);
        let next_marks;
        if delta < 0 {
            let need = (-delta).min(MOST / per) * per;
            let (level, marks) = (self.record(before, now), marks_of(record));
            used -= match nodelay {
                true => level.holds(marks, need, receipt),
                false if self.slot(before, now) == receipt => need.min(before),
                false => 0,
            };
            if used == before {
                return None;
            }
            next_marks = level.given(marks, if nodelay { receipt } else { 0 }, before - used);
        } else {
            used = (used + delta.min(self.burst()) * per).min(self.full()).max(used);
            more = div_ceil(used - before, per);
            next_marks = self.marks_after(record, before, now);
        }
        Some((RefillRecord { marks: next_marks, ..self.record(used, now) }, div_ceil(used, rate).max(1), more))
    }

    fn adopt(&self, record: &RefillRecord, now: i64) -> (RefillRecord, i64) {
        let record = record.adopted(self.record(0, now), now);
        let used = record.used;
        (record, used)
    }

    /// A slot says nothing of those by other numbers.
    fn left(&self, record: &RefillRecord, now: i64, cost: i64, receipt: i64) -> f64 {
        if self.nodelay { records::Record::left(record, now, cost, receipt) } else { 0.0 }
    }
}

fn marks_of(record: Option<&RefillRecord>) -> &[LedgerMark] {
    record.map_or(&[], |record| &record.marks)
}

impl LeakyBucket {
    fn record(&self, used: i64, at_ms: i64) -> RefillRecord {
        RefillRecord { used, at_ms, rate: self.rate, per_ms: self.per_ms, lump_ms: 1, marks: Marks::default() }
    }

    /// Slots are no times of charges.
    fn marks_after(&self, record: Option<&RefillRecord>, used: i64, now: i64) -> Marks {
        self.record(used, now).marked(marks_of(record), self.refunds && self.nodelay)
    }

    /// What has not left by now, and whether that has to be stored even after a refusal.
    fn level(&self, record: Option<&RefillRecord>, now: i64) -> (i64, bool) {
        let Some(record) = record else { return (0, false) };
        let &RefillRecord { used, at_ms: at, rate, .. } = record;
        if at <= now {
            return (record.advanced(now).used, false);
        }
        // The clock went back: the slots stay where they are, but none may be further ahead than
        // the queue is long, or than they were, and that for good.
        let most = self.full().max(used);
        if at - now > (most - used) / rate {
            return (most, true);
        }
        (used + (at - now) * rate, false)
    }

    /// The most that can be taken and not have left: the queue, and one that goes at once.
    fn full(&self) -> i64 {
        self.queue_ms * self.rate + self.per_ms
    }

    /// Units that can be taken at once.
    fn burst(&self) -> i64 {
        self.full() / self.per_ms
    }

    /// The slot `used` after now, in microseconds.
    fn slot(&self, used: i64, now: i64) -> i64 {
        (now + (used / self.rate).min(SLOT_MOST_MS)) * SLOTS_PER_MS + used % self.rate * SLOTS_PER_MS / self.rate
    }
}

/// Slots further ahead, which no queue reaches, are not told apart.
const SLOT_MOST_MS: i64 = 1_000_000_000_000;
