//! The size of a key, in this process and in Redis. `make memory` fills the memory store with a million keys of each
//! form and prints all figures.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::variants::{compile_limit, variants};
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Limit;
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::store::redis::codec::{ScriptCall, decode_reply};

const NOW: i64 = 1_781_531_234_567;

/// Returns a key of usual length, 37 bytes: a prefix, an address, a limit and an algorithm.
fn key(client: usize) -> String {
    format!("sg:{{ip=10.{client:09}}}:per-ip:algorithm")
}

/// Makes this many requests per client, a millisecond apart, so that algorithms that count by time keep each of them.
fn fill(memory: &MemoryStore, limit: &Arc<Limit>, keys: usize, requests: i64) {
    for client in 0..keys {
        for at in 0..requests {
            memory.run(Op::Take, &[Check::new(limit, key(client), 1)], NOW + at);
        }
    }
}

/// With three times as many clients as `max_keys`, the store holds nearly `max_keys` keys, and never more.
#[test]
fn every_algorithm_stays_within_max_keys() {
    assert_eq!(key(7).len(), 37);
    for variant in variants(10) {
        let (memory, limit) = (MemoryStore::new(6400), variant.limit());
        for third in 1..=3 {
            fill(&memory, &limit, 6400 * third, 1);
            assert!(memory.len() <= 6400, "{} holds {} keys", variant.name, memory.len());
        }
        assert!(memory.len() > 6300, "{} holds {} keys", variant.name, memory.len());
    }
}

/// However much a key holds, a decision about it takes about as long: what was linear would take
/// hundreds of times as long.
#[test]
fn a_key_that_holds_much_is_decided_as_fast() {
    for lines in [
        "algorithm = \"concurrency\"\nin_flight = 100000\nlease = \"1h\"",
        "algorithm = \"sliding_log\"\nrate = \"100000/h\"",
    ] {
        let time = |held: i64| {
            let (memory, limit) = (MemoryStore::new(100), compile_limit("one", lines));
            fill(&memory, &limit, 1, held);
            let mut now = NOW + held;
            let mut round = || {
                let since = Instant::now();
                for _ in 0..100 {
                    now += 1;
                    let run = |op, check: Check| memory.run(op, &[check], now).answers[0];
                    let receipt = run(Op::Take, Check::new(&limit, key(0), 1)).receipt;
                    let adjust = |cost| Check { tag: receipt, ..Check::new(&limit, key(0), cost) };
                    run(Op::Adjust, adjust(1));
                    assert!(run(Op::Adjust, adjust(-1)).admitted);
                    run(Op::Peek, Check::new(&limit, key(0), 99_999));
                }
                since.elapsed()
            };
            (0..10).map(|_| round()).min().unwrap()
        };
        let (few, many) = (time(100), time(80_000));
        println!("{lines}: {few:?} with 100, {many:?} with 80000");
        assert!(many < few * 20, "{lines}: {few:?} with 100, {many:?} with 80000");
    }
}

/// A kind of state: name, config lines, requests charged to each key, and the bytes per key of plain Redis commands
/// that store the same. These were measured with keys of the same length, both dictionaries included.
type StateKind = (String, String, i64, usize);

fn kept() -> Vec<StateKind> {
    // Lists and sets have ten entries, the others one.
    let (list, set, leases) = (365, 368, 528);
    let simple = variants(10).into_iter().filter(|variant| variant.available > 0).map(|variant| {
        let plain = match (variant.algorithm(), variant.name.ends_with("list")) {
            // Sixteen digits; three numbers; a level and a time.
            ("fixed_window" | "calendar" | "gcra", _) => 161,
            ("sliding_window", _) => 193,
            ("sliding_log", true) => list,
            ("sliding_log", false) => set,
            ("concurrency", _) => leases,
            _ => 209,
        };
        (variant.name.to_owned(), variant.lines, 1, plain)
    });
    let mut kept: Vec<StateKind> = simple.collect();
    for (count, list, set, leases) in
        [(10, list, set, leases), (100, 1265, 2193, 3728), (127, 1776, 3217, 5265), (1000, 10_546, 126_413, 126_469)]
    {
        let log = |state| format!("algorithm = \"sliding_log\"\nrate = \"{count}/h\"\nstate = \"{state}\"");
        let concurrency = format!("algorithm = \"concurrency\"\nin_flight = {count}\nlease = \"1h\"");
        for (name, lines, plain) in [
            ("sliding_log.list", log("list"), list),
            ("sliding_log.sorted_set", log("sorted_set"), set),
            ("concurrency", concurrency, leases),
        ] {
            kept.push((format!("{name}, {count} entries"), lines, count, plain));
        }
    }
    kept
}

