//! State in Redis that is more than a few numbers: logs as lists and sorted sets, and leases.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use redis::Commands;
use sluicegate::limiting::algorithm::{Rule, State};
use sluicegate::limiting::decision::{Check, Decision, Op};
use sluicegate::limiting::limit::{Limit, Mode};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};
use sluicegate::telemetry::metrics::Metrics;

use crate::support::limiting::rules::{leases, log};
use crate::support::limiting::{RedisServer, check, connect_store, limit, log_text, run_on_worker};
use crate::support::machine::Stopwatch;

pub const NOW: i64 = 1_795_000_000_000;
const DEADLINE: Duration = Duration::from_secs(5);

fn call(client: &mut redis::Connection, decisions: &[(Op, Vec<Check>)], now: i64) -> Vec<Decision> {
    let slices: Vec<(Op, &[Check])> = decisions.iter().map(|(op, checks)| (*op, checks.as_slice())).collect();
    let reply =
        crate::support::limiting::lua::with_script(ScriptCall::new(&slices, now).eval_command()).query(client).unwrap();
    let found = decode_reply(reply, slices.iter().copied()).expect("a valid reply");
    found.into_iter().map(Result::unwrap).collect()
}

pub fn one(client: &mut redis::Connection, op: Op, check: Check, now: i64) -> sluicegate::limiting::answer::Answer {
    call(client, &[(op, vec![check])], now)[0].answers[0]
}

/// Returns the state in the server: of a log its lifetime and charges, of leases each with its score.
pub fn held(client: &mut redis::Connection, key: &str) -> BTreeSet<String> {
    let variant: String = redis::cmd("TYPE").arg(key).query(client).unwrap();
    let log = |stored: Vec<String>| log_text(stored).split_whitespace().map(str::to_owned).collect();
    match variant.as_str() {
        "none" => BTreeSet::new(),
        "list" => log(client.lrange(key, 0, -1).unwrap()),
        "zset" if key.ends_with("log") => log(client.zrevrange(key, 0, -1).unwrap()),
        "zset" => {
            let pairs: Vec<(String, String)> = client.zrange_withscores(key, 0, -1).unwrap();
            pairs.into_iter().map(|(id, expiry)| format!("{id} {expiry}")).collect()
        }
        other => panic!("{key} is a {other}"),
    }
}

fn entries(state: &State) -> BTreeSet<String> {
    let text = state.text();
    let fields: Vec<&str> = text.split_whitespace().collect();
    let size = if matches!(state, State::Concurrency(_)) { 2 } else { 1 };
    fields.chunks(size).map(|entry| entry.join(" ")).collect()
}

fn short(mut rule: Rule) -> Rule {
    if let Rule::SlidingLog(log) = &mut rule {
        log.window_ms /= 10;
    }
    rule
}

/// Many operations on one key in each call, with receipts of earlier operations, some of the same call.
#[test]
fn one_key_many_operations_a_call() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    // The settings of some keys change all the time: to a tenth of the window or lease, or half of the limit.
    for (rule, other) in [
        (log(40, false), log(40, false)),
        (log(40, true), short(log(20, true))),
        (log(3, false), short(log(30, false))),
        (log(3, true), log(3, true)),
        (leases(40, 3_600_000), leases(20, 360_000)),
        (leases(3, 3_600_000), leases(3, 3_600_000)),
    ] {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let memory = MemoryStore::new(1000);
        let limits = [limit("one", rule, Mode::Enforce), limit("one", other, Mode::Enforce)];
        let quota = limits[0].rule.policy().quota;
        let (mut now, mut receipts) = (NOW, [0i64; 8]);
        for _ in 0..600 {
            now += match rng.random_range(0..20) {
                0..15 => rng.random_range(0..200_000),
                15 => rng.random_range(0..4_000_000),
                16 => -rng.random_range(0..3_600_000),
                17 => -rng.random_range(0..20_000_000),
                _ => 0,
            };
            let (mut decisions, mut expected) = (Vec::new(), Vec::new());
            for i in 0..rng.random_range(1..12) {
                let mut check = check(&limits[rng.random_range(0..2)], "all", rng.random_range(0..4));
                let op = match rng.random_range(0..20) {
                    0 => Op::Peek,
                    1..7 => {
                        check.tag = receipts[rng.random_range(0..8)];
                        check.cost = rng.random_range(-4..2);
                        Op::Adjust
                    }
                    7 if rng.random_bool(0.2) => Op::Reset,
                    8 => {
                        check.cost = quota;
                        Op::Take
                    }
                    _ => Op::Take,
                };
                let decision = memory.run(op, std::slice::from_ref(&check), now);
                if decision.answers[0].admitted && op == Op::Take {
                    receipts[i % 8] = decision.answers[0].receipt;
                }
                decisions.push((op, vec![check]));
                expected.push(decision);
            }
            assert_eq!(call(&mut client, &decisions, now), expected, "at {now}: {decisions:?}");
            let key = &decisions[0].1[0].key;
            let state = memory.state(key, now).map(|(state, _)| entries(&state)).unwrap_or_default();
            let expired = memory.state(key, now).is_none();
            assert!(expired || held(&mut client, key) == state, "{:?} is not {state:?}", held(&mut client, key));
            assert_ne!(client.pttl::<_, i64>(key).unwrap(), -1, "{key} has no expiry");
        }
    }
}

