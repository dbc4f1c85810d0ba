//! Microbenchmarks of the code that runs for every request: `make microbench`, or some of them by name: `cargo bench
//! --features fuzzing --bench micro -- decide`. Absolute times vary with the machine. Compare two builds in one
//! session. CPU per request of the whole gateway, beside its peers, is `make bench`.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::net::IpAddr;
use std::time::Instant;

use bytes::BytesMut;
use divan::{Bencher, black_box};
use http::{HeaderMap, HeaderValue, Method};
use sluicegate::config;
use sluicegate::config::{Config, Strictness};
use sluicegate::fuzzing::{FaultPolicy, canonicalize_path, parse_authority};
use sluicegate::limiting::answer::{Answer, BanAnswer};
use sluicegate::limiting::decision::{Check, Decision, Op};
use sluicegate::limiting::ledger::recorder::LedgerRecorders;
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::usage::recorder::{DecisionRecorder, UsageRecorders};
use sluicegate::limiting::usage::refusals::{RefusalCause, RefusalRecorders, RefusedRequest, RefusingLimit};
use sluicegate::proxy::outbound::http1::ResponseHeadReader;
use sluicegate::proxy::outbound::http1::request::{Framing, HostSource, RequestHead};
use sluicegate::telemetry::metrics::LimitRegistry;
use sluicegate::upstream::HeadBounds;

fn main() {
    divan::main();
}

/// The `[limit.x]` lines of every algorithm. Only the log and the slots refuse, once they are full.
const ALGORITHMS: [(&str, &str); 8] = [
    ("token_bucket", "rate = \"1000000/s\"\nburst = 1000000"),
    ("gcra", "algorithm = \"gcra\"\nrate = \"1000000/s\"\nburst = 1000000"),
    ("fixed_window", "algorithm = \"fixed_window\"\nrate = \"1000000000/s\""),
    ("calendar", "algorithm = \"calendar\"\nrate = \"1000000000000/month\"\nzone = \"Europe/Berlin\""),
    ("sliding_window", "algorithm = \"sliding_window\"\nrate = \"1000000000/s\""),
    ("sliding_log", "algorithm = \"sliding_log\"\nrate = \"100/s\""),
    ("leaky_bucket", "algorithm = \"leaky_bucket\"\nrate = \"1000000/s\"\nqueue = \"1s\""),
    ("concurrency", "algorithm = \"concurrency\"\nin_flight = 100000"),
];

fn compile(text: &str) -> Config {
    config::load_text("micro.toml", text).unwrap()
}

/// One decision of one limit in the memory store, over a thousand keys in turn.
#[divan::bench(args = ALGORITHMS.map(|(name, _)| name))]
fn decide(bencher: Bencher<'_, '_>, name: &str) {
    let lines = ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, lines)| *lines).unwrap();
    let config =
        compile(&format!("[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nkey = \"all\"\n{lines}\n"));
    let store = MemoryStore::new(1_000_000);
    let checks: Vec<[Check; 1]> =
        (0..1000).map(|key| [Check::new(&config.limits[0], format!("sg:x:{key}"), 1)]).collect();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % checks.len();
        store.run_now(black_box(Op::Take), &checks[next])
    });
}

/// Refusals in one iteration of [`record_refusals`]. Recording one takes about as long as reading the timer.
const REFUSALS: u32 = 1000;

/// How many keys are refused in random order. The sketch of a worker counts up to 512 keys at a time.
const REFUSED_KEYS: [(&str, u32); 3] = [("one_key", 1), ("300_keys", 300), ("million_keys", 1_000_000)];
const REFUSAL_PARTS: [&str; 5] = ["nothing", "most_refused_keys", "headroom", "last_refusals", "all"];

