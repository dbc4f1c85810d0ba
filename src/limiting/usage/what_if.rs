//! Bounds for how many requests a limit of another size would have refused, from what was recorded under its present
//! size: pure arithmetic. Called by the admin listener.
//!
//! The question is about the same requests at the same times, with the same units in use at the start of the window,
//! under the changed limit. All requests have the same cost `c`, and no other charge or refund changes a key.
//!
//! **Notation.** `small` is the limit with less burst and rate, `large` the other; `d >= 0` is the difference of their
//! bursts in units, and `g >= 0` of their rates. `S` and `L` are what the key has left under each, and `D = L - S`. At
//! the start, `D = d`. Charges that both make do not change `D`.
//!
//! **At most.** `D <= max(d, c) + g * t` after a time `t`: a full small bucket has `D <= d`, a request that only
//! `small` admits leaves `D < c`, one that only `large` admits lowers `D`. So a request that `large` admits with at
//! least that much left, `small` admits too.
//!
//! **At most, by key.** Between two moments when the small bucket is full, `large` admits fewer than
//! `(d + c + g * t) / c` requests more than `small`: it starts with `D <= d`, refills at most `g * t` more, and ends
//! with `D > -c`. After a refusal, the small bucket needs the time to refill `burst - c` units until it is full. So
//! there are few such intervals with refusals.
//!
//! **At least.** For each key, `large` admits at least `min(r, d / c)` requests more than `small`, where `r` is the
//! number of requests that `small` refuses. By induction over the requests: what a bucket has left is the least, over
//! all earlier times, of the burst plus the refill since, less the charges since. As long as `large` has admitted
//! `m < d / c` more, it has at least `d - m * c >= c` units more, so it admits the next request that `small` refuses.
//!
//! Fixed windows are the same with a refill once per window. Requests that another limit refuses charge nothing, so
//! they are left out of all numbers.

use std::time::Duration;

use crate::labels::labels;
use crate::limiting::algorithm::Rule;
use crate::telemetry::metrics::{HeadroomSums, LeftOver};

/// Usage of a limit that was recorded in a window.
#[derive(Clone, Copy, Debug)]
pub struct RecordedWindow<'a> {
    pub covered: Duration,
    /// Refused requests, with those that other limits refused as well.
    pub refused: u64,
    /// Lower bounds of the refused requests of some keys, each key once.
    pub refused_by_key: &'a [u64],
    /// Units that decisions left. Its `refused_by_others` are the requests to leave out.
    pub headroom: HeadroomSums,
    /// The cost of every request, at least 1.
    pub cost: i64,
}

impl RecordedWindow<'_> {
    fn refused_alone(&self) -> u64 {
        self.refused.saturating_sub(self.headroom.refused_by_others)
    }
}

/// Bounds for the number of requests that the changed limit would have refused, and no other limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalBounds {
    pub least: u64,
    pub most: u64,
}

labels! {
    /// Why there are no bounds.
    NoBounds:
    Algorithm = "only limits with token_bucket, gcra or fixed_window have bounds",
    Options = "buckets with `debt`, `refill = \"interval\"` or `start = \"empty\"` have no bounds",
    OppositeChanges = "there are bounds if burst and rate both grow or both shrink",
    Windows = "windows of another length have no bounds",
}

/// The numbers of a rule. `per_ms` is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RuleSize {
    burst: i64,
    /// Units that refill per `per_ms`; 0 for a window.
    rate: i64,
    per_ms: i64,
    is_window: bool,
}

impl RuleSize {
    fn of_rule(rule: &Rule) -> Result<RuleSize, NoBounds> {
        let params = rule.params(0);
        match (rule, &*params) {
            (Rule::TokenBucket(_), &[rate, per_ms, burst, 0, 0, 0, ..])
            | (Rule::Gcra(_), &[rate, per_ms, burst, ..]) => {
                Ok(RuleSize { burst, rate, per_ms: per_ms.max(1), is_window: false })
            }
            (Rule::FixedWindow(_), &[burst, per_ms, ..]) => {
                Ok(RuleSize { burst, rate: 0, per_ms: per_ms.max(1), is_window: true })
            }
            (Rule::TokenBucket(_), _) => Err(NoBounds::Options),
            _ => Err(NoBounds::Algorithm),
        }
    }

    /// Returns the units that refill in `window_ms` more than with `other`, rounded up; negative if fewer.
    fn extra_refill(self, other: RuleSize, window_ms: i128) -> i128 {
        let [own, others] = [self, other].map(|size| (i128::from(size.rate), i128::from(size.per_ms)));
        let (units, basis) = ((own.0 * others.1 - others.0 * own.1) * window_ms, own.1 * others.1);
        if units > 0 { (units + basis - 1) / basis } else { units.div_euclid(basis) }
    }

