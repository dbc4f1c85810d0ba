//! Fair sharing of one budget between tenants, in exact integers. Twin of `lua/fair.lua`: same names, same order.
//!
//! All tenants take from one token bucket, the *pool*, so the cap is that of a token bucket. In addition, each tenant
//! has a backlog: what it took beyond its share of the rate. A request is admitted if the pool has its cost and, on
//! top, a part of the reserve that grows with the backlog. So a tenant within its share may take the last tokens, one
//! far above its share must leave the whole reserve. One that is alone gets the whole rate, and leaves at least half of
//! the reserve.
//!
//! - The backlog is stored as a theoretical arrival time (TAT) in microseconds, like in GCRA: the time when the tenant
//!   would have used its share only. A charge of `units` (tokens × `per_ms`) moves it by the time in which the pool
//!   refills them, times the weights of all active tenants, divided by the tenant's own.
//! - `tau` is the time in which the reserve refills. With a backlog of `d`, the fraction `min(1, d / tau)` of the
//!   reserve has to be left. That is what the pool refills in `d`, so no division is needed.
//! - A tenant is active until its TAT is `active_ms` in the past. Also a refused request keeps it active.
//! - At most `max_active` tenants have a backlog of their own. Further ones share [`BUCKETS`] backlogs by their hash.

mod rules;
mod tenants;

use crate::limiting::algorithm::describe::format_duration;
use crate::limiting::algorithm::exact::{EXACT, div_ceil};
use crate::limiting::algorithm::fair::tenants::{FairState, TenantView};
use crate::limiting::algorithm::interface::parse_numbers;
use crate::limiting::algorithm::params::{OptionError, OptionValues, Param, RATE, option_error};
use crate::limiting::algorithm::token_bucket::{BURST, TokenBucket};
use crate::limiting::algorithm::{Algorithm, Corrected, Number, Policy, Step, records};
use crate::limiting::answer::Answer;

/// A token bucket whose tenants share it fairly.
#[derive(Clone, Debug, PartialEq)]
pub struct Fair {
    /// The budget of all tenants. It has no debt and refills continuously.
    pub pool: TokenBucket,
    /// Tokens that a tenant above its share has to leave.
    pub reserve: i64,
    /// How long a tenant counts as active after its last request, and after its backlog has ended.
    pub active_ms: i64,
    /// Most tenants with a backlog of their own.
    pub max_active: i64,
    /// Weight of the tenant that the decision is for.
    pub weight: i64,
    /// The tenant of a charge that is corrected; 0 for a decision, whose tag is the tenant.
    pub tenant: i64,
}

/// Settings of `fair` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairSettings {
    /// Tokens that a tenant above its share has to leave. `None`: half of the burst.
    pub reserve: Option<i64>,
    /// How long a tenant counts as active. `None`: eight times the refill time of the reserve, and at least 2 s.
    pub active_ms: Option<i64>,
    pub max_active: i64,
    pub weight: i64,
}

/// Most tenants of one budget that have a backlog of their own.
pub const MAX_ACTIVE: i64 = 1024;
/// Largest weight of a tenant.
pub const WEIGHT_MAX: i64 = 1000;
/// Shortest time that a tenant is active.
const ACTIVE_MIN_MS: i64 = 2000;
/// Longest time that a tenant is active: a day.
pub const ACTIVE_MAX_MS: i64 = 86_400_000;
/// Backlogs that tenants beyond `max_active` share. Their ids are the numbers below this one.
pub const BUCKETS: i64 = 16;
/// A correction with a delta of 0 and this receipt makes the pool forget the tenant.
pub const FORGET: i64 = -1;

/// Largest burst × period: larger numbers would not be exact in all sums.
const FULL_MAX: i64 = EXACT / 8;
/// Longest refill time of the reserve: a year.
const TAU_MAX_MS: i64 = 366 * 86_400_000;
/// Maximum number of tokens per ms. A backlog has a resolution of a microsecond and cannot represent more.
const TOKENS_PER_MS: i64 = 1000;
/// Largest rate, so that a thousand times it is exact.
const RATE_MAX: i64 = EXACT / 1024;
/// Receipts of charges are times multiplied by this, plus the number of active tenants.
const RECEIPT: i64 = 1024;
/// Replaces the number of active tenants in a receipt if the tenant shares a backlog with others.
const SHARED: i64 = RECEIPT - 1;

/// Facts about the tenants in the receipt of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairFacts {
    /// Number of active tenants, including this one, up to 1022; `None` if the tenant shares a backlog with others.
    pub active: Option<i64>,
    /// The request was refused although it was within the guaranteed share.
    pub is_refused_within_share: bool,
}