/// Returns the bytes per key that the server reports, after `requests` requests for each key.
fn in_redis(server: &RedisServer, limit: &Arc<Limit>, keys: usize, requests: i64) -> usize {
    let () = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
    // The server's clock, except for algorithms that store each request by its millisecond.
    let now = if requests == 1 { 0 } else { clock(&mut server.client()) };
    let take = |from: usize, to: usize| {
        // The buffers of a client count as well, until it is closed.
        let mut client = server.client();
        for at in 0..requests {
            let checks: Vec<Check> = (from..to).map(|client| Check::new(limit, key(client), 1)).collect();
            let decisions: Vec<(Op, &[Check])> =
                checks.iter().map(|check| (Op::Take, std::slice::from_ref(check))).collect();
            let call = ScriptCall::new(&decisions, now + at);
            let reply =
                call.evalsha_command().query(&mut client).or_else(|_| call.eval_command().query(&mut client)).unwrap();
            let decisions = decode_reply(reply, decisions.iter().copied()).unwrap();
            assert!(decisions.iter().all(|decision| decision.as_ref().is_ok_and(|decision| decision.admitted)));
        }
    };
    take(keys, keys + 1);
    let before = used(server);
    (0..keys).step_by(100).for_each(|from| take(from, (from + 100).min(keys)));
    used(server).saturating_sub(before) / keys
}

fn clock(client: &mut redis::Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(client).unwrap();
    seconds * 1000 + micros / 1000
}

/// Returns the memory that the server reports, once it is the same three times. Before that, the server may not have
/// noticed that other clients have left, whose buffers count as well.
fn used(server: &RedisServer) -> usize {
    let mut client = server.client();
    let (mut last, mut same) = (0, 0);
    for _ in 0..500 {
        let info: String = redis::cmd("INFO").query(&mut client).unwrap();
        let number = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse::<usize>().unwrap()
        };
        let now = number("used_memory:");
        same = if number("connected_clients:") == 1 && now == last { same + 1 } else { 0 };
        if same == 2 {
            return now;
        }
        last = now;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the memory of redis-server does not become stable: {last} bytes");
}

/// No variant needs a third more memory than the plain commands, which store the minimum.
#[test]
fn a_key_in_redis_is_as_small_as_it_can_be() {
    // The log of slow commands keeps their arguments, which count as well. On a busy machine, many commands are slow.
    let server = RedisServer::start(&["--slowlog-log-slower-than", "-1"]);
    println!("\n| form | bytes per key in Redis | plain commands |\n|---|---|---|");
    for (name, lines, cost, plain) in kept() {
        let keys = match cost {
            1 | 10 => 5000,
            1000 => 20,
            _ => 200,
        };
        let bytes = in_redis(&server, &compile_limit("one", &lines), keys, cost);
        println!("| {name} | {bytes} | {plain} |");
        assert!(bytes * 10 <= plain * 13, "{name}: {bytes} bytes, {plain} by plain commands");
    }
    // Each of the sixty parts of a window may have a counter.
    const KEYS: usize = 200;
    let limit = compile_limit("one", "algorithm = \"sliding_window\"\nrate = \"6000/h\"\nprecision = 60");
    let take = |client: &mut redis::Connection, minute: i64| {
        let checks: Vec<Check> = (0..KEYS).map(|client| Check::new(&limit, key(client), 99)).collect();
        for checks in checks.chunks(100) {
            let decisions: Vec<(Op, &[Check])> =
                checks.iter().map(|check| (Op::Take, std::slice::from_ref(check))).collect();
            let () = ScriptCall::new(&decisions, NOW + minute * 60_000)
                .eval_command()
                .query::<redis::Value>(client)
                .map(drop)
                .unwrap();
        }
    };
    let () = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
    let mut client = server.client();
    (0..60).for_each(|minute| take(&mut client, minute));
    // With so few keys, the hash tables of the server would distort a difference of totals.
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut client).unwrap();
    assert_eq!(keys.len(), KEYS);
    let bytes = keys.iter().map(|key| redis::cmd("MEMORY").arg("USAGE").arg(key).query::<usize>(&mut client).unwrap());
    let bytes = bytes.sum::<usize>() / KEYS;
    println!("| sliding_window.60, 60 counters | {bytes} | |");
    assert!(bytes < 209 + 60 * 4, "{bytes} bytes");
}

