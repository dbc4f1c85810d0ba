//! Models of the lock-free code. Loom runs each closure once for every order in which its threads can take their steps.

use loom::sync::Arc;
use loom::thread;
use sluicegate_loom::claim::ConnectionClaim;
use sluicegate_loom::sampled::LogSampler;
use sluicegate_loom::shards::{Count, Shards};
use sluicegate_loom::slot::{LeaseSlot, SlotContent};

/// Two pools that release a connection at the same time must not both give it to the one worker that waits.
#[test]
fn one_pool_answers_a_claim() {
    loom::model(|| {
        let claim = Arc::new(ConnectionClaim::default());
        claim.claim_for(1);
        let pools: Vec<_> = [2, 3]
            .map(|worker| {
                let claim = claim.clone();
                thread::spawn(move || claim.take_from_other(worker))
            })
            .into();
        let answered: Vec<_> = pools.into_iter().filter_map(|pool| pool.join().unwrap()).collect();
        assert_eq!(answered, [1]);
    });
}

/// Workers that claim while pools answer: no claim is answered twice.
#[test]
fn each_claim_is_answered_once() {
    loom::model(|| {
        let claim = Arc::new(ConnectionClaim::default());
        claim.claim_for(1);
        let other = {
            let claim = claim.clone();
            thread::spawn(move || {
                claim.claim_for(2);
                claim.take_from_other(4)
            })
        };
        let mut answered = vec![claim.take_from_other(3), claim.take_from_other(3), other.join().unwrap()];
        answered.retain(Option::is_some);
        let all = answered.len();
        answered.sort_unstable();
        answered.dedup();
        assert_eq!(answered.len(), all, "{answered:?}");
    });
}

/// If several threads have a line at the same time, one logs it, and the next line reports the others.
#[test]
fn one_thread_has_the_line_and_the_others_are_counted() {
    loom::model(|| {
        let line = Arc::new(LogSampler::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let line = line.clone();
                thread::spawn(move || line.take_turn_at(1, 10))
            })
            .collect();
        let due: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        // The thread whose turn it is may already count the other one.
        assert_eq!(due.len(), 1, "{due:?}");
        assert_eq!(due[0] + line.take_turn_at(11, 10).unwrap(), 1);
    });
}

/// Workers that count for the first time at the same time each have a shard of their own, and none is lost.
#[test]
fn shards_of_new_workers_are_all_in_the_list() {
    loom::model(|| {
        let shards = Arc::new(Shards::<Count>::default());
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let shards = shards.clone();
                thread::spawn(move || {
                    let shard = shards.shard_for(worker);
                    shard.inc();
                    shard.inc();
                })
            })
            .collect();
        // A concurrent reader never sees more than was counted.
        assert!(shards.iter().map(Count::get).sum::<u64>() <= 4);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(shards.iter().map(Count::get).collect::<Vec<_>>(), [2, 2]);
    });
}

/// A gauge that one worker raises and another lowers: only the sum over all shards is correct.
#[test]
fn a_gauge_may_be_lowered_by_another_worker() {
    loom::model(|| {
        let shards = Arc::new(Shards::<Count>::default());
        let opens = {
            let shards = shards.clone();
            thread::spawn(move || shards.shard_for(0).inc())
        };
        shards.shard_for(1).dec();
        opens.join().unwrap();
        assert_eq!(shards.iter().map(Count::get).fold(0, u64::wrapping_add), 0);
    });
}

/// Workers spend units, one returns units, and the lease ends: every unit is counted exactly once.
#[test]
fn units_of_a_lease_are_spent_or_returned_once() {
    loom::model(|| {
        let slot = Arc::new(LeaseSlot::default());
        slot.replace(SlotContent { units: 2, ends_ms: 10 });
        let spends = {
            let slot = slot.clone();
            thread::spawn(move || u64::from(slot.spend(1, 9).is_some()))
        };
        let gives_up = {
            let slot = slot.clone();
            thread::spawn(move || u64::from(slot.spend(1, 9).is_some() && !slot.put_back(1, 10)))
        };
        let rest = slot.take_rest(10) + slot.take_rest(10);
        let (spent, lost) = (spends.join().unwrap(), gives_up.join().unwrap());
        assert_eq!(spent + lost + rest + slot.content().units, 2);
        assert!(slot.content().units == 0, "no units can be returned to a lease that has ended");
    });
}

/// A lease that replaces another does not change what is left of it.
#[test]
fn a_lease_is_replaced_with_all_its_units() {
    loom::model(|| {
        let slot = Arc::new(LeaseSlot::default());
        slot.replace(SlotContent { units: 3, ends_ms: 10 });
        let spends = {
            let slot = slot.clone();
            thread::spawn(move || slot.spend(2, 9).map(|left| left.ends_ms))
        };
        let before = slot.replace(SlotContent { units: 5, ends_ms: 20 });
        let spent = spends.join().unwrap();
        let left = slot.content().units;
        match spent {
            Some(10) => assert_eq!((before.units, left), (1, 5)),
            Some(_) => assert_eq!((before.units, left), (3, 3)),
            None => panic!("there were always enough units"),
        }
    });
}
