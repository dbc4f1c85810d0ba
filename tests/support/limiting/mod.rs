//! Helpers of the tests of limits and stores: random rules, checks, and Redis servers.

pub mod fake_redis;
pub mod lua;
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
pub use server::RedisServer;
use sluicegate::limiting::algorithm::ban::Ban;
use sluicegate::limiting::algorithm::calendar::{Calendar, CalendarSettings, CalendarUnit};
use sluicegate::limiting::algorithm::concurrency::Concurrency;
use sluicegate::limiting::algorithm::distinct::VALUES;
use sluicegate::limiting::algorithm::fair::{FairFacts, FairSettings};
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::sliding_window::SlidingWindow;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::algorithm::{NAMES, Rule};
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

/// The names of all rules that limits have. A ban has a rule of its own beside that of its limit.
pub fn all_limit_rules() -> Vec<&'static str> {
    NAMES.iter().copied().filter(|name| *name != "ban").collect()
}

/// The names of the rules by which a request costs its units.
pub fn limit_rules() -> Vec<&'static str> {
    all_limit_rules().into_iter().filter(|name| !["distinct", "warm_up"].contains(name)).collect()
}

/// A random rule of the algorithm `name`: with common parameters, or with parameters near the limits of exactness.
pub fn random_rule(name: &str, rng: &mut StdRng) -> Rule {
    NAMES
        .iter()
        .position(|known| *known == name)
        .map(|_| generate(&sample(name), rng))
        .unwrap_or_else(|| panic!("{name} is not in the list"))
}

/// Any rule of the algorithm. A new algorithm needs a line here.
fn sample(name: &str) -> Rule {
    match name {
        "token_bucket" => Rule::TokenBucket(TokenBucket {
            rate: 1,
            per_ms: 1,
            burst: 1,
            debt: 0,
            interval: false,
            empty: false,
            refunds: false,
        }),
        "fixed_window" => Rule::FixedWindow(FixedWindow { limit: 1, window_ms: 1, clock: false }),
        "gcra" => Rule::Gcra(Gcra { rate: 1, per_ms: 1, burst: 1, refunds: false }),
        "sliding_window" => sliding(1, 1000, 2),
        "calendar" => calendar(1, CalendarUnit::Day),
        "sliding_log" => Rule::SlidingLog(SlidingLog { limit: 1, window_ms: 1, sorted_set: false }),
        "leaky_bucket" => {
            Rule::LeakyBucket(LeakyBucket { rate: 1, per_ms: 1, queue_ms: 0, nodelay: false, refunds: false })
        }
        "concurrency" => Rule::Concurrency(Concurrency { in_flight: 1, lease_ms: 1000 }),
        "distinct" => distinct(Rule::SlidingLog(SlidingLog { limit: 1, window_ms: 1, sorted_set: false })),
        "warm_up" => warm_up(1, 1000, 1, 1000),
        "ban" => Rule::Ban(Ban { after: 1, within_ms: 1, for_ms: 1, grow: 1, at_most_ms: 1 }),
        "fair" => fair(1000, 1000, 2, FairSettings { reserve: None, active_ms: None, max_active: 1024, weight: 1 }),
        _ => panic!("tests/support/limiting has no rules of {name} yet"),
    }
}

