//! Random charges, corrections and pauses: a refund never exceeds what is still in use of the charge. The model is a
//! bucket that counts, in whole numbers, only the charges that were not refunded.

use proptest::prelude::*;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;

use super::{Client, never, rate_bound, schedules};

#[derive(Clone, Copy, Debug)]
pub struct ModelCharge {
    pub at: i64,
    pub cost: i64,
    pub receipt: i64,
}

/// Returns the units of these charges that would not have been refilled by `now` without other charges, times `per`.
pub fn used(charges: &[ModelCharge], rule: &TokenBucket, now: i64) -> i64 {
    let (mut used, mut at) = (0, 0);
    let advance = |used: i64, at: &mut i64, to: i64| -> i64 {
        let lump = if rule.interval { rule.per_ms } else { 1 };
        let steps = (to - *at) / lump;
        let left = (i128::from(used) - i128::from(steps) * i128::from(rule.rate * lump)).max(0);
        *at = if left == 0 { to } else { *at + steps * lump };
        i64::try_from(left).unwrap()
    };
    for charge in charges {
        used = advance(used, &mut at, charge.at) + charge.cost * rule.per_ms;
    }
    advance(used, &mut at, now)
}

pub fn rules(rate: i64, per_ms: i64, burst: i64, which: usize) -> (Rule, TokenBucket) {
    let bucket = TokenBucket { rate, per_ms, burst, debt: 0, interval: which == 3, empty: false, refunds: true };
    let rule = match which {
        0 | 3 => Rule::TokenBucket(bucket.clone()),
        1 => Rule::Gcra(Gcra { rate, per_ms, burst, refunds: true }),
        _ => Rule::LeakyBucket(LeakyBucket {
            rate,
            per_ms,
            queue_ms: (burst - 1) * per_ms / rate,
            nodelay: true,
            delay_after: 0,
            refunds: true,
        }),
    };
    (rule, bucket)
}

