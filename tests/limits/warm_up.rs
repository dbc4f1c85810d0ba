//! Limits with a warm-up: how the rate of a cold key rises, how a key becomes cold, and what clients see.

use sluicegate::limiting::algorithm::{Rule, State};

use crate::support::gateway::Gateway;
use crate::support::limiting::rules::warm_up;
use crate::support::limiting::{RedisServer, on_both_stores};

const NOW: i64 = 1_795_000_000_000;

/// A key that sends whenever it may.
struct GreedyKey {
    rule: Rule,
    state: Option<State>,
    now: i64,
}

impl GreedyKey {
    fn new(rule: Rule) -> GreedyKey {
        GreedyKey { rule, state: None, now: NOW }
    }

    /// Sends one request, and returns how long it has to wait.
    fn take_one(&mut self) -> i64 {
        let step = self.rule.decide(self.state.as_ref(), self.now, 1, 0);
        self.state = step.next.map(|(state, _)| state).or(self.state.take());
        step.answer.retry_ms
    }

    /// Returns how many requests are admitted in the next `ms`.
    fn use_for(&mut self, ms: i64) -> i64 {
        let (mut admitted, end) = (0, self.now + ms);
        while self.now < end {
            match self.take_one() {
                0 => admitted += 1,
                wait => self.now += wait,
            }
        }
        self.now = end;
        admitted
    }
}

/// The whole rate divided by sqrt(9 - 8 t / w): the integral of that, over each tenth of the warm-up.
#[test]
fn the_rate_rises_from_a_third_as_in_guava() {
    for (rate, per_ms, burst, warm_ms) in [(1, 10, 10, 10_000), (7, 10, 20, 60_000), (1, 1, 10, 3000)] {
        let mut key = GreedyKey::new(warm_up(rate, per_ms, burst, warm_ms));
        let passed = |t: f64| rate as f64 / per_ms as f64 * warm_ms as f64 / 4.0 * (3.0 - (9.0 - 8.0 * t).sqrt());
        for tenth in 0..10_u8 {
            let expected = passed(f64::from(tenth + 1) / 10.0) - passed(f64::from(tenth) / 10.0);
            let found = key.use_for(warm_ms / 10) as f64;
            // The first tenth has the burst, of which a cold key has about a third.
            let first = if tenth == 0 { (burst - 1) as f64 / 3.0 } else { 0.0 };
            let difference = (found - first - expected).abs();
            assert!(difference <= 2.0 + expected / 100.0, "{tenth}: {found}, not {first} and {expected}");
        }
        let whole = rate as f64 / per_ms as f64 * warm_ms as f64;
        let found = key.use_for(warm_ms) as f64;
        assert!((found - whole).abs() <= 2.0, "warm: {found}, not {whole}");
    }
}

#[test]
fn a_key_becomes_cold_without_use() {
    let mut key = GreedyKey::new(warm_up(1, 10, 10, 10_000));
    key.use_for(20_000);
    // Half of the time without use: the key is below the half from which on tokens cost more.
    key.now += 4_900;
    assert!(key.use_for(1000) >= 99);
    key.now += 10_000;
    let again = key.use_for(1000);
    assert!((34..=42).contains(&again), "{again}");
    // A key that is used at half of its rate stays warm.
    key.use_for(20_000);
    for _ in 0..2000 {
        assert_eq!(key.take_one(), 0);
        key.now += 20;
    }
    assert!(key.use_for(1000) >= 99);
}

#[test]
fn a_cold_key_has_a_smaller_burst() {
    let limit =
        "[[route]]\nrespond = { status = 200 }\nlimits = [\"l\"]\n[limit.l]\nrate = \"600/10min\"\nburst = 30\n";
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let admitted = |more: &str| {
            let gateway = Gateway::start(&format!("{store}{limit}{more}"));
            if redis.is_some() {
                gateway.wait_for_store();
            }
            let statuses: Vec<u16> = (0..40).map(|_| gateway.get("/").status()).collect();
            statuses.iter().filter(|status| **status == 200).count()
        };
        // One token refills each second, so a slow machine may see a few more.
        let (cold, plain) = (admitted("warm_up = \"10min\""), admitted(""));
        assert!((10..=14).contains(&cold) && (30..=34).contains(&plain), "{cold} of {plain}");
    });
}
