//! Tests of the memory store: bounds, shares, evictions, and workers that meet.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::fixed_window::FixedWindow;
use crate::limiting::limit::{Limit, Mode};

const NOW: i64 = 1_795_000_000_000;

fn limit(name: &str, limit: i64, window_ms: i64, mode: Mode) -> Arc<Limit> {
    Limit::bare(name, Rule::FixedWindow(FixedWindow { limit, window_ms, clock: false }), mode)
}

fn check(limit: &Arc<Limit>, key: &str, cost: i64) -> Check {
    Check::new(limit, key.to_owned(), cost)
}

#[test]
fn a_flood_of_clients_stays_within_the_bound() {
    let memory = MemoryStore::new(20_000);
    let limit = limit("any", 9, 3_600_000, Mode::Enforce);
    for i in 0..200_000 {
        memory.run(Op::Take, &[check(&limit, &i.to_string(), 1)], NOW);
        if i % 10_000 == 0 {
            assert!(memory.len() <= 20_000);
        }
    }
    assert!((19_000..=20_000).contains(&memory.len()), "{} keys", memory.len());
}

#[test]
fn expired_keys_are_forgotten_as_new_ones_come() {
    let memory = MemoryStore::new(1_000_000);
    let short = limit("short", 9, 1000, Mode::Enforce);
    for i in 0..10_000 {
        memory.run(Op::Take, &[check(&short, &format!("old-{i}"), 1)], NOW);
    }
    assert_eq!(memory.len(), 10_000);
    for i in 0..10_000 {
        memory.run(Op::Take, &[check(&short, &format!("new-{i}"), 1)], NOW + 1000);
    }
    assert!(memory.len() < 11_000, "{} keys", memory.len());
}

/// The keys of one limit expire before the next comes, so that it is without keys again and again.
#[test]
fn keys_of_a_limit_without_requests_are_forgotten_while_another_has_one_key_at_a_time() {
    let memory = MemoryStore::new(1_000_000);
    let (quiet, busy) = (limit("quiet", 9, 1000, Mode::Enforce), limit("busy", 9, 1, Mode::Enforce));
    for i in 0..1000 {
        memory.run(Op::Take, &[check(&quiet, &format!("old-{i}"), 1)], NOW);
    }
    for i in 0..5000 {
        memory.run(Op::Take, &[check(&busy, &format!("new-{i}"), 1)], NOW + 2000 + 2 * i);
    }
    assert!(memory.len() <= 64, "{} keys", memory.len());
}

#[test]
fn an_expired_key_is_a_new_one() {
    let memory = MemoryStore::new(100);
    let one = limit("one", 1, 1000, Mode::Enforce);
    assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW).admitted);
    assert!(!memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 999).admitted);
    assert!(memory.run(Op::Take, &[check(&one, "k", 1)], NOW + 1000).admitted);
}

#[test]
fn threads_charge_all_limits_or_none() {
    let memory = MemoryStore::new(10_000);
    let wide = limit("wide", 5000, 3_600_000, Mode::Enforce);
    let narrow = limit("narrow", 300, 3_600_000, Mode::Enforce);
    let shadow = limit("shadow", 700, 3_600_000, Mode::Shadow);
    let ask = |cost| {
        let all = [(&wide, "a"), (&narrow, "b"), (&shadow, "c")];
        memory.run(Op::Take, &all.map(|(limit, key)| check(limit, key, cost)), NOW)
    };
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..1000).filter(|_| ask(1).admitted).count())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 300);
    let left: Vec<i64> = ask(0).answers.iter().map(|answer| answer.remaining).collect();
    assert_eq!(left, [4700, 0, 0], "a shadow limit is charged by its own verdict");
}

#[test]
fn keys_of_a_limit_that_is_gone_are_kept_for_one_more_config() {
    let memory = MemoryStore::new(6400);
    let (a, b) = (limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 1, 3_600_000, Mode::Enforce));
    memory.set_shares(6400, &[a.clone(), b.clone()], |_| None);
    let admitted = |limit| memory.run(Op::Take, &[check(limit, "k", 1)], NOW).admitted;
    assert!(admitted(&a) && admitted(&b));
    memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
    assert_eq!(memory.len(), 2);
    memory.set_shares(6400, &[a.clone(), b.clone()], |_| None);
    assert!(!admitted(&a) && !admitted(&b));
    memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
    memory.set_shares(6400, std::slice::from_ref(&b), |_| None);
    assert_eq!(memory.len(), 1);
    // A request may still use the previous config.
    assert!(admitted(&a));
}

