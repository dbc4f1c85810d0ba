//! How long units that were debited in advance may be spent. Pure arithmetic; `limiting::hot_keys` explains why it is
//! exact.

use crate::limiting::algorithm::exact::div_ceil;

/// The numbers of a rule that decide how large a lease is and how long it lasts: `rate` units per `per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseBasis {
    pub rate: i64,
    pub per_ms: i64,
    /// How the rule refills; `None` if it has windows with a counter.
    pub refill: Option<BucketRefill>,
}

/// The option `lease` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Longest time that a lease lasts, in ms.
    pub horizon_ms: i64,
    /// A key with more decisions per second in this gateway is hot.
    pub hot_after: i64,
}

/// A bucket of `burst` units that refills every `lump_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRefill {
    pub burst: i64,
    pub lump_ms: i64,
}

impl LeaseTerms {
    /// Describes the option for people: `leases of 100 ms above 200 decisions/s`.
    pub fn describe(&self) -> String {
        format!("leases of {} ms above {} decisions/s", self.horizon_ms, self.hot_after)
    }
}

impl LeaseBasis {
    /// Returns the units that the rule admits in `time_ms` on average.
    pub fn units_in(&self, time_ms: i64) -> i64 {
        self.rate.saturating_mul(time_ms) / self.per_ms
    }

    /// Returns whether leases of `horizon_ms` are possible. The burst of a bucket has to be at least twice what it
    /// refills in that time: a lease keeps as much in use as is refilled while it lasts.
    pub fn can_lease(&self, horizon_ms: i64) -> bool {
        let burst = self.refill.map_or(i64::MAX, |refill| refill.burst);
        !self.has_reserve(horizon_ms) || burst.saturating_sub(1) / 2 >= self.units_in(horizon_ms)
    }

    /// Returns whether the rule refills within the horizon, so that a lease needs more in use than its own units.
    pub fn has_reserve(&self, horizon_ms: i64) -> bool {
        self.refill.is_some_and(|refill| refill.lump_ms < horizon_ms)
    }

