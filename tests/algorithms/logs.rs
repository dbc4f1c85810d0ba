//! Compares the algorithms that remember or delay single requests with models that can be checked by reading: a list
//! of all requests, which each decision searches from the start.

use proptest::prelude::*;
use sluicegate::limiting::algorithm::concurrency::Concurrency;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::{LATEST, Rule, State};
use sluicegate::limiting::answer::{Answer, NEVER};

const NOW: i64 = 1_795_000_000_000;

/// A key's rule and state.
struct Key {
    rule: Rule,
    state: Option<State>,
}

impl Key {
    fn new(rule: Rule) -> Key {
        Key { rule, state: None }
    }

    fn take(&mut self, now: i64, cost: i64, tag: i64) -> Answer {
        let step = self.rule.decide(self.state.as_ref(), now, cost, tag);
        if let Some((state, ttl_ms)) = step.next {
            assert!(ttl_ms > 0);
            self.state = Some(state);
        }
        step.answer
    }

    fn adjust(&mut self, now: i64, delta: i64, receipt: i64) -> bool {
        let next = self.rule.adjust(self.state.as_ref(), now, delta, receipt);
        let changed = next.is_some();
        if let Some((state, ttl_ms, units)) = next {
            assert!(ttl_ms > 0 && (1..=delta.abs()).contains(&units), "{units} of {delta}");
            self.state = Some(state);
        }
        changed
    }
}

/// Time between requests: mostly small, sometimes a jump in either direction.
fn pauses(window: i64) -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => Just(0),
        12 => 0..=window / 4 + 1,
        2 => 0..=2 * window,
        2 => -window..=0,
        1 => -20 * window..=20 * window,
    ]
}

/// Generates requests: pause, cost, and how many requests later the charge is refunded, if at all.
fn requests(window: i64) -> impl Strategy<Value = Vec<(i64, i64, Option<usize>)>> {
    let refund = prop_oneof![3 => Just(None), 1 => (0..6usize).prop_map(Some)];
    prop::collection::vec((pauses(window), 0..5i64, refund), 1..200)
}

/// All admitted units, each with its time and its request, and the time of the last charge.
#[derive(Default)]
struct Log {
    units: Vec<(i64, usize)>,
    newest: i64,
}

impl Log {
    /// Moves all units to `now`. No receipt refers to them any more.
    fn move_to(&mut self, now: i64) {
        self.units.iter_mut().for_each(|unit| *unit = (now, usize::MAX));
        self.newest = now;
    }