/// The test includes small shares, where the distribution of keys over shards matters most.
#[test]
fn a_spent_key_stays_while_more_than_an_eighth_is_not_spent() {
    for share in [64, 65, 128, 640, 6400] {
        let memory = MemoryStore::new(share);
        let limit = limit("own", 2, 3_600_000, Mode::Enforce);
        let take = |key: String| memory.run(Op::Take, &[check(&limit, &key, 1)], NOW).admitted;
        let spent = share - share / 8 - 1;
        for i in 0..spent {
            assert!(take(format!("spent-{i}")) && take(format!("spent-{i}")));
        }
        for i in 0..4 * share {
            assert!(take(format!("new-{i}")));
            assert!(memory.len() <= share);
        }
        assert_eq!(memory.len(), share);
        assert_eq!((0..spent).filter(|i| take(format!("spent-{i}"))).count(), 0, "of {spent} in {share}");
    }
}

/// The key with the most left is evicted, even if it is alone in its shard.
#[test]
fn small_shares_compare_all_of_their_keys() {
    let memory = MemoryStore::new(64);
    let limit = limit("own", 9, 3_600_000, Mode::Enforce);
    let ask = |key: String, cost| memory.run(Op::Take, &[check(&limit, &key, cost)], NOW).answers[0].remaining;
    assert_eq!(ask("used".to_owned(), 8), 1);
    (0..2000).for_each(|i| assert_eq!(ask(format!("new-{i}"), 1), 8));
    assert_eq!(ask("used".to_owned(), 0), 1);
}

/// Workers that evict at the same time do not wait for each other, and respect the bound.
#[test]
fn threads_that_evict_stay_within_the_bound() {
    let memory = MemoryStore::new(64);
    let limits = [limit("a", 1, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
    memory.set_shares(192, &limits, |_| None);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, limits) = (&memory, &limits);
            scope.spawn(move || {
                for i in 0..5000 {
                    let all = limits.each_ref().map(|limit| check(limit, &format!("{thread}-{i}"), 1));
                    memory.run(Op::Take, &all, NOW);
                    if i % 1000 == 0 {
                        memory.set_shares(192, limits, |_| None);
                    }
                }
            });
        }
    });
    for i in 0..100 {
        let all = limits.each_ref().map(|limit| check(limit, &format!("after-{i}"), 1));
        memory.run(Op::Take, &all, NOW);
    }
    assert_eq!(memory.len(), 192);
}

#[test]
fn own_keys_are_a_limits_own_and_the_others_share_the_rest() {
    let memory = MemoryStore::new(12_800);
    let mut own = limit("own", 9, 3_600_000, Mode::Enforce);
    Arc::get_mut(&mut own).unwrap().max_keys = Some(6400);
    let limits = [own, limit("a", 9, 3_600_000, Mode::Enforce), limit("b", 9, 3_600_000, Mode::Enforce)];
    memory.set_shares(12_800, &limits, |_| None);
    let flood = |limit: &Arc<Limit>| {
        (0..20_000).for_each(|i| drop(memory.run(Op::Take, &[check(limit, &format!("{}{i}", limit.name), 1)], NOW)));
        limits.each_ref().map(|limit| key_count(&memory, limit).len)
    };
    assert_eq!(flood(&limits[0]), [6400, 0, 0]);
    assert_eq!(flood(&limits[1]), [6400, 6400, 0], "the whole pool, while no other limit needs it");
    assert_eq!(flood(&limits[2]), [6400, 3200, 3200], "the limit with most keys has given them up");
    assert_eq!(flood(&limits[1]), [6400, 3200, 3200], "a limit does not take from one that has as few");
}

/// Keys of a removed limit would otherwise leave less than a floor for each of the others.
#[test]
fn a_removed_limit_gives_up_its_keys_first() {
    for spent in [false, true] {
        let memory = MemoryStore::new(900);
        let most = if spent { 1 } else { 9 };
        let of = |name| limit(name, most, 3_600_000, Mode::Enforce);
        let (gone, limits) = (of("gone"), [of("a"), of("b"), of("c")]);
        let flood = |limit: &Arc<Limit>, count| {
            (0..count).for_each(|i| drop(memory.run(Op::Take, &[check(limit, &format!("{}{i}", limit.name), 1)], NOW)));
        };
        memory.set_shares(900, &[gone.clone(), limits[0].clone(), limits[1].clone()], |_| None);
        [&gone, &limits[0], &limits[1]].into_iter().for_each(|limit| flood(limit, 300));
        memory.set_shares(900, &limits, |_| None);
        // One of its keys for each new one, and none of the limits that have their floors.
        flood(&limits[2], 200);
        let counts = || [&gone, &limits[0], &limits[1], &limits[2]].map(|limit| key_count(&memory, limit).len);
        assert_eq!(counts(), [100, 300, 300, 200], "spent: {spent}");
        flood(&limits[2], 300);
        assert_eq!(counts(), [0, 300, 300, 300], "spent: {spent}");
    }
}

