//! The parameters that change a bound: debt, lumps, an empty start, queues, leases; and the clocks
//! that jump back for the algorithms that `logs.rs` compares with lists.

use proptest::prelude::*;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::concurrency::Concurrency;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;

use super::{Client, far, lagging, never, rate_bound, schedules};

/// A bucket as exact fractions: levels are tokens times `per`, below 0 what is owed.
struct Model {
    rule: TokenBucket,
    level: i128,
    at: i64,
    known: bool,
}

impl Model {
    fn full(&self) -> i128 {
        i128::from(self.rule.burst) * i128::from(self.rule.per_ms)
    }

    fn refill(&mut self, now: i64) {
        let (rate, per, full) = (i128::from(self.rule.rate), i128::from(self.rule.per_ms), self.full());
        if !self.known {
            self.level = if self.rule.empty { 0 } else { full };
            self.at = now;
        }
        let elapsed = i128::from(now - self.at);
        let lumps = elapsed / per;
        self.level += if self.rule.interval { lumps * rate * per } else { elapsed * rate };
        let kept = self.at + i64::try_from(lumps * per).unwrap();
        // A full bucket begins a new interval when it is used.
        self.at = if self.rule.interval && self.level < full { kept } else { now };
        self.level = self.level.min(full);
    }

    fn take(&mut self, now: i64, cost: i64) -> (bool, i64) {
        self.refill(now);
        let per = i128::from(self.rule.per_ms);
        let left = self.level - i128::from(cost) * per;
        let debt = i128::from(self.rule.debt) * per;
        let admitted = cost == 0 || left >= 0 || self.level > 0 && left >= -debt;
        self.known |= cost > 0 && (admitted || self.rule.empty);
        if admitted {
            self.level = left;
        }
        (admitted, i64::try_from((self.level / per).max(0)).unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Verdicts and remaining units are exact for all parameters.
    #[test]
    fn a_token_bucket_is_exact(
        (burst, per, arrivals) in schedules(never),
        rate in 1..30_i64,
        debt in prop_oneof![Just(0), 1..30_i64],
        interval: bool,
        empty: bool,
    ) {
        let rule = TokenBucket { rate, per_ms: per, burst, debt, interval, empty, refunds: false };
        let mut model = Model { rule: rule.clone(), level: 0, at: 0, known: false };
        let mut client = Client::new(Rule::TokenBucket(rule));
        for (step, cost) in arrivals {
            let answer = client.arrive((step, cost));
            prop_assert_eq!((answer.admitted, answer.remaining), model.take(client.now, cost), "cost {}", cost);
        }
    }

    #[test]
    fn a_bucket_with_a_debt_admits_its_burst_its_debt_and_its_rate(
        (burst, per, arrivals) in schedules(far),
        rate in 1..30_i64,
        debt in 1..40_i64,
        empty: bool,
    ) {
        let rule = TokenBucket { rate, per_ms: per, burst, debt, interval: false, empty, refunds: false };
        Client::run(Rule::TokenBucket(rule), &arrivals).assert_in_any_stretch(rate_bound(rate, per, burst + debt));
    }

    /// An interval contains as many refills as ends of refill periods.
    #[test]
    fn lumps_come_once_an_interval(
        (burst, per, arrivals) in schedules(far),
        rate in 1..30_i64,
        debt in prop_oneof![Just(0), 1..30_i64],
    ) {
        let rule = TokenBucket { rate, per_ms: per, burst, debt, interval: true, empty: false, refunds: false };
        let client = Client::run(Rule::TokenBucket(rule), &arrivals);
        client.assert_in_any_stretch(|length| Some(burst + debt + rate * ((length - 1) / per + 1)));
    }

    /// A new key has no advantage over one that has used all its units.
    #[test]
    fn a_bucket_that_starts_empty_gives_only_refilled_units(
        (burst, per, arrivals) in schedules(never),
        rate in 1..30_i64,
    ) {
        let rule = TokenBucket { rate, per_ms: per, burst, debt: 0, interval: false, empty: true, refunds: false };
        let mut client = Client::new(Rule::TokenBucket(rule));
        prop_assert!(!client.arrive((0, 1)).admitted);
        for arrival in arrivals {
            client.arrive(arrival);
            let sum: i64 = client.charges.iter().map(|charge| charge.cost).sum();
            prop_assert!(sum * per <= client.lived * rate, "{} in {} ms", sum, client.lived);
        }
    }

    #[test]
    fn a_queue_admits_its_length_and_its_rate(
        (places, per, arrivals) in schedules(far),
        rate in 1..30_i64,
        nodelay: bool,
    ) {
        let queue_ms = places * per / rate;
        let rule = Rule::LeakyBucket(LeakyBucket { rate, per_ms: per, queue_ms, nodelay, delay_after: 0, refunds: false });
        let burst = rule.policy().quota;
        // The first of a queue that is no multiple of the spacing may go when less than one has left.
        Client::run(rule, &arrivals).assert_in_any_stretch(|length| Some(burst + ((length - 1) * rate + per - 1) / per));
    }

    /// Turns are handed out in time: of any two that a client got, the later one is at least as far
    /// behind as the units between them take, by the true clock and in microseconds.
    #[test]
    fn turns_are_never_closer_than_the_rate(
        (places, per, arrivals) in schedules(never),
        rate in 1..30_i64,
    ) {
        let rule = Rule::LeakyBucket(LeakyBucket { rate, per_ms: per, queue_ms: places * per / rate, nodelay: false, delay_after: 0, refunds: false });
        let mut client = Client::new(rule);
        let mut ends: Vec<(i64, i64)> = Vec::new();
        for (step, cost) in arrivals {
            let answer = client.arrive((step, cost));
            if !answer.admitted || cost == 0 {
                continue;
            }
            // The receipt is the end of the slot.
            let end_us = answer.receipt;
            let start_us = client.now * 1000 + answer.retry_ms * 1000;
            prop_assert!(answer.retry_ms <= places * per / rate);
            if let Some((_, before_us)) = ends.last() {
                prop_assert!((end_us - before_us + 1) * rate >= cost * per * 1000, "{} and {}", before_us, end_us);
                prop_assert!(start_us >= *before_us, "the request leaves the queue too early");
            }
            ends.push((cost, end_us));
        }
    }

    #[test]
    fn a_sliding_log_admits_its_limit_in_any_window((limit, window, arrivals) in schedules(far), sorted_set: bool) {
        let window = window.max(2);
        let rule = Rule::SlidingLog(SlidingLog { limit, window_ms: window, sorted_set });
        // A clock that is further behind than a window moves what lies ahead: to now, so that it
        // counts for a window from then on. Two ms that are a window apart may be less than that
        // apart: the bound holds for one ms more.
        Client::run(rule, &lagging(&arrivals, window)).assert_at_most_in_any(window + 1, limit);
    }

    /// The number of leases that were taken or renewed within their lifetime never exceeds the limit.
    #[test]
    fn live_leases_never_exceed_the_limit_with_any_clock(
        (limit, lease, arrivals) in schedules(far),
        actions in prop::collection::vec((0..5_u8, any::<prop::sample::Index>()), 120),
    ) {
        let lease = lease.max(2);
        let mut client = Client::new(Rule::Concurrency(Concurrency { in_flight: limit, lease_ms: lease }));
        // Tag, units, and when it was taken or renewed.
        let mut held: Vec<(i64, i64, i64)> = Vec::new();
        for (i, ((step, cost), (action, which))) in arrivals.into_iter().zip(actions).enumerate() {
            client.now += step;
            client.lived += step.max(0);
            let (now, lived) = (client.now, client.lived);
            let state = client.state.take().filter(|(_, expires)| now < *expires);
            let known = state.as_ref().map(|(state, _)| state);
            let next = if action < 3 || held.is_empty() {
                let tag = (i as i64 + 1) * 1000;
                let step = client.rule.decide(known, now, cost, tag);
                if step.answer.admitted && cost > 0 {
                    held.push((tag, cost, lived));
                }
                step.next
            } else if action == 3 {
                let (tag, units, _) = held.swap_remove(which.index(held.len()));
                client.rule.adjust(known, now, -units, tag).map(|(state, ttl_ms, _)| (state, ttl_ms))
            } else {
                let place = which.index(held.len());
                let next = client.rule.adjust(known, now, 0, held[place].0);
                match next {
                    // A lost lease is renewed as one unit.
                    Some(_) if lived - held[place].2 >= lease => held[place] = (held[place].0, 1, lived),
                    Some(_) => held[place].2 = lived,
                    None => drop(held.swap_remove(place)),
                }
                next.map(|(state, ttl_ms, _)| (state, ttl_ms))
            };
            client.state = next.map(|(state, ttl_ms)| (state, now + ttl_ms)).or(state);
            let live: i64 = held.iter().filter(|(_, _, since)| lived - since < lease).map(|(_, units, _)| units).sum();
            prop_assert!(live <= limit, "{} of {}", live, limit);
        }
    }
}