    fn since(&self, edge: i64) -> i64 {
        self.units.iter().filter(|(ms, _)| *ms >= edge).count() as i64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sliding_log_admits_what_the_model_admits(
        limit in 1..30i64,
        window in 30..2000i64,
        requests in requests(500),
    ) {
        let mut key = Key::new(Rule::SlidingLog(SlidingLog { limit, window_ms: window, sorted_set: false }));
        let mut log = Log::default();
        let mut now = NOW;
        let mut refunds: Vec<(usize, usize, i64, i64)> = Vec::new();
        for (i, (pause, cost, refund)) in requests.into_iter().enumerate() {
            now += pause;
            // A clock that is a window behind: what lies ahead is moved to now, before a request
            // is decided that could be charged.
            if log.newest > now + window && cost > 0 {
                log.move_to(now);
            }
            // A unit counts for one ms longer than the window.
            let inside = log.since(now - window);
            let answer = key.take(now, cost, 0);
            prop_assert_eq!(answer.admitted, cost == 0 || inside + cost <= limit, "request {} at {}", i, now);
            let charged = if answer.admitted { cost } else { 0 };
            prop_assert_eq!(answer.remaining, (limit - inside - charged).max(0));
            prop_assert_eq!(answer.retry_ms == NEVER, cost > limit);
            if answer.admitted {
                if cost > 0 {
                    log.newest = now.max(log.newest);
                    // Units that have left the window never return, whatever the clock does later.
                    log.units.retain(|(ms, _)| *ms >= now - window);
                }
                log.units.extend((0..cost).map(|_| (log.newest, i)));
                if let Some(later) = refund {
                    refunds.push((i + later, i, cost, answer.receipt));
                }
            }
            let due: Vec<_> = refunds.iter().filter(|(at, ..)| *at <= i).copied().collect();
            refunds.retain(|(at, ..)| *at > i);
            for (_, whose, cost, receipt) in due {
                let held = log.units.iter().any(|(ms, owner)| *owner == whose && *ms >= now - window);
                // After a clock was set back, the same millisecond occurs twice, and receipts cannot distinguish them.
                if !held && log.units.iter().any(|(ms, _)| *ms == receipt) {
                    continue;
                }
                prop_assert_eq!(key.adjust(now, -cost, receipt), held && cost > 0);
                if held {
                    log.units.retain(|(_, owner)| *owner != whose);
                    log.newest = if log.units.is_empty() { 0 } else { log.newest };
                    if log.newest > now + window {
                        log.move_to(now);
                    }
                }
            }
        }
    }

    /// The log never admits more than the limit in any window, in any order of requests, as long as the clock goes
    /// forward.
    #[test]
    fn no_window_holds_more_than_the_limit(
        limit in 1..30i64,
        window in 1..300i64,
        mut arrivals in prop::collection::vec((0..3000i64, 1..5i64), 1..400),
    ) {
        arrivals.sort_unstable();
        let mut key = Key::new(Rule::SlidingLog(SlidingLog { limit, window_ms: window, sorted_set: true }));
        let mut admitted: Vec<(i64, i64)> = Vec::new();
        for (at, cost) in arrivals {
            if key.take(NOW + at, cost, 0).admitted {
                admitted.push((at, cost));
            }
            // Two ms that are a window apart may be less than that apart.
            let within = admitted.iter().filter(|(then, _)| *then >= at - window).map(|(_, cost)| cost).sum::<i64>();
            prop_assert!(within <= limit, "{} within {} ms", within, window);
        }
    }

    /// Charges are settled, also beyond the limit, and refunded. The units left are never more than the kept charges
    /// leave, and exactly that many if nothing was settled.
    #[test]
    fn settlements_and_refunds_never_leave_too_much(
        limits in prop::collection::vec(1..30i64, 1..3),
        window in 30..2000i64,
        requests in prop::collection::vec((0..300i64, 0..5i64, -1..20i64, 0..6usize), 1..200),
    ) {
        let log = |limit| Rule::SlidingLog(SlidingLog { limit, window_ms: window, sorted_set: false });
        let mut key = Key::new(log(limits[0]));
        let mut units: Vec<(i64, usize)> = Vec::new();
        let mut later = Vec::new();
        let (mut now, mut settled) = (NOW, false);
        for (i, (pause, cost, more, after)) in requests.into_iter().enumerate() {
            now += pause;
            let limit = limits[i % limits.len()];
            key.rule = log(limit);
            units.retain(|(ms, _)| *ms >= now - window);
            let inside = units.len() as i64;
            let answer = key.take(now, cost, 0);
            let left = (limit - inside).max(0);
            let charged = if answer.admitted { cost } else { 0 };
            prop_assert!(answer.remaining <= left - charged, "{} left of {}", answer.remaining, left);
            prop_assert!(settled || answer.admitted == (cost == 0 || inside + cost <= limit));
            units.extend((0..charged).map(|_| (now, i)));
            if charged > 0 {
                later.push((i + after, i, charged, more, answer.receipt));
            }
            for (_, whose, cost, more, receipt) in later.extract_if(.., |(at, ..)| *at <= i) {
                if more >= 0 {
                    settled |= key.adjust(now, more, receipt);
                    units.extend((0..more.min(limit)).map(|_| (now, whose)));
                } else if key.adjust(now, -cost, receipt) {
                    units.retain(|(_, owner)| *owner != whose);
                }
            }
        }
    }

    /// The queue against exact fractions: admission, delay, and the spacing of what leaves.
    #[test]
    fn a_queue_releases_requests_no_faster_than_its_rate(
        rate in 1..50i64,
        per in 1..2000i64,
        queue in 0..3000i64,
        nodelay: bool,
        delay_after in prop_oneof![Just(0), 1..20i64],
        requests in requests(300),
    ) {
        let delay_after = if nodelay { 0 } else { delay_after };
        let mut key = Key::new(Rule::LeakyBucket(LeakyBucket { rate, per_ms: per, queue_ms: queue, nodelay, delay_after, refunds: false }));
        // Next free slot, times rate, and the time of the last charge.
        let (mut free, mut at) = (0i128, 0);
        let mut now = NOW;
        let mut departures: Vec<(i64, i64)> = Vec::new();
        for (pause, cost, refund) in requests {
            now += pause;
            let (clock, long) = (i128::from(now) * i128::from(rate), i128::from(queue * rate));
            if i128::from(at - now) > (long + i128::from(per)) / i128::from(rate) && cost > 0 {
                // The clock jumped back further than the queue is long.
                (free, at) = (clock + long + i128::from(per), now);
                departures.clear();
            }
            let slot = free.max(clock);
            let last = slot + i128::from((cost - 1) * per);
            let answer = key.take(now, cost, 0);
            let fits = cost <= queue * rate / per + 1;
            prop_assert_eq!(answer.admitted, cost == 0 || fits && last <= clock + long);
            prop_assert_eq!(answer.retry_ms == NEVER, !fits && cost > 0);
            if answer.admitted && cost > 0 {
                // The units that proceed at once are those before a time that is so much earlier.
                let late = (slot - clock - i128::from(delay_after * per)).max(0);
                let delay = (late + i128::from(rate) - 1) / i128::from(rate);
                prop_assert_eq!(i128::from(answer.retry_ms), if nodelay { 0 } else { delay });
                prop_assert!(answer.retry_ms <= queue, "waits {} of {}", answer.retry_ms, queue);
                (free, at) = (slot + i128::from(cost * per), now);
                if refund == Some(0) {
                    prop_assert!(key.adjust(now, -cost, answer.receipt));
                    free = slot;
                    continue;
                }
                // In whole ms a departure is at most one late.
                let out = now + answer.retry_ms;
                let mut units = 0;
                for (earlier, cost) in departures.iter().rev().filter(|_| !nodelay) {
                    units += cost;
                    let spaced = units - delay_after;
                    prop_assert!((out - earlier + 1) * rate > spaced * per, "{} units in {} ms", units, out - earlier);
                }
                departures.push((out, cost));
            }
        }
    }

    /// Takes, releases, renewals and deaths: never more admitted than the limit, all that is free can be had, and
    /// what was lost is held again with the next renewal, even beyond the limit.
    #[test]
    fn never_more_units_are_held_than_the_limit(
        limit in 1..12i64,
        lease in 50..500i64,
        steps in prop::collection::vec((0..80i64, 0..6u8, 1..4i64, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut key = Key::new(Rule::Concurrency(Concurrency { in_flight: limit, lease_ms: lease }));
        // Tag, units, expiry.
        let mut held: Vec<(i64, i64, i64)> = Vec::new();
        let mut lost: Vec<(i64, i64)> = Vec::new();
        let mut now = NOW;
        for (i, (pause, action, cost, which)) in steps.into_iter().enumerate() {
            now += pause;
            lost.extend(held.iter().filter(|(_, _, expiry)| *expiry <= now).map(|(tag, units, _)| (*tag, *units)));
            held.retain(|(_, _, expiry)| *expiry > now);
            let units = |held: &[(i64, i64, i64)]| held.iter().map(|(_, units, _)| units).sum::<i64>();
            match action {
                0..3 => {
                    let tag = (i as i64 + 1) * 1000;
                    let answer = key.take(now, cost, tag);
                    prop_assert_eq!(answer.admitted, units(&held) + cost <= limit);
                    if answer.admitted {
                        prop_assert_eq!(answer.receipt, tag);
                        held.push((tag, cost, now + lease));
                    }
                    prop_assert_eq!(answer.remaining, (limit - units(&held)).max(0));
                }
                3 if !held.is_empty() => {
                    let (tag, units, _) = held.swap_remove(which.index(held.len()));
                    prop_assert!(key.adjust(now, -units, tag));
                    prop_assert!(!key.adjust(now, -units, tag), "refunded twice");
                }
                4 if !held.is_empty() => {
                    let place = which.index(held.len());
                    prop_assert!(key.adjust(now, held[place].1, held[place].0));
                    held[place].2 = now + lease;
                }
                5 if !lost.is_empty() => {
                    let (tag, units) = lost.swap_remove(which.index(lost.len()));
                    prop_assert!(!key.adjust(now, -1, tag), "a lost lease cannot be released");
                    prop_assert!(!key.adjust(now, 0, tag), "nothing is renewed");
                    prop_assert!(key.adjust(now, units, tag));
                    held.push((tag, units, now + lease));
                }
                _ => {}
            }
        }
    }
}

/// A limit that is raised, lowered, or gets another window keeps its usage.
#[test]
fn changed_numbers_apply_to_what_was_taken() {
    let log = |limit, window_ms| Rule::SlidingLog(SlidingLog { limit, window_ms, sorted_set: false });
    let mut key = Key::new(log(10, 1000));
    assert_eq!(key.take(NOW, 10, 0).remaining, 0);
    key.rule = log(15, 1000);
    assert_eq!(key.take(NOW + 1, 1, 0).remaining, 4);
    key.rule = log(5, 1000);
    let refused = key.take(NOW + 2, 1, 0);
    assert_eq!((refused.admitted, refused.remaining, refused.retry_ms), (false, 0, 999));
    key.rule = log(15, 60_000);
    assert_eq!(key.take(NOW + 3, 0, 0).remaining, 4);

    let queue = |rate, queue_ms| {
        Rule::LeakyBucket(LeakyBucket { rate, per_ms: 1000, queue_ms, nodelay: false, delay_after: 0, refunds: false })
    };
    let mut key = Key::new(queue(10, 1000));
    let delays: Vec<i64> = (0..11).map(|_| key.take(NOW, 1, 0).retry_ms).collect();
    assert_eq!(delays, (0..11).map(|i| i * 100).collect::<Vec<i64>>());
    assert!(!key.take(NOW, 1, 0).admitted);
    key.rule = queue(20, 1000);
    let answer = key.take(NOW, 1, 0);
    assert_eq!((answer.admitted, answer.retry_ms), (true, 550));

    let leases = |in_flight, lease_ms| Rule::Concurrency(Concurrency { in_flight, lease_ms });
    let mut key = Key::new(leases(2, 60_000));
    assert!(key.take(NOW, 1, 10).admitted && key.take(NOW, 1, 20).admitted);
    key.rule = leases(3, 60_000);
    assert!(key.take(NOW, 1, 30).admitted);
    // A shorter lease does not shorten others: each holder renews its lease by its own settings.
    key.rule = leases(3, 1000);
    assert_eq!(key.take(NOW, 1, 40).retry_ms, 60_000);
    assert!(key.adjust(NOW, 1, 30), "its own lease is renewed by the new rule");
    assert_eq!(key.take(NOW, 1, 50).retry_ms, 1000);
    assert!(!key.take(NOW + 999, 1, 50).admitted);
    assert!(key.take(NOW + 1000, 1, 60).admitted);
    assert_eq!(key.take(NOW + 59_999, 2, 70).retry_ms, 1);
}

/// A slot in the middle of the queue cannot be refunded: the requests behind it keep their slots.
#[test]
fn only_the_last_slot_is_refunded() {
    let mut key = Key::new(Rule::LeakyBucket(LeakyBucket {
        rate: 1,
        per_ms: 100,
        queue_ms: 1000,
        nodelay: false,
        delay_after: 0,
        refunds: false,
    }));
    let first = key.take(NOW, 1, 0);
    let second = key.take(NOW, 1, 0);
    assert!(!key.adjust(NOW, -1, first.receipt));
    assert!(key.adjust(NOW + 10, -1, second.receipt));
    assert!(!key.adjust(NOW + 10, -1, second.receipt), "refunded twice");
    assert!(key.adjust(NOW + 10, -1, first.receipt));
    assert_eq!(key.take(NOW + 10, 1, 0).retry_ms, 0);
}

/// Refunds of units without a receipt: of every algorithm that a descriptor can use, exactly the units, and never more
/// than is charged.
#[test]
fn units_are_refunded_without_a_receipt() {
    use crate::support::limiting as make;
    let rules = [
        make::rules::bucket(1, 20),
        Rule::Gcra(Gcra { rate: 1, per_ms: 3_600_000, burst: 20, refunds: true }),
        make::rules::window(20),
        make::rules::log(20, false),
        make::rules::log(20, true),
        make::rules::leaky(20, true),
        make::rules::sliding(20, 60_000, 2),
        make::rules::sliding(20, 60_000, 10),
        make::rules::calendar(20, sluicegate::limiting::algorithm::calendar::CalendarUnit::Hour),
    ];
    for rule in rules {
        let name = format!("{rule:?}");
        let mut key = Key::new(rule);
        let full = key.take(NOW, 0, 0).remaining;
        for cost in [3, 1, 2] {
            assert!(key.take(NOW, cost, 0).admitted, "{name}");
        }
        let refund = |key: &mut Key, units: i64| {
            let now = key.take(NOW, 0, 0);
            let receipt = key.rule.receipt_of_peek(&now);
            key.adjust(NOW, -units, receipt)
        };
        assert!(refund(&mut key, 4), "{name}");
        assert_eq!(key.take(NOW, 0, 0).remaining, full - 2, "{name}");
        assert!(refund(&mut key, 9), "{name}");
        assert_eq!(key.take(NOW, 0, 0).remaining, full, "{name}");
        assert!(!refund(&mut key, 1) || key.take(NOW, 0, 0).remaining == full, "{name}");
    }
}

/// The newest charges are refunded first, and the others still leave the window at their time.
#[test]
fn a_log_refunds_its_newest_charges() {
    let mut key = Key::new(Rule::SlidingLog(SlidingLog { limit: 10, window_ms: 1000, sorted_set: false }));
    for (at, cost) in [(0, 2), (300, 3), (600, 4)] {
        assert!(key.take(NOW + at, cost, 0).admitted);
    }
    assert!(key.adjust(NOW + 600, -5, LATEST));
    let mut left = |at: i64| key.take(NOW + at, 0, 0).remaining;
    assert_eq!([600, 1000, 1001, 1300, 1301].map(&mut left), [6, 6, 8, 8, 10]);
    // Units that no longer count are not refunded.
    assert!(!key.adjust(NOW + 1301, -1, LATEST));
}
