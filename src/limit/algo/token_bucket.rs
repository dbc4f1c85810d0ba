//! Token bucket in exact integers; twin of `lua/token_bucket.lua`, same names, same order.
//!
//! The state counts what was taken and not yet refilled, whatever the burst, so a raised or lowered
//! one keeps it, and a bucket that has refilled equals an absent one.

use super::algorithm::numbers;
use super::exact::{EXACT, div_ceil};
use super::params::{Field, Given, Misfit, Param, RATE, Rate, misfit};
use super::records::{self, Record as _, Recorded, RecordsState};
use super::refill::{LedgerMark, MOST, Marks, RefillRecord};
use super::told::duration;
use super::{Algorithm, Number, Policy, Step};
use crate::limit::answer::{Answer, NEVER};

/// `rate` tokens every `per_ms`; `burst` at most at once.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
    /// Tokens that a request may take in advance while the bucket is not empty; later requests
    /// wait until they are repaid.
    pub debt: i64,
    /// Refill in lumps of `rate` every whole `per_ms` instead of continuously.
    pub interval: bool,
    /// A new bucket holds nothing instead of everything.
    pub empty: bool,
    /// Charges may have to be given back.
    pub refunds: bool,
}

/// How long a bucket that starts empty is remembered once it is full; a client idle for longer
/// starts empty again.
const EMPTY_KEPT_MS: i64 = 86_400_000;

/// Default: the count of the rate.
pub(super) const BURST: Field<i64> = Field::<i64>::integer("burst", 1, EXACT).amount();
const DEBT: Field<i64> = Field::<i64>::integer("debt", 0, EXACT).amount();
const REFILL: Field<bool> = Field::<bool>::either("refill", ["continuous", "interval"]);
const START: Field<bool> = Field::<bool>::either("start", ["full", "empty"]);

/// Rate and burst as both buckets have them.
pub(super) fn sizes(given: &Given, interval: bool) -> Result<(Rate, i64), Misfit> {
    let written = given.need(&RATE)?;
    // A continuous refill of 10 in 1000 ms is one of 1 in 100 ms; an interval's lumps are not.
    let rate = if interval { written } else { written.reduced() };
    let burst = given.get(&BURST).unwrap_or(written.count);
    let largest = room(rate.per_ms);
    if burst > largest {
        let help = format!("the largest `burst` for this rate is {largest}");
        return Err(misfit(given.blamed(&BURST, &RATE), "the burst is too large to stay exact", help));
    }
    // What comes back at once divides.
    let largest = (EXACT - 1) / if interval { rate.per_ms } else { 1 };
    if rate.count > largest {
        let help = match interval {
            true => format!("the largest count for this period is {largest}"),
            false => "write a smaller one".to_owned(),
        };
        return Err(misfit(RATE.name(), "it is too large to stay exact", help));
    }
    Ok((rate, burst))
}

/// The most that burst and twice the debt can be together: with one unit more, times the period, they stay
/// below the most that is taken at once.
fn room(per_ms: i64) -> i64 {
    (MOST - 1) / per_ms - 1
}

impl Algorithm for TokenBucket {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const OTHERS: &'static [Param] = &[BURST.param, DEBT.param, REFILL.param, START.param];

    const NUMBER: Number = Number { name: "burst", words: "burst", least: 1 };

    const OWN_NUMBERS: bool = true;

    fn build(given: &Given) -> Result<TokenBucket, Misfit> {
        let interval = given.get(&REFILL).unwrap_or(false);
        let (Rate { count: rate, per_ms }, burst) = sizes(given, interval)?;
        let debt = given.get(&DEBT).unwrap_or(0);
        let largest = (room(per_ms) - burst) / 2;
        if debt > largest {
            let help = format!("the largest for this rate and burst is {largest}");
            return Err(misfit(DEBT.name(), "it is too large to stay exact", help));
        }
        let empty = given.get(&START).unwrap_or(false);
        Ok(TokenBucket { rate, per_ms, burst, debt, interval, empty, refunds: given.refunds })
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        let TokenBucket { rate, per_ms, burst, debt, interval, empty, refunds } = *self;
        let mut params = vec![rate, per_ms, burst, debt, i64::from(interval), i64::from(empty)];
        params.extend(refunds.then_some(1));
        params
    }

