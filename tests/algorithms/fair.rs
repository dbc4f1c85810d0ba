//! Fair sharing: tenants cannot exceed the cap by any means, no tenant within its share is refused while the same
//! tenants are active, and unused units are available to all. Each test runs the Rust half and the whole Lua script.

use std::collections::HashMap;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::limiting::algorithm::fair::{BUCKETS, FairFacts, FairSettings};
use sluicegate::limiting::algorithm::{Rule, State};
use sluicegate::limiting::answer::Answer;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;

use super::twin::NOW;
use crate::support::limiting::fake_redis::Gate;
use crate::support::limiting::rules::fair;
use crate::support::limiting::{check, limit, seeded};

const DAY: i64 = 86_400_000;

/// A budget in one of the two stores.
enum Budget {
    Rust(Option<(State, i64)>),
    Script(Box<Gate>),
}

impl Budget {
    fn both() -> [Budget; 2] {
        [Budget::Rust(None), Budget::Script(Box::new(Gate::load()))]
    }

    fn take(&mut self, rule: &Rule, tenant: i64, cost: i64, now: i64) -> Answer {
        match self {
            Budget::Rust(held) => {
                let state = held.as_ref().filter(|(_, expires)| now < *expires).map(|(state, _)| state);
                let step = rule.decide(state, now, cost, tenant);
                if let Some((state, ttl_ms)) = step.next {
                    *held = Some((state, now + ttl_ms));
                }
                step.answer
            }
            Budget::Script(gate) => {
                let limit = limit("shared", rule.clone(), Mode::Enforce);
                let check = Check { tag: tenant, ..check(&limit, "all", cost) };
                gate.decide(&[(Op::Take, vec![check])], now)[0].answers[0]
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Budget::Rust(held) => held.as_ref().map_or_else(String::new, |(state, _)| state.text()),
            Budget::Script(gate) => {
                gate.keys.borrow().held.values().next().map_or_else(String::new, |held| held.data.text(false))
            }
        }
    }

    /// Content of the pool at `now`, in thousandths of a token.
    fn pool(&self, (rate, per, burst): (i64, i64, i64), now: i64) -> i64 {
        let text = self.text();
        let Some((_, records)) = text.split_once('|') else { return burst * 1000 };
        let numbers: Vec<i64> = records.split([' ', ';']).take(2).map(|number| number.parse().unwrap()).collect();
        let used = (numbers[0] - (now - numbers[1]).max(0) * rate).max(0);
        (burst * per - used) * 1000 / per
    }
}

fn settings(reserve: i64, active_ms: i64, weight: i64) -> FairSettings {
    FairSettings { reserve: Some(reserve), active_ms: Some(active_ms), max_active: 1024, weight }
}

/// A constant set of tenants with these weights: each has sent one request, and all charges are refilled.
struct Tenants {
    budget: Budget,
    rules: Vec<Rule>,
    weights: Vec<i64>,
    now: i64,
}

const RATE: i64 = 100;
const RESERVE: i64 = 400;

impl Tenants {
    fn new(mut budget: Budget, weights: &[i64], burst: i64) -> Tenants {
        let rules: Vec<Rule> =
            weights.iter().map(|weight| fair(RATE, 1000, burst, settings(RESERVE, DAY, *weight))).collect();
        for (place, rule) in rules.iter().enumerate() {
            assert!(budget.take(rule, tenant(place), 1, NOW).admitted);
        }
        Tenants { budget, rules, weights: weights.to_vec(), now: NOW + 600_000 }
    }

    fn fetch(&mut self, place: usize, cost: i64) -> bool {
        self.budget.take(&self.rules[place], tenant(place), cost, self.now).admitted
    }

