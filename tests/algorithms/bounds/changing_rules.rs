//! Rules that change under a key again and again: every rule finds the usage that it would have if it had made all
//! charges alone. On both stores.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sluicegate::limiting::algorithm::calendar::CalendarUnit;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::algorithm::{Rule, State};
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::memory::MemoryStore;

use super::{Client, NOW};
use crate::support::limiting as stores;
use crate::support::limiting::timed_stores::TimedStore;

/// Rate, period in ms, burst.
type Numbers = (i64, i64, i64);

/// Returns the rule with these settings, and one that charges any cost to its state.
fn rules(algorithm: &str, (rate, per_ms, burst): Numbers, odd: bool) -> [Rule; 2] {
    const ALL: i64 = 1_000_000;
    [burst, ALL].map(|burst| match algorithm {
        "token_bucket" => {
            Rule::TokenBucket(TokenBucket { rate, per_ms, burst, debt: 0, interval: odd, empty: false, refunds: false })
        }
        "gcra" => Rule::Gcra(Gcra { rate, per_ms, burst, refunds: false }),
        "leaky_bucket" => Rule::LeakyBucket(LeakyBucket {
            rate,
            per_ms,
            queue_ms: (burst - 1) * per_ms / rate,
            nodelay: odd,
            delay_after: 0,
            refunds: false,
        }),
        "fixed_window" => Rule::FixedWindow(FixedWindow { limit: burst, window_ms: per_ms, clock: odd }),
        "sliding_window" => stores::rules::sliding(burst, per_ms, if odd { 2 } else { 2 + rate }),
        "calendar" => stores::rules::calendar(
            burst,
            [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Month][usize::try_from(rate % 3).unwrap()],
        ),
        other => panic!("no rules of {other}"),
    })
}

/// A rule with a state of its own, to which all costs are charged that any rule admits.
struct ReferenceRule {
    rule: Rule,
    open: Rule,
    state: Option<(State, i64)>,
}

impl ReferenceRule {
    fn living(&self, now: i64) -> Option<&State> {
        self.state.as_ref().filter(|(_, expires)| now < *expires).map(|(state, _)| state)
    }

    fn charge(&mut self, now: i64, cost: i64) {
        if let Some((state, ttl_ms)) = self.open.decide(self.living(now), now, cost, 0).next {
            self.state = Some((state, now + ttl_ms));
        }
    }
}

fn walk(
    store: &TimedStore,
    who: &str,
    algorithm: &str,
    numbers: &[(Numbers, bool)],
    steps: &[(i64, i64, usize)],
) -> Result<(), TestCaseError> {
    let mut numbers = numbers.to_vec();
    // A longer unit counts charges under a shorter one, and a window by the clock counts charges under any.
    numbers.sort_by_key(|((rate, per_ms, _), odd)| match algorithm {
        "calendar" => (rate % 3, false),
        _ => (*per_ms, *odd),
    });
    numbers.sort_by_key(|(_, odd)| algorithm == "fixed_window" && *odd);
    let mut rules: Vec<ReferenceRule> = numbers
        .iter()
        .map(|(numbers, odd)| rules(algorithm, *numbers, *odd))
        .map(|[rule, open]| ReferenceRule { rule, open, state: None })
        .collect();
    let limit = stores::limit("one", rules[0].rule.clone(), Mode::Enforce);
    let mut now = NOW;
    let mut todo: VecDeque<(i64, i64, usize)> = steps.iter().copied().collect();
    while let Some((step, cost, which)) = todo.pop_front() {
        now += step;
        if store.stored_state(&stores::check(&limit, who, 1).key, now).is_none() && which < rules.len() {
            // Every rule charges a new key before time passes.
            todo.push_front((0, cost, which));
            (0..rules.len()).rev().for_each(|which| todo.push_front((0, 1, which + rules.len())));
            continue;
        }
        let (cost, which) = (&cost, which % rules.len());
        let check = Check { rule: Arc::new(rules[which].rule.clone()), ..stores::check(&limit, who, *cost) };
        let alone = rules[which].rule.decide(rules[which].living(now), now, *cost, 0).answer;
        let answer = store.one(Op::Take, &check, now);
        if let TimedStore::Redis(_) = store {
            // The key must not expire, because the server's own time hardly advances during the test.
            store.command(&["PERSIST", &check.key]);
        }
        prop_assert_eq!(
            (answer.admitted, answer.remaining, answer.retry_ms),
            (alone.admitted, alone.remaining, alone.retry_ms),
            "{:?} at {}",
            rules[which].rule,
            now
        );
        if answer.admitted && *cost > 0 {
            rules.iter_mut().for_each(|alone| alone.charge(now, *cost));
        }
    }
    Ok(())
}