    fn noted(note: &str) -> Option<TokenBucket> {
        let numbers = numbers(note)?;
        let (&[rate, per_ms, burst, debt, interval @ 0..=1, empty @ 0..=1], refunds) = numbers.split_first_chunk()?
        else {
            return None;
        };
        let refunds = match refunds {
            [] => false,
            [1] => true,
            _ => return None,
        };
        let bucket = TokenBucket { rate, per_ms, burst, debt, interval: interval == 1, empty: empty == 1, refunds };
        let sound = rate >= 1
            && per_ms >= 1
            && (0..=EXACT).contains(&debt)
            && (1..=bucket.largest()).contains(&burst)
            && rate <= (EXACT - 1) / if bucket.interval { per_ms } else { 1 };
        sound.then_some(bucket)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst, window_ms: div_ceil(self.burst * self.per_ms, self.rate) }
    }

    fn decide(&self, state: Option<&Self::State>, now: i64, cost: i64, _tag: i64) -> Step<Self::State> {
        records::decide(self, state, now, cost)
    }

    fn adjust(&self, state: Option<&Self::State>, now: i64, delta: i64, receipt: i64) -> Option<(Self::State, i64)> {
        records::adjust(self, state, now, delta, receipt)
    }

    fn text(state: &Self::State) -> String {
        records::text(state, |record| record.text(5))
    }

    /// The refill of a continuous bucket is shared exactly, by a period n times as long.
    /// Where charges may be given back, marks are kept and read.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        if self.refunds { 4 } else { 1 }
    }

    fn share(&self, n: i64) -> TokenBucket {
        let TokenBucket { rate, per_ms, burst, debt, .. } = *self;
        let (rate, per_ms) = match self.interval {
            true if rate >= n => (rate / n, per_ms),
            true => (1, per_ms * div_ceil(n, rate)),
            false => (rate, per_ms * n),
        };
        TokenBucket { rate, per_ms, burst: (burst / n).max(1), debt: debt / n, ..*self }
    }

    fn numbered(&self, burst: i64) -> TokenBucket {
        TokenBucket { burst, ..*self }
    }

    fn largest(&self) -> i64 {
        room(self.per_ms) - 2 * self.debt
    }

    fn hopeless(&self) -> Option<&'static str> {
        self.empty.then_some("a bucket that starts empty refuses whoever comes first")
    }

    fn most(&self) -> i64 {
        self.burst + self.debt
    }

    fn told_number(&self) -> String {
        format!("burst {} at {} per {}", self.burst, self.rate, duration(self.per_ms))
    }
}

impl Recorded for TokenBucket {
    type Record = RefillRecord;

    fn owns(&self, record: &RefillRecord, now: i64) -> bool {
        record.same_basis(&self.record(0, now))
    }

    fn decide_one(&self, record: Option<&RefillRecord>, now: i64, cost: i64) -> Step<RefillRecord> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let Level { record: before, full, floor_debt, mended } = self.level(record, now);
        let RefillRecord { mut used, at_ms: at, lump_ms: lump, .. } = before;
        let gain = before.gain();

        let need = cost.min(burst + debt + 1) * per;
        let mut over = used + need - full;
        if debt > 0 {
            over = (over - floor_debt).max(over.min(used - full + 1));
        }
        let admitted = cost == 0 || over <= 0;
        if admitted {
            used += need;
        }