    /// Content of the pool, in parts of the reserve.
    fn pool(&self, burst: i64) -> f64 {
        self.budget.pool((RATE, 1000, burst), self.now) as f64 / 1000.0 / RESERVE as f64
    }
}

fn tenant(place: usize) -> i64 {
    BUCKETS + place as i64
}

/// Units that a tenant could take from a bucket of its own: its part of the rate, and of 1/e of the reserve.
#[derive(Clone, Default)]
struct PrivateBucket {
    tat_us: f64,
}

impl PrivateBucket {
    /// Takes `cost`, if it has it. The gateway rounds each charge up to microseconds.
    fn take(&mut self, cost: i64, total: i64, weight: i64, now: i64) -> bool {
        let now_us = now as f64 * 1000.0;
        let base = (cost * 1_000_000) as f64 / RATE as f64;
        let tat_us = self.tat_us.max(now_us) + (base.ceil() * total as f64 / weight as f64).ceil();
        let left = RATE as f64 * (tat_us - now_us) / 1_000_000.0;
        let fits = cost as f64 + left <= RESERVE as f64 / std::f64::consts::E - 0.01;
        if fits {
            self.tat_us = tat_us;
        }
        fits
    }
}

/// The worst known order: each tenant in turn takes all that it gets. It comes near the bound, so the bound of the next
/// test is tight.
#[test]
fn tenants_in_turn_come_near_the_floor() {
    for count in [1, 2, 5, 10, 20] {
        for budget in Budget::both() {
            let mut tenants = Tenants::new(budget, &vec![1; count], RESERVE + 1);
            // A full pool has one token more than the reserve, so that all charges count against shares.
            for place in 0..count {
                while tenants.fetch(place, 1) {}
            }
            let floor = (1.0 + 1.0 / count as f64).powi(-(count as i32));
            let pool = tenants.pool(RESERVE + 1);
            assert!((floor..floor + 0.03).contains(&pool), "{count} tenants leave {pool} of the reserve, not {floor}");
        }
    }
}

/// The theorem: with a constant set of tenants, the pool never falls below 1/e of the reserve. So a tenant that a
/// private bucket would admit is never refused because of others.
#[test]
fn nobody_within_a_share_is_refused() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    let rounds = std::env::var("FAIR_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let (mut asked, mut refused) = (0, 0);
    for round in 0..rounds {
        for budget in Budget::both() {
            let count = rng.random_range(1..=12);
            let weights: Vec<i64> =
                (0..count).map(|_| if round % 2 == 0 { 1 } else { [1, 1, 2, 5][rng.random_range(0..4)] }).collect();
            let total: i64 = weights.iter().sum();
            let burst = RESERVE + [5, RESERVE][rng.random_range(0..2)];
            let mut tenants = Tenants::new(budget, &weights, burst);
            let mut private = vec![PrivateBucket::default(); count];
            // The other tenants take what they get.
            let quiet: Vec<bool> = (0..count).map(|_| rng.random_bool(0.4)).collect();
            for _ in 0..300 {
                if rng.random_bool(0.35) {
                    tenants.now += [0, 1, 7, 40, 400, 4000][rng.random_range(0..6)];
                    continue;
                }
                let (place, cost) = (rng.random_range(0..count), [1, 1, 1, 2, 5][rng.random_range(0..5)]);
                for _ in 0..[1, 3, 20, 500][rng.random_range(0..4)] {
                    if quiet[place] && !private[place].take(cost, total, tenants.weights[place], tenants.now) {
                        break;
                    }
                    let admitted = tenants.fetch(place, cost);
                    refused += u64::from(!admitted);
                    asked += u64::from(quiet[place]);
                    let pool = tenants.pool(burst);
                    assert!(
                        admitted || !quiet[place],
                        "round {round}: {place} of {weights:?} is within its share, cost {cost}, pool {pool}, {}",
                        tenants.budget.text(),
                    );
                    if !admitted {
                        break;
                    }
                }
                let pool = tenants.pool(burst);
                assert!(pool >= (-1.0_f64).exp() - 1e-3, "round {round}: {weights:?} leave {pool} of the reserve");
            }
        }
    }
    assert!(asked > 500 && refused > 500, "{asked} requests within shares, {refused} refusals beyond them");
}

/// Tenants that come and go, more than `max_active`, weights, settings and clocks that change: no interval admits more
/// than the burst and the rate.
#[test]
fn the_cap_is_exact_for_any_tenants() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for _ in 0..40 {
        for mut budget in Budget::both() {
            let (rate, per, burst) = (rng.random_range(1..50), rng.random_range(1..3000), rng.random_range(2..80));
            let known = rng.random_range(1..30);
            let (mut now, mut lived) = (NOW, 0);
            let mut charges: Vec<(i64, i64)> = Vec::new();
            for _ in 0..250 {
                let step = match rng.random_range(0..10) {
                    0..5 => 0,
                    5..8 => rng.random_range(0..=per / 4 + 1),
                    8 => rng.random_range(0..=3 * per),
                    _ => -rng.random_range(0..=per),
                };
                (now, lived) = (now + step, lived + step.max(0));
                let rule = fair(
                    rate,
                    per,
                    burst,
                    FairSettings {
                        reserve: Some(rng.random_range(0..burst)),
                        active_ms: Some(rng.random_range(1..=2 * per)),
                        max_active: rng.random_range(1..8),
                        weight: rng.random_range(1..4),
                    },
                );
                let tenant = BUCKETS + rng.random_range(0..known);
                let cost = if rng.random_bool(0.7) { 1 } else { rng.random_range(1..=burst) };
                if budget.take(&rule, tenant, cost, now).admitted {
                    charges.push((lived, cost));
                }
            }
            for (first, (from, _)) in charges.iter().enumerate() {
                let mut sum = 0;
                for (to, cost) in &charges[first..] {
                    sum += cost;
                    let bound = burst + rate * (to - from + 1) / per;
                    assert!(sum <= bound, "{sum} within {} ms of {rate}/{per} ms, burst {burst}", to - from);
                }
            }
        }
    }
}

