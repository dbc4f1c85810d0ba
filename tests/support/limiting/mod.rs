//! Helpers of the tests of limits and stores: random rules, checks, and Redis servers.

pub mod fake_redis;
pub mod lua;
pub mod rules;
pub mod server;
pub mod slow_link;
pub mod timed_stores;
pub mod tls;
pub mod topology;
pub mod variants;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
pub use server::{RedisServer, store_section};
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::ban::Ban;
use sluicegate::limiting::algorithm::fair::FairFacts;
use sluicegate::limiting::answer::Answer;
use sluicegate::limiting::decision::{Check, CheckLink, Decision, ErrorKind, LimitRef, Op};
use sluicegate::limiting::key::{Key, KeyPart, Missing};
use sluicegate::limiting::limit::ban::LimitBan;
use sluicegate::limiting::limit::cost::Cost;
use sluicegate::limiting::limit::over::Over;
use sluicegate::limiting::limit::{Limit, Mode, OnError};
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::limiting::store::redis_tls::RedisTls;
use sluicegate::limiting::store::settings::{RedisUrl, StoreKind, StoreLogin, StoreSettings};
use sluicegate::telemetry::metrics::Metrics;

use crate::support::limiting::rules::{bucket, random_tag};
use crate::support::machine::Stopwatch;
use crate::support::{POLL_INTERVAL, WAIT_MAX};

/// Runs a test with the memory store, for which it gets `None`, and with a Redis server of its own. Both run at the
/// same time, because they wait more than they compute.
pub fn on_both_stores(test: impl Fn(Option<&RedisServer>) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| test(None));
        test(Some(&RedisServer::start(&[])));
    });
}

/// A random number generator. A failed test prints its seed; the environment variable `SEED` repeats the test.
pub struct Seeded {
    pub rng: StdRng,
    seed: u64,
}

pub fn seeded() -> Seeded {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => rand::random(),
    };
    Seeded { rng: StdRng::seed_from_u64(seed), seed }
}

impl Drop for Seeded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with SEED={}", self.seed);
        }
    }
}

/// Returns the limit with bans.
pub fn with_ban(limit: Arc<Limit>, ban: Ban) -> Arc<Limit> {
    let mut limit = Arc::into_inner(limit).unwrap();
    limit.ban = Some(Box::new(LimitBan::new(&limit.name, ban)));
    Arc::new(limit)
}

pub fn limit(name: &str, rule: Rule, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit {
        name: name.to_owned(),
        store_ref: LimitRef::new(name, &Cost::Fixed(1), None, None),
        rule: Arc::new(rule),
        key: Key(vec![KeyPart::All]),
        keeps_slashes: false,
        missing: Missing::Skip,
        repeated: Default::default(),
        not_integer: Default::default(),
        cost: Cost::Fixed(1),
        mode,
        over: Over::Refuse,
        on_error: OnError::Local,
        when: Default::default(),
        overrides: Default::default(),
        after: None,
        candidate_of: None,
        tier_of: None,
        max_keys: None,
        charge_rules: None,
        ban: None,
        fair: None,
        distinct: None,
        refuse: None,
        key_rate: None,
        month_day: None,
        call_protocol: None,
    })
}

/// A limit that forwards what exceeds it.
pub fn forwarding(name: &str, rule: Rule) -> Arc<Limit> {
    let mut limit = Arc::into_inner(limit(name, rule, Mode::Enforce)).unwrap();
    limit.over = Over::Annotate;
    Arc::new(limit)
}

pub fn check(limit: &Arc<Limit>, key: &str, cost: i64) -> Check {
    let check = Check::new(limit, format!("sg:{{{key}}}:{}:{}", limit.name, limit.rule.name()), cost);
    // One tenant, unless the test chooses another.
    if matches!(*limit.rule, Rule::Fair(_)) { Check { tag: 16, ..check } } else { check }
}

