//! Microbenchmarks of the parts that every request passes: `make microbench`, or some of them by name: `cargo bench
//! --features fuzzing --bench micro -- decide`. Absolute times move with the machine. Compare two builds in one
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
use sluicegate::limiting::answer::Answer;
use sluicegate::limiting::decision::{Check, Decision, Op};
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::limiting::usage::recorder::{DecisionRecorder, UsageRecorders};
use sluicegate::limiting::usage::refusals::{RefusalCause, RefusalRecorders, RefusedRequest, RefusingLimit};
use sluicegate::proxy::outbound::http1::ResponseHeadReader;
use sluicegate::proxy::outbound::http1::request::{Framing, HostSource, RequestHead};
use sluicegate::telemetry::metrics::LimitRegistry;

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

/// Recording one refusal of a known key, apart from the decision itself: what `/-/top`, the headroom metric and
/// `/-/refusals` cost a refused request.
#[divan::bench(args = ["most_refused_keys", "headroom", "last_refusals", "all"])]
fn record_refusal(bencher: Bencher<'_, '_>, part: &str) {
    let text =
        "[[route]]\nname = \"api\"\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nkey = \"ip\"\nrate = \"1/s\"\n";
    let limit = compile(text).limits[0].clone();
    let checks = [Check::new(&limit, "sg:{ip=203.0.113.7}:x:token_bucket".to_owned(), 1)];
    let answer = Answer { admitted: false, remaining: 0, retry_ms: 412, reset_ms: 900, receipt: 0 };
    let decision = Decision { admitted: false, answers: vec![answer] };
    let (keys, counts, refusals) = (UsageRecorders::default(), LimitRegistry::default(), RefusalRecorders::default());
    let (recorder, last) = (DecisionRecorder::new(&keys), refusals.register());
    let headroom = counts.get_or_create("x").headroom.shard_for(1);
    let (client, started) = (IpAddr::from([203, 0, 113, 7]), Instant::now());
    let record_last = || {
        let id = black_box("5f1c8a0d2b7e4c93a6d0f8e17b3c2a49");
        let request = RefusedRequest { started, client, status: 429, route: "api", id };
        let why = RefusalCause { reason: "exhausted", answer: Some(answer), is_local: false, is_blocked: false };
        let refusing = RefusingLimit { limit: &limit, why, override_rule: None, cost: Some(1), key: &checks[0].key };
        last.record(request, std::iter::once(refusing));
    };
    // A list that is full writes into the memory of its oldest entry.
    (0..10_000).for_each(|_| record_last());
    bencher.bench_local(|| {
        if part != "headroom" && part != "last_refusals" {
            recorder.record_decision(black_box(&checks), &decision);
        }
        if part != "most_refused_keys" && part != "last_refusals" {
            headroom.count_refusal(black_box(false));
        }
        if part == "last_refusals" || part == "all" {
            record_last();
        }
    });
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
        let framing = Framing::None { announced: false };
        RequestHead::encode(&Method::GET, "/v1/users", headers, HostSource::Received, framing, |_| {})
    };
    bencher.bench_local(|| write(black_box(&headers)));
}

/// Reading the head of an HTTP/1.1 response.
#[divan::bench]
fn read_response_head(bencher: Bencher<'_, '_>) {
    let bytes: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Mon, 23 Nov 2026 00:00:00 GMT\r\nServer: app\r\n\
        Content-Type: text/html; charset=utf-8\r\nContent-Length: 128\r\nCache-Control: no-store\r\n\r\n";
    bencher.with_inputs(|| BytesMut::from(bytes)).bench_local_values(|mut received| {
        ResponseHeadReader::default().take_head(&mut received, &Method::GET, None).unwrap()
    });
}