fn key_count(memory: &MemoryStore, limit: &Arc<Limit>) -> KeyCount {
    memory.shares.load().share_of(limit.store_ref.id).key_count()
}

/// Many limits share one pool: the keys of one do not depend on how many others there are.
#[test]
fn a_thousandth_of_the_pool_is_exact_however_many_limits_there_are() {
    let memory = MemoryStore::new(1_000_000);
    let limits: Vec<_> = (0..2001).map(|i| limit(&format!("l{i}"), 10, 86_400_000, Mode::Enforce)).collect();
    memory.set_shares(1_000_000, &limits, |_| None);
    let mut admitted = 0;
    for _ in 0..5 {
        for customer in 0..1000 {
            for _ in 0..4 {
                let decision = memory.run(Op::Take, &[check(&limits[7], &format!("c{customer}"), 1)], NOW);
                admitted += usize::from(decision.admitted);
            }
        }
    }
    assert_eq!((admitted, memory.evicted_count()), (10_000, 0));
}

/// Keys of a limit that has no requests any more expire in the pool, too.
#[test]
fn expired_keys_of_other_limits_are_removed_before_live_ones() {
    let memory = MemoryStore::new(20_000);
    let [idle, busy] = [("idle", 1000), ("busy", 3_600_000)].map(|(name, ms)| limit(name, 1, ms, Mode::Enforce));
    memory.set_shares(20_000, &[idle.clone(), busy.clone()], |_| None);
    let flood = |limit, now| {
        (0..20_000).for_each(|i| drop(memory.run(Op::Take, &[check(limit, &format!("{i}"), 1)], now)));
    };
    flood(&idle, NOW);
    flood(&busy, NOW + 1000);
    assert_eq!((memory.evicted_count(), key_count(&memory, &busy).len), (0, 20_000));
    assert_eq!(key_count(&memory, &idle).len, 0);
}

/// A client that fills the pool with exhausted keys of one limit leaves each other limit its floor, in which that
/// limit keeps its exhausted keys as it would with a share of its own.
#[test]
fn a_limit_is_sure_of_its_floor_even_for_exhausted_keys() {
    let memory = MemoryStore::new(6400);
    let limits: Vec<_> = (0..10).map(|i| limit(&format!("l{i}"), 2, 3_600_000, Mode::Enforce)).collect();
    memory.set_shares(6400, &limits, |_| None);
    let take = |limit: &Arc<Limit>, key: &str, cost| memory.run(Op::Take, &[check(limit, key, cost)], NOW).admitted;
    for i in 0..20_000 {
        take(&limits[0], &format!("hog-{i}"), 2);
    }
    assert_eq!(key_count(&memory, &limits[0]).spent, key_count(&memory, &limits[0]).len);
    let spent = 640 - 640 / 8 - 2;
    (0..spent).for_each(|i| assert!(take(&limits[1], &format!("spent-{i}"), 2)));
    for i in 0..5000 {
        take(&limits[1], &format!("new-{i}"), 1);
        take(&limits[0], &format!("hog-again-{i}"), 2);
    }
    assert_eq!((0..spent).filter(|i| take(&limits[1], &format!("spent-{i}"), 1)).count(), 0);
    assert!(memory.len() <= 6400);
    assert!(key_count(&memory, &limits[1]).len >= 640);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever clients do, a limit loses a key to another only above its floor, and only if it has more keys; and
    /// it loses an exhausted one only to a limit below its floor.
    #[test]
    fn limits_lose_keys_to_others_only_above_their_floor(
        steps in prop::collection::vec((0_usize..4, 0_u16..2000, 1_i64..3, 1_usize..60), 1..60)
    ) {
        const POOL: usize = 400;
        let memory = MemoryStore::new(POOL);
        let limits: Vec<_> = (0..4).map(|i| limit(&format!("l{i}"), 2, 3_600_000, Mode::Enforce)).collect();
        memory.set_shares(POOL, &limits, |_| None);
        let floor = POOL / limits.len();
        for (of, first, cost, count) in steps {
            for key in usize::from(first)..usize::from(first) + count {
                let before: Vec<KeyCount> = limits.iter().map(|limit| key_count(&memory, limit)).collect();
                memory.run(Op::Take, &[check(&limits[of], &key.to_string(), cost)], NOW);
                prop_assert!(memory.len() <= POOL);
                for (other, before_other) in before.iter().enumerate().filter(|(other, _)| *other != of) {
                    let after = key_count(&memory, &limits[other]);
                    if after.len < before_other.len {
                        prop_assert!(after.len >= floor && before_other.len > before[of].len);
                    }
                    if after.spent < before_other.spent {
                        prop_assert!(before[of].len < floor);
                    }
                }
            }
        }
    }
}
