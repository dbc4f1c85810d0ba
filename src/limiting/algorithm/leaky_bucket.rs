//! Leaky bucket in exact integers. Twin of `lua/leaky_bucket.lua`: same names, same order. Requests proceed evenly, at
//! least `per_ms / rate` apart. Requests that arrive faster wait in the queue for their slot, at most `queue_ms`;
//! beyond that they are refused. With `delay_after`, that many units of the queue proceed immediately. A later one
//! waits until at most that many are left before it.
//!
//! The state counts the units that have not left the queue, regardless of its length: the next free slot is exactly
//! `used / rate` ms after the time of the record.

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::interface::parse_numbers;
use crate::limiting::algorithm::params::{Field, OptionError, OptionValues, Param, RATE, Rate, option_error};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState};
use crate::limiting::algorithm::refill::{LedgerMark, LedgerMarks, RefillRecord, USED_MAX};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// A queue that `rate` units leave every `per_ms`, and in which a unit waits at most `queue_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakyBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub queue_ms: i64,
    /// Admits the same requests, but lets them proceed at once.
    pub nodelay: bool,
    /// This many units of the queue proceed at once.
    pub delay_after: i64,
    /// The limit may refund charges.
    pub refunds: bool,
}

/// Longest queue: a day.
const QUEUE_MAX_MS: i64 = 86_400_000;
/// Largest `delay_after`.
const DELAY_AFTER_MAX: i64 = 1_000_000_000;
/// Slots have a resolution of a microsecond.
const SLOTS_PER_MS: i64 = 1000;

const QUEUE: Field<i64> = Field::<i64>::duration("queue", 0, QUEUE_MAX_MS).overridable();
const NODELAY: Field<bool> = Field::<bool>::flag("nodelay");
const DELAY_AFTER: Field<i64> = Field::<i64>::integer("delay_after", 0, DELAY_AFTER_MAX);

impl Algorithm for LeakyBucket {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[QUEUE.param, NODELAY.param, DELAY_AFTER.param];

    const NUMBER: Number = Number { name: "queue_ms", words: "queue", least: 0 };

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<LeakyBucket, OptionError> {
        let written = options.require(&RATE)?;
        let Rate { count: rate, per_ms } = written.reduced();
        if rate > per_ms * SLOTS_PER_MS {
            let help = format!("the largest count for this period is {}", written.per_ms * SLOTS_PER_MS);
            return Err(option_error(RATE.name(), "slots would be closer than a microsecond", help));
        }
        let queue_ms = options.get(&QUEUE).unwrap_or(0);
        let nodelay = options.get(&NODELAY).unwrap_or(false);
        // More units than the state can count make no difference.
        let delay_after = options.get(&DELAY_AFTER).unwrap_or(0).min(USED_MAX / per_ms);
        if nodelay && delay_after > 0 {
            let help = "remove `nodelay`, which lets all requests proceed at once, or `delay_after`";
            return Err(option_error(DELAY_AFTER.name(), "with `nodelay`, no request waits", help));
        }
        let mut bucket = LeakyBucket { rate, per_ms, queue_ms, nodelay, delay_after, refunds: options.refunds };
        if queue_ms > bucket.max_number() {
            let help = format!("the longest `queue` for this rate is {}ms", bucket.max_number());
            return Err(option_error(QUEUE.name(), "it is too long to stay exact", help));
        }
        // No request waits then, so charges have the receipts of `nodelay`, which can be refunded in any order.
        if bucket.delay_after > 0 && !bucket.has_queue() {
            bucket = LeakyBucket { nodelay: true, delay_after: 0, ..bucket };
        }
        Ok(bucket)
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        let LeakyBucket { rate, per_ms, queue_ms, nodelay, delay_after, refunds } = *self;
        let mut params = vec![rate, per_ms, queue_ms, i64::from(nodelay)];
        match delay_after {
            0 => params.extend(refunds.then_some(1)),
            _ => params.extend([i64::from(refunds), delay_after]),
        }
        params
    }

