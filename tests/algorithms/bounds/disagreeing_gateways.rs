//! One key decided with different settings: gateways that disagree for a while, and live overrides. Algorithms that
//! record single charges or leases lose none of them.

use proptest::prelude::*;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::concurrency::Concurrency;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;

use super::{Client, arrivals, lagging};

/// Count and time.
fn numbers() -> impl Strategy<Value = (i64, i64)> {
    (1..40_i64, prop_oneof![2..20_i64, 20..3000_i64])
}

fn log((limit, window_ms): (i64, i64)) -> Rule {
    Rule::SlidingLog(SlidingLog { limit, window_ms, sorted_set: false })
}

fn leases((in_flight, lease_ms): (i64, i64)) -> Rule {
    Rule::Concurrency(Concurrency { in_flight, lease_ms })
}

/// Decides each arrival by the own rule, and after it a refused request and a peek by another rule.
fn looked_at(own: &Rule, others: &[Rule], arrivals: &[(i64, i64)]) {
    let (mut alone, mut looked) = (Client::new(own.clone()), Client::new(own.clone()));
    for (i, arrival) in arrivals.iter().enumerate() {
        assert_eq!(looked.arrive(*arrival), alone.arrive(*arrival), "arrival {i}: {own:?} {others:?}");
        looked.rule = others[i % others.len()].clone();
        looked.arrive((0, 0));
        assert!(!looked.arrive((0, looked.rule.policy().quota + 1)).admitted);
        looked.rule = own.clone();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_look_through_other_numbers_changes_nothing(
        own in numbers(),
        others in prop::collection::vec(numbers(), 1..4),
        steps in arrivals(1000, 40, 1000),
    ) {
        // Steps in thousandths; back by less than any window.
        let shortest = others.iter().map(|(_, window)| *window).min().unwrap().min(own.1);
        let steps: Vec<_> = steps.iter().map(|(step, cost)| (step * own.1 / 1000, *cost)).collect();
        let steps = lagging(&steps, shortest / 2);
        looked_at(&log(own), &others.iter().map(|numbers| log(*numbers)).collect::<Vec<_>>(), &steps);
    }

    /// A gateway that admits a cost has counted all charges of any gateway within its own window, if it has decided
    /// since the log began. No cost exceeds what all rules can admit, because such a cost would leave no trace in the
    /// log.
    #[test]
    fn gateways_that_disagree_count_each_others_charges(
        all in prop::collection::vec(numbers(), 2..4),
        steps in arrivals(1500, 40, 0),
    ) {
        let mut client = Client::new(log(all[0]));
        let least = all.iter().map(|(limit, _)| *limit).min().unwrap();
        for (i, (step, cost)) in steps.into_iter().enumerate() {
            let cost = cost.min(least);
            for turn in 0..all.len() {
                let (limit, window) = all[(i + turn) % all.len()];
                client.rule = log((limit, window));
                let since = client.lived + if turn == 0 { step } else { 0 } - window;
                let before: i64 = client.charges.iter().filter(|charge| charge.lived >= since).map(|charge| charge.cost).sum();
                let answer = client.arrive((if turn == 0 { step } else { 0 }, cost));
                prop_assert_eq!(answer.admitted, cost == 0 || before + cost <= limit, "{} of {}", before, limit);
            }
        }
        let (most, shortest) = (all.iter().map(|all| all.0).max().unwrap(), all.iter().map(|all| all.1).min().unwrap());
        client.assert_at_most_in_any(shortest + 1, most);
    }

    /// A lease expires by the rule that took or renewed it last, also if a gateway with another rule decides.
    #[test]
    fn a_lease_is_cut_by_nobody_else(
        all in prop::collection::vec(numbers(), 1..4),
        steps in prop::collection::vec((0..400_i64, 0..6_u8, 1..9_i64, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut client = Client::new(leases(all[0]));
        // Tag, units, expiry.
        let mut held: Vec<(i64, i64, i64)> = Vec::new();
        for (i, (step, action, cost, which)) in steps.into_iter().enumerate() {
            let (limit, lease) = all[i % all.len()];
            client.rule = leases((limit, lease));
            client.now += step;
            let now = client.now;
            held.retain(|(_, _, expiry)| *expiry > now);
            let live: i64 = held.iter().map(|(_, units, _)| units).sum();
            let state = client.state.take().filter(|(_, expires)| now < *expires);
            let known = state.as_ref().map(|(state, _)| state);
            let next = if action < 3 || held.is_empty() {
                let tag = (i as i64 + 1) * 1000;
                let step = client.rule.decide(known, now, cost, tag);
                prop_assert_eq!(step.answer.admitted, live + cost <= limit, "{} of {}", live, limit);
                let charge = if step.answer.admitted { cost } else { 0 };
                prop_assert_eq!(step.answer.remaining, (limit - live - charge).max(0));
                if step.answer.admitted {
                    held.push((tag, cost, now + lease));
                } else if cost <= limit {
                    // When enough of the leases that end first have ended.
                    let mut ends: Vec<_> = held.iter().map(|(_, units, expiry)| (*expiry, *units)).collect();
                    ends.sort_unstable();
                    let mut left = live;
                    let free = ends.iter().find(|(_, units)| { left -= units; left + cost <= limit });
                    prop_assert_eq!(step.answer.retry_ms, free.unwrap().0 - now);
                }
                step.next
            } else if action == 3 {
                // The whole lease or a part.
                let place = which.index(held.len());
                let (tag, units, expiry) = held.swap_remove(place);
                let back = cost.min(units);
                if back < units {
                    held.push((tag, units - back, expiry));
                }
                client.rule.adjust(known, now, -back, tag).map(|(state, ttl_ms, _)| (state, ttl_ms))
            } else {
                let place = which.index(held.len());
                held[place].2 = now + lease;
                let next = client.rule.adjust(known, now, held[place].1, held[place].0);
                next.map(|(state, ttl_ms, _)| (state, ttl_ms))
            };
            client.state = next.map(|(state, ttl_ms)| (state, now + ttl_ms)).or(state);
        }
    }
}
