//! Clocks that go back, clocks that disagree, and the ends of windows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::limiting::decision::{Check, CheckLink, Op};
use sluicegate::limiting::store::Store;
use sluicegate::limiting::store::memory::MemoryStore;

use super::{NOW, one};
use crate::support::limiting::check;
use crate::support::limiting::timed_stores::{TimedStore, on_both};
use crate::support::limiting::variants::{Variant, compile_limit, variants};

/// No units are added while the clock is behind, nor when it is right again.
#[test]
fn a_clock_that_goes_back_adds_no_units() {
    on_both(|store| {
        for variant in variants(10) {
            let one = one(&variant);
            assert_eq!(store.count_admitted(&one, 12, NOW), variant.available, "{}", variant.name);
            for back in [1, 20, 200, 3000, 60_000, 3_000_000] {
                assert_eq!(
                    store.count_admitted(&one, 12, NOW - back),
                    0,
                    "{} with the clock {back} ms back",
                    variant.name
                );
                assert_eq!(store.count_admitted(&one, 12, NOW), 0, "{} with the correct clock", variant.name);
            }
        }
    });
}

/// Steps of a part of the queue, back and forward again, let nothing leave a leaky bucket.
#[test]
fn a_clock_that_steps_back_and_forth_empties_no_leaky_bucket() {
    on_both(|store| {
        for (lines, available, queue_ms) in [
            ("algorithm = \"leaky_bucket\"\nrate = \"12/h\"\nqueue = \"1h\"\nnodelay = true", 13, 3_600_000),
            ("algorithm = \"leaky_bucket\"\nrate = \"12/h\"\nqueue = \"1h\"", 13, 3_600_000),
            ("algorithm = \"leaky_bucket\"\nrate = \"10/s\"\nqueue = \"2s\"\nnodelay = true", 21, 2000),
        ] {
            let one = check(&compile_limit("one", lines), lines, 1);
            assert_eq!(store.count_admitted(&one, 30, NOW), available, "{lines}");
            for back in [1, 10, 30, 50, 90].map(|percent| queue_ms * percent / 100) {
                assert_eq!(store.count_admitted(&one, 3, NOW - back), 0, "{lines}, {back} ms back");
                assert_eq!(store.count_admitted(&one, 3, NOW), 0, "{lines}, after {back} ms back");
            }
        }
    });
}

/// Checks that are decided together: three tiers of a limit, and the same tiers as those of a candidate. A clock that
/// is set back or forward mints nothing for any of them, and the candidate is charged as in place of its incumbent.
#[test]
fn clocks_that_jump_mint_nothing_for_tiers_and_candidates() {
    on_both(|store| {
        let may_have_tiers = |variant: &Variant| {
            variant.available > 0 && variant.limit().fair.is_none() && variant.algorithm() != "concurrency"
        };
        for variant in variants(10).into_iter().filter(may_have_tiers) {
            let available = variant.available;
            let tier = |group: u8, name: &str, shadow: bool| {
                let mut one = check(&variant.limit(), &format!("{name}{}", variant.name), 1);
                let incumbent = shadow.then_some(0);
                (one.role.shadow, one.role.link) = (shadow, Some(CheckLink { group, incumbent }));
                one
            };
            let tiers = |first: &str| {
                let names = [(0, first), (0, "mid"), (0, "wide")].map(|(group, name)| tier(group, name, false));
                let candidates = [format!("{first}-next"), "mid-next".to_owned(), "wide-next".to_owned()];
                names.into_iter().chain(candidates.iter().map(|name| tier(1, name, true))).collect::<Vec<Check>>()
            };
            let count_admitted = |first: &str, now: i64| {
                let checks = tiers(first);
                let admitted = (0..12).filter(|_| store.run(Op::Take, &checks, now).admitted).count();
                i64::try_from(admitted).unwrap()
            };
            assert_eq!(count_admitted("a", NOW), available, "{}", variant.name);
            for back in [1, 200, 60_000, 3_000_000] {
                assert_eq!(count_admitted("a", NOW - back), 0, "{} with the clock {back} ms back", variant.name);
                // Another address: its wider networks are exhausted.
                assert_eq!(
                    count_admitted(&format!("b{back}"), NOW - back),
                    0,
                    "{} with the clock {back} ms back",
                    variant.name
                );
                assert_eq!(
                    [count_admitted("a", NOW), count_admitted("c", NOW)],
                    [0, 0],
                    "{} with the correct clock",
                    variant.name
                );
            }
            let peeked = store.run(Op::Peek, &tiers("d"), NOW);
            let left: Vec<i64> = peeked.answers.iter().map(|answer| answer.remaining).collect();
            let full = left[0];
            assert!(full > 0, "{}: nothing was charged to a network that was refused: {left:?}", variant.name);
            assert_eq!(left, [full, 0, 0, full, 0, 0], "{}", variant.name);
        }
    });
}