/// The TTL is exact: it lasts as long as the newest charge, or the last lease, counts.
#[test]
fn a_key_lives_as_long_as_it_counts() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for rule in [log(5, false), log(5, true), leases(5, 3_600_000), crate::support::limiting::rules::leaky(5, false)] {
        let limit = limit("one", rule, Mode::Enforce);
        let check = check(&limit, "all", 2);
        let answer = one(&mut client, Op::Take, check.clone(), NOW);
        let pttl: i64 = client.pttl(&check.key).unwrap();
        assert!((answer.reset_ms - 500..=answer.reset_ms).contains(&pttl), "{pttl} of {}", answer.reset_ms);
        // A key whose last unit is refunded is deleted.
        let back = Check { cost: -2, tag: answer.receipt, ..check.clone() };
        assert!(one(&mut client, Op::Adjust, back.clone(), NOW).admitted);
        std::thread::sleep(Duration::from_millis(5));
        assert!(!client.exists::<_, bool>(&check.key).unwrap());
        assert!(!one(&mut client, Op::Adjust, back, NOW).admitted);
    }
}

/// More entries than fit on the stack of the script, and refunds deep in a log. No call blocks for long.
#[test]
fn more_entries_than_a_command_takes() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for (rule, most) in [
        (log(30_000, false), Duration::from_millis(500)),
        (log(30_000, true), Duration::from_secs(2)),
        (leases(30_000, 3_600_000), Duration::from_secs(2)),
    ] {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let limit = limit("wide", rule, Mode::Enforce);
        let memory = MemoryStore::new(10);
        let mut decide = |op: Op, cost: i64, tag: Option<i64>| {
            let mut check = check(&limit, "all", cost);
            check.tag = tag.unwrap_or(check.tag);
            let watch = Stopwatch::start();
            let answer = one(&mut client, op, check.clone(), NOW);
            let took = watch.elapsed_without_delay();
            assert!(took < most, "{op:?} of {cost} blocks for {took:?}");
            assert_eq!(answer, memory.run(op, std::slice::from_ref(&check), NOW).answers[0], "{op:?} of {cost}");
            let state = memory.state(&check.key, NOW).map(|(state, _)| entries(&state)).unwrap_or_default();
            assert!(held(&mut client, &check.key) == state, "after {op:?} of {cost}");
            answer.receipt
        };
        let first = decide(Op::Take, 1, None);
        let many = decide(Op::Take, 18_000, None);
        let last = decide(Op::Take, 11_999, None);
        decide(Op::Take, 1, None);
        decide(Op::Adjust, -1, Some(first));
        decide(Op::Adjust, -6_000, Some(many));
        decide(Op::Adjust, 9_000, Some(last));
        decide(Op::Adjust, -11_999, Some(last));
        decide(Op::Adjust, 0, Some(many));
        decide(Op::Take, 30_000, None);
        decide(Op::Peek, 1, None);
    }
}