/// The share of a tenant, read from the receipt of a decision with a cost of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStanding {
    /// Weights of all active tenants, including this one.
    pub total_weight: i64,
    /// The part of the reserve that the tenant has to leave, in thousandths.
    pub permille: i64,
    /// See [`FairFacts::active`].
    pub active: Option<i64>,
}

/// Standing of a tenant in a budget, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantShare {
    /// See [`FairFacts::active`].
    pub active: Option<i64>,
    pub weight: i64,
    pub total_weight: i64,
    /// Units per second that the tenant may always have, while the same tenants are active.
    pub rate: f64,
    /// Units that the tenant has to leave now.
    pub backlog: i64,
    pub reserve: i64,
}

impl FairFacts {
    /// Reads the facts of an answer.
    pub fn of(answer: &Answer) -> FairFacts {
        let active = answer.receipt.rem_euclid(RECEIPT);
        FairFacts {
            active: (active != SHARED).then_some(active),
            is_refused_within_share: !answer.admitted && answer.receipt >= RECEIPT,
        }
    }
}

impl TenantStanding {
    /// Bits of the receipt that contain the thousandths; after them comes the weight.
    const PERMILLE: i64 = 2048;

    /// Reads the standing from an answer to a decision with a cost of 0.
    pub fn of(answer: &Answer) -> TenantStanding {
        let rest = answer.receipt / RECEIPT;
        TenantStanding {
            total_weight: rest / TenantStanding::PERMILLE,
            permille: rest % TenantStanding::PERMILLE,
            active: FairFacts::of(answer).active,
        }
    }

    fn receipt(self) -> i64 {
        let TenantStanding { total_weight, permille, active } = self;
        (total_weight * TenantStanding::PERMILLE + permille) * RECEIPT + active.unwrap_or(SHARED)
    }
}

impl Algorithm for Fair {
    type State = FairState;

    const LEADING: Param = RATE.param;
    const FURTHER_PARAMS: &'static [Param] = TokenBucket::FURTHER_PARAMS;

    const NUMBER: Number = TokenBucket::NUMBER;

    const NEEDS_TAG: bool = true;

    const CORRECTS_BY_OWN_RULE: bool = true;

    fn build(options: &OptionValues) -> Result<Fair, OptionError> {
        let settings = FairSettings { reserve: None, active_ms: None, max_active: MAX_ACTIVE, weight: 1 };
        Fair::new(TokenBucket::build(options)?, settings)
    }

    fn params(&self, _now_ms: i64) -> Vec<i64> {
        let Fair { pool, reserve, active_ms, max_active, weight, tenant } = self;
        let TokenBucket { rate, per_ms, burst, empty, refunds, .. } = *pool;
        let (empty, refunds) = (i64::from(empty), i64::from(refunds));
        vec![rate, per_ms, burst, 0, 0, empty, refunds, *reserve, active_ms * 1000, *max_active, *weight, *tenant]
    }

    fn decode_rule(encoded: &str) -> Option<Fair> {
        let numbers = parse_numbers(encoded)?;
        let &[
            rate,
            per_ms,
            burst,
            0,
            0,
            empty @ 0..=1,
            refunds @ 0..=1,
            reserve,
            active_us,
            max_active,
            weight,
            tenant,
        ] = numbers.as_slice()
        else {
            return None;
        };
        let pool = TokenBucket::decode_rule(&format!("{rate},{per_ms},{burst},0,0,{empty}"))?;
        let fair = Fair {
            pool: TokenBucket { refunds: refunds == 1, ..pool },
            reserve,
            active_ms: active_us / 1000,
            max_active,
            weight,
            tenant,
        };
        let sound = active_us % 1000 == 0
            && (1..=ACTIVE_MAX_MS).contains(&fair.active_ms)
            && (1..=MAX_ACTIVE).contains(&max_active)
            && (1..=WEIGHT_MAX).contains(&weight)
            && (0..EXACT).contains(&tenant)
            && (0..burst).contains(&reserve)
            && fair.check().is_ok();
        sound.then_some(fair)
    }

    /// The quota is what a tenant can have at once: everything but the reserve.
    fn policy(&self) -> Policy {
        let quota = self.most();
        Policy { quota, window_ms: div_ceil(quota * self.pool.per_ms, self.pool.rate) }
    }

    fn decide(&self, state: Option<&FairState>, now: i64, cost: i64, tag: i64) -> Step<FairState> {
        let view = TenantView::new(self, state, if self.tenant > 0 { self.tenant } else { tag });
        let Step { answer, next } = records::decide(&view, state.map(|state| &state.pool), now, cost);
        Step { answer, next: next.map(|(pool, ttl)| (view.next_state(pool), ttl)) }
    }

    /// Corrects a charge. Refunds go to the pool and to the tenant.
    fn adjust(&self, state: Option<&FairState>, now: i64, delta: i64, receipt: i64) -> Option<Corrected<FairState>> {
        let view = TenantView::new(self, state, self.tenant);
        let (pool, ttl, units) = records::adjust(&view, state.map(|state| &state.pool), now, delta, receipt)?;
        Some((view.next_state(pool), ttl, units))
    }