/// Lumps are added at their times: a clock that is 3 s behind now adds no elapsed time later.
#[test]
fn an_interval_keeps_its_phase_with_any_clock() {
    on_both(|store| {
        let limit = compile_limit("one", "rate = \"1/s\"\nburst = 4\nrefill = \"interval\"");
        let one = check(&limit, "all", 1);
        let got =
            [0, -3000, 0, 999, 1000, 500, 1999, -1500, 2000, 2001].map(|at| store.count_admitted(&one, 9, NOW + at));
        assert_eq!(got, [4, 0, 0, 0, 1, 0, 0, 0, 1, 0]);
    });
}

/// Two clocks in turn: 1000 requests a second for 10 s to a limit of 100 a second. That no store
/// has two is for others to show; these would hold even then. (A stamp alone, as `gcra` and
/// `leaky_bucket` have it, cannot tell a clock set back from a longer queue and is cut to size.)
#[test]
fn clocks_that_disagree_do_not_switch_a_limit_off() {
    let store = TimedStore::Memory(MemoryStore::new(1000));
    for (lines, most) in [
        ("rate = \"100/s\"\nburst = 100", 1100),
        ("rate = \"100/s\"\nburst = 100\nrefill = \"interval\"", 1200),
        ("algorithm = \"fixed_window\"\nrate = \"100/s\"", 1100),
        ("algorithm = \"fixed_window\"\nrate = \"100/s\"\nanchor = \"clock\"", 1200),
        ("algorithm = \"sliding_window\"\nrate = \"100/s\"\nprecision = 2", 1100),
        ("algorithm = \"sliding_window\"\nrate = \"100/s\"\nprecision = 10", 1100),
        ("algorithm = \"sliding_log\"\nrate = \"100/s\"", 1100),
    ] {
        for skew in [20, 200, 900] {
            let one = check(&compile_limit("one", lines), &format!("{skew}"), 1);
            let clocks = (0..10_000).map(|i| NOW + i + i % 2 * skew);
            let admitted: i64 = clocks.map(|now| store.count_admitted(&one, 1, now)).sum();
            // Units for the time that passed on the clock that is ahead.
            assert!(admitted <= most + skew / 10, "{lines}: {admitted} with {skew} ms between the clocks");
            assert!(admitted >= 500, "{lines}: only {admitted}");
        }
        store.run(
            Op::Reset,
            &[20, 200, 900].map(|skew| check(&compile_limit("one", lines), &format!("{skew}"), 1)),
            NOW,
        );
    }
}

/// After the clock was set back, a client that waits as told is admitted after three periods at most. A weighted window
/// takes two of them to forget all usage.
#[test]
fn a_clock_set_back_shuts_nobody_out_for_long() {
    let (second, day) = (1000, 86_400_000);
    on_both(|store| {
        for (lines, period) in [
            ("rate = \"10/10s\"", 10 * second),
            ("rate = \"10/10s\"\nrefill = \"interval\"", 10 * second),
            ("rate = \"10/10s\"\ndebt = 5", 15 * second),
            ("algorithm = \"gcra\"\nrate = \"10/10s\"", 10 * second),
            ("algorithm = \"fixed_window\"\nrate = \"10/10s\"", 10 * second),
            ("algorithm = \"fixed_window\"\nrate = \"10/10s\"\nanchor = \"clock\"", 10 * second),
            ("algorithm = \"sliding_window\"\nrate = \"10/10s\"\nprecision = 2", 10 * second),
            ("algorithm = \"sliding_window\"\nrate = \"10/10s\"\nprecision = 10", 10 * second),
            ("algorithm = \"calendar\"\nrate = \"10/day\"", day),
            ("algorithm = \"sliding_log\"\nrate = \"10/10s\"", 10 * second),
            ("algorithm = \"sliding_log\"\nrate = \"10/10s\"\nstate = \"sorted_set\"", 10 * second),
            ("algorithm = \"leaky_bucket\"\nrate = \"10/10s\"\nqueue = \"9s\"\nnodelay = true", 10 * second),
            ("algorithm = \"concurrency\"\nin_flight = 10\nlease = \"10s\"", 10 * second),
        ] {
            let limit = compile_limit("one", lines);
            for back in [1, 5 * second, 15 * second, 3600 * second, 40 * day] {
                let one = check(&limit, &format!("{lines}{back}"), 10);
                assert_eq!(store.count_admitted(&one, 2, NOW), 1, "{lines}");
                let since = NOW - back;
                let mut now = since;
                let admitted = (0..4).any(|_| {
                    let answer = store.one(Op::Take, &one, now);
                    now += answer.retry_ms;
                    answer.admitted
                });
                assert!(admitted, "{lines}: not in after four waits");
                let waited = now - since;
                assert!(waited <= 3 * period, "{lines}: in after {waited} ms, the clock {back} ms back");
            }
        }
    });
}