/// A key that another program wrote counts as absent. A peek leaves it, and a charge replaces it.
#[test]
fn a_key_of_another_form_counts_as_absent() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for rule in [log(5, false), log(5, true), leases(5, 60_000)] {
        let limit = limit("one", rule, Mode::Enforce);
        let key = check(&limit, "all", 1).key;
        for make in [
            &["SET", "KEY", "1 2 3"][..],
            &["HSET", "KEY", "a", "b"],
            &["SADD", "KEY", "a"],
            &["XADD", "KEY", "*", "a", "b"],
            &["RPUSH", "KEY", "x", "1e300", "nan", "-5", ""],
            &["ZADD", "KEY", "-5", "x", "0.5", "y"],
        ] {
            let mut command = redis::Cmd::new();
            for word in make {
                command.arg(if *word == "KEY" { key.as_str() } else { word });
            }
            let () = command.query::<redis::Value>(&mut client).map(drop).unwrap();
            let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut client).unwrap();
            assert_eq!(one(&mut client, Op::Peek, check(&limit, "all", 1), NOW).remaining, 4, "{make:?}");
            let mut back = check(&limit, "all", -1);
            back.tag = NOW;
            assert!(!one(&mut client, Op::Adjust, back, NOW).admitted, "{make:?}");
            assert_eq!(redis::cmd("DUMP").arg(&key).query::<Vec<u8>>(&mut client).unwrap(), dump, "{make:?}");
            let answer = one(&mut client, Op::Take, check(&limit, "all", 2), NOW);
            assert_eq!((answer.admitted, answer.remaining), (true, 3), "{make:?}");
            let state = limit.rule.decide(None, NOW, 2, answer.receipt).next.unwrap().0;
            assert_eq!(held(&mut client, &key), entries(&state), "{make:?}");
            assert!(client.pttl::<_, i64>(&key).unwrap() > 0);
            let () = client.del(&key).unwrap();
        }
    }
}

/// Two rules on one key in one call, as when an override changes: the second rule sees the state that the first one
/// left, not the stored one.
#[test]
fn charges_that_one_rule_drops_are_gone_for_the_next() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for sorted_set in [false, true] {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let memory = MemoryStore::new(10);
        let hour = limit("one", log(10, sorted_set), Mode::Enforce);
        let mut minute = log(10, sorted_set);
        if let Rule::SlidingLog(rule) = &mut minute {
            rule.window_ms = 60_000;
        }
        let minute = limit("one", minute, Mode::Enforce);
        let of = |limit, cost| vec![check(limit, "all", cost)];
        for (now, decisions) in [
            (NOW, vec![(Op::Take, of(&hour, 10)), (Op::Peek, of(&hour, 1))]),
            (NOW + 120_000, vec![(Op::Take, of(&minute, 1)), (Op::Take, of(&hour, 1)), (Op::Peek, of(&hour, 8))]),
            (NOW + 120_001, vec![(Op::Take, of(&hour, 9)), (Op::Take, of(&hour, 8))]),
        ] {
            let expected: Vec<Decision> = decisions.iter().map(|(op, checks)| memory.run(*op, checks, now)).collect();
            assert_eq!(call(&mut client, &decisions, now), expected, "at {now}");
        }
        let left = one(&mut client, Op::Peek, check(&hour, "all", 0), NOW + 120_001).remaining;
        assert_eq!(left, 0, "two, and eight");
    }
}

/// A key keeps its representation and its counts when the config of the limit selects the other representation.
#[test]
fn a_changed_form_forgets_nothing() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for sorted in [false, true] {
        let (old, new) = (limit("one", log(5, sorted), Mode::Enforce), limit("one", log(5, !sorted), Mode::Enforce));
        assert_eq!(one(&mut client, Op::Take, check(&old, "all", 3), NOW).remaining, 2);
        assert_eq!(one(&mut client, Op::Take, check(&new, "all", 1), NOW).remaining, 1);
        assert!(one(&mut client, Op::Take, check(&new, "all", 1), NOW).admitted);
        assert!(!one(&mut client, Op::Take, check(&new, "all", 1), NOW).admitted);
        let () = client.del(check(&old, "all", 1).key).unwrap();
    }
}

/// Returns the commands that the server has executed since the last `CONFIG RESETSTAT`, with their numbers.
fn commands(client: &mut redis::Connection) -> BTreeSet<String> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(client).unwrap();
    let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(",usec").next());
    calls.filter(|call| !call.starts_with("eval") && !call.starts_with("config")).map(str::to_owned).collect()
}

/// An exhausted key costs the server a few reads and no write.
#[test]
fn an_exhausted_key_is_only_read() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for (rule, reads) in [
        (log(500, false), &["lrange:calls=2"][..]),
        (log(500, true), &["zrevrange:calls=2"]),
        (leases(500, 60_000), &["zscore:calls=1", "zcount:calls=1", "zrevrange:calls=2"]),
    ] {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let limit = limit("hot", rule, Mode::Enforce);
        for i in 0..500 {
            assert!(one(&mut client, Op::Take, check(&limit, "all", 1), NOW + i / 5).admitted);
        }
        let () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut client).unwrap();
        let decisions: Vec<_> = (0..100).map(|_| (Op::Take, vec![check(&limit, "all", 1)])).collect();
        assert!(call(&mut client, &decisions, NOW + 1000).iter().all(|decision| !decision.admitted));
        let expected: BTreeSet<String> = reads.iter().chain(&["mget:calls=1"]).map(|call| (*call).to_owned()).collect();
        assert_eq!(commands(&mut client), expected);
    }
}