    fn decode_rule(encoded: &str) -> Option<LeakyBucket> {
        let numbers = parse_numbers(encoded)?;
        let (&[rate, per_ms, queue_ms, nodelay @ 0..=1], more) = numbers.split_first_chunk()? else { return None };
        let (refunds, delay_after) = match *more {
            [] => (false, 0),
            [1] => (true, 0),
            [refunds @ 0..=1, delay_after] if nodelay == 0 && delay_after > 0 => (refunds == 1, delay_after),
            _ => return None,
        };
        let bucket = LeakyBucket { rate, per_ms, queue_ms, nodelay: nodelay == 1, delay_after, refunds };
        let sound = (1..=USED_MAX).contains(&per_ms)
            && (1..=per_ms * SLOTS_PER_MS).contains(&rate)
            && (0..=bucket.max_number()).contains(&queue_ms)
            && delay_after <= USED_MAX / per_ms;
        sound.then_some(bucket)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst(), window_ms: div_ceil(self.full(), self.rate) }
    }

    /// Counts the marks that refunds need, which are read and written.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        if self.refunds { 4 } else { 1 }
    }

    /// The longest wait remains about the same, rounded to whole units.
    fn share(&self, n: i64) -> LeakyBucket {
        let units = (self.burst() / n).max(1);
        let per_ms = self.per_ms * n;
        let queue_ms = div_ceil((units - 1) * per_ms, self.rate);
        let part = LeakyBucket { per_ms, queue_ms, delay_after: self.delay_after / n, ..*self };
        if part.burst() > units { LeakyBucket { queue_ms: queue_ms - 1, ..part } } else { part }
    }

    fn with_number(&self, queue_ms: i64) -> LeakyBucket {
        LeakyBucket { queue_ms, ..*self }
    }

    /// A charge and the length of the queue are added to the usage at most: 2 queue × rate + 3 per.
    fn max_number(&self) -> i64 {
        ((USED_MAX - self.rate - 2 * self.per_ms) / self.rate).min(QUEUE_MAX_MS)
    }

    fn describe(&self) -> String {
        let Self { rate, delay_after, .. } = self;
        let text = format!("{rate} per {}, queue {}", format_duration(self.per_ms), format_duration(self.queue_ms));
        if *delay_after > 0 { format!("{text}, delay after {delay_after}") } else { text }
    }

    fn describe_number(&self) -> String {
        format!("queue {} at {} per {}", format_duration(self.queue_ms), self.rate, format_duration(self.per_ms))
    }

    fn has_queue(&self) -> bool {
        !self.nodelay && self.queue_ms * self.rate > self.delay_after * self.per_ms
    }

    fn late_debt(&self) -> Option<i64> {
        Some(0)
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
        records::text(state, |record| record.text(4))
    }
}

impl RecordAlgorithm for LeakyBucket {
    type Record = RefillRecord;

    fn matches(&self, record: &RefillRecord, now: i64) -> bool {
        record.same_basis(&self.record(0, now))
    }

    fn decide_one(&self, record: Option<&RefillRecord>, now: i64, cost: i64) -> Step<RefillRecord> {
        let LeakyBucket { rate, per_ms: per, nodelay, delay_after, .. } = *self;
        let (before, is_repaired) = self.level(record, now);
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
            retry_ms = div_ceil((used - delay_after.saturating_mul(per)).max(0), rate);
        }
        if admitted {
            used += need;
        }