/// Requests of each tenant at a rate per second, from and until a second, with a weight.
struct Load {
    per_second: f64,
    from_s: i64,
    till_s: i64,
    weight: i64,
}

const fn load(per_second: f64, from_s: i64, till_s: i64) -> Load {
    Load { per_second, from_s, till_s, weight: 1 }
}

/// Runs the loads on a budget of 100/s, burst 100, reserve 50. Returns the numbers of requests and admitted requests by
/// tenant, and the number of decisions for tenants beyond `max_active`.
fn run(loads: &[Load], active_ms: i64, max_active: i64, rng: &mut StdRng) -> (Vec<(u64, u64)>, u64) {
    let mut arrivals: Vec<(i64, usize)> = Vec::new();
    for (place, load) in loads.iter().enumerate() {
        let mut at = load.from_s as f64 * 1000.0;
        loop {
            at -= rng.random_range(f64::EPSILON..1.0).ln() * 1000.0 / load.per_second;
            if at >= load.till_s as f64 * 1000.0 {
                break;
            }
            arrivals.push((at as i64, place));
        }
    }
    arrivals.sort_unstable();
    let rule_of =
        |load: &Load| fair(RATE, 1000, 100, FairSettings { max_active, ..settings(50, active_ms, load.weight) });
    let rules: Vec<Rule> = loads.iter().map(rule_of).collect();
    let (mut budget, mut counts, mut folded) = (Budget::Rust(None), vec![(0, 0); loads.len()], 0);
    for (at, place) in arrivals {
        let answer = budget.take(&rules[place], tenant(place), 1, NOW + at);
        folded += u64::from(FairFacts::of(&answer).active.is_none());
        counts[place].0 += 1;
        counts[place].1 += u64::from(answer.admitted);
    }
    (counts, folded)
}

fn part((asked, admitted): (u64, u64)) -> f64 {
    admitted as f64 / asked.max(1) as f64
}

