//! Bans on both stores: when they begin and end, how they grow, and what a banned request charges.

use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::answer::{Answer, BanAnswer};
use sluicegate::limiting::decision::{Check, Op, Role};
use sluicegate::limiting::limit::Mode;

use super::NOW;
use crate::support::limiting::timed_stores::{TimedStore, on_both, on_both_at_call_time};
use crate::support::limiting::variants::compile_limit;
use crate::support::limiting::{check, limit};

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;

/// A limit of one request in 100 ms, whose third refusal within 10 s begins a ban.
fn banning(more: &str) -> Check {
    let ban = format!("ban = {{ after = 3, within = \"10s\", for = \"1m\"{more} }}");
    check(&compile_limit("login", &format!("algorithm = \"fixed_window\"\nrate = \"1/100ms\"\n{ban}")), "ip=1", 1)
}

/// Uses the limit up and is refused so often; returns the last answer.
fn offend(store: &TimedStore, one: &Check, refusals: usize, now: i64) -> Answer {
    assert!(store.one(Op::Take, one, now).admitted, "at {}", now - NOW);
    (0..refusals).map(|_| store.one(Op::Take, one, now)).last().unwrap()
}

fn admits(store: &TimedStore, one: &Check, now: i64) -> bool {
    store.one(Op::Peek, one, now).admitted
}

#[test]
fn a_ban_begins_with_the_refusal_that_completes_it_and_ends_to_the_millisecond() {
    on_both_at_call_time(|store| {
        let one = banning("");
        let before = offend(store, &one, 2, NOW);
        assert_eq!((before.ban, before.retry_ms), (BanAnswer::None, 100));
        let begun = store.one(Op::Take, &one, NOW + 50);
        assert_eq!((begun.ban, begun.retry_ms, begun.remaining), (BanAnswer::Begun, MINUTE, 0));
        // Requests during the ban do not prolong it.
        let mut end = NOW + 50 + MINUTE;
        for at in [NOW + 51, NOW + 5000, end - 1] {
            let banned = store.one(Op::Take, &one, at);
            assert_eq!((banned.admitted, banned.ban, banned.retry_ms), (false, BanAnswer::InForce, end - at));
        }
        // Refusals of before the ban do not count towards the next one.
        let again = offend(store, &one, 2, end);
        assert_eq!((again.ban, again.retry_ms), (BanAnswer::None, 100));
        // Without `grow`, the next ban is no longer.
        let begun = store.one(Op::Take, &one, end);
        assert_eq!((begun.ban, begun.retry_ms), (BanAnswer::Begun, MINUTE));
        end += MINUTE;
        assert!(!admits(store, &one, end - 1) && admits(store, &one, end));
    });
}

#[test]
fn only_refusals_within_the_time_count_wherever_it_begins() {
    on_both_at_call_time(|store| {
        let one = banning("");
        // At 0, 6 and 10 s: no three are within 10 s. The ones at 6, 10 and 15.999 s are.
        for at in [0, 6 * SECOND, 10 * SECOND] {
            assert_eq!(offend(store, &one, 1, NOW + at).ban, BanAnswer::None, "at {at}");
        }
        assert_eq!(offend(store, &one, 1, NOW + 15_999).ban, BanAnswer::Begun);
    });
}

#[test]
fn bans_of_repeat_offenders_grow_to_the_most_and_are_forgotten() {
    on_both_at_call_time(|store| {
        let one = banning(", grow = 3, at_most = \"20m\"");
        let mut now = NOW;
        for minutes in [1, 3, 9, 20, 20] {
            let begun = offend(store, &one, 3, now);
            assert_eq!((begun.ban, begun.retry_ms), (BanAnswer::Begun, minutes * MINUTE), "at {}", now - NOW);
            now += minutes * MINUTE;
        }
        // One ms less than `at_most` after the end of the last ban, it is remembered.
        now += 20 * MINUTE - 1;
        assert_eq!(offend(store, &one, 3, now).retry_ms, 20 * MINUTE);
        now += 40 * MINUTE;
        assert_eq!(offend(store, &one, 3, now).retry_ms, MINUTE);
    });
}