/// The bucket that counts like one of these rules, and what it holds, times `per`.
pub fn bucket_of(rule: &Rule) -> (TokenBucket, i64) {
    let params = rule.params(0);
    let (rate, per_ms, burst) = (params[0], params[1], rule.policy().quota);
    let full = match rule {
        Rule::LeakyBucket(rule) => rule.queue_ms * rate + per_ms,
        _ => burst * per_ms,
    };
    (TokenBucket { rate, per_ms, burst, debt: 0, interval: false, empty: false, refunds: true }, full)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each charge is refunded once or not at all, whole or in part, at any time and in any order.
    #[test]
    fn refunds_never_exceed_the_charge(
        (burst, per, arrivals) in schedules(never),
        rate in 1..30_i64,
        actions in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 1..9_i64), 120),
        which in 0..4_usize,
    ) {
        let (rule, bucket) = rules(rate, per, burst, which);
        let mut client = Client::new(rule);
        let (mut stand, mut open): (Vec<ModelCharge>, Vec<ModelCharge>) = (Vec::new(), Vec::new());
        for ((step, cost), (action, place, part)) in arrivals.into_iter().zip(actions) {
            let answer = client.arrive((step, cost));
            if answer.admitted && cost > 0 {
                let taken = ModelCharge { at: client.now, cost, receipt: answer.receipt };
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
            // A bucket without the refunded charges has no less.
            let most = (burst * per - used(&stand, &bucket, client.now)) / per;
            // Its lumps may have been added at other times, the last one earlier.
            let most = most + if bucket.interval { rate } else { 0 };
            let left = client.arrive((0, 0)).remaining;
            prop_assert!(left <= most, "{} left, {} without the refunded charges: {:?}", left, most, stand);
        }
        client.charges.clear();
        client.charges.extend(stand.iter().map(|taken| super::Charge {
            lived: taken.at - super::NOW, cost: taken.cost, receipt: taken.receipt, start: 0,
        }));
        match bucket.interval {
            false => client.assert_in_any_stretch(rate_bound(rate, per, burst)),
            true => client.assert_in_any_stretch(|length| Some(burst + ((length - 1) / per + 1) * rate)),
        }
    }

    /// A charge is refunded in full within its interval if the bucket refills once per interval.
    #[test]
    fn a_charge_is_refunded_in_full_within_its_interval(
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

    /// A charge that is alone in its bucket leaves no usage behind, at any time of the refund.
    #[test]
    fn a_refund_of_the_only_charge_leaves_no_usage(
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
    /// If nothing else was charged meanwhile, a refunded charge leaves the bucket as if it had never been made.
    #[test]
    fn a_refunded_charge_leaves_no_trace(
        (burst, per, arrivals) in schedules(never),
        rate in 1..30_i64,
        cost in 1..40_i64,
        waits in prop::collection::vec(0..3000_i64, 3),
        which in 0..3_usize,
    ) {
        let (rule, _) = rules(rate, per, burst, which);
        let (mut with, mut without) = (Client::new(rule.clone()), Client::new(rule));
        for arrival in arrivals {
            let receipt = with.arrive(arrival).receipt;
            without.arrive(arrival);
            if arrival.1 % 3 == 2 {
                prop_assert_eq!(with.adjust(-1, receipt), without.adjust(-1, receipt));
            }
        }
        let step = (waits[0], 0);
        with.arrive(step);
        without.arrive(step);
        let answer = with.arrive((0, cost));
        let cost = if answer.admitted { cost } else { 0 };
        for (part, wait) in [cost / 3, cost - cost / 3].into_iter().zip(&waits[1..]) {
            with.arrive((*wait, 0));
            without.arrive((*wait, 0));
            with.adjust(-part, answer.receipt);
        }
        for arrival in [(0, 0), (0, burst), (0, 1), (per, 2)] {
            let answers = (with.arrive(arrival), without.arrive(arrival));
            prop_assert_eq!(answers.0, answers.1, "{} by {}", cost, answer.receipt);
        }
    }
}

/// Units in use after reservations of 1000 of a budget of 100000 a minute, one every `apart` ms, of each
/// of which an answer 10 s later says that it took 200.
fn used_after_settling(which: usize, count: i64, apart: i64) -> (i64, i64) {
    let (rule, bucket) = rules(5, 3, 100_000, which);
    let mut client = Client::new(rule);
    let mut stand: Vec<ModelCharge> = Vec::new();
    for _ in 0..count {
        let answer = client.arrive((apart, 1000));
        assert!(answer.admitted);
        stand.push(ModelCharge { at: client.now, cost: 1000, receipt: answer.receipt });
    }
    for taken in &mut stand {
        client.arrive((taken.at + 10_000 - client.now, 0));
        client.adjust(-800, taken.receipt);
        taken.cost = 200;
    }
    (100_000 - client.arrive((0, 0)).remaining, used(&stand, &bucket, client.now) / 3)
}

/// An unused reservation is refunded although as much was refilled meanwhile: at least the reported usage stays
/// charged, and hardly more.
#[test]
fn reservations_are_settled_while_the_budget_is_in_use() {
    for which in 0..3 {
        for (count, apart) in [(60, 0), (60, 1), (60, 5), (90, 1), (90, 5), (60, 100), (200, 400), (80, 300)] {
            let (used, least) = used_after_settling(which, count, apart);
            let most = least + count * 1000 / if apart > 1 { 15 } else { 60 };
            assert!(least <= used && used <= most, "{count} every {apart} ms: {used}, {least} to {most}");
        }
    }
}

/// A long request among many short ones: only the charges before it were part of the usage that it found.
#[test]
fn a_long_request_is_refunded_beside_short_ones() {
    for which in 0..3 {
        let (rule, _) = rules(1, 100, 100, which);
        let mut client = Client::new(rule);
        client.arrive((0, 50));
        let long = client.arrive((0, 30)).receipt;
        for _ in 0..400 {
            let short = client.arrive((7, 20));
            assert!(short.admitted);
            client.arrive((3, 0));
            client.adjust(-20, short.receipt);
        }
        client.adjust(-30, long);
        assert_eq!(client.arrive((0, 0)).remaining, 90);
    }
}

/// A limit that gets `refund_on` while a bucket is in use: nothing is known about charges from before.
#[test]
fn refills_before_the_marks_are_not_refunded_again() {
    for which in 0..3 {
        let (marked, bucket) = rules(1, 100, 10, which);
        let plain = match &marked {
            Rule::TokenBucket(rule) => Rule::TokenBucket(TokenBucket { refunds: false, ..rule.clone() }),
            Rule::LeakyBucket(rule) => Rule::LeakyBucket(LeakyBucket { refunds: false, ..rule.clone() }),
            _ => Rule::Gcra(Gcra { rate: bucket.rate, per_ms: bucket.per_ms, burst: bucket.burst, refunds: false }),
        };
        let mut client = Client::new(plain);
        let receipt = client.arrive((0, 5)).receipt;
        client.arrive((600, 6));
        client.rule = marked;
        client.arrive((0, 2));
        client.adjust(-5, receipt);
        assert_eq!(client.arrive((0, 0)).remaining, 2);
    }
}

/// The tables under "Exact refunds" in docs/guarantees/proofs.md.
#[test]
fn the_refunds_of_the_manual_are_exact() {
    let full = || Client::new(rules(1, 1000, 5, 0).0);

    let mut client = full();
    let receipt = client.arrive((0, 1)).receipt;
    assert_eq!(client.arrive((3000, 0)).remaining, 5);
    client.adjust(-1, receipt);
    assert_eq!(client.arrive((0, 0)).remaining, 5, "it has refilled since");

    let mut client = full();
    let receipts = [0; 5].map(|_| client.arrive((0, 1)).receipt);
    assert_eq!(client.arrive((3000, 0)).remaining, 3);
    client.adjust(-1, receipts[0]);
    assert_eq!(client.arrive((0, 0)).remaining, 4, "it was never full");

    let mut client = full();
    assert_eq!(client.arrive((0, 3)).remaining, 2);
    let second = client.arrive((1000, 3));
    assert_eq!(second.remaining, 0);
    assert_eq!(client.arrive((2000, 0)).remaining, 2);
    assert_eq!(client.arrive((1000, 0)).remaining, 3);
    client.adjust(-3, second.receipt);
    assert_eq!(client.arrive((0, 0)).remaining, 5, "it would have been full for a second");
}