/// Returns whether the tenant shares a backlog with others. It may get one of its own before its retry time.
pub fn shares_backlog(rule: &Rule, answer: &Answer) -> bool {
    matches!(rule, Rule::Fair(_)) && FairFacts::of(answer).active.is_none()
}

/// A stored log in the format of `State::text`, newest first. The sums of blocks in its head are left out; they follow
/// from the charges.
pub fn log_text(stored: impl IntoIterator<Item = String>) -> String {
    let mut stored = stored.into_iter();
    let Some(head) = stored.next() else { return String::new() };
    let parts: Vec<&str> = head.split(' ').collect();
    let charges: Vec<String> = stored.collect();
    let pair = |text: &str, alone: Option<i64>| {
        let (count, units) = text.split_once(':').map_or((text, None), |(count, units)| (count, Some(units)));
        let count: i64 = count.parse().unwrap();
        (count, units.map_or(alone.unwrap_or(count), |units| units.parse().unwrap()))
    };
    let mut rest = charges.as_slice();
    for block in &parts[4..] {
        let (count, sum) = pair(block, None);
        let (own, others) = rest.split_at(usize::try_from(count).unwrap());
        assert!(count > 0 && sum == own.iter().map(|charge| pair(charge, Some(1)).1).sum::<i64>(), "{block} of {head}");
        rest = others;
    }
    assert!(rest.is_empty(), "{} charges more than in {head}", rest.len());
    let times: Vec<i64> = charges.iter().map(|charge| pair(charge, Some(1)).0).collect();
    assert!(times.is_sorted_by(|one, two| one > two), "{times:?}");
    [&[parts[..4].join(" ")], charges.as_slice()].concat().join(" ")
}

/// The stored tenants of a budget in the format of `State::text`.
pub fn tenants_text(stored: impl IntoIterator<Item = (i64, String)>) -> String {
    let (mut head, mut tenants, mut weights) = (String::new(), BTreeMap::new(), HashMap::new());
    for (score, member) in stored {
        match (member.strip_prefix('w'), member.parse::<i64>()) {
            (Some(id), _) => drop(weights.insert(id.parse::<i64>().unwrap(), -score)),
            (None, Ok(id)) => drop(tenants.insert(id, score)),
            (None, Err(_)) => head = member,
        }
    }
    let mut text = head;
    for (id, tat_us) in tenants {
        text.push_str(&format!(";{id} {tat_us} {}", weights.remove(&id).unwrap_or(1)));
    }
    assert!(weights.is_empty(), "weights of no tenants: {weights:?}");
    text
}

/// Stored values in the format of `State::text`.
pub fn values_text(stored: impl IntoIterator<Item = (i64, String)>) -> String {
    let mut stored = stored.into_iter();
    let Some((_, mut text)) = stored.next() else { return String::new() };
    stored.for_each(|(score, value)| text.push_str(&format!(" {value}:{score}")));
    text
}

/// The content of one call: an operation and its checks.
pub type DecisionRequest = (Op, Vec<Check>);

