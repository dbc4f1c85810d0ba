//! Rules of limits: random ones of each algorithm, and those with parameters that tests choose.

use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::limiting::algorithm::ban::Ban;
use sluicegate::limiting::algorithm::calendar::{Calendar, CalendarSettings, CalendarUnit};
use sluicegate::limiting::algorithm::concurrency::Concurrency;
use sluicegate::limiting::algorithm::distinct::VALUES;
use sluicegate::limiting::algorithm::fair::FairSettings;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::leaky_bucket::LeakyBucket;
use sluicegate::limiting::algorithm::sliding_log::SlidingLog;
use sluicegate::limiting::algorithm::sliding_window::SlidingWindow;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::algorithm::{NAMES, Rule};

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
        "leaky_bucket" => Rule::LeakyBucket(LeakyBucket {
            rate: 1,
            per_ms: 1,
            queue_ms: 0,
            nodelay: false,
            delay_after: 0,
            refunds: false,
        }),
        "concurrency" => Rule::Concurrency(Concurrency { in_flight: 1, lease_ms: 1000 }),
        "distinct" => distinct(Rule::SlidingLog(SlidingLog { limit: 1, window_ms: 1, sorted_set: false })),
        "warm_up" => warm_up(1, 1000, 1, 1000),
        "ban" => Rule::Ban(Ban { after: 1, within_ms: 1, for_ms: 1, grow: 1, at_most_ms: 1 }),
        "fair" => fair(1000, 1000, 2, FairSettings { reserve: None, active_ms: None, max_active: 1024, weight: 1 }),
        _ => panic!("tests/support/limiting/rules.rs has no rule of {name} yet"),
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
            let nodelay = rng.random_bool(0.5);
            let most = EXACT / 4 / period;
            let delay_after = match rng.random_range(0..8) {
                _ if nodelay => 0,
                0 => most,
                1..5 => rng.random_range(0..20).min(most),
                _ => 0,
            };
            Rule::LeakyBucket(LeakyBucket {
                rate,
                per_ms: period,
                queue_ms,
                nodelay,
                delay_after,
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
        delay_after: 0,
        refunds: false,
    })
}

pub fn leases(in_flight: i64, lease_ms: i64) -> Rule {
    Rule::Concurrency(Concurrency { in_flight, lease_ms })
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