#[test]
fn unused_budget_is_available_to_every_tenant() {
    let mut seeded = seeded();
    let (counts, _) = run(&[load(500.0, 0, 60)], 4000, 1024, &mut seeded.rng);
    // 6000 are refilled, and 50 of the burst are not reserved.
    assert!((6040..=6051).contains(&counts[0].1), "{} of 6100", counts[0].1);
}

#[test]
fn shares_are_as_weights() {
    let mut seeded = seeded();
    let loads = [Load { weight: 3, ..load(300.0, 0, 40) }, load(300.0, 0, 40)];
    let (counts, _) = run(&loads, 4000, 1024, &mut seeded.rng);
    let parts = counts[0].1 as f64 / counts[1].1 as f64;
    assert!((2.3..3.2).contains(&parts), "{counts:?}");
}

/// Quiet tenants at half of their share among greedy ones, some of which start later.
#[test]
fn greedy_tenants_hardly_harm_quiet_ones() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for greedy in [1, 4, 10] {
        let mut loads: Vec<Load> = (0..greedy).map(|i| load(300.0, i % 3, 20)).collect();
        loads.push(load(50.0 / (greedy + 1) as f64, 4, 20));
        let (counts, _) = run(&loads, 4000, 1024, rng);
        let quiet = part(*counts.last().unwrap());
        assert!(quiet > 0.93, "beside {greedy} greedy tenants, {quiet} are admitted");
    }
}

/// A client that invents identities takes the shares of as many tenants, as the manual says: with enough identities,
/// the budget is first come, first served. `max_active` bounds the state, and earlier tenants keep their part.
#[test]
fn invented_identities_take_shares() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    let mut loads: Vec<Load> = (0..600).map(|_| load(1.0, 0, 20)).collect();
    loads.extend((0..5).map(|_| load(5.0, 0, 20)));
    let (counts, folded) = run(&loads, 4000, 1024, rng);
    let quiet = counts[600..].iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(part(quiet) < 0.4 && folded == 0, "{}", part(quiet));
    let (counts, folded) = run(&loads, 4000, 20, rng);
    let admitted: u64 = counts.iter().map(|count| count.1).sum();
    assert!(folded > 5000 && admitted <= 2100, "{folded} for shared backlogs, {admitted} admitted");
}

/// The state has a bounded number of tenants, each of a bounded size.
#[test]
fn the_state_is_bounded() {
    for mut budget in Budget::both() {
        let rule = fair(RATE, 1000, 100, FairSettings { max_active: 40, ..settings(50, DAY, 7) });
        for place in 0..200 {
            budget.take(&rule, (1 << 51) + place, 1, NOW + place);
        }
        let text = budget.text();
        assert_eq!(text.matches(';').count(), 40 + usize::try_from(BUCKETS).unwrap(), "{text}");
        assert!(text.len() < 60 * 56, "{} bytes", text.len());
    }
}

/// Beyond `max_active`, strangers share backlogs. A tenant with one of its own keeps it while it waits, even if the
/// wait is longer than it is active. So it is admitted exactly when its refusal promised.
#[test]
fn a_tenant_keeps_its_backlog_while_it_waits() {
    for mut budget in Budget::both() {
        let rule = fair(1, 1000, 30, FairSettings { max_active: 1, ..settings(20, 500, 1) });
        let [own, same_bucket, other] = [BUCKETS, 2 * BUCKETS, 2 * BUCKETS + 1];
        for (tenant, cost) in [(own, 1), (same_bucket, 5), (same_bucket, 4), (other, 4), (other, 1)] {
            let answer = budget.take(&rule, tenant, cost, NOW);
            assert_eq!((answer.admitted, FairFacts::of(&answer).active.is_some()), (true, tenant == own));
        }
        let refusal = budget.take(&rule, own, 5, NOW);
        assert_eq!((refusal.admitted, refusal.retry_ms), (false, 5000));
        assert_eq!(budget.take(&rule, own, 5, NOW + 4999).retry_ms, 1);
        assert!(budget.take(&rule, own, 5, NOW + 5000).admitted);
    }
}