#[test]
fn a_banned_request_charges_nothing() {
    on_both_at_call_time(|store| {
        let one = banning("");
        let other = check(
            &limit(
                "other",
                Rule::FixedWindow(FixedWindow { limit: 9, window_ms: MINUTE, clock: false }),
                Mode::Enforce,
            ),
            "ip=1",
            1,
        );
        let shadow = Check { role: Role { shadow: true, ..Role::default() }, ..other.clone() };
        offend(store, &one, 3, NOW);
        // The window of the limit itself is over, so it would admit.
        let at = NOW + SECOND;
        let decision = store.run(Op::Take, &[one.clone(), other.clone()], at);
        assert_eq!((decision.admitted, decision.answers[1].admitted, decision.answers[1].remaining), (false, true, 9));
        let ended = NOW + MINUTE;
        assert!(store.run(Op::Take, &[one.clone(), other.clone()], ended).admitted, "the ban has not used it up");
        // A limit in shadow mode that bans is not charged either, and refuses nothing.
        let quiet = Check { role: Role { shadow: true, ..Role::default() }, ..one.clone() };
        (0..3).for_each(|_| assert!(store.run(Op::Take, &[quiet.clone(), other.clone()], ended).admitted));
        let decision = store.run(Op::Take, &[quiet, shadow], ended + SECOND);
        assert_eq!((decision.admitted, decision.answers[0].ban), (true, BanAnswer::InForce));
        assert!(!admits(store, &one, ended + SECOND) && admits(store, &one, ended + MINUTE));
    });
}

#[test]
fn a_reset_lifts_the_ban_and_forgets_the_offences() {
    on_both_at_call_time(|store| {
        let one = banning(", grow = 2");
        let ban_key = one.ban.as_ref().unwrap().key.clone();
        assert_eq!(ban_key, "sg:{ip=1}:login:ban");
        assert_eq!(offend(store, &one, 3, NOW).retry_ms, MINUTE);
        assert!(store.stored_state(&ban_key, NOW).is_some());
        store.one(Op::Reset, &one, NOW + 1);
        assert!(store.stored_state(&ban_key, NOW + 1).is_none());
        assert_eq!(offend(store, &one, 3, NOW + 1).retry_ms, MINUTE);
    });
}

/// A corrected charge has nothing to do with the ban.
#[test]
fn a_refund_lifts_no_ban() {
    on_both_at_call_time(|store| {
        let one = banning("");
        let charged = store.one(Op::Take, &one, NOW);
        (0..3).for_each(|_| assert!(!store.one(Op::Take, &one, NOW).admitted));
        assert!(store.one(Op::Adjust, &Check { cost: -1, tag: charged.receipt, ..one.clone() }, NOW).admitted);
        assert!(!admits(store, &one, NOW + 1));
    });
}

/// An exhausted limit hands over to the one after it, and for as long as the ban lasts.
#[test]
fn a_ban_prolongs_the_turn_of_the_limit_after_it() {
    on_both_at_call_time(|store| {
        let first = banning("");
        let next = check(&compile_limit("next", "algorithm = \"fixed_window\"\nrate = \"9/h\""), "ip=1", 1);
        let chain = [
            Check { role: Role { base: true, ..Role::default() }, ..first },
            Check { role: Role { after: Some(0), ..Role::default() }, ..next },
        ];
        let left = |now| store.run(Op::Take, &chain, now).answers[1].remaining;
        assert_eq!([NOW, NOW, NOW, NOW].map(left), [8, 8, 7, 6]);
        assert_eq!([NOW + 30 * SECOND, NOW + MINUTE, NOW + MINUTE + SECOND].map(left), [5, 4, 4]);
    });
}

/// Every key has an expiry: the end of the ban, and with `grow` the time until it is forgotten.
#[test]
fn the_state_lives_as_long_as_it_counts() {
    let slow = 2 * SECOND;
    on_both(|store| {
        for (more, life) in [("", MINUTE), (", grow = 2, at_most = \"5m\"", 6 * MINUTE)] {
            let one = banning(more);
            store.one(Op::Reset, &one, NOW);
            let key = &one.ban.as_ref().unwrap().key;
            offend(store, &one, 1, NOW);
            let life_ms = |expected: i64| {
                let (_, found) = store.stored_state(key, NOW).unwrap();
                assert!((expected - slow..=expected).contains(&found), "{found} of {expected}");
            };
            life_ms(10 * SECOND);
            (0..2).for_each(|_| assert!(!store.one(Op::Take, &one, NOW).admitted));
            life_ms(life);
        }
    });
}

/// A clock that was far ahead, or a shorter setting: the ban ends within the longest one of the setting, once.
#[test]
fn a_ban_that_is_too_long_is_shortened_once() {
    on_both(|store| {
        let (long, short) = (banning(", grow = 9, at_most = \"1h\""), banning(""));
        let mut begun = NOW;
        for _ in 0..2 {
            begun += offend(store, &long, 3, begun).retry_ms;
        }
        let rule = &compile_limit(
            "login",
            "rate = \"1/s\"\nban = { after = 3, within = \"10s\", for = \"1m\", at_most = \"2m\" }",
        );
        let capped = Check { ban: check(rule, "ip=1", 1).ban, ..short };
        let at = NOW + 2 * MINUTE;
        assert_eq!(store.one(Op::Take, &capped, at).retry_ms, 2 * MINUTE);
        assert_eq!(store.one(Op::Take, &capped, at + MINUTE).retry_ms, MINUTE);
        assert!(admits(store, &capped, at + 2 * MINUTE));
    });
}
