//! Warm-up: a token bucket that a cold key may use at a third of its rate, which rises to the whole rate within
//! `warm_ms` of use. Twin of `lua/warm_up.lua`: same names, same order.
//!
//! The model is `SmoothWarmingUp` in Guava (`SmoothRateLimiter.java`), which `WarmUpController` of Sentinel adopted. An
//! unused key becomes colder by one token in the time in which one token refills, up to `most`, which is the rate times
//! `warm_ms`. Each charge makes it warmer by its tokens. Below half of `most`, a token costs what it costs without a
//! warm-up. Above, its price rises evenly, to three times that at `most`. So the time from cold to warm is `warm_ms`.
//!
//! The additional cost of a charge counts as used, but does not have to fit: the next requests wait for it. A request
//! therefore waits only for the requests before it, and a burst of a cold key is about a third of `burst`.
//!
//! All numbers are in tokens × `per_ms`, as those of `refill`: each ms refills `rate`. The additional cost is
//! `(a² − b²) / half`, where `a` and `b` are how far the key is above the half before and after the charge.

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::interface::parse_numbers;
use crate::limiting::algorithm::params::{OptionError, OptionValues, Param, RATE, option_error};
use crate::limiting::algorithm::records::{RecordAlgorithm, RecordsState, UsageRecord};
use crate::limiting::algorithm::refill::USED_MAX;
use crate::limiting::algorithm::token_bucket::{BURST, TokenBucket};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Rule, Step, records};
use crate::limiting::answer::{Answer, BanAnswer, NEVER};

/// A token bucket with a warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmUp {
    /// The bucket of a warm key. It has no debt, refills continuously and starts full.
    pub bucket: TokenBucket,
    /// How long a cold key is used until it is warm.
    pub warm_ms: i64,
}

/// Usage and coldness of a key at the time `at_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmRecord {
    used: i64,
    at_ms: i64,
    cold: i64,
    rate: i64,
    per_ms: i64,
    warm_ms: i64,
}

/// Name of the option.
pub const WARM_UP: &str = "warm_up";
/// Longest warm-up: an hour.
const WARM_MAX_MS: i64 = 3_600_000;
/// Units of a token, unless the rate is too large for as many.
const UNITS_PER_TOKEN: i64 = 1000;
/// Largest rate × `warm_ms`, so that the square of its half is exact.
const MOST_MAX: i64 = 1 << 26;

impl Algorithm for WarmUp {
    type State = RecordsState<WarmRecord>;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = TokenBucket::FURTHER_PARAMS;

    const NUMBER: Number = TokenBucket::NUMBER;

    const CORRECTS_BY_OWN_RULE: bool = true;

    /// A warm-up is an option of limits, and no limit has it as its algorithm.
    fn build(options: &OptionValues) -> Result<WarmUp, OptionError> {
        WarmUp::new(TokenBucket::build(options)?, 1000)
    }

    fn params(&self, _now: i64) -> Vec<i64> {
        let TokenBucket { rate, per_ms, burst, .. } = self.bucket;
        vec![rate, per_ms, burst, self.warm_ms]
    }

    fn decode_rule(encoded: &str) -> Option<WarmUp> {
        let &[rate, per_ms, burst, warm_ms] = parse_numbers(encoded)?.as_slice() else { return None };
        let bucket = TokenBucket::decode_rule(&format!("{rate},{per_ms},{burst},0,0,0"))?;
        let is_sound = (1..=WARM_MAX_MS).contains(&warm_ms);
        is_sound.then(|| WarmUp::new(bucket, warm_ms).ok()).flatten()
    }

    fn policy(&self) -> Policy {
        self.bucket.policy()
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
        records::text(state, |WarmRecord { used, at_ms, cold, rate, per_ms, warm_ms }| {
            format!("{used} {at_ms} {cold} {rate} {per_ms} {warm_ms}")
        })
    }

    fn late_debt(&self) -> Option<i64> {
        Some(0)
    }

    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        2
    }

    fn share(&self, n: i64) -> WarmUp {
        WarmUp { bucket: self.bucket.share(n), ..*self }
    }

    fn with_number(&self, burst: i64) -> WarmUp {
        WarmUp { bucket: self.bucket.with_number(burst), ..*self }
    }

    fn max_number(&self) -> i64 {
        self.bucket.max_number()
    }

    fn describe(&self) -> String {
        format!("{}, warm-up {}", self.bucket.describe(), format_duration(self.warm_ms))
    }

    fn describe_number(&self) -> String {
        self.bucket.describe_number()
    }
}