/// Changed settings, as after a reload or in another gateway, keep the usage and the active tenants.
#[test]
fn changed_settings_keep_the_usage() {
    for mut budget in Budget::both() {
        let rule = |reserve, active_ms, weight| fair(RATE, 1000, 100, settings(reserve, active_ms, weight));
        for _ in 0..50 {
            assert!(budget.take(&rule(50, 4000, 1), 100, 1, NOW).admitted);
        }
        assert!(!budget.take(&rule(50, 4000, 1), 100, 1, NOW).admitted);
        assert!(!budget.take(&rule(60, 9000, 1), 100, 1, NOW).admitted);
        // A smaller reserve leaves more to the greedy tenant, and the pool is unchanged.
        let more = (0..60).filter(|_| budget.take(&rule(30, 9000, 1), 100, 1, NOW).admitted).count();
        assert_eq!(more, 20);
        // Another weight of the same tenant replaces the old one.
        assert!(budget.take(&rule(29, 9000, 4), 100, 1, NOW).admitted);
        let other = budget.take(&rule(30, 9000, 1), 101, 1, NOW);
        assert_eq!((other.admitted, FairFacts::of(&other).active), (true, Some(2)));
        let weights: HashMap<String, String> = budget
            .text()
            .split(';')
            .skip(1)
            .map(|tenant| {
                let [id, _, weight] = tenant.split(' ').collect::<Vec<_>>().try_into().unwrap();
                (id.to_owned(), weight.to_owned())
            })
            .collect();
        let mut sorted: Vec<(String, String)> = weights.into_iter().collect();
        sorted.sort();
        assert_eq!(sorted, [("100".to_owned(), "4".to_owned()), ("101".to_owned(), "1".to_owned())]);
    }
}

/// A refund returns to the pool and to the tenant; when a tenant is forgotten, the pool is unchanged.
#[test]
fn refunds_return_to_the_pool_and_the_tenant() {
    for mut budget in Budget::both() {
        let Rule::Fair(mut rule) = fair(RATE, 1000, 100, settings(50, DAY, 1)) else { unreachable!() };
        rule.pool.refunds = true;
        let rule = Rule::Fair(rule);
        let adjust = |budget: &mut Budget, delta, receipt| {
            let own = rule.for_tenant(100).unwrap();
            match budget {
                Budget::Rust(held) => {
                    let (state, ttl_ms, _) =
                        own.adjust(held.as_ref().map(|held| &held.0), NOW, delta, receipt).unwrap();
                    *held = Some((state, NOW + ttl_ms));
                }
                Budget::Script(gate) => {
                    let limit = limit("shared", rule.clone(), Mode::Enforce);
                    let check = Check { tag: receipt, rule: Arc::new(own), ..check(&limit, "all", delta) };
                    assert!(gate.decide(&[(Op::Adjust, vec![check])], NOW)[0].answers[0].admitted);
                }
            }
        };
        // Another active tenant, so that a charge weighs twice.
        budget.take(&rule, 101, 1, NOW);
        let before = budget.text();
        let charge = budget.take(&rule, 100, 20, NOW);
        let backlog =
            |text: &str| text.split(";100 ").nth(1).map(|rest| rest.split([' ', ';']).next().unwrap().to_owned());
        assert_eq!(backlog(&budget.text()), Some((NOW * 1000 + 400_000).to_string()));
        adjust(&mut budget, -20, charge.receipt);
        assert_eq!(backlog(&budget.text()), Some((NOW * 1000).to_string()));
        let used = |text: &str| text.split('|').nth(1).unwrap().split(' ').next().unwrap().to_owned();
        assert_eq!(used(&budget.text()), used(&before));
        budget.take(&rule, 100, 20, NOW);
        adjust(&mut budget, 0, -1);
        assert_eq!((backlog(&budget.text()), used(&budget.text())), (None, "21000".to_owned()));
    }
}