/// Recording a thousand refusals, apart from the decisions: what `/-/top`, the headroom metric, `/-/refusals`, and all of
/// them cost. The time in microseconds is that of one refusal in nanoseconds. Subtract `nothing`, which only writes keys.
#[divan::bench(args = REFUSED_KEYS.iter().flat_map(|keys| REFUSAL_PARTS.map(|part| format!("{}/{part}", keys.0))))]
fn record_refusals(bencher: Bencher<'_, '_>, argument: &str) {
    let (keys, part) = argument.split_once('/').unwrap();
    let is_measured = |other: &str| part == other || part == "all";
    let (top, headroom, last) =
        (is_measured("most_refused_keys"), is_measured("headroom"), is_measured("last_refusals"));
    let keys = REFUSED_KEYS.iter().find(|(name, _)| *name == keys).unwrap().1;
    let text =
        "[[route]]\nname = \"api\"\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nkey = \"ip\"\nrate = \"1/s\"\n";
    let limit = compile(text).limits[0].clone();
    let answer =
        Answer { admitted: false, remaining: 0, retry_ms: 412, reset_ms: 900, receipt: 0, ban: BanAnswer::None };
    let decision = Decision { admitted: false, answers: vec![answer] };
    let (usage, counts, refusals) = (UsageRecorders::default(), LimitRegistry::default(), RefusalRecorders::default());
    let (recorder, last_refusals) = (DecisionRecorder::new(&usage, &LedgerRecorders::default()), refusals.register());
    let headroom_counts = counts.get_or_create("x").headroom.shard_for(1);
    let started = Instant::now();
    let mut check = [Check::new(&limit, String::with_capacity(64), 1)];
    let mut digits = itoa::Buffer::new();
    let mut state = 1_u32;
    let mut record_one = || {
        // A linear congruential generator: its upper bits select the key.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let host = (u64::from(state) * u64::from(keys)) >> 32;
        let key = &mut check[0].key;
        key.clear();
        key.push_str("sg:{ip=203.0.113.");
        key.push_str(digits.format(host));
        key.push_str("}:x:token_bucket");
        if top {
            recorder.record_decision(black_box(&check), &decision);
        }
        if headroom {
            headroom_counts.count_refusal(black_box(false));
        }
        if last {
            let (client, id) = (IpAddr::from([203, 0, 113, 7]), black_box("5f1c8a0d2b7e4c93a6d0f8e17b3c2a49"));
            let request = RefusedRequest { started, client, status: 429, route: "api", id };
            let why = RefusalCause { reason: "exhausted", answer: Some(answer), is_local: false, is_blocked: false };
            let refusing = RefusingLimit { limit: &limit, why, override_rule: None, cost: Some(1), key: &check[0].key };
            last_refusals.record(request, std::iter::once(refusing));
        }
        black_box(&check);
    };
    // Lists that are full write into the memory of their oldest entries.
    (0..20_000).for_each(|_| record_one());
    bencher.bench_local(|| (0..REFUSALS).for_each(|_| record_one()));
}

/// The canonical form of a path: unchanged ones are recognized, others rewritten.
#[divan::bench(args = ["/", "/api/v1/users/12345/orders?page=3", "/caf%C3%A9/%7Euser/a%20b", "/a/./b/../c"])]
fn canonical_path(target: &str) -> bool {
    canonicalize_path(black_box(target), &mut FaultPolicy::new(Strictness::Defensive)).is_ok()
}

#[divan::bench(args = ["www.example.com", "WWW.Example.COM:8080", "[2001:db8::1]:443"])]
fn canonical_host(host: &str) -> bool {
    parse_authority(black_box(host.as_bytes())).is_some()
}

/// The route of a request among many, each with a host of its own.
#[divan::bench(args = [10, 1000, 10_000])]
fn find_route(bencher: Bencher<'_, '_>, routes: usize) {
    let text: String = (0..routes)
        .map(|n| format!("[[route]]\nhost = \"h{n}.example.com\"\npath = \"/v1/\"\nupstream = \"echo:\"\n"))
        .collect();
    let config = compile(&text);
    let hosts: Vec<String> = (0..routes).map(|n| format!("h{n}.example.com")).collect();
    let headers = HeaderMap::new();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 7919) % hosts.len();
        config.table.find_route(&config.routes, &hosts[next], "/v1/users", &Method::GET, &headers)
    });
}

fn request_headers() -> HeaderMap {
    [
        ("host", "www.example.com"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Chrome/141.0.0.0"),
        ("accept", "text/html,application/xhtml+xml"),
        ("accept-encoding", "gzip, deflate, br"),
        ("cookie", "session=a1b2c3d4a1b2c3d4; theme=dark"),
        ("x-forwarded-for", "192.0.2.1"),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
    .collect()
}

/// Writing the head of an HTTP/1.1 request to an upstream server.
#[divan::bench]
fn write_request_head(bencher: Bencher<'_, '_>) {
    let headers = request_headers();
    let write = |headers: &HeaderMap| {
        RequestHead::encode(&Method::GET, "/v1/users", headers, HostSource::Received, Framing::None, |_| {})
    };
    bencher.bench_local(|| write(black_box(&headers)));
}

/// Reading the head of an HTTP/1.1 response.
#[divan::bench]
fn read_response_head(bencher: Bencher<'_, '_>) {
    let bytes: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Mon, 23 Nov 2026 00:00:00 GMT\r\nServer: app\r\n\
        Content-Type: text/html; charset=utf-8\r\nContent-Length: 128\r\nCache-Control: no-store\r\n\r\n";
    bencher.with_inputs(|| BytesMut::from(bytes)).bench_local_values(|mut received| {
        ResponseHeadReader::new(HeadBounds::DEFAULT).take_head(&mut received, &Method::GET, None).unwrap()
    });
}