    /// Returns the largest number of intervals in `window_ms` that begin with a full quota and contain a refusal, or
    /// `None` if it is not bounded.
    fn count_intervals(self, window_ms: i128, cost: i128) -> Option<i128> {
        let (burst, per_ms) = (i128::from(self.burst), i128::from(self.per_ms));
        match self.is_window {
            true => Some(window_ms / per_ms + 2),
            false if burst <= cost => None,
            false => Some(1 + window_ms * i128::from(self.rate) / (per_ms * (burst - cost))),
        }
    }
}

/// Returns bounds for the number of requests that the rule `then` would have refused, instead of the rule `now`.
///
/// # Errors
/// No bounds are proven for this change.
pub fn bound_refusals(now: &Rule, then: &Rule, seen: RecordedWindow) -> Result<RefusalBounds, NoBounds> {
    let (now, then) = (RuleSize::of_rule(now)?, RuleSize::of_rule(then)?);
    if now.is_window && now.per_ms != then.per_ms {
        return Err(NoBounds::Windows);
    }
    let window_ms = i128::try_from(seen.covered.as_millis()).unwrap_or(i128::MAX / 2) + 1;
    let (units, refill) = (i128::from(then.burst) - i128::from(now.burst), then.extra_refill(now, window_ms));
    let cost = i128::from(seen.cost.max(1));
    if units == 0 && refill == 0 {
        return Ok(RefusalBounds { least: seen.refused_alone(), most: seen.refused_alone() });
    }
    if units >= 0 && refill >= 0 {
        return Ok(bound_growth(now, (units, refill), (window_ms, cost), seen));
    }
    if units <= 0 && refill <= 0 {
        return Ok(bound_decline((-units, -refill), cost, i128::from(now.burst), seen));
    }
    Err(NoBounds::OppositeChanges)
}

/// Bounds the refusals of a limit that has `units` more burst and refills `refill` more.
fn bound_growth(
    now: RuleSize,
    (units, refill): (i128, i128),
    (window_ms, cost): (i128, i128),
    seen: RecordedWindow,
) -> RefusalBounds {
    let clamp = |number: i128| u64::try_from(number.max(0)).unwrap_or(u64::MAX);
    let admitted_min = clamp(units / cost);
    let admitted_max = now.count_intervals(window_ms, cost).map_or(u64::MAX, |intervals| match refill {
        0 => clamp(intervals * ((units + cost - 1) / cost)),
        _ => clamp((intervals * (units + cost) + refill) / cost),
    });
    let sum = |most: u64| seen.refused_by_key.iter().map(|count| (*count).min(most)).sum::<u64>();
    // The refusals that are not known by key may belong to keys with one refusal each.
    let unknown = seen.refused.saturating_sub(seen.refused_by_key.iter().sum());
    let (fewer_min, alone) = (sum(admitted_min).saturating_sub(seen.headroom.refused_by_others), seen.refused_alone());
    RefusalBounds { least: alone.saturating_sub(sum(admitted_max) + unknown), most: alone.saturating_sub(fewer_min) }
}