        let mut retry_ms = 0;
        if cost > burst + debt {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = at + div_ceil(over, gain) * lump - now;
        }
        let reset_ms = at + div_ceil(used, gain) * lump - now;
        let store = cost > 0 && (admitted || mended);
        let remaining = ((full - used) / per).max(0);
        let next = || {
            let marks =
                if admitted { before.marked(marks_of(record, mended), self.is_marked()) } else { Marks::default() };
            RefillRecord { marks, ..self.record(used, at) }
        };
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms: reset_ms.max(0), receipt: now.max(at) },
            next: store.then(|| (next(), self.stored_for(reset_ms))),
        }
    }

    /// The receipt is the time of the charge, and as much is given back as is still there of it for
    /// certain. Tokens taken on top empty the bucket at most to its debt.
    fn adjust_one(
        &self,
        record: Option<&RefillRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<(RefillRecord, i64, i64)> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let Level { record: level, full, floor_debt, mended } = self.level(record, now);
        let (mut used, mut at, mut more) = (level.used, level.at_ms, 0);
        let marks = marks_of(record, mended);
        let next_marks;
        if delta < 0 {
            let need = (-delta).min(MOST / per) * per;
            let given = level.holds(marks, need, receipt);
            if given == 0 || record.is_none() {
                return None;
            }
            used -= given;
            next_marks = level.given(marks, receipt, given);
        } else {
            used = (used + delta.min(burst + debt) * per).min(full + floor_debt).max(used);
            more = div_ceil(used - level.used, per);
            next_marks = level.marked(marks, self.is_marked());
        }
        if used == 0 {
            at = now.max(at);
        }
        let record = RefillRecord { marks: next_marks, ..self.record(used, at) };
        let life = self.stored_for(record.whole_at() - now);
        Some((record, life, more))
    }

    fn adopt(&self, record: &RefillRecord, now: i64) -> (RefillRecord, i64) {
        let record = record.adopted(self.record(0, now), now);
        let used = record.used;
        (record, used)
    }

    fn lasts(&self, record: &RefillRecord, now: i64) -> i64 {
        self.stored_for(record.life(now)).max(1)
    }
}

/// What was taken and not yet refilled by now, the sizes involved, and whether the state has to be
/// stored even after a refusal.
struct Level {
    record: RefillRecord,
    full: i64,
    floor_debt: i64,
    mended: bool,
}

/// Those by a clock far ahead say nothing.
fn marks_of(record: Option<&RefillRecord>, mended: bool) -> &[LedgerMark] {
    record.filter(|_| !mended).map_or(&[], |record| &record.marks)
}

impl TokenBucket {
    /// In lumps a bucket that had been empty meanwhile would get them at other times.
    fn is_marked(&self) -> bool {
        self.refunds && !self.interval
    }

    fn record(&self, used: i64, at_ms: i64) -> RefillRecord {
        let TokenBucket { rate, per_ms, interval, .. } = *self;
        RefillRecord { used, at_ms, rate, per_ms, lump_ms: if interval { per_ms } else { 1 }, marks: Marks::default() }
    }

    fn level(&self, record: Option<&RefillRecord>, now: i64) -> Level {
        let TokenBucket { per_ms: per, burst, debt, empty, .. } = *self;
        let (full, floor_debt) = (burst * per, debt * per);
        let Some(record) = record else {
            return Level { record: self.record(if empty { full } else { 0 }, now), full, floor_debt, mended: empty };
        };
        // A stamp further ahead than a whole refill was left by another clock. It must be mended
        // for good, or the refill would start anew with each refusal.
        let whole = (full + floor_debt).max(record.used);
        let mended = record.at_ms > now + div_ceil(whole, record.gain()) * record.lump_ms;
        let record = if mended { record.with(record.used, now) } else { record.advanced(now) };
        Level { record, full, floor_debt, mended }
    }

    fn stored_for(&self, reset_ms: i64) -> i64 {
        reset_ms + 1 + if self.empty { EMPTY_KEPT_MS } else { 0 }
    }
}