/// Random decisions on a few limits and clients. `receipt` comes from a recent decision.
pub fn random_decisions(limits: &[Arc<Limit>], most: usize, receipt: i64, rng: &mut StdRng) -> Vec<DecisionRequest> {
    (0..rng.random_range(1..=most))
        .map(|_| {
            let key = format!("ip=10.0.0.{}", rng.random_range(0..4));
            let cost = if rng.random_bool(0.15) { 0 } else { rng.random_range(1..6) };
            let op = match rng.random_range(0..20) {
                0..2 => Op::Peek,
                2..4 => Op::Adjust,
                4 => Op::Reset,
                _ => Op::Take,
            };
            let first = rng.random_range(0..limits.len());
            let count = rng.random_range(1..=limits.len());
            let mut checks: Vec<Check> =
                (0..count).map(|i| check(&limits[(first + i) % limits.len()], &key, cost)).collect();
            for check in &mut checks {
                check.tag = random_tag(&check.rule, rng);
                check.role.needs_unit = rng.random_bool(0.5);
                if op == Op::Adjust {
                    check.cost = rng.random_range(-5..4);
                    check.rule = check.rule.for_tenant(check.tag).map_or_else(|| check.rule.clone(), Arc::new);
                    // Receipts of other algorithms are times. A lease is stored under the numbers from its tag to its
                    // tag plus 52, so that those of two times may overlap, which random tags of 52 bits do not.
                    let is_time = check.rule.needs_tag() && receipt < 1 << 42;
                    check.tag = if is_time { receipt & !63 } else { receipt };
                }
            }
            if count > 1 && rng.random_bool(0.2) {
                checks[0].role.base = true;
                checks[1].role.after = Some(0);
            }
            if rng.random_bool(0.4) {
                link_randomly(&mut checks, rng);
            }
            (op, checks)
        })
        .collect()
}

/// Links checks as those of limits, some with several checks, some candidates of others.
fn link_randomly(checks: &mut [Check], rng: &mut StdRng) {
    let mut group = 0;
    for place in 0..checks.len() {
        let is_same = place > 0 && checks[place].role.shadow == checks[place - 1].role.shadow && rng.random_bool(0.3);
        group += u8::from(place > 0 && !is_same);
        let is_candidate = checks[place].role.shadow && group > 0 && rng.random_bool(0.6);
        let incumbent = is_candidate.then(|| rng.random_range(0..group));
        checks[place].role.link = Some(CheckLink { group, incumbent });
    }
}

/// How much a decision may exceed its deadline on a busy machine with a dozen servers.
pub const SLACK: Duration = Duration::from_millis(250);
pub const DEADLINE: Duration = Duration::from_millis(100);

pub fn settings(deadline: Duration) -> StoreSettings {
    StoreSettings {
        kind: StoreKind::Redis(RedisUrl(String::new())),
        login: StoreLogin::default(),
        prefix: "sg".to_owned(),
        deadline,
        on_error: OnError::Local,
        max_keys: 1000,
        gateways: 1,
        state: None,
        tls: RedisTls::default(),
    }
}

/// Runs `work` like a worker: one thread, one runtime.
pub fn run_on_worker<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(work)
}

/// Keys of different slots, on all three masters of a cluster.
pub const SLOT_KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A handle that has connected, with a cluster to each of its masters: they are connected one by one.
pub async fn connect_store(url: &str, metrics: &Metrics, deadline: Duration) -> RedisStore {
    let redis = RedisStore::connect(&settings(deadline), url, metrics, &Default::default());
    wait_for_recovery(&redis).await;
    if url.contains("+cluster:") {
        for key in SLOT_KEYS {
            wait_for_success(&redis, key).await;
        }
    }
    redis
}

/// Waits until decisions succeed again, and returns how long that took, without the delays of the machine.
pub async fn wait_for_recovery(redis: &RedisStore) -> Duration {
    let watch = Stopwatch::start();
    wait_for_success(redis, "all").await;
    watch.elapsed_without_delay()
}

/// Waits until decisions on `key` succeed.
async fn wait_for_success(redis: &RedisStore, key: &str) {
    let since = Instant::now();
    let probe = limit("probe", bucket(1000, 1000), Mode::Enforce);
    while let Err(error) = redis.run(Op::Take, &vec![check(&probe, key, 1)].into()).await {
        assert!(since.elapsed() < WAIT_MAX, "still {error:?} for {key}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn kind(redis: &RedisStore, limit: &Arc<Limit>) -> Result<Decision, ErrorKind> {
    redis.run(Op::Take, &vec![check(limit, "all", 1)].into()).await
}

/// Waits until `done` returns true while the other tasks run.
pub async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !done() {
        assert!(Instant::now() < end, "not true after {WAIT_MAX:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