    fn text(state: &FairState) -> String {
        state.text()
    }

    fn late_debt(&self) -> Option<i64> {
        self.pool.late_debt()
    }

    /// The script reads and writes a few members of a sorted set. If many tenants become inactive at once, it removes
    /// them all.
    fn work(&self, _most_cost: i64, _correction: bool) -> i64 {
        if self.pool.refunds { 6 } else { 3 }
    }

    fn share(&self, n: i64) -> Fair {
        let (most, reserve) = ((self.most() / n).max(1), self.reserve / n);
        Fair { pool: TokenBucket { burst: most + reserve, ..self.pool.share(n) }, reserve, ..self.clone() }
    }

    fn with_number(&self, burst: i64) -> Fair {
        Fair { pool: self.pool.with_number(burst), reserve: self.reserve.min(burst - 1), ..self.clone() }
    }

    fn max_number(&self) -> i64 {
        (FULL_MAX / self.pool.per_ms).min(self.pool.max_number())
    }

    fn never_enough_reason(&self) -> Option<&'static str> {
        self.pool.never_enough_reason()
    }

    fn describe(&self) -> String {
        let TokenBucket { rate, per_ms, burst, .. } = self.pool;
        format!("{rate} per {}, burst {burst} with a reserve of {}", format_duration(per_ms), self.reserve)
    }

    fn describe_number(&self) -> String {
        self.pool.describe_number()
    }
}

impl Fair {
    /// Creates the rule of a limit whose budget is `pool`.
    ///
    /// # Errors
    /// The arithmetic would not be exact with these numbers, or the options contradict each other.
    pub fn new(pool: TokenBucket, settings: FairSettings) -> Result<Fair, OptionError> {
        let FairSettings { reserve, active_ms, max_active, weight } = settings;
        let burst = pool.burst;
        if pool.debt > 0 {
            return Err(option_error("debt", "`fair` is not possible with a debt", "remove `debt` or `fair`"));
        }
        if pool.interval {
            let help = "write refill = \"continuous\", or remove `fair`";
            return Err(option_error("refill", "`fair` needs a continuous refill", help));
        }
        if burst < 2 {
            let help = "set `burst` to 2 or more; a few times the requests that tenants send at once is good";
            return Err(option_error(BURST.name(), "`fair` needs a burst that can be divided", help));
        }
        let reserve = reserve.unwrap_or(burst / 2);
        if reserve >= burst {
            let help = format!("the largest `reserve` for this burst is {}; half of it is good", burst - 1);
            return Err(option_error(FAIR, "the reserve is not smaller than the burst", help));
        }
        let mut fair = Fair { pool, reserve, active_ms: ACTIVE_MAX_MS, max_active, weight, tenant: 0 };
        fair.check()?;
        let tau_ms = div_ceil(fair.tau(), 1000);
        fair.active_ms = active_ms.unwrap_or_else(|| (8 * tau_ms).clamp(ACTIVE_MIN_MS, ACTIVE_MAX_MS));
        Ok(fair)
    }

    /// Checks that the arithmetic is exact.
    fn check(&self) -> Result<(), OptionError> {
        let TokenBucket { rate, per_ms, burst, .. } = self.pool;
        if rate > (per_ms.saturating_mul(TOKENS_PER_MS)).min(RATE_MAX) {
            let help = "`fair` is possible up to a million per second";
            return Err(option_error(RATE.name(), "it is too large to be shared exactly", help));
        }
        if burst > FULL_MAX / per_ms {
            let help = format!("the largest `burst` for this rate with `fair` is {}", FULL_MAX / per_ms);
            return Err(option_error(BURST.name(), "the burst is too large to stay exact", help));
        }
        if self.reserve_units() / rate > TAU_MAX_MS {
            let help = "lower `reserve`, or raise `rate`";
            return Err(option_error(FAIR, "the reserve takes longer than a year to refill", help));
        }
        Ok(())
    }

    /// Returns the rule for a budget with another rate or burst, as an override has.
    pub fn with_weight(&self, weight: i64) -> Fair {
        Fair { weight, ..self.clone() }
    }

    /// Returns the rule that corrects charges of `tenant`.
    pub fn for_tenant(&self, tenant: i64) -> Fair {
        Fair { tenant, ..self.clone() }
    }