/// Bounds the refusals of a limit that has `units` less burst and refills `refill` less than the present `burst`.
fn bound_decline((units, refill): (i128, i128), cost: i128, burst: i128, seen: RecordedWindow) -> RefusalBounds {
    let quota = u64::try_from(burst).unwrap_or(0);
    let least_units = |left: LeftOver| i128::from(left.least_units(quota));
    let safe = units.max(cost) + refill;
    let mut more_max = 0;
    let mut is_one_lost = false;
    for (place, (left, count)) in LeftOver::ALL.iter().zip(seen.headroom.admitted).enumerate() {
        if least_units(*left) < safe {
            more_max += count;
        }
        // With the same refill, the first request of a key that leaves less than `units` does not fit any more. A
        // difference of less than one request may be made up for by a later request that only the smaller bucket
        // admits.
        let next = LeftOver::ALL.get(place + 1).map(|next| least_units(*next));
        is_one_lost |= count > 0 && refill == 0 && units >= cost && next.is_some_and(|next| next <= units);
    }
    let alone = seen.refused_alone();
    RefusalBounds { least: alone + u64::from(is_one_lost), most: alone + more_max }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::limiting::algorithm::params::{OptionValues, ParamValue, Rate};
    use crate::limiting::algorithm::{SPECS, State};
    use crate::telemetry::metrics::LimitRegistry;

    fn rule(algorithm: &str, (count, per_ms): (i64, i64), burst: i64) -> Rule {
        let spec = SPECS.iter().find(|spec| spec.name == algorithm).unwrap();
        let value = |name| match name {
            "rate" => Some(ParamValue::Rate(Rate { count, per_ms })),
            "burst" => Some(ParamValue::Integer(burst)),
            _ => None,
        };
        let values = spec.params().map(|param| (param.name, value(param.name))).collect();
        (spec.build)(&OptionValues::new(values, false)).unwrap()
    }

    /// A request at a time: its key, and whether another limit refuses it.
    type Request = (i64, u8, bool);

    /// Decisions of a rule: refusals by key, refusals by no other limit, and counts of the units that admissions left.
    #[derive(Default)]
    struct Simulated {
        refused: HashMap<u8, u64>,
        refused_alone: u64,
        headroom: HeadroomSums,
    }

    /// Decides the requests after `begin` one by one. Those before it are the history: both rules start with the state
    /// that the present rule has then.
    fn simulate(rule: &Rule, before: &Rule, requests: &[Request], begin: i64, cost: i64) -> Simulated {
        let (counts, mut found) = (LimitRegistry::default(), Simulated::default());
        let count = counts.get_or_create("x").headroom.shard_for(0);
        let mut states: HashMap<u8, State> = HashMap::new();
        for (at, key, other_refuses) in requests {
            let in_force = if *at < begin { before } else { rule };
            let step = in_force.decide(states.get(key), *at, cost, 0);
            if let Some((state, _)) = step.next.filter(|_| !other_refuses) {
                states.insert(*key, state);
            }
            if *at < begin {
                continue;
            }
            match step.answer.admitted {
                true if *other_refuses => {}
                true => count.count_admission(step.answer.remaining, in_force.policy().quota),
                false => {
                    *found.refused.entry(*key).or_default() += 1;
                    found.refused_alone += u64::from(!other_refuses);
                    count.count_refusal(*other_refuses);
                }
            }
        }
        found.headroom = counts.get_or_create("x").sum_headroom();
        found
    }

    fn sizes() -> impl Strategy<Value = (i64, i64, i64)> {
        (1_i64..30, prop::sample::select(vec![100_i64, 1000, 10_000, 60_000]), 1_i64..40)
    }

    proptest! {
        #[test]
        fn the_exact_number_is_within_the_bounds(
            algorithm in prop::sample::select(vec!["token_bucket", "gcra", "fixed_window"]),
            (count, per_ms, burst) in sizes(),
            (more, faster) in (-30_i64..30, -20_i64..20),
            cost in 1_i64..4,
            gaps in prop::collection::vec((0_i64..400, 0_u8..4, 0_u8..12), 1..300),
            known in 0_usize..5,
            begin in 0_i64..8000,
        ) {
            let mut at = 0;
            let requests: Vec<Request> = gaps.iter().map(|(gap, key, other)| {
                at += gap * gap / 400;
                (at, *key, *other == 0)
            }).collect();
            // A state continues with another burst. With another rate, it would refill the past by that rate.
            let begin = if faster == 0 { begin } else { 0 };
            let now = rule(algorithm, (count, per_ms), burst);
            let then = rule(algorithm, ((count + faster).max(1), per_ms), (burst + more).max(1));
            let [seen, exact] = [&now, &then].map(|rule| simulate(rule, &now, &requests, begin, cost));
            let by_key: Vec<u64> = seen.refused.values().take(known).copied().collect();
            let refused = seen.refused.values().sum();
            let covered = Duration::from_millis(u64::try_from((at - begin).max(0)).unwrap());
            let window = RecordedWindow { covered, refused, refused_by_key: &by_key, headroom: seen.headroom, cost };
            if let Ok(RefusalBounds { least, most }) = bound_refusals(&now, &then, window) {
                let exact = exact.refused_alone;
                let is_between = least <= exact && exact <= most;
                prop_assert!(is_between, "{least} <= {exact} <= {most}, was {refused}: {now:?} {then:?}");
            }
        }
    }

    #[test]
    fn bounds_are_tight_where_the_counts_tell_enough() {
        // Each of three keys sends 30 requests at once.
        let requests: Vec<Request> = (0..90).map(|place| (0, place % 3, false)).collect();
        let now = rule("token_bucket", (1, 3_600_000), 10);
        let seen = simulate(&now, &now, &requests, 0, 1);
        let by_key: Vec<u64> = seen.refused.values().copied().collect();
        let covered = Duration::from_secs(600);
        let window = RecordedWindow { covered, refused: 60, refused_by_key: &by_key, headroom: seen.headroom, cost: 1 };
        let bounds = |burst| bound_refusals(&now, &rule("token_bucket", (1, 3_600_000), burst), window).unwrap();
        assert_eq!(bounds(15), RefusalBounds { least: 45, most: 45 });
        assert_eq!(bounds(10), RefusalBounds { least: 60, most: 60 });
        assert_eq!(bounds(100), RefusalBounds { least: 0, most: 0 });
        let less = bounds(5);
        assert!(less.least > 60 && (75..=90).contains(&less.most), "{less:?}");
        for (then, why) in [
            (rule("gcra", (2, 3_600_000), 5), NoBounds::OppositeChanges),
            (rule("sliding_log", (2, 3_600_000), 5), NoBounds::Algorithm),
        ] {
            assert_eq!(bound_refusals(&now, &then, window), Err(why));
        }
        let minute = |count, per_ms| rule("fixed_window", (count, per_ms), 0);
        assert_eq!(bound_refusals(&minute(5, 60_000), &minute(6, 1000), window), Err(NoBounds::Windows));
    }
}