        let reset_ms = div_ceil(used, rate);
        let store = cost > 0 && (admitted || is_repaired);
        let remaining = ((full - used) / per).max(0);
        let receipt = if nodelay { now } else { self.slot(used, now) };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt, ban: BanAnswer::None },
            next: store.then(|| {
                let marks = if admitted { self.marks_after(record, before, now) } else { LedgerMarks::default() };
                (RefillRecord { marks, ..self.record(used, now) }, reset_ms)
            }),
        }
    }

    /// Corrects a charge. With `nodelay`, the receipt is the time of the charge, and what is certainly left of it is
    /// refunded. Otherwise the receipt is the slot after the charge. Only the last slot can be refunded: any other
    /// would leave a gap in the queue. With marks, charges with `nodelay` are in it, whose refunds move the slots of
    /// others to this one.
    fn adjust_one(
        &self,
        record: Option<&RefillRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<RefillRecord>> {
        let LeakyBucket { rate, per_ms: per, nodelay, .. } = *self;
        let before = self.level(record, now).0.min(USED_MAX);
        let mut used = before;
        let (more, next_marks);
        if delta < 0 {
            let need = (-delta).min(USED_MAX / per) * per;
            let (level, marks) = (self.record(before, now), marks_of(record));
            used -= match nodelay {
                true => level.max_refund(marks, need, receipt),
                false if marks.is_empty() && self.slot(before, now) == receipt => need.min(before),
                false => 0,
            };
            if used == before {
                return None;
            }
            more = div_ceil(before - used, per);
            next_marks = level.mark_refund(marks, if nodelay { receipt } else { 0 }, before - used);
        } else {
            used = (used + delta.min(self.burst()) * per).min(self.full()).max(used);
            more = div_ceil(used - before, per);
            next_marks = self.marks_after(record, before, now);
        }
        Some((RefillRecord { marks: next_marks, ..self.record(used, now) }, div_ceil(used, rate).max(1), more))
    }

    fn convert(&self, record: &RefillRecord, now: i64) -> (RefillRecord, i64) {
        let record = record.converted(self.record(0, now), now);
        let used = record.used;
        (record, used)
    }

    /// The slot of one rule says nothing about the slots of another, so without `nodelay` nothing is certain to be
    /// left.
    fn charge_left(&self, record: &RefillRecord, now: i64, cost: i64, receipt: i64) -> f64 {
        if self.nodelay { records::UsageRecord::charge_left(record, now, cost, receipt) } else { 0.0 }
    }
}

fn marks_of(record: Option<&RefillRecord>) -> &[LedgerMark] {
    record.map_or(&[], |record| &record.marks)
}

impl LeakyBucket {
    fn record(&self, used: i64, at_ms: i64) -> RefillRecord {
        RefillRecord { used, at_ms, rate: self.rate, per_ms: self.per_ms, lump_ms: 1, marks: LedgerMarks::default() }
    }

    /// Returns the marks after a charge. Only `nodelay` uses them, because slots are not times of charges.
    fn marks_after(&self, record: Option<&RefillRecord>, used: i64, now: i64) -> LedgerMarks {
        self.record(used, now).mark_charge(marks_of(record), self.refunds && self.nodelay)
    }

    /// Returns the units that have not left by now, and whether the state has to be stored even after a refusal.
    fn level(&self, record: Option<&RefillRecord>, now: i64) -> (i64, bool) {
        let Some(record) = record else { return (0, false) };
        let &RefillRecord { used, at_ms: at, rate, .. } = record;
        if at <= now {
            return (record.advanced(now).used, false);
        }
        // The clock went back. The slots remain where they are. A time further ahead than a whole refill comes from a
        // clock that was wrong: then the slots may be as far ahead as the queue is long, or as it was. That has to be
        // stored.
        let most = self.full().max(used);
        let slots = if at - now > most / rate { EXACT } else { used + (at - now) * rate };
        if slots + self.per_ms > EXACT { (most, true) } else { (slots, false) }
    }

    /// Returns the most usage: a full queue and one unit that proceeds at once.
    fn full(&self) -> i64 {
        self.queue_ms * self.rate + self.per_ms
    }

    /// Returns the most units that can be charged at once.
    fn burst(&self) -> i64 {
        self.full() / self.per_ms
    }

    /// Returns the slot after `used` units from now on, in microseconds.
    fn slot(&self, used: i64, now: i64) -> i64 {
        (now + (used / self.rate).min(SLOT_MAX_MS)) * SLOTS_PER_MS + used % self.rate * SLOTS_PER_MS / self.rate
    }
}

/// Slots further ahead than this, which no queue reaches, are not distinguished.
const SLOT_MAX_MS: i64 = 1_000_000_000_000;
