//! Token bucket in exact integers. Twin of `lua/bucket.lua`: same names, same order.
//!
//! The state counts the tokens in use, taken and not yet refilled. So usage remains when the burst is changed, and a
//! full bucket equals an absent state.

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::interface::parse_numbers;
use crate::limiting::algorithm::lease_basis::{BucketRefill, LeaseBasis};
use crate::limiting::algorithm::params::{Field, OptionError, OptionValues, Param, RATE, Rate, option_error};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState, UsageRecord as _};
use crate::limiting::algorithm::refill::{LedgerMark, LedgerMarks, RefillRecord, USED_MAX};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// A bucket that holds `burst` tokens and refills `rate` tokens every `per_ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    pub rate: i64,
    pub per_ms: i64,
    pub burst: i64,
    /// Tokens that a request may take in advance while the bucket is not empty. Later requests are refused until the
    /// debt is refilled.
    pub debt: i64,
    /// The bucket refills all `rate` tokens at once every `per_ms`, instead of continuously.
    pub interval: bool,
    /// A new bucket starts empty instead of full.
    pub empty: bool,
    /// The limit may refund charges.
    pub refunds: bool,
}

/// How long a bucket that starts empty is stored after it is full. A client that is idle for longer starts with an
/// empty bucket again.
const EMPTY_RETENTION_MS: i64 = 86_400_000;

/// Burst; the default is the count of the rate.
pub(super) const BURST: Field<i64> = Field::<i64>::integer("burst", 1, EXACT).overridable();
const DEBT: Field<i64> = Field::<i64>::integer("debt", 0, EXACT).overridable();
const REFILL: Field<bool> = Field::<bool>::choice("refill", ["continuous", "interval"]);
const START: Field<bool> = Field::<bool>::choice("start", ["full", "empty"]);

/// Reads rate and burst, for token buckets and GCRA.
pub(super) fn read_rate_and_burst(options: &OptionValues, interval: bool) -> Result<(Rate, i64), OptionError> {
    let written = options.require(&RATE)?;
    // Continuously, 10 per 1000 ms is the same as 1 per 100 ms; at intervals it is not.
    let rate = if interval { written } else { written.reduced() };
    let burst = options.get(&BURST).unwrap_or(written.count);
    let largest = max_burst_and_debt(rate.per_ms);
    if burst > largest {
        let help = format!("the largest `burst` for this rate is {largest}");
        return Err(option_error(options.option_to_blame(&BURST, &RATE), "the burst is too large to stay exact", help));
    }
    // The amount of one refill is used as a divisor, so it must be exact, too.
    let largest = (EXACT - 1) / if interval { rate.per_ms } else { 1 };
    if rate.count > largest {
        let help = match interval {
            true => format!("the largest count for this period is {largest}"),
            false => "write a smaller one".to_owned(),
        };
        return Err(option_error(RATE.name(), "it is too large to stay exact", help));
    }
    Ok((rate, burst))
}

/// Returns the largest sum of the burst and twice the debt. One unit more, times the period, stays below the most that
/// one charge may add.
fn max_burst_and_debt(per_ms: i64) -> i64 {
    (USED_MAX - 1) / per_ms - 1
}

impl Algorithm for TokenBucket {
    type State = RecordsState<RefillRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = &[BURST.param, DEBT.param, REFILL.param, START.param];

    const NUMBER: Number = Number { name: "burst", words: "burst", least: 1 };

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<TokenBucket, OptionError> {
        let interval = options.get(&REFILL).unwrap_or(false);
        let (Rate { count: rate, per_ms }, burst) = read_rate_and_burst(options, interval)?;
        let debt = options.get(&DEBT).unwrap_or(0);
        let largest = (max_burst_and_debt(per_ms) - burst) / 2;
        if debt > largest {
            let help = format!("the largest for this rate and burst is {largest}");
            return Err(option_error(DEBT.name(), "it is too large to stay exact", help));
        }
        let empty = options.get(&START).unwrap_or(false);
        Ok(TokenBucket { rate, per_ms, burst, debt, interval, empty, refunds: options.refunds })
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        let TokenBucket { rate, per_ms, burst, debt, interval, empty, refunds } = *self;
        let mut params = vec![rate, per_ms, burst, debt, i64::from(interval), i64::from(empty)];
        params.extend(refunds.then_some(1));
        params
    }