/// A random rule of the same algorithm. The compiler requires an arm for a new algorithm.
fn generate(rule: &Rule, rng: &mut StdRng) -> Rule {
    const EXACT: i64 = 1 << 53;
    let day = 86_400_000;
    let period = match rng.random_range(0..6) {
        0 => rng.random_range(1..10),
        1 => 1000,
        2 => 60_000,
        3 => day,
        4 => rng.random_range(1..10_000),
        _ => rng.random_range(1..366 * day),
    };
    match rule {
        Rule::TokenBucket(_) => {
            // The largest cost, (burst + debt + 1) per, is at most 2^51.
            let most = (EXACT / period - 4) / 8;
            let most = if rng.random_bool(0.2) { most } else { most.min(200) };
            let debt = if rng.random_bool(0.3) { rng.random_range(1..=most) } else { 0 };
            Rule::TokenBucket(TokenBucket {
                rate: if rng.random_bool(0.1) {
                    rng.random_range(1..=most)
                } else {
                    rng.random_range(1..=most.min(50))
                },
                per_ms: period,
                burst: if rng.random_bool(0.1) { most } else { rng.random_range(1..=most) },
                debt,
                interval: rng.random_bool(0.3),
                empty: rng.random_bool(0.2),
                refunds: rng.random_bool(0.5),
            })
        }
        Rule::FixedWindow(_) => Rule::FixedWindow(FixedWindow {
            limit: if rng.random_bool(0.1) { EXACT - 2_000_000_000 } else { rng.random_range(1..100) },
            window_ms: period,
            clock: rng.random_bool(0.5),
        }),
        Rule::SlidingLog(_) => {
            let most = if rng.random_bool(0.1) { (1000 * period).min(2500) } else { 40 };
            let limit = rng.random_range(1..=most);
            Rule::SlidingLog(SlidingLog { limit, window_ms: period, sorted_set: rng.random_bool(0.5) })
        }
        Rule::LeakyBucket(_) => {
            let most = if rng.random_bool(0.2) { (1000 * period).min(1_000_000) } else { 50 };
            let rate = rng.random_range(1..=most);
            // 2 queue rate + 3 per stays below 2^52.
            let most = ((EXACT / 4 - 2 * period) / rate - 1).min(day);
            let queue_ms = match rng.random_range(0..10) {
                0 => 0,
                1 => most,
                2 => rng.random_range(0..=most),
                _ => (rng.random_range(0..20) * period / rate).min(most),
            };
            Rule::LeakyBucket(LeakyBucket {
                rate,
                per_ms: period,
                queue_ms,
                nodelay: rng.random_bool(0.6),
                refunds: rng.random_bool(0.5),
            })
        }
        Rule::Concurrency(_) => {
            let most = if rng.random_bool(0.1) { 2500 } else { 20 };
            Rule::Concurrency(Concurrency { in_flight: rng.random_range(1..=most), lease_ms: period })
        }
        Rule::Gcra(_) => {
            // The largest cost, (burst + 1) per, is at most 2^51.
            let most = (EXACT / period - 4) / 4;
            let most = if rng.random_bool(0.2) { most } else { most.min(200) };
            let rate = if rng.random_bool(0.1) { most } else { most.min(50) };
            Rule::Gcra(Gcra {
                rate: rng.random_range(1..=rate),
                per_ms: period,
                burst: if rng.random_bool(0.1) { most } else { rng.random_range(1..=most) },
                refunds: rng.random_bool(0.5),
            })
        }
        Rule::WarmUp(_) => {
            // Rate x warm-up is at most 2^26, times the period at most 2^50.
            let most = if rng.random_bool(0.1) { 5000 } else { 20 };
            let rate = rng.random_range(1..=most);
            let warm_ms = rng.random_range(1..=(1_i64 << 26).min((1 << 50) / period) / rate).min(3_600_000);
            let most = ((1_i64 << 51) - rate * warm_ms) / period;
            let burst = if rng.random_bool(0.1) { most } else { rng.random_range(1..=most.min(200)) };
            warm_up(rate, period, burst.min(((1 << 50) / period / 1000).max(1)), warm_ms)
        }
        Rule::Distinct(_) => {
            let names = ["sliding_log", "fixed_window", "calendar"];
            let rule = generate(&sample(names[rng.random_range(0..names.len())]), rng);
            let limit = if rng.random_bool(0.1) { rng.random_range(1..=1000) } else { rng.random_range(1..8) };
            distinct(rule.with_number(limit))
        }
        Rule::Ban(_) => Rule::Ban(random_ban(period.min(90 * day), rng)),
        Rule::Fair(_) => {
            // The largest exact product of burst and period.
            let most = (1_i64 << 49) / period;
            let most = if rng.random_bool(0.2) { most } else { most.min(200) };
            let burst = if rng.random_bool(0.1) { most } else { rng.random_range(2..=most.max(2)) };
            // The reserve refills within a year, and the rate is at most a million per second.
            let rate = rng.random_range(1..=most.min(50)).min(1000 * period);
            let reserve = rng.random_range(0..burst).min(366 * day / period * rate);
            let settings = FairSettings {
                reserve: Some(reserve),
                active_ms: rng.random_bool(0.7).then(|| rng.random_range(1..=period.min(day))),
                max_active: if rng.random_bool(0.3) { rng.random_range(1..4) } else { 1024 },
                weight: if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=1000) },
            };
            let Rule::Fair(mut rule) = fair(rate, period, burst, settings) else { unreachable!() };
            (rule.pool.empty, rule.pool.refunds) = (rng.random_bool(0.2), rng.random_bool(0.5));
            Rule::Fair(rule)
        }
        Rule::SlidingWindow(_) => {
            let precision = if rng.random_bool(0.5) { 2 } else { rng.random_range(3..=60) };
            let window_ms = period.max(precision);
            let most = sliding(1, window_ms, precision).max_number();
            sliding(if rng.random_bool(0.1) { most } else { rng.random_range(1..100) }, window_ms, precision)
        }
        Rule::Calendar(_) => {
            let unit =
                [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year]
                    [rng.random_range(0..5)];
            let zones = ["UTC", "Asia/Kathmandu", "America/St_Johns", "America/New_York", "Australia/Lord_Howe"];
            let hour = rng.random_range(0..24);
            let dates = CalendarSettings {
                unit,
                zone: jiff::tz::TimeZone::get(zones[rng.random_range(0..zones.len())]).unwrap(),
                resets_at: jiff::civil::time(if rng.random_bool(0.5) { 0 } else { hour }, 0, 0, 0),
                week_start: jiff::civil::Weekday::from_monday_zero_offset(rng.random_range(0..7)).unwrap(),
                month_day: if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=31) },
            };
            let limit = if rng.random_bool(0.1) { EXACT - 2_000_000_000 } else { rng.random_range(1..100) };
            Rule::Calendar(Calendar::new(limit, dates))
        }
    }
}

