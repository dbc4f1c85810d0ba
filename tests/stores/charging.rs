//! Charging on both stores: an admitted request is charged once with its whole cost, and nothing else is.

use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::store::memory::MemoryStore;

use super::{NOW, one};
use crate::support::limiting::check;
use crate::support::limiting::rules::window;
use crate::support::limiting::timed_stores::{TimedStore, on_both};
use crate::support::limiting::variants::{compile_limit, variants};

/// Neither counts nor expiries nor entries of a log change.
#[test]
fn refusals_and_peeks_leave_no_trace() {
    on_both(|store| {
        for variant in variants(10) {
            let one = one(&variant);
            assert_eq!(store.count_admitted(&one, 12, NOW), variant.available, "{}", variant.name);
            if let TimedStore::Redis(_) = store {
                // A charge sets the expiry as well.
                store.command(&["PEXPIRE", &one.key, "1000000"]);
            }
            let before = store.stored_state(&one.key, NOW).unwrap();
            for cost in [1, 2, 10, 11, 1_000_000_000] {
                for _ in 0..10 {
                    let probe = Check { cost, ..one.clone() };
                    assert!(!store.one(Op::Peek, &probe, NOW).admitted, "{} peek {cost}", variant.name);
                    assert!(!store.one(Op::Take, &probe, NOW).admitted, "{} take {cost}", variant.name);
                }
            }
            let after = store.stored_state(&one.key, NOW).unwrap();
            assert!(after.0 == before.0 && after.1 <= before.1, "{}: {before:?} became {after:?}", variant.name);
        }
    });
}

/// Costs of 9 and 9 do not fit into 10, and the refused 9 does not block a cost of 1.
#[test]
fn a_cost_fits_as_a_whole_and_a_refused_one_blocks_nobody() {
    on_both(|store| {
        for variant in variants(10) {
            let one = one(&variant);
            let large = Check { cost: 9, ..one.clone() };
            assert_eq!(store.count_admitted(&large, 50, NOW), i64::from(variant.available >= 9), "{}", variant.name);
            let left = store.one(Op::Peek, &Check { cost: 0, ..one.clone() }, NOW).remaining;
            assert_eq!(left, (variant.available - 9).max(0), "{}", variant.name);
            assert_eq!(store.count_admitted(&one, 50, NOW), left, "{}", variant.name);
        }
    });
}

/// Only an admitted request goes into debt, and once: at 3 of 10 with a debt of 5, a cost of 7 leaves -4, and no
/// refusal increases the debt.
#[test]
fn a_refused_cost_digs_no_debt() {
    on_both(|store| {
        for refill in ["continuous", "interval"] {
            let limit = compile_limit("one", &format!("rate = \"1/s\"\nburst = 10\ndebt = 5\nrefill = \"{refill}\""));
            let seven = check(&limit, refill, 7);
            assert_eq!(store.count_admitted(&seven, 1, NOW), 1);
            assert_eq!(
                store.count_admitted(&Check { cost: 9, ..seven.clone() }, 9, NOW),
                0,
                "{refill}: 9 would leave -6"
            );
            assert_eq!(store.count_admitted(&seven, 1, NOW), 1);
            assert_eq!(store.count_admitted(&seven, 100, NOW), 0);
            assert_eq!(
                store.count_admitted(&Check { cost: 1, ..seven.clone() }, 100, NOW + 4000),
                0,
                "{refill}: repaid at 4 s"
            );
            assert_eq!(
                store.count_admitted(&Check { cost: 1, ..seven.clone() }, 1, NOW + 5000),
                1,
                "{refill}: one at 5 s"
            );
        }
    });
}