    fn decode_rule(encoded: &str) -> Option<TokenBucket> {
        let numbers = parse_numbers(encoded)?;
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
            && (1..=bucket.max_number()).contains(&burst)
            && rate <= (EXACT - 1) / if bucket.interval { per_ms } else { 1 };
        sound.then_some(bucket)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst, window_ms: div_ceil(self.burst * self.per_ms, self.rate) }
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
        records::text(state, |record| record.text(5))
    }

    /// A rule with refunds also reads and writes marks.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        if self.refunds { 4 } else { 1 }
    }

    /// A continuous refill is divided exactly: the period becomes `n` times as long.
    fn share(&self, n: i64) -> TokenBucket {
        let TokenBucket { rate, per_ms, burst, debt, .. } = *self;
        let (rate, per_ms) = match self.interval {
            true if rate >= n => (rate / n, per_ms),
            true => (1, per_ms * div_ceil(n, rate)),
            false => (rate, per_ms * n),
        };
        TokenBucket { rate, per_ms, burst: (burst / n).max(1), debt: debt / n, ..*self }
    }

    fn with_number(&self, burst: i64) -> TokenBucket {
        TokenBucket { burst, ..*self }
    }

    fn max_number(&self) -> i64 {
        max_burst_and_debt(self.per_ms) - 2 * self.debt
    }

    fn never_enough_reason(&self) -> Option<&'static str> {
        self.empty.then_some("a bucket that starts empty refuses the first request")
    }

    fn max_cost(&self) -> i64 {
        self.burst + self.debt
    }

    fn late_debt(&self) -> Option<i64> {
        Some(self.debt)
    }

    /// A bucket with debt has none: a lease would take units that a single request may not.
    fn lease_basis(&self) -> Option<LeaseBasis> {
        let TokenBucket { rate, per_ms, burst, interval, .. } = *self;
        let refill = BucketRefill { burst, lump_ms: if interval { per_ms } else { 1 } };
        (self.debt == 0 && !self.refunds).then_some(LeaseBasis { rate, per_ms, refill: Some(refill) })
    }

    fn describe_number(&self) -> String {
        format!("burst {} at {} per {}", self.burst, self.rate, format_duration(self.per_ms))
    }
}

impl RecordAlgorithm for TokenBucket {
    type Record = RefillRecord;

    fn matches(&self, record: &RefillRecord, now: i64) -> bool {
        record.same_basis(&self.record(0, now))
    }

