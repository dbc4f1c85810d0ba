//! Rules that alternate under one key while their charges are refunded: each rule admits no more than if the refunded
//! charges had never been made. The model is the plain sum of the charges that were not refunded.

use proptest::prelude::*;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::calendar::CalendarUnit;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;

use super::corrections::{self, ModelCharge, used};
use super::{Client, NOW};
use crate::support::limiting as stores;

const HOUR_MS: i64 = 3_600_000;

/// One of the rules under the key.
struct AlternatingRule {
    rule: Rule,
    /// Number of charges before the rule began to count; `None` while it has no record.
    since: Option<usize>,
}

/// Count, period in ms, and the remaining choices as one number.
type Numbers = (i64, i64, usize);

fn rule(kind: usize, (count, per_ms, odd): Numbers) -> Rule {
    match kind {
        0 => Rule::FixedWindow(FixedWindow { limit: count, window_ms: per_ms, clock: odd % 2 == 0 }),
        1 => Rule::FixedWindow(FixedWindow { limit: count, window_ms: per_ms, clock: true }),
        2 => stores::rules::sliding(count, per_ms, [2, 3, 5][odd % 3]),
        3 => stores::rules::calendar(count, [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Month][odd % 3]),
        _ => corrections::rules(1 + i64::try_from(odd).unwrap(), per_ms, count, kind - 4).0,
    }
}

impl AlternatingRule {
    /// Returns whether the text of a state contains the record of this rule.
    fn is_in(&self, text: &str, now: i64) -> bool {
        let params = self.rule.params(now);
        let needle = match &self.rule {
            Rule::FixedWindow(_) => format!(" {} {} ", params[1], params[2]),
            Rule::SlidingWindow(_) => format!(" {} {} ", params[2], params[1]),
            Rule::Calendar(_) => format!(" {} {} ", params[2], params[3] - params[2]),
            _ => format!(" {} {} ", params[0], params[1]),
        };
        text.split('|').any(|record| format!(" {} ", record.trim()).contains(&needle))
    }

    /// Returns whether the charges `stand`, all made after the rule began to count, exceed the rule at `now`, the time
    /// of the last charge. Windows that start with a request start at `start`.
    fn is_exceeded(&self, stand: &[ModelCharge], now: i64, start: i64) -> bool {
        let params = self.rule.params(now);
        let aligned = now - now % params[1];
        let from = match &self.rule {
            Rule::FixedWindow(rule) => {
                if rule.clock {
                    aligned
                } else {
                    start
                }
            }
            Rule::SlidingWindow(_) if params[1] == params[2] => aligned,
            Rule::SlidingWindow(_) => now - params[1] + 1,
            Rule::Calendar(_) => params[2],
            _ => {
                let (bucket, full) = corrections::bucket_of(&self.rule);
                return used(stand, &bucket, now) > full;
            }
        };
        stand.iter().filter(|taken| taken.at >= from).map(|taken| taken.cost).sum::<i64>() > params[0]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each charge is refunded once or not at all, by the rule that made it, whole or in part.
    #[test]
    fn refunds_never_exceed_the_charge_under_any_rule(
        kind in 0..7_usize,
        numbers in prop::collection::vec((2..13_i64, 5..200_i64, 0..6_usize), 2..=3),
        steps in prop::collection::vec(
            (
                prop_oneof![3 => Just(0), 3 => 0..12_i64, 1 => 0..150_i64],
                any::<prop::sample::Index>(),
                prop_oneof![1 => Just(1), 1 => 1..13_i64],
                prop::option::weighted(0.4, any::<prop::sample::Index>()),
            ),
            5..60,
        ),
    ) {
        let mut turns: Vec<AlternatingRule> =
            numbers.iter().map(|numbers| AlternatingRule { rule: rule(kind, *numbers), since: None }).collect();
        let mut client = Client::new(turns[0].rule.clone());
        client.now = NOW;
        let (mut stand, mut open): (Vec<ModelCharge>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
        for (step, which, cost, back) in steps {
            // The windows of a calendar are no shorter than an hour.
            client.now += if kind == 3 { step * HOUR_MS / 20 } else { step };
            if client.state.as_ref().is_some_and(|(_, expires)| client.now >= *expires) {
                client.state = None;
                stand.clear();
                open.clear();
            }
            if let Some(back) = back.filter(|_| !open.is_empty()) {
                let (charge, by) = open.swap_remove(back.index(open.len()));
                client.rule = turns[by].rule.clone();
                let taken = &mut stand[charge];
                let delta = cost.min(taken.cost);
                taken.cost -= delta;
                client.adjust(-delta, taken.receipt);
                continue;
            }
            let text = client.state.as_ref().map_or(String::new(), |(state, _)| state.text());
            for turn in &mut turns {
                turn.since = turn.since.filter(|_| turn.is_in(&text, client.now));
            }
            let which = which.index(turns.len());
            client.rule = turns[which].rule.clone();
            let answer = client.arrive((0, cost));
            let turn = &mut turns[which];
            let since = *turn.since.get_or_insert(stand.len());
            if answer.admitted {
                stand.push(ModelCharge { at: client.now, cost, receipt: answer.receipt });
                open.push((stand.len() - 1, which));
                let start = client.charges.last().unwrap().start;
                let stand = &stand[since..];
                prop_assert!(!turn.is_exceeded(stand, client.now, start), "{:?} at {}: {:?}", turn.rule, client.now, stand);
            }
        }
    }
}

/// A window that was converted starts a millisecond later, and so do the receipts of its first charges. A window of
/// another rule that begins just then has not counted them.
#[test]
fn a_charge_just_before_a_window_is_not_refunded_from_it() {
    let (clock, first_hit) = (rule(0, (10, 136, 0)), rule(0, (2, 28, 1)));
    let window_at = NOW + 136 - NOW % 136;
    let mut client = Client::new(clock.clone());
    let charge = |client: &mut Client, at: i64, rule: &Rule, cost: i64| {
        (client.now, client.rule) = (at, rule.clone());
        client.arrive((0, cost))
    };
    let first = charge(&mut client, window_at - 6, &clock, 1);
    client.adjust(-1, first.receipt);
    let before = charge(&mut client, window_at - 1, &first_hit, 1);
    assert!(before.admitted && charge(&mut client, window_at - 1, &clock, 1).admitted);
    assert!(charge(&mut client, window_at, &clock, 10).admitted);
    client.rule = first_hit;
    client.adjust(-1, before.receipt);
    assert!(!charge(&mut client, window_at, &clock, 1).admitted, "11 units of 10");
}