/// A ban with times near `period`.
pub fn random_ban(period: i64, rng: &mut StdRng) -> Ban {
    let for_ms = rng.random_range(1..=period);
    Ban {
        after: if rng.random_bool(0.1) { 256 } else { rng.random_range(1..5) },
        within_ms: rng.random_range(1..=period),
        for_ms,
        grow: if rng.random_bool(0.5) { 1 } else { rng.random_range(2..=100) },
        at_most_ms: rng.random_range(for_ms..=4 * for_ms),
    }
}

/// Returns the limit with bans.
pub fn with_ban(limit: Arc<Limit>, ban: Ban) -> Arc<Limit> {
    let mut limit = Arc::into_inner(limit).unwrap();
    limit.ban = Some(Box::new(LimitBan::new(&limit.name, ban)));
    Arc::new(limit)
}

/// A token bucket with a warm-up.
pub fn warm_up(rate: i64, per_ms: i64, burst: i64, warm_ms: i64) -> Rule {
    let bucket = TokenBucket { rate, per_ms, burst, debt: 0, interval: false, empty: false, refunds: false };
    Rule::TokenBucket(bucket).warming_up(warm_ms).unwrap()
}

/// Counts different values in the windows of a rule.
pub fn distinct(rule: Rule) -> Rule {
    rule.counting_distinct().unwrap()
}

/// A token bucket whose tenants share it.
pub fn fair(rate: i64, per_ms: i64, burst: i64, settings: FairSettings) -> Rule {
    let pool = TokenBucket { rate, per_ms, burst, debt: 0, interval: false, empty: false, refunds: false };
    Rule::TokenBucket(pool).shared_fairly(settings).unwrap()
}

/// A tag for a decision by the rule: any number, or one of a few tenants.
pub fn random_tag(rule: &Rule, rng: &mut StdRng) -> i64 {
    match rule {
        Rule::Fair(_) if rng.random_bool(0.95) => rng.random_range(16..24),
        Rule::Distinct(_) => {
            let known = if rng.random_bool(0.9) { 12 } else { 1 << 40 };
            VALUES.start() + rng.random_range(0..known)
        }
        _ => rng.random_range(16..1 << 52),
    }
}

pub fn limit(name: &str, rule: Rule, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit {
        name: name.to_owned(),
        store_ref: LimitRef::new(name, &Cost::Fixed(1), None, None),
        rule: Arc::new(rule),
        key: Key(vec![KeyPart::All]),
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

/// A bucket of `burst` tokens, refilled over an hour.
pub fn bucket(rate: i64, burst: i64) -> Rule {
    Rule::TokenBucket(TokenBucket {
        rate,
        per_ms: 3_600_000,
        burst,
        debt: 0,
        interval: false,
        empty: false,
        refunds: false,
    })
}

pub fn window(limit: i64) -> Rule {
    Rule::FixedWindow(FixedWindow { limit, window_ms: 3_600_000, clock: false })
}

/// A window with `limit` units per hour.
pub fn log(limit: i64, sorted_set: bool) -> Rule {
    Rule::SlidingLog(SlidingLog { limit, window_ms: 3_600_000, sorted_set })
}

/// A leaky bucket of one unit per hour; `burst` requests may wait, or pass at once.
pub fn leaky(burst: i64, nodelay: bool) -> Rule {
    Rule::LeakyBucket(LeakyBucket {
        rate: 1,
        per_ms: 3_600_000,
        queue_ms: (burst - 1) * 3_600_000,
        nodelay,
        refunds: false,
    })
}

pub fn leases(in_flight: i64, lease_ms: i64) -> Rule {
    Rule::Concurrency(Concurrency { in_flight, lease_ms })
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

/// A sliding window with the `precision` of the config.
pub fn sliding(limit: i64, window_ms: i64, precision: i64) -> Rule {
    Rule::SlidingWindow(SlidingWindow::new(limit, window_ms, precision).unwrap())
}

/// A calendar limit in New York; days begin at midnight and weeks on Monday.
pub fn calendar(limit: i64, unit: CalendarUnit) -> Rule {
    let zone = jiff::tz::TimeZone::get("America/New_York").unwrap();
    let (resets_at, week_start) = (jiff::civil::Time::midnight(), jiff::civil::Weekday::Monday);
    Rule::Calendar(Calendar::new(limit, CalendarSettings { unit, zone, resets_at, week_start, month_day: 1 }))
}