const FORM: &str = "SLUICEGATE_TEST_MEMORY";

/// Not a test of its own: the process that `a_million_keys` measures.
#[test]
fn measured() {
    let Ok(index) = std::env::var(FORM) else { return };
    let (_, lines, cost, _) = kept().swap_remove(index.parse().unwrap());
    let keys = (1_000_000 / cost as usize).max(10_000);
    let limit = compile_limit("one", &lines);
    let memory = MemoryStore::new(keys);
    let before = resident();
    fill(&memory, &limit, keys + keys / 5, cost);
    assert!((keys * 99 / 100..=keys).contains(&memory.len()), "{} of {keys}", memory.len());
    println!("\nbytes {}", resident().saturating_sub(before) / memory.len());
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Each form in a process of its own, so that one leaves nothing for the next.
#[test]
#[ignore = "takes minutes and half a GB: make memory"]
fn a_million_keys() {
    println!("\n| form | bytes per key in memory |\n|---|---|");
    for (index, (name, _, cost, _)) in kept().into_iter().enumerate() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stores::bytes_per_key::measured", "--nocapture"])
            .env(FORM, index.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let bytes =
            text.lines().find_map(|line| line.strip_prefix("bytes ")).unwrap_or_else(|| panic!("{name}: {text}"));
        println!("| {name} | {bytes} |");
        let bytes: usize = bytes.parse().unwrap();
        assert!(bytes < 400 + 90 * cost as usize, "{name}: {bytes} bytes");
    }
}

/// Keys of the gateway as a process, by its resident memory: this holds what the allocator keeps as well, and tables
/// that have just doubled.
#[test]
#[ignore = "takes minutes: make memory"]
fn a_million_keys_of_the_running_program() {
    const KEYS: usize = 1_000_000;
    const CLIENTS: usize = 4;
    const PIPELINED: usize = 500;
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"memory:\"\nmax_keys = {}\n\n[[route]]\nrespond = {{ }}\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nalgorithm = \"fixed_window\"\nrate = \"5/day\"\nkey = \"header:u\"\n",
        2 * KEYS
    ));
    // "sg:{header:u=100000000000001}:per-ip:fixed_window", 48 bytes.
    let fill = |keys: std::ops::Range<usize>| {
        let mut stream = TcpStream::connect(gateway.addr).unwrap();
        let mut bytes = vec![0; 1 << 16];
        for first in keys.clone().step_by(PIPELINED) {
            let last = (first + PIPELINED).min(keys.end);
            let heads = (first..last).map(|i| format!("GET / HTTP/1.1\r\nhost: a\r\nu: 1{i:014}\r\n\r\n"));
            stream.write_all(heads.collect::<String>().as_bytes()).unwrap();
            let (mut answers, mut rest) = (0, Vec::new());
            while answers < last - first {
                let len = stream.read(&mut bytes).unwrap();
                assert!(len > 0, "the gateway has closed the connection");
                rest.extend_from_slice(&bytes[..len]);
                let ends: Vec<usize> =
                    rest.windows(4).enumerate().filter(|(_, w)| *w == b"\r\n\r\n").map(|(i, _)| i).collect();
                answers += ends.len();
                rest.drain(..ends.last().map_or(0, |end| end + 4));
            }
        }
    };
    fill(0..10_000);
    let before = gateway.memory("VmRSS");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let from = |client: usize| 10_000 + client * KEYS / CLIENTS;
            let fill = &fill;
            scope.spawn(move || fill(from(client)..from(client + 1)));
        }
    });
    assert_eq!(gateway.metric("store_evictions_total", &[("limit", "per-ip")]), Some(0.0));
    // Idle memory goes back to the system within seconds.
    std::thread::sleep(Duration::from_secs(10));
    let bytes = (gateway.memory("VmRSS") - before) as usize / KEYS;
    println!("\n| a million keys of 48 bytes, resident memory of the gateway | {bytes} |");
    assert!(bytes < 400, "{bytes} bytes");
}