fn at(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// Asserts that a window counts to its last millisecond and starts empty in the next one, at which the key expires.
#[track_caller]
fn assert_window(store: &TimedStore, lines: &str, first: &str, last: &str) {
    let (first, last) = (at(first), at(last) - 1);
    let one = check(&compile_limit("one", lines), &format!("{first}"), 1);
    assert_eq!(store.count_admitted(&one, 5, first), 3, "{lines}");
    assert_eq!(store.count_admitted(&one, 5, last), 0, "{lines}: the last ms belongs to the window");
    let answer = store.one(Op::Take, &one, last);
    assert_eq!((answer.retry_ms, answer.reset_ms), (1, 1), "{lines}");
    let life = store.stored_state(&one.key, first).unwrap().1;
    assert!(life > last - first - 2000 && life <= last + 1 - first, "{lines} lives {life} ms");
    assert_eq!(store.count_admitted_in_one_call(&one, 5, last + 1), 3, "{lines}: a second time");
    store.run(Op::Reset, std::slice::from_ref(&one), last);
    // Counted for the first time in the last millisecond.
    assert_eq!(store.count_admitted_in_one_call(&one, 5, last), 3, "{lines}: in the last ms");
}

#[test]
fn windows_end_where_they_say() {
    on_both(|store| {
        let calendar = |unit: &str, more: &str| format!("algorithm = \"calendar\"\nrate = \"3/{unit}\"\n{more}");
        let shanghai = "zone = \"Asia/Shanghai\"";
        // The second before midnight is one of the day, and midnight is Shanghai's.
        assert_window(store, &calendar("day", shanghai), "2026-11-20T15:59:30Z", "2026-11-20T16:00:00Z");
        assert_window(store, &calendar("day", shanghai), "2026-11-19T17:00:00Z", "2026-11-20T16:00:00Z");
        // Months of 31, 28 and 29 days.
        assert_window(store, &calendar("month", shanghai), "2026-07-31T16:00:00Z", "2026-08-31T16:00:00Z");
        assert_window(store, &calendar("month", ""), "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z");
        assert_window(store, &calendar("month", ""), "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z");
        // 20 November 2026 is a Friday; 1 January 1970 was a Thursday.
        assert_window(store, &calendar("week", ""), "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z");
        let sunday = "week_start = \"sunday\"";
        assert_window(store, &calendar("week", sunday), "2026-11-20T12:00:00Z", "2026-11-22T00:00:00Z");
        assert_window(store, &calendar("year", ""), "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z");
        // Days of 23 and 25 hours.
        let york = "zone = \"America/New_York\"";
        assert_window(store, &calendar("day", york), "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z");
        assert_window(store, &calendar("day", york), "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z");
        // 24 hours from the first hit are no natural day.
        let fixed = "algorithm = \"fixed_window\"\nrate = \"3/day\"";
        assert_window(store, fixed, "2026-11-20T15:59:59.123Z", "2026-11-21T15:59:59.123Z");
        let clock = "algorithm = \"fixed_window\"\nrate = \"3/min\"\nanchor = \"clock\"";
        assert_window(store, clock, "2026-11-20T15:59:30Z", "2026-11-20T16:00:00Z");
        let log = "algorithm = \"sliding_log\"\nrate = \"3/min\"";
        // One millisecond longer: a charge at the end of a millisecond counts in every interval of a minute.
        assert_window(store, log, "2026-11-20T15:59:58.999Z", "2026-11-20T16:00:59.000Z");
    });
}

/// No limit of its own size twice around the end of a window, where that is promised: a strict
/// sliding window, a log, and buckets of one.
#[test]
fn no_double_portion_around_the_end_of_a_window() {
    let ends = at("2026-11-20T16:00:00Z");
    on_both(|store| {
        for lines in [
            "algorithm = \"sliding_window\"\nrate = \"100/min\"\nprecision = 60",
            "algorithm = \"sliding_window\"\nrate = \"100/min\"\nprecision = 2",
            "algorithm = \"sliding_log\"\nrate = \"100/min\"",
        ] {
            let one = check(&compile_limit("one", lines), lines, 1);
            let got = [-1, 0, 1].map(|ms| store.count_admitted(&one, 120, ends + ms));
            assert_eq!(got, [100, 0, 0], "{lines}");
        }
    });
}

/// Workers read the time and then meet at a key. None may turn its clock back by being late: with
/// an exhausted key each such turn would be worth a request.
#[test]
fn workers_that_meet_at_a_key_do_not_turn_its_clock_back() {
    for lines in [
        "algorithm = \"gcra\"\nrate = \"1000/s\"\nburst = 50",
        "algorithm = \"leaky_bucket\"\nrate = \"1000/s\"\nqueue = \"49ms\"\nnodelay = true",
        "rate = \"1000/s\"\nburst = 50",
    ] {
        let one = check(&compile_limit("one", lines), "all", 1);
        let memory = Arc::new(MemoryStore::new(1000));
        let since = Instant::now();
        let hammer = || {
            let store = Store::Memory(memory.clone());
            let mut admitted = 0;
            while since.elapsed() < Duration::from_millis(700) {
                admitted += u128::from(store.run_in_process(Op::Take, std::slice::from_ref(&one)).unwrap().admitted);
            }
            admitted
        };
        let admitted: u128 = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(hammer));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let most = 50 + since.elapsed().as_millis() + 1;
        assert!(admitted <= most, "{lines}: {admitted}, at most {most}");
        assert!(admitted >= 50, "{lines}: only {admitted}");
    }
}

