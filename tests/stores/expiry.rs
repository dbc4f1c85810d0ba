//! How long keys live, and what happens when they expire, or stay, at the wrong time.

use sluicegate::limiting::decision::{Check, Op};

use super::{NOW, one};
use crate::support::limiting::check;
use crate::support::limiting::timed_stores::{TimedStore, on_both};
use crate::support::limiting::variants::{compile_limit, variants};

/// Longer than a call takes.
const SLOW_MS: i64 = 2000;

#[test]
fn a_key_lives_until_it_is_whole_again() {
    on_both(|store| {
        for variant in variants(10) {
            let one = one(&variant);
            store.count_admitted(&one, 12, NOW);
            let reset_ms = store.one(Op::Peek, &Check { cost: 0, ..one.clone() }, NOW).reset_ms;
            let (_, life_ms) = store.stored_state(&one.key, NOW).unwrap();
            // A bucket that starts empty is remembered for a day more.
            let most = reset_ms + 1 + if variant.available == 0 { 86_400_000 } else { 0 };
            // The state of tenants lives for as long as they are active.
            let most = if variant.algorithm() == "fair" { most + 2 * 86_400_000 } else { most };
            assert!((reset_ms - SLOW_MS..=most).contains(&life_ms), "{}: {life_ms} of {reset_ms}", variant.name);
        }
    });
}

/// A burst of 100 and one more unit each second: 106 in 6.9 s, even if the store loses state.
#[test]
fn a_burst_is_refilled_at_its_rate_not_at_the_expiry() {
    on_both(|store| {
        for (name, lines) in [
            ("bucket", "rate = \"1/s\"\nburst = 100"),
            ("interval", "rate = \"1/s\"\nburst = 100\nrefill = \"interval\""),
            ("gcra", "algorithm = \"gcra\"\nrate = \"1/s\"\nburst = 100"),
            ("leaky", "algorithm = \"leaky_bucket\"\nrate = \"1/s\"\nqueue = \"99s\"\nnodelay = true"),
        ] {
            let one = check(&compile_limit("one", lines), name, 1);
            let admitted: i64 = (0..=69)
                .map(|tenth| store.count_admitted(&one, if tenth == 0 { 200 } else { 3 }, NOW + 100 * tenth))
                .sum();
            assert_eq!(admitted, 106, "{name}");
            let (_, life_ms) = store.stored_state(&one.key, NOW + 6900).unwrap();
            assert!((99_000 - SLOW_MS..=100_001).contains(&life_ms), "{name} lives {life_ms} ms");
        }
    });
}

/// If another client removed the expiry of a key, nobody is locked out, and the next charge restores it.
#[test]
fn a_key_made_to_stay_is_mended() {
    let store = TimedStore::redis();
    for variant in variants(10).iter().filter(|variant| variant.available > 0) {
        let one = one(variant);
        let persist = || {
            assert_eq!(store.command(&["PERSIST", &one.key]), redis::Value::Int(1), "{}", variant.name);
            assert_eq!(store.stored_state(&one.key, NOW).unwrap().1, -1);
        };
        assert_eq!(store.count_admitted(&one, 1, NOW), 1);
        persist();
        assert_eq!(store.count_admitted(&one, 1, NOW), 1);
        assert!(store.stored_state(&one.key, NOW).unwrap().1 > 0, "{} was not repaired", variant.name);
        store.count_admitted(&one, 12, NOW);
        persist();
        let refused = store.one(Op::Take, &one, NOW);
        assert!(!refused.admitted && refused.retry_ms > 0);
        assert!(!store.one(Op::Take, &one, NOW + refused.retry_ms - 1).admitted, "{}", variant.name);
        assert!(store.one(Op::Take, &one, NOW + refused.retry_ms).admitted, "{} is refused forever", variant.name);
        assert!(store.stored_state(&one.key, NOW).unwrap().1 > 0, "{} was not repaired", variant.name);
    }
}

