//! Takes, corrections and time, mixed: nothing that is given back is more than what the charge still
//! holds. Against a bucket that counts, in whole numbers, only the charges that stand.

use proptest::prelude::*;
use sluicegate::limit::algo::Rule;
use sluicegate::limit::algo::gcra::Gcra;
use sluicegate::limit::algo::leaky_bucket::LeakyBucket;
use sluicegate::limit::algo::token_bucket::TokenBucket;

use crate::{Client, never, rate_bound, schedules};

#[derive(Clone, Copy, Debug)]
struct Taken {
    at: i64,
    cost: i64,
    receipt: i64,
}

/// What of these charges would not have come back by `now`, times `per`, had there been no others.
fn used(charges: &[Taken], rule: &TokenBucket, now: i64) -> i64 {
    let (mut used, mut at) = (0, 0);
    let gone = |used: i64, at: &mut i64, to: i64| -> i64 {
        let lump = if rule.interval { rule.per_ms } else { 1 };
        let steps = (to - *at) / lump;
        let left = (i128::from(used) - i128::from(steps) * i128::from(rule.rate * lump)).max(0);
        *at = if left == 0 { to } else { *at + steps * lump };
        i64::try_from(left).unwrap()
    };
    for charge in charges {
        used = gone(used, &mut at, charge.at) + charge.cost * rule.per_ms;
    }
    gone(used, &mut at, now)
}

fn rules(rate: i64, per_ms: i64, burst: i64, which: usize) -> (Rule, TokenBucket) {
    let bucket = TokenBucket { rate, per_ms, burst, debt: 0, interval: which == 3, empty: false };
    let rule = match which {
        0 | 3 => Rule::TokenBucket(bucket.clone()),
        1 => Rule::Gcra(Gcra { rate, per_ms, burst }),
        _ => Rule::LeakyBucket(LeakyBucket { rate, per_ms, queue_ms: (burst - 1) * per_ms / rate, nodelay: true }),
    };
    (rule, bucket)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each charge is given back once or not at all, whole or in parts, at any time and in any order.
    #[test]
    fn what_is_given_back_was_there(
        (burst, per, arrivals) in schedules(never),
        rate in 1..30_i64,
        actions in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 1..9_i64), 120),
        which in 0..3_usize,
    ) {
        let (rule, bucket) = rules(rate, per, burst, which);
        let mut client = Client::new(rule);
        let (mut stand, mut open): (Vec<Taken>, Vec<Taken>) = (Vec::new(), Vec::new());
        for ((step, cost), (action, place, part)) in arrivals.into_iter().zip(actions) {
            let answer = client.arrive((step, cost));
            if answer.admitted && cost > 0 {
                let taken = Taken { at: client.now, cost, receipt: answer.receipt };
                stand.push(taken);
                open.push(taken);
            }
            if action < 2 && !open.is_empty() {
                let taken = open.swap_remove(place.index(open.len()));
                let delta = part.min(taken.cost);
                client.adjust(-delta, taken.receipt);
                let charge = stand.iter_mut().find(|one| one.receipt == taken.receipt && one.cost == taken.cost).unwrap();
                charge.cost -= delta;
            }
            // A bucket that never saw what went back has no less.
            let most = (burst * per - used(&stand, &bucket, client.now)) / per;
            let left = client.arrive((0, 0)).remaining;
            prop_assert!(left <= most, "{} left, {} without what went back: {:?}", left, most, stand);
        }
        client.charges.clear();
        client.charges.extend(stand.iter().map(|taken| crate::Charge {
            lived: taken.at - crate::NOW, cost: taken.cost, receipt: taken.receipt, start: 0,
        }));
        client.assert_in_any_stretch(rate_bound(rate, per, burst));
    }

    /// In lumps: within one interval all of a charge comes back.
    #[test]
    fn a_charge_comes_back_whole_before_its_lump(
        rate in 1..30_i64, per in 2..3000_i64, burst in 5..40_i64, before in 0..5_i64, wait in 0..3000_i64,
    ) {
        let (rule, _) = rules(rate, per, burst, 3);
        let mut client = Client::new(rule);
        client.arrive((0, before));
        let receipt = client.arrive((0, 3.min(burst - before))).receipt;
        client.arrive((wait, 0));
        let cost = 3.min(burst - before);
        client.adjust(-cost, receipt);
        let lumps = wait / per;
        let most = burst - (before - lumps * rate).max(0);
        let left = client.arrive((0, 0)).remaining;
        prop_assert!(left <= most);
        if lumps == 0 {
            prop_assert_eq!(left, burst - before);
        }
    }

    /// Alone in its bucket a charge leaves nothing behind, whenever it is given back.
    #[test]
    fn a_charge_alone_goes_without_a_trace(
        rate in 1..5000_i64, per in 1..3000_i64, burst in 1..40_i64, wait in 0..5000_i64, which in 0..4_usize,
    ) {
        let (rule, _) = rules(rate, per, burst, which);
        let burst = rule.policy().quota;
        let mut client = Client::new(rule);
        let receipt = client.arrive((0, 1)).receipt;
        client.arrive((wait, 0));
        client.adjust(-1, receipt);
        prop_assert_eq!(client.arrive((0, burst)).admitted, true);
    }
}