#[test]
fn changing_numbers_leave_the_usage_that_each_rule_alone_would_leave() {
    let redis = TimedStore::redis();
    let memory = TimedStore::Memory(MemoryStore::new(1_000_000));
    for algorithm in ["token_bucket", "gcra", "leaky_bucket", "fixed_window", "sliding_window", "calendar"] {
        for (store, cases) in [(&memory, 200), (&redis, 12)] {
            let case = (
                prop::collection::vec(((1..8_i64, 20_000..40_000_i64, 4..30_i64), any::<bool>()), 2..=4),
                prop::collection::vec(
                    (
                        prop_oneof![Just(0), 0..3_i64, 0..9000_i64],
                        prop_oneof![4 => 1..4_i64, 1 => 0..30_i64],
                        0..2_usize,
                    ),
                    1..60,
                ),
            );
            let config = Config { cases, failure_persistence: None, ..Config::default() };
            TestRunner::new(config)
                .run(&case, |(numbers, steps)| {
                    walk(store, &rand::random::<u64>().to_string(), algorithm, &numbers, &steps)
                })
                .unwrap_or_else(|failure| panic!("{algorithm}: {failure:?}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Gateways that disagree, of which any may decide: together no more than the largest burst and the
    /// fastest rate allow, also after more rules than a key remembers.
    #[test]
    fn gateways_with_different_rules_admit_at_most_the_most_generous_one(
        numbers in prop::collection::vec((1..30_i64, 1..3000_i64, 1..40_i64), 2..8),
        steps in prop::collection::vec((0..4000_i64, 1..9_i64, 0..8_usize), 1..150),
        which in 0..3_usize,
    ) {
        let algorithm = ["token_bucket", "gcra", "leaky_bucket"][which];
        let rules: Vec<Rule> = numbers.iter().map(|numbers| rules(algorithm, *numbers, algorithm == "leaky_bucket")[0].clone()).collect();
        let mut client = Client::new(rules[0].clone());
        for (step, cost, which) in steps {
            client.rule = rules[which % rules.len()].clone();
            client.arrive((step, cost));
        }
        let burst = numbers.iter().map(|(.., burst)| *burst).max().unwrap();
        // What is converted from another record is rounded to its fraction of a token.
        client.assert_in_any_stretch(|length| {
            numbers.iter().map(|(rate, per, _)| burst + (length * rate + per - 1) / per).max()
        });
    }
}

/// Usage under numbers that no gateway uses any more is forgotten in time.
#[test]
fn numbers_that_are_gone_are_forgotten() {
    let rule = |rate, burst| Rule::Gcra(Gcra { rate, per_ms: 1000, burst, refunds: false });
    let mut client = Client::new(rule(7, 100));
    client.arrive((0, 90));
    client.rule = Rule::Gcra(Gcra { rate: 1, per_ms: 3_600_000, burst: 100, refunds: false });
    client.arrive((0, 1));
    let records = |client: &Client| client.state.as_ref().unwrap().0.text().split('|').count();
    assert_eq!(records(&client), 2);
    // The old usage has been refilled after 13 s, but its record is kept for ten minutes.
    client.arrive((599_000, 1));
    assert_eq!(records(&client), 2);
    client.arrive((1000, 1));
    assert_eq!(records(&client), 1);
}

/// The examples under "Exact history when settings change" in docs/guarantees/proofs.md.
#[test]
fn the_history_of_the_manual_is_exact() {
    let bucket = |rate, burst| rules("token_bucket", (rate, 1000, burst), false)[0].clone();
    let spent = |rule: &Rule| {
        let mut client = Client::new(rule.clone());
        (0..60).for_each(|_| assert!(client.arrive((0, 1)).admitted));
        client
    };
    let generous = bucket(10, 60);

    let mut client = spent(&generous);
    client.rule = bucket(10, 10);
    assert!(!client.arrive((0, 1)).admitted);
    assert!(!client.arrive((5000, 1)).admitted, "ten are in use");
    assert!(client.arrive((100, 1)).admitted);

    let (mut client, faster) = (spent(&generous), bucket(50, 5));
    client.rule = faster;
    assert!(!client.arrive((0, 1)).admitted);
    let answer = client.arrive((1200, 1));
    assert_eq!((answer.admitted, 5 - answer.remaining), (true, 1));
    client.rule = generous;
    let answer = client.arrive((0, 1));
    assert_eq!((answer.admitted, 60 - answer.remaining), (true, 50));
}