/// The largest log there is: so many charges of so many units each, one each 36 ms, the last at `NOW`.
/// The units of the i-th charge.
type Weights = fn(i64) -> i64;

/// Writes a log of so many charges in the format of the script: blocks of 1024, or of the square root of their number
/// if charges have several units.
fn fill(client: &mut redis::Connection, key: &str, sorted_set: bool, charges: usize, units: Weights) {
    let written = |count: i64, units: i64, plain: i64| match units == plain {
        true => count.to_string(),
        false => format!("{count}:{units}"),
    };
    let units: Vec<i64> = (0..charges as i64).map(units).collect();
    let plain = units.iter().all(|units| *units == 1);
    let blocks = units[1..].chunks(if plain { 1024 } else { charges.isqrt() });
    let blocks = blocks.map(|block| written(block.len() as i64, block.iter().sum(), block.len() as i64));
    let head = [format!("3600000 100000 {NOW} {}", units[0])].into_iter().chain(blocks).collect::<Vec<_>>().join(" ");
    let ms = |i: usize| NOW - 36 * i as i64;
    let past = (1..charges).map(|i| (ms(i), written(ms(i), units[i], 1)));
    let stored: Vec<(i64, String)> = std::iter::once((NOW, head)).chain(past).collect();
    for chunk in stored.chunks(10_000) {
        match sorted_set {
            true => client.zadd_multiple::<_, _, _, ()>(key, chunk).unwrap(),
            false => client.rpush(key, chunk.iter().map(|(_, text)| text).collect::<Vec<_>>()).unwrap(),
        }
    }
}

/// The commands of one decision are bounded for any cost and any size of the state: each touches at most 64 entries of
/// a log or 256 leases, and most touch a few. Prints the time of each script.
#[test]
fn no_decision_is_long() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let measure = |what: &str, limit: &Arc<Limit>, op: Op, cost: i64, tag: i64, now: i64, admitted: bool| {
        let check = Check { tag, ..check(limit, "all", cost) };
        let mut connection = server.client();
        let () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
        assert_eq!(one(&mut connection, op, check, now).admitted, admitted, "{what}");
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let script = info.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls=1,usec=")).unwrap();
        let calls: Vec<String> =
            commands(&mut connection).into_iter().filter(|call| !call.starts_with("info")).collect();
        let count: i64 = calls.iter().map(|call| call.split_once('=').unwrap().1.parse::<i64>().unwrap()).sum();
        println!("{what}: {} us, {calls:?}", script.split(',').next().unwrap());
        let most = if what.contains("weights") { 400 } else { 80 };
        assert!(count <= most, "{what}: {calls:?}");
    };
    for sorted_set in [false, true] {
        let variants: [(usize, Weights, &str); 3] =
            [(100_000, |_| 1, "1"), (50_000, |_| 2, "2"), (66_667, |i| 2 - i % 2, "1 and 2")];
        for (charges, units, told) in variants {
            let limit = limit("wide", log(100_000, sorted_set), Mode::Enforce);
            let key = check(&limit, "all", 1).key;
            let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
            fill(&mut client, &key, sorted_set, charges, units);
            let variant = format!("{charges} charges of {told}, sorted_set = {sorted_set}");
            let decide = |what: &str, op, cost, tag, now, admitted| {
                measure(&format!("{variant}, {what}"), &limit, op, cost, tag, now, admitted);
            };
            // After this call the server has the script.
            one(&mut client, Op::Peek, check(&limit, "all", 1), NOW);
            let middle = NOW - 36 * (charges as i64 / 2);
            decide("refused", Op::Take, 1, 0, NOW + 1, false);
            decide("refused at the largest cost", Op::Take, 100_000, 0, NOW + 1, false);
            decide("refused at half of it", Op::Take, 50_021, 0, NOW + 1, false);
            decide("peek", Op::Peek, 1, 0, NOW + 1, false);
            decide("nothing", Op::Take, 0, 0, NOW + 1, true);
            decide("deep refund", Op::Adjust, -9, middle, NOW + 1, true);
            decide("given back twice", Op::Adjust, -9, middle, NOW + 1, false);
            decide("partial refund", Op::Adjust, -1, middle - 36, NOW + 1, true);
            decide("admitted", Op::Take, 1, 0, NOW + 2, true);
            decide("admitted as many leave", Op::Take, 40_000, 0, NOW + 2_700_000, true);
            decide("admitted after that", Op::Take, 1, 0, NOW + 2_700_001, true);
            decide("admitted when all have left", Op::Take, 100_000, 0, NOW + 9_000_000, true);
        }
    }
    // A gateway with all leases dies, or one with nearly all.
    let limit = limit("slots", leases(100_000, 60_000), Mode::Enforce);
    let key = check(&limit, "all", 1).key;
    for late in [0, 1] {
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        let () = client.zadd(&key, "lease", -60_000).unwrap();
        let held: Vec<(i64, i64)> = (0..99_999).map(|i| (NOW + 60_000, (1 << 51) + 2 * i)).collect();
        for chunk in held.chunks(10_000) {
            let () = client.zadd_multiple(&key, chunk).unwrap();
        }
        let () = client.zadd(&key, "7", NOW + 60_000 + 5 * late).unwrap();
        let decide = |what: &str, op, cost, tag, now, admitted| {
            measure(&format!("100000 leases, {what}"), &limit, op, cost, tag, now, admitted);
        };
        decide("refused", Op::Take, 1, 99, NOW, false);
        decide("refused at the largest cost", Op::Take, 100_000, 99, NOW, false);
        decide("renewal", Op::Adjust, 1, (1 << 51) + 50_000, NOW, true);
        decide("release", Op::Adjust, -1, (1 << 51) + 50_000, NOW, true);
        decide("take", Op::Take, 1, 1 << 50, NOW, true);
        decide("release of that", Op::Adjust, -1, 1 << 50, NOW, true);
        decide("take of many when they have expired", Op::Take, 65_535, 1 << 50, NOW + 60_003, true);
        decide("renewal, of many weights", Op::Adjust, 65_535, 1 << 50, NOW + 60_003, true);
        decide("refused, of many weights", Op::Take, 40_000, 1 << 49, NOW + 60_004, false);
        decide("release of a part", Op::Adjust, -21_845, 1 << 50, NOW + 60_004, true);
    }
}

