//! A leaky bucket whose `queue` changes between one in which requests wait, with slots as receipts, and one in which
//! all proceed at once, with times as receipts: by an override, or because `delay_after` is as long as the queue. A
//! refund by the rule of its charge never frees more than the charge, whatever other rules charged meanwhile. On both
//! stores.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::memory::MemoryStore;

use super::NOW;
use super::corrections::{ModelCharge, used};
use crate::support::limiting as stores;
use crate::support::limiting::timed_stores::TimedStore;

/// One step: how far the clock moves, units to charge, the rule that charges, and which charge is refunded, if any.
type Step = (i64, i64, bool, Option<prop::sample::Index>);

fn bucket(rate: i64, per_ms: i64, units: i64, waits: bool) -> LeakyBucket {
    let queue_ms = (units - 1) * per_ms / rate;
    let delay_after = if waits { units / 3 } else { 0 };
    LeakyBucket { rate, per_ms, queue_ms, nodelay: !waits, delay_after, refunds: true }
}

fn walk(store: &TimedStore, who: &str, (rate, per_ms, units): (i64, i64, i64), steps: &[Step]) {
    // The queue of the rule that waits is longer, as that of an override of a good customer.
    let rules = [bucket(rate, per_ms, units, false), bucket(rate, per_ms, units + 7, true)].map(Rule::LeakyBucket);
    let limit = stores::limit("flips", rules[0].clone(), Mode::Enforce);
    let check = |waits: bool, cost: i64, tag: i64| Check {
        rule: Arc::new(rules[usize::from(waits)].clone()),
        tag,
        ..stores::check(&limit, who, cost)
    };
    let model = TokenBucket { rate, per_ms, burst: units, debt: 0, interval: false, empty: false, refunds: true };
    let (mut now, mut stand): (i64, Vec<(ModelCharge, bool)>) = (NOW, Vec::new());
    for (step, cost, waits, refunded) in steps {
        now += step;
        let answer = store.one(Op::Take, &check(*waits, *cost, 0), now);
        if answer.admitted {
            stand.push((ModelCharge { at: now, cost: *cost, receipt: answer.receipt }, *waits));
        }
        if let TimedStore::Redis(_) = store {
            store.command(&["PERSIST", &check(false, 1, 0).key]);
        }
        if let Some(index) = refunded.filter(|_| !stand.is_empty()) {
            let (charge, waits) = stand.remove(index.index(stand.len()));
            store.one(Op::Adjust, &check(waits, -charge.cost, charge.receipt), now);
        }
        let charges: Vec<ModelCharge> = stand.iter().map(|(charge, _)| *charge).collect();
        for waits in [false, true] {
            let Rule::LeakyBucket(rule) = &rules[usize::from(waits)] else { unreachable!() };
            // Times are whole milliseconds, so that one more may be free.
            let full = (rule.queue_ms + 1) * rate + per_ms;
            let most = (full - used(&charges, &model, now)).max(0) / per_ms;
            let left = store.one(Op::Peek, &check(waits, 0, 0), now).remaining;
            assert!(left <= most, "{left} left, {most} without the refunded charges: {charges:?} at {now}");
        }
    }
}

#[test]
fn refunds_free_no_more_than_their_charge_when_the_queue_changes() {
    let redis = TimedStore::redis();
    let memory = TimedStore::Memory(MemoryStore::new(1_000_000));
    for (store, cases) in [(&memory, 400), (&redis, 25)] {
        let step = (
            prop_oneof![3 => Just(0), 3 => 0..40_i64, 1 => 0..3000_i64],
            1..5_i64,
            any::<bool>(),
            prop::option::of(any::<prop::sample::Index>()),
        );
        let case = ((1..20_i64, 50..3000_i64, 2..30_i64), prop::collection::vec(step, 1..50));
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let place = std::cell::Cell::new(0);
        runner
            .run(&case, |(numbers, steps)| {
                place.set(place.get() + 1);
                let who = format!("k{}-{}", place.get(), rand::random::<u64>());
                walk(store, &who, numbers, &steps);
                Ok(())
            })
            .unwrap();
    }
}