/// More settings than a key has records: short windows that come and go do not end the count of a long one.
#[test]
fn edits_and_back_do_not_make_a_quota_whole() {
    let calendar = |rate: &str, more: &str| format!("algorithm = \"calendar\"\nrate = \"{rate}\"\n{more}");
    let window = |rate: &str, more: &str| format!("algorithm = \"fixed_window\"\nrate = \"{rate}\"\n{more}");
    on_both(|store| {
        for (name, first, others, pause_ms) in [
            (
                "months",
                calendar("60/month", ""),
                vec![
                    calendar("2/day", ""),
                    calendar("2/day", "zone = \"Asia/Tokyo\""),
                    calendar("2/day", "resets_at = \"05:00\""),
                    calendar("2/week", ""),
                    calendar("2/hour", ""),
                    calendar("2/day", "zone = \"America/New_York\""),
                ],
                0,
            ),
            ("seconds", window("60/day", ""), (1..8).map(|n| window(&format!("2/{n}s"), "")).collect(), 7200),
            (
                "clock",
                window("60/day", "anchor = \"clock\""),
                [1, 2, 3, 4, 6].map(|n| window(&format!("2/{n}h"), "anchor = \"clock\"")).into(),
                0,
            ),
        ] {
            let count =
                |lines: &str, most, now| store.count_admitted(&check(&compile_limit("one", lines), name, 1), most, now);
            assert_eq!(count(&first, 65, NOW), 60, "{name}");
            for lines in &others {
                count(lines, 2, NOW + 1);
            }
            let later = NOW + 1 + pause_ms;
            count(&others[0], 1, later);
            assert_eq!(count(&first, 65, later + 1), 0, "{name}");
        }
    });
}

/// The clock of a server may be wrong by centuries.
#[test]
fn slots_are_counted_in_any_century() {
    on_both(|store| {
        for date in ["1971-01-01T00:00:00Z", "2106-03-01T00:00:00Z", "2262-05-01T00:00:00Z", "4000-01-01T00:00:00Z"] {
            let lines = "algorithm = \"concurrency\"\nin_flight = 5";
            for cost in [1, 2, 5] {
                let one = check(&compile_limit("one", lines), &format!("{date}{cost}"), cost);
                assert_eq!(store.count_admitted(&one, 8, at(date)), 5 / cost, "{date}, {cost} at a time");
            }
        }
    });
}