/// The whole state of a client is in one key: if it is evicted, no other client is affected, and nothing is left that
/// later calls could misread.
#[test]
fn a_key_that_was_evicted_is_new_and_the_others_are_not() {
    let store = TimedStore::redis();
    for variant in variants(10) {
        let [gone, stays] = ["gone", "stays"].map(|who| check(&variant.limit(), who, 1));
        for check in [&gone, &stays] {
            assert_eq!(store.count_admitted(check, 12, NOW), variant.available);
        }
        let keys = store.command(&["KEYS", &format!("*gone*:{}:*", variant.name)]);
        assert_eq!(keys.into_sequence().unwrap().len(), 1, "{} keeps its state in one key", variant.name);
        store.command(&["DEL", &gone.key]);
        assert_eq!(
            [&gone, &stays].map(|check| store.count_admitted(check, 12, NOW)),
            [variant.available, 0],
            "{}",
            variant.name
        );
    }
}

/// A refund to an expired key creates no key, in particular none that never expires.
#[test]
fn an_expired_key_gets_no_refund() {
    on_both(|store| {
        for variant in variants(10) {
            let one = one(&variant);
            let receipt = store.one(Op::Take, &one, NOW).receipt;
            store.run(Op::Reset, std::slice::from_ref(&one), NOW);
            for tag in [receipt, 0, NOW, NOW * 1000] {
                let back = Check { cost: -1, tag, ..one.clone() };
                assert!(!store.one(Op::Adjust, &back, NOW).admitted, "{}", variant.name);
            }
            assert_eq!(store.stored_state(&one.key, NOW), None, "{}", variant.name);
        }
    });
}

/// Two refunds by the same receipt return the charge once, and the count ends at zero.
#[test]
fn refunds_never_exceed_charges() {
    on_both(|store| {
        for variant in variants(10).iter().filter(|variant| variant.available > 0) {
            let one = one(variant);
            let receipt = store.one(Op::Take, &one, NOW).receipt;
            let back = Check { cost: -5, tag: receipt, ..one.clone() };
            for _ in 0..3 {
                store.one(Op::Adjust, &back, NOW);
            }
            assert_eq!(store.count_admitted(&one, 60, NOW), variant.available, "{}", variant.name);
        }
    });
}

/// A refill since a charge may have refilled the charge itself. A charge of five units that was fully refilled is not
/// refunded, and one that was half refilled is refunded by half.
#[test]
fn units_refilled_meanwhile_are_not_refunded() {
    on_both(|store| {
        for (name, lines) in [
            ("bucket", "rate = \"1/10s\"\nburst = 5"),
            ("interval", "rate = \"1/10s\"\nburst = 5\nrefill = \"interval\""),
            ("gcra", "algorithm = \"gcra\"\nrate = \"1/10s\"\nburst = 5"),
            ("leaky", "algorithm = \"leaky_bucket\"\nrate = \"1/10s\"\nqueue = \"40s\"\nnodelay = true"),
        ] {
            let limit = compile_limit("one", lines);
            let back = |one: &Check, tag, now| store.one(Op::Adjust, &Check { cost: -1, tag, ..one.clone() }, now);
            let one = check(&limit, &format!("{name} late"), 1);
            let receipts: Vec<i64> = (0..5).map(|_| store.one(Op::Take, &one, NOW).receipt).collect();
            assert_eq!(store.count_admitted(&one, 9, NOW + 50_000), 5, "{name}");
            for receipt in receipts {
                assert!(!back(&one, receipt, NOW + 52_000).admitted, "{name}");
            }
            assert_eq!(store.count_admitted(&one, 9, NOW + 52_000), 0, "{name}");

            // Half of one charge has been refilled, so half of each of the two is refunded.
            let one = check(&limit, &format!("{name} between"), 1);
            let receipts: Vec<i64> = (0..5).map(|_| store.one(Op::Take, &one, NOW).receipt).collect();
            assert!(receipts[..2].iter().all(|receipt| back(&one, *receipt, NOW + 5000).admitted));
            let whole = if name == "interval" { 2 } else { 1 };
            assert_eq!(store.count_admitted(&one, 9, NOW + 5000), whole, "{name}");
            assert_eq!(store.count_admitted(&one, 9, NOW + 10_000), 1, "{name}");
        }
    });
}