    fn decide_one(&self, record: Option<&RefillRecord>, now: i64, cost: i64) -> Step<RefillRecord> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let BucketLevel { record: before, full, floor_debt, is_repaired } = self.level(record, now);
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
        let store = cost > 0 && (admitted || is_repaired);
        let remaining = ((full - used) / per).max(0);
        let next = || {
            let marks = if admitted {
                before.mark_charge(marks_of(record, is_repaired), self.is_marked())
            } else {
                LedgerMarks::default()
            };
            RefillRecord { marks, ..self.record(used, at) }
        };
        Step {
            answer: Answer {
                admitted,
                remaining,
                retry_ms,
                reset_ms: reset_ms.max(0),
                receipt: now.max(at),
                ban: BanAnswer::None,
            },
            next: store.then(|| (next(), self.stored_for(reset_ms))),
        }
    }

    /// Corrects a charge; the receipt is its time. A refund is at most what is certainly left of the charge. An
    /// additional charge empties the bucket at most to its debt.
    fn adjust_one(
        &self,
        record: Option<&RefillRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<RefillRecord>> {
        let TokenBucket { per_ms: per, burst, debt, .. } = *self;
        let BucketLevel { record: level, full, floor_debt, is_repaired } = self.level(record, now);
        let (mut used, mut at) = (level.used, level.at_ms);
        let marks = marks_of(record, is_repaired);
        let (more, next_marks);
        if delta < 0 {
            let need = (-delta).min(USED_MAX / per) * per;
            let refund = level.max_refund(marks, need, receipt);
            if refund == 0 || record.is_none() {
                return None;
            }
            used -= refund;
            more = div_ceil(refund, per);
            next_marks = level.mark_refund(marks, receipt, refund);
        } else {
            used = (used + delta.min(burst + debt) * per).min(full + floor_debt).max(used);
            more = div_ceil(used - level.used, per);
            next_marks = level.mark_charge(marks, self.is_marked());
        }
        if used == 0 {
            at = now.max(at);
        }
        let record = RefillRecord { marks: next_marks, ..self.record(used, at) };
        let ttl = self.stored_for(record.refilled_at() - now);
        Some((record, ttl, more))
    }

    fn convert(&self, record: &RefillRecord, now: i64) -> (RefillRecord, i64) {
        let record = record.converted(self.record(0, now), now);
        let used = record.used;
        (record, used)
    }

    fn ttl(&self, record: &RefillRecord, now: i64) -> i64 {
        self.stored_for(record.lifetime(now)).max(1)
    }
}

/// Level of a bucket at the current time.
pub(super) struct BucketLevel {
    /// The record, refilled up to now.
    pub record: RefillRecord,
    /// The burst in the unit of the record; the next field is the debt.
    pub full: i64,
    pub floor_debt: i64,
    /// The time of the record was corrected, so the state has to be stored even after a refusal.
    pub is_repaired: bool,
}

/// Returns the marks of a record. If its time had to be corrected, the marks are useless.
pub(super) fn marks_of(record: Option<&RefillRecord>, is_repaired: bool) -> &[LedgerMark] {
    record.filter(|_| !is_repaired).map_or(&[], |record| &record.marks)
}

impl TokenBucket {
    /// Returns whether charges get marks. At intervals they do not: a bucket without the charge would refill at other
    /// times, so the bounds of the ledger do not apply.
    pub(super) fn is_marked(&self) -> bool {
        self.refunds && !self.interval
    }

    fn record(&self, used: i64, at_ms: i64) -> RefillRecord {
        let TokenBucket { rate, per_ms, interval, .. } = *self;
        RefillRecord {
            used,
            at_ms,
            rate,
            per_ms,
            lump_ms: if interval { per_ms } else { 1 },
            marks: LedgerMarks::default(),
        }
    }

    pub(super) fn level(&self, record: Option<&RefillRecord>, now: i64) -> BucketLevel {
        let TokenBucket { per_ms: per, burst, debt, empty, .. } = *self;
        let (full, floor_debt) = (burst * per, debt * per);
        let Some(record) = record else {
            return BucketLevel {
                record: self.record(if empty { full } else { 0 }, now),
                full,
                floor_debt,
                is_repaired: empty,
            };
        };
        // A time further ahead than a whole refill comes from a clock that was wrong. It has to be corrected and
        // stored, or the refill would start again with each refusal.
        let whole = (full + floor_debt).max(record.used);
        let is_repaired = record.at_ms > now + div_ceil(whole, record.gain()) * record.lump_ms;
        let record = if is_repaired { record.with_usage(record.used, now) } else { record.advanced(now) };
        BucketLevel { record, full, floor_debt, is_repaired }
    }

    pub(super) fn stored_for(&self, reset_ms: i64) -> i64 {
        reset_ms + 1 + if self.empty { EMPTY_RETENTION_MS } else { 0 }
    }
}