    /// Returns the share of the tenant, from the answer to a decision with a cost of 0.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people, rounded")]
    pub fn share_of(&self, answer: &Answer) -> TenantShare {
        let TenantStanding { total_weight, permille, active } = TenantStanding::of(answer);
        let TokenBucket { rate, per_ms, .. } = self.pool;
        let own = rate as f64 * 1000.0 / per_ms as f64 * self.weight as f64 / total_weight.max(1) as f64;
        TenantShare {
            active,
            weight: self.weight,
            total_weight,
            rate: (own * 1e6).round() / 1e6,
            backlog: div_ceil(self.reserve.saturating_mul(permille), 1000),
            reserve: self.reserve,
        }
    }

    /// Returns the largest cost that is ever admitted: it leaves the whole reserve, even if nobody else is active.
    fn most(&self) -> i64 {
        self.pool.burst - self.reserve
    }

    /// Returns the reserve in the unit of the pool.
    fn reserve_units(&self) -> i64 {
        self.reserve * self.pool.per_ms
    }

    /// Returns the time in which the reserve refills, in microseconds.
    fn tau(&self) -> i64 {
        self.refill_us(self.reserve_units())
    }

    /// Returns the time in which the pool refills `units`, in microseconds, rounded up.
    fn refill_us(&self, units: i64) -> i64 {
        let rate = self.pool.rate;
        units / rate * 1000 + div_ceil(units % rate * 1000, rate)
    }

    /// Returns what the pool refills in that time, in its unit, rounded up.
    fn refilled(&self, us: i64) -> i64 {
        let rate = self.pool.rate;
        us / 1000 * rate + div_ceil(us % 1000 * rate, 1000)
    }

    /// Returns by how much a charge of `units` moves the TAT, if `total` is the weight of all active tenants; `None`
    /// if that is more than `tau`.
    fn increment(&self, units: i64, total: i64) -> Option<i64> {
        if units > self.reserve_units() {
            return None;
        }
        let (base, tau, weight) = (self.refill_us(units), self.tau(), self.weight);
        if base / weight > tau / total {
            return None;
        }
        let increment = base / weight * total + div_ceil(base % weight * total, weight);
        (increment <= tau).then_some(increment)
    }

    /// Returns by how much a refund of `units` moves the TAT back, at most `tau`.
    fn decrement(&self, units: i64, total: i64) -> i64 {
        let (rate, tau, weight) = (self.pool.rate, self.tau(), self.weight);
        if units / rate > tau / 1000 {
            return tau;
        }
        let base = units / rate * 1000 + units % rate * 1000 / rate;
        if base / weight > tau / total {
            return tau;
        }
        (base / weight * total + base % weight * total / weight).min(tau)
    }

    /// Returns what has to be left in the pool after a charge that moves the TAT by `increment`.
    fn withheld(&self, backlog: i64, increment: Option<i64>) -> i64 {
        match increment {
            Some(increment) if backlog + increment < self.tau() => {
                self.refilled(backlog + increment).min(self.reserve_units())
            }
            _ => self.reserve_units(),
        }
    }

    /// Returns after how many ms `need` fits, if `total` is the weight of all active tenants. `free` is what the pool
    /// has now.
    fn wait_for_fit(&self, need: i64, free: i64, backlog: i64, total: i64) -> i64 {
        let rate = self.pool.rate;
        let wait = |missing: i64, gain: i64| div_ceil(missing.max(0), gain);
        // Latest when the pool has the whole reserve on top.
        let latest = wait(need + self.reserve_units() - free, rate);
        let Some(increment) = self.increment(need, total) else { return latest };
        // While the backlog lasts, it shrinks as fast as the pool fills.
        let both = wait(need + self.refilled(backlog + increment) - free, 2 * rate);
        if both <= backlog / 1000 {
            return latest.min(both);
        }
        let after = wait(need + self.refilled(increment) - free, rate);
        latest.min(after.max(backlog / 1000 + 1))
    }

    /// Returns how many units the tenant could be charged at once; exact, or a little too small.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "at most 2^50, and rounded down")]
    fn remaining(&self, free: i64, backlog: i64, total: i64) -> i64 {
        let (per, weight) = (self.pool.per_ms, self.weight);
        let beyond = if free > self.reserve_units() { (free - self.reserve_units()) / per } else { 0 };
        let lead = free - self.refilled(backlog);
        if lead <= 0 {
            return beyond;
        }
        let within = (lead as f64 / per as f64 * weight as f64 / (total + weight) as f64).floor() as i64;
        let within = within.min(self.reserve).min(self.most());
        // Rounding of microseconds may make it a little too large.
        for cost in (within - 4..=within).rev() {
            if cost <= beyond {
                break;
            }
            if cost * per + self.withheld(backlog, self.increment(cost * per, total)) <= free {
                return cost;
            }
        }
        beyond
    }

    /// Returns how long a state is stored at least, in ms, so that its tenants stay known.
    fn retention_ms(&self) -> i64 {
        div_ceil(self.tau(), 1000) + self.active_ms + 1
    }
}

/// Name of the option in messages.
pub const FAIR: &str = "fair";