impl RecordAlgorithm for WarmUp {
    type Record = WarmRecord;

    fn matches(&self, record: &WarmRecord, now: i64) -> bool {
        let own = self.cold_record(now);
        (record.rate, record.per_ms, record.warm_ms) == (own.rate, own.per_ms, own.warm_ms)
    }

    fn decide_one(&self, record: Option<&WarmRecord>, now: i64, cost: i64) -> Step<WarmRecord> {
        let TokenBucket { rate, per_ms: per, burst, .. } = self.bucket;
        let (mut next, is_repaired) = self.level(record, now);
        let full = burst * per;
        let need = cost.min(burst) * per;
        let over = next.used + need - full;
        let admitted = cost == 0 || cost <= burst && over <= 0;
        let mut retry_ms = 0;
        if cost > burst {
            retry_ms = NEVER;
        } else if !admitted {
            retry_ms = next.at_ms + div_ceil(over, rate) - now;
        }
        if admitted && cost > 0 {
            next = next.with_charge(need);
        }
        // What a request of one unit costs now. Later ones cost less.
        let unit = per + div_ceil(2 * next.above_half() * per, next.half());
        let free = full - next.used - per;
        let remaining = if free < 0 { 0 } else { 1 + free / unit };
        let reset_ms = (next.at_ms + div_ceil(next.used, rate) - now).max(0);
        let store = cost > 0 && (admitted || is_repaired);
        Step {
            answer: Answer { admitted, remaining, retry_ms, reset_ms, receipt: next.at_ms, ban: BanAnswer::None },
            next: store.then(|| (next, next.lifetime(now).max(1))),
        }
    }

    /// Corrects a charge; the receipt is its time. What was refilled since then may have belonged to the charge, so
    /// only the rest is refunded.
    fn adjust_one(
        &self,
        record: Option<&WarmRecord>,
        now: i64,
        delta: i64,
        receipt: i64,
    ) -> Option<Corrected<WarmRecord>> {
        let TokenBucket { per_ms: per, burst, .. } = self.bucket;
        let (mut next, _) = self.level(record, now);
        let (before, full) = (next.used, burst * per);
        let more;
        if delta < 0 {
            let left = next.min_left((-delta).min(USED_MAX / per) * per, receipt);
            if left == 0 {
                return None;
            }
            next.used = before - left;
            more = div_ceil(left, per);
        } else {
            next.used = (before + delta.min(burst) * per).min(full).max(before);
            more = div_ceil(next.used - before, per);
        }
        Some((next, next.lifetime(now).max(1), more))
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^51")]
    fn convert(&self, record: &WarmRecord, now: i64) -> (WarmRecord, i64) {
        let (found, own) = (record.advanced(now), self.cold_record(now));
        let used = (found.used as f64 / found.per_ms as f64 * own.per_ms as f64).ceil();
        let cold = (found.cold as f64 / found.most() as f64 * own.most() as f64).ceil();
        let used = used.min(USED_MAX as f64) as i64;
        (WarmRecord { used, at_ms: found.at_ms, cold: (cold as i64).min(own.most()), ..own }, used)
    }
}

impl WarmUp {
    /// Creates the rule of a limit whose warm keys have this bucket.
    ///
    /// # Errors
    /// The arithmetic would not be exact with these numbers, or the options contradict each other.
    pub fn new(bucket: TokenBucket, warm_ms: i64) -> Result<WarmUp, OptionError> {
        let TokenBucket { rate, per_ms, burst, debt, interval, empty, .. } = bucket;
        for (option, is_set) in [("debt", debt > 0), ("refill", interval), ("start", empty)] {
            if is_set {
                let what = "a warm-up needs a bucket that refills continuously, starts full and has no debt";
                return Err(option_error(option, what, format!("remove `{option}`, or `warm_up`")));
            }
        }
        if rate > MOST_MAX / warm_ms {
            let help = format!("for this warm-up, the largest rate is {} per {per_ms}ms", MOST_MAX / warm_ms);
            return Err(option_error(WARM_UP, "it is too long for this rate to stay exact", help));
        }
        // The same rate, by numbers so large that a part of a token has enough units.
        let scale = (MOST_MAX / (rate * warm_ms)).min(div_ceil(UNITS_PER_TOKEN, per_ms));
        let (rate, per_ms) = (rate * scale, per_ms.saturating_mul(scale));
        let most = rate * warm_ms;
        if per_ms > EXACT / 4 / most || burst > (USED_MAX - most) / per_ms {
            let what = "the warm-up is too long, or the burst too large, to stay exact for this period";
            return Err(option_error(BURST.name(), what, "write the rate per second, or a smaller burst"));
        }
        Ok(WarmUp { bucket: TokenBucket { rate, per_ms, refunds: false, ..bucket }, warm_ms })
    }