    /// Returns how many of `wanted` units may be spent, which were just debited alone or together with others, and for
    /// how many ms since the call was sent. `reset_ms` is the time, after the debit, until the whole quota is available
    /// again: until a window ends, or until a bucket is full.
    ///
    /// A bucket must not refill so far that it and the unspent units exceed its burst. That happens when what is in use
    /// falls below the units of the lease: as long before `reset_ms` as these take to refill, and not before the next
    /// refill.
    pub fn usable(&self, wanted: i64, reset_ms: i64, horizon_ms: i64) -> (i64, i64) {
        // The clock of the store may run a little faster than that of the gateway, and its ms are rounded down.
        let certain_ms = reset_ms - 1 - reset_ms / 1000;
        let Some(BucketRefill { lump_ms, .. }) = self.refill else {
            return (wanted, certain_ms.clamp(0, horizon_ms));
        };
        let next_ms = (reset_ms.max(1) - 1) % lump_ms;
        let life_ms = |units: i64| {
            let lumps = div_ceil(units.saturating_mul(self.per_ms), self.rate.saturating_mul(lump_ms));
            certain_ms.saturating_sub(lumps.saturating_mul(lump_ms)).max(next_ms - next_ms / 1000)
        };
        let units = match life_ms(wanted) {
            long if long >= horizon_ms => wanted,
            _ => wanted.min(self.units_in(certain_ms.max(0)) / 2),
        };
        (units, life_ms(units).clamp(0, horizon_ms))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::algorithm::token_bucket::TokenBucket;

    const NOW: i64 = 1_795_000_000_000;

    fn bucket(rate: i64, per_ms: i64, burst: i64, interval: bool) -> Rule {
        Rule::TokenBucket(TokenBucket { rate, per_ms, burst, debt: 0, interval, empty: false, refunds: false })
    }

    fn rules() -> impl Strategy<Value = Rule> {
        prop_oneof![
            (1..100_i64, 1..3000_i64, 1..200_i64, any::<bool>())
                .prop_map(|(rate, per_ms, burst, interval)| bucket(rate, per_ms, burst, interval)),
            (1..2000_i64, 1..3000_i64, any::<bool>())
                .prop_map(|(limit, window_ms, clock)| Rule::FixedWindow(FixedWindow { limit, window_ms, clock })),
        ]
    }

    proptest! {
        /// Gateways lease, spend and charge at random. Requests that are admitted, at the times when they are, must
        /// also be admitted by the rule itself; for windows, with the windows that the store has. The periods of a
        /// bucket with lumps begin when it is first used, which leases may change, so the bound of the rule is checked.
        #[test]
        fn what_is_spent_conforms_to_the_rule(
            rule in rules(),
            horizon_ms in 1..1000_i64,
            steps in prop::collection::vec((0..400_i64, 0..3_usize, 0..8_i64), 1..120),
        ) {
            let basis = rule.lease_basis().unwrap();
            let is_window = basis.refill.is_none();
            let lump_ms = basis.refill.map_or(1, |refill| refill.lump_ms);
            let (mut store, mut real, mut now) = (None, None, NOW);
            let mut admitted: Vec<(i64, i64)> = Vec::new();
            let mut conforms = |units: i64, now: i64| {
                if lump_ms == 1 {
                    let step = rule.decide(real.as_ref(), now, units, 0);
                    real = step.next.map(|(state, _)| state).or(real.take());
                    return step.answer.admitted;
                }
                admitted.push((now, units));
                let mut sum = 0;
                admitted.iter().rev().all(|(then, units)| {
                    sum += units;
                    sum <= rule.max_cost() + basis.rate * ((now - then) / lump_ms + 1)
                })
            };
            // By gateway: unspent units, when they end, and the window they are of.
            let mut leases = [(0, 0, 0); 3];
            for (pause, gateway, what) in steps {
                now += pause / 4;
                let take = |state: &mut Option<_>, cost: i64| {
                    let step = rule.decide(state.as_ref(), now, cost, 0);
                    if step.answer.admitted {
                        *state = step.next.map(|(state, _)| state).or(state.take());
                    }
                    step.answer
                };
                let (units, ends, window) = leases[gateway];
                let spent = if what % 2 == 0 { units } else { units.min(what) };
                if now < ends && spent > 0 {
                    leases[gateway].0 -= spent;
                    if is_window {
                        // The window of the charge has not ended.
                        let answer = take(&mut store.clone(), 0);
                        prop_assert_eq!(now + answer.reset_ms, window);
                    } else {
                        prop_assert!(conforms(spent, now), "{} units at {}", spent, now);
                    }
                } else if what < 4 {
                    // One unit, or everything that is left.
                    let left = take(&mut store.clone(), 0).remaining;
                    let cost = if what == 0 { 1 } else { left.max(1) };
                    if take(&mut store, cost).admitted && !is_window {
                        prop_assert!(conforms(cost, now), "{} units from the store at {}", cost, now);
                    }
                } else {
                    let size = what * what;
                    let answer = take(&mut store, size);
                    if answer.admitted {
                        let wanted = if pause % 2 == 0 { size } else { size / 2 };
                        let (units, life_ms) = basis.usable(wanted, answer.reset_ms, horizon_ms);
                        prop_assert!((0..=wanted).contains(&units) && (0..=horizon_ms).contains(&life_ms));
                        leases[gateway] = (units, now + life_ms, now + answer.reset_ms);
                    }
                }
            }
        }
    }

    #[test]
    fn a_bucket_keeps_as_much_in_use_as_it_refills_while_the_lease_lasts() {
        let Some(basis) = bucket(1000, 1000, 1000, false).lease_basis() else { panic!() };
        // Of 100 units in a full bucket, half may be spent while the others refill.
        assert_eq!(basis.usable(100, 100, 100), (49, 50));
        assert_eq!(basis.usable(100, 202, 100), (100, 100));
        assert!(basis.can_lease(100) && basis.can_lease(499) && !basis.can_lease(500));
        // A lump of 1000 units arrives in 300 ms, and the bucket is full then.
        let Some(basis) = bucket(1000, 1000, 1000, true).lease_basis() else { panic!() };
        assert_eq!(basis.usable(100, 300, 100), (100, 100));
        assert_eq!(basis.usable(100, 1300, 1000), (100, 299));
    }
}