const HOLDER: &str = "SLUICEGATE_TEST_HOLDER";
const LEASE_MS: i64 = 3000;

fn slots() -> Arc<Limit> {
    limit("slots", leases(5, LEASE_MS), Mode::Enforce)
}

/// Not a test of its own: the process that `a_dead_holder_returns_its_slots` kills.
#[test]
fn holder() {
    let Ok(url) = std::env::var(HOLDER) else { return };
    run_on_worker(async {
        let redis = connect_store(&url, &Metrics::new().unwrap(), DEADLINE).await;
        let decision = redis.run(Op::Take, &vec![check(&slots(), "all", 4)].into()).await.unwrap();
        println!("\nholds {}", decision.answers[0].receipt);
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

#[test]
fn a_dead_holder_returns_its_slots() {
    let server = RedisServer::start(&[]);
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stores::redis_state::holder", "--nocapture"])
        .env(HOLDER, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("holds ")), "the process holds no slots");
    let watch = Stopwatch::start();
    holder.kill().unwrap();
    holder.wait().unwrap();
    run_on_worker(async {
        let redis = connect_store(&server.url(), &Metrics::new().unwrap(), DEADLINE).await;
        let slots = slots();
        let alive = redis.run(Op::Take, &vec![check(&slots, "all", 1)].into()).await.unwrap().answers[0];
        assert!(alive.admitted);
        let refused = redis.run(Op::Take, &vec![check(&slots, "all", 1)].into()).await.unwrap().answers[0];
        assert!(!refused.admitted && (1..=LEASE_MS).contains(&refused.retry_ms), "{refused:?}");
        // The heartbeat of a live gateway keeps its slot.
        let mut renew = check(&slots, "all", 1);
        renew.tag = alive.receipt;
        tokio::time::sleep(Duration::from_millis(refused.retry_ms as u64 / 2)).await;
        assert!(redis.run(Op::Adjust, &vec![renew].into()).await.unwrap().answers[0].admitted);
        let free = loop {
            let answer = redis.run(Op::Take, &vec![check(&slots, "all", 4)].into()).await.unwrap().answers[0];
            if answer.admitted {
                break watch.elapsed_without_delay();
            }
            tokio::time::sleep(Duration::from_millis(answer.retry_ms as u64)).await;
        };
        assert!(free < Duration::from_millis(LEASE_MS as u64 + 2000), "free after {free:?}");
        assert!(!redis.run(Op::Take, &vec![check(&slots, "all", 1)].into()).await.unwrap().admitted);
    });
}