/// Several charges in the same millisecond all count.
#[test]
fn requests_of_one_millisecond_all_count() {
    on_both(|store| {
        for state in ["list", "sorted_set"] {
            for limit in [3, 1000] {
                let lines = format!("algorithm = \"sliding_log\"\nrate = \"{limit}/h\"\nstate = \"{state}\"");
                let one = check(&compile_limit("one", &lines), &format!("{state}-{limit}"), 1);
                let decisions = vec![(Op::Take, std::slice::from_ref(&one)); 100];
                let admitted: usize = (0..40)
                    .map(|_| store.run_all(&decisions, NOW).iter().filter(|decision| decision.admitted).count())
                    .sum();
                assert_eq!(admitted, limit, "{state}");
                // All charges leave the window together, an hour later.
                let peek = |now| store.one(Op::Peek, &one, now);
                assert_eq!((peek(NOW + 3_600_000).remaining, peek(NOW + 3_600_001).remaining), (0, limit as i64 - 1));
            }
        }
    });
}

/// After any pause, a key has at most its full budget.
#[test]
fn an_idle_key_saves_nothing_up() {
    let (hour, year) = (3_600_000, 366 * 86_400_000);
    on_both(|store| {
        for variant in variants(10) {
            for (who, taken) in [("drained", 10), ("half", 5)] {
                let one = check(&variant.limit(), who, 1);
                store.count_admitted(&one, taken, NOW);
                for idle in [5 * year, 5 * year + 30 * hour, 10 * year] {
                    let got = store.count_admitted(&one, 60, NOW + idle);
                    assert!(got <= variant.available.max(10), "{} gives {got} after {idle} ms", variant.name);
                    // Leases have ended and windows have passed, but units that are refilled one by one may need
                    // longer.
                    assert!(
                        idle != 5 * year || variant.available == 0 || got == variant.available,
                        "{}: {got}",
                        variant.name
                    );
                }
            }
        }
    });
}

/// The same in small steps: a bucket of 10 that was idle for twenty of its periods.
#[test]
fn an_idle_bucket_never_exceeds_its_burst() {
    on_both(|store| {
        for (name, lines) in [
            ("continuous", "rate = \"10/10s\"\nburst = 10"),
            ("interval", "rate = \"10/10s\"\nburst = 10\nrefill = \"interval\""),
            ("gcra", "algorithm = \"gcra\"\nrate = \"10/10s\"\nburst = 10"),
            ("leaky", "algorithm = \"leaky_bucket\"\nrate = \"10/10s\"\nqueue = \"9s\"\nnodelay = true"),
        ] {
            let one = check(&compile_limit("one", lines), name, 1);
            for (at, got) in [(0, 10), (1000, if name == "interval" { 0 } else { 1 }), (200_000, 10), (400_500, 10)] {
                assert_eq!(store.count_admitted(&one, 50, NOW + at), got, "{name} after {at} ms");
            }
        }
    });
}

/// One limit after another, each with a count, none of which is lost or charged for a request that
/// a later one refuses.
#[test]
fn a_later_refusal_charges_no_earlier_limit() {
    on_both(|store| {
        let variants = variants(10);
        let last = check(
            &crate::support::limiting::limit("last", window(3), sluicegate::limiting::limit::Mode::Enforce),
            "last",
            1,
        );
        for variant in variants.iter().filter(|variant| variant.available > 3) {
            let checks = [check(&variant.limit(), "first", 1), last.clone()];
            let admitted = (0..20)
                .filter(|i| {
                    let checks = checks.clone().map(|check| Check { tag: check.tag + (i << 20), ..check });
                    store.run(Op::Take, &checks, NOW).admitted
                })
                .count();
            assert_eq!(admitted, 3, "{}", variant.name);
            let left = store.one(Op::Peek, &Check { cost: 0, ..checks[0].clone() }, NOW).remaining;
            assert_eq!(left, variant.available - 3, "{}", variant.name);
            store.run(Op::Reset, std::slice::from_ref(&last), NOW);
        }
    });
}

/// Workers of one process decide as fast as they can, on the memory store with its own clock.
#[test]
fn threads_admit_exactly_the_limit_in_every_form() {
    for variant in variants(40) {
        let (memory, limit) = (MemoryStore::new(1000), variant.limit());
        let take = || -> i64 {
            let takes = (0..1000).map(|_| memory.run_now(Op::Take, &[check(&limit, "all", 1)]));
            takes.map(|decision| i64::from(decision.admitted)).sum()
        };
        let admitted: i64 = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(take));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, variant.total, "{}", variant.name);
    }
}