    /// Returns the record of a key that was not used for long.
    fn cold_record(&self, now: i64) -> WarmRecord {
        let TokenBucket { rate, per_ms, .. } = self.bucket;
        WarmRecord { used: 0, at_ms: now, cold: rate * self.warm_ms, rate, per_ms, warm_ms: self.warm_ms }
    }

    /// Returns the record at `now`, or at its own time if that is later, and whether it has to be stored even after a
    /// refusal.
    fn level(&self, record: Option<&WarmRecord>, now: i64) -> (WarmRecord, bool) {
        let Some(record) = record else { return (self.cold_record(now), false) };
        let next = record.advanced(now);
        let TokenBucket { rate, per_ms, burst, .. } = self.bucket;
        // A time further ahead comes from a clock that was wrong.
        match next.at_ms - now > div_ceil(burst * per_ms, rate) + self.warm_ms {
            true => (WarmRecord { at_ms: now, ..next }, true),
            false => (next, false),
        }
    }
}

impl WarmRecord {
    /// Returns how cold a key becomes.
    fn most(&self) -> i64 {
        self.rate * self.warm_ms
    }

    fn half(&self) -> i64 {
        self.most() - self.most() / 2
    }

    /// Returns how far the key is above the half from which on tokens cost more.
    fn above_half(&self) -> i64 {
        (self.cold - self.most() / 2).max(0)
    }

    fn advanced(&self, now: i64) -> WarmRecord {
        if now <= self.at_ms {
            return *self;
        }
        if self.lifetime(now) <= 0 {
            return WarmRecord { used: 0, at_ms: now, cold: self.most(), ..*self };
        }
        let gone = (now - self.at_ms) * self.rate;
        let cold = (self.cold + (gone - self.used).max(0)).min(self.most());
        WarmRecord { used: (self.used - gone).max(0), at_ms: now, cold, ..*self }
    }

    fn with_charge(&self, need: i64) -> WarmRecord {
        let after = WarmRecord { cold: (self.cold - need).max(0), ..*self };
        let (a, b) = (self.above_half(), (self.cold - need - self.most() / 2).max(0));
        // Rounded to the nearest integer: rounded up, a key with few units per token would warm up more slowly.
        let extra = (2 * (a - b) * (a + b) + self.half()) / (2 * self.half());
        WarmRecord { used: self.used + need + extra, ..after }
    }

    fn need(&self, cost: i64) -> i64 {
        cost.min(USED_MAX / self.per_ms + 1) * self.per_ms
    }

    fn min_left(&self, need: i64, receipt: i64) -> i64 {
        let gone = (self.at_ms - receipt).max(0);
        if gone >= div_ceil(need, self.rate) { 0 } else { (need - gone * self.rate).min(self.used) }
    }
}

impl UsageRecord for WarmRecord {
    fn lifetime(&self, now: i64) -> i64 {
        self.at_ms + div_ceil(self.used + self.most() - self.cold, self.rate) - now
    }

    fn charged(&self, now: i64, cost: i64) -> WarmRecord {
        let next = self.advanced(now).with_charge(self.need(cost));
        WarmRecord { used: next.used.min(USED_MAX), ..next }
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^52")]
    fn charge_left(&self, now: i64, cost: i64, receipt: i64) -> f64 {
        self.advanced(now).min_left(self.need(cost), receipt) as f64 / self.per_ms as f64
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^52")]
    fn refunded(&self, now: i64, units: f64, _receipt: i64) -> WarmRecord {
        let next = self.advanced(now);
        let refund = (units * self.per_ms as f64).floor().min(next.used as f64) as i64;
        WarmRecord { used: next.used - refund, ..next }
    }
}

impl Rule {
    /// Returns the rule of a limit with `warm_up`, whose warm keys have this rule.
    ///
    /// # Errors
    /// The algorithm has no warm-up, or its numbers do not allow it.
    pub fn warming_up(self, warm_ms: i64) -> Result<Rule, OptionError> {
        match self {
            Rule::TokenBucket(bucket) => WarmUp::new(bucket, warm_ms).map(Rule::WarmUp),
            other => {
                let what = format!("{} has no warm-up", other.name());
                Err(option_error(WARM_UP, what, "only a token_bucket without `fair` has one"))
            }
        }
    }
}
