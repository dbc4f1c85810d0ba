//! Floods of the admin listener by clients that send nothing, too little or too slowly, or do not read. Probes, metrics
//! and decisions are served during a flood.

use std::fmt::Write as _;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::machine::{Stopwatch, scheduling_delay};
use crate::support::wait_until;

const CONFIG: &str = r#"
[limit.all]
rate = "1000000/s"
key = "all"

[[route]]
path = "/"
upstream = "echo:"
limits = ["all"]
"#;

const TOKEN: &str = "authorization: Bearer secret-secret-secret\r\n";

/// More connections than the listener has slots.
const HOGS: usize = 1000;

/// The listener must get through all connections of the flood once. A stalled listener would be silent for its timeouts
/// of 5 s and more.
const SLOW: Duration = Duration::from_millis(2500);

/// Four concurrent large decisions take a tenth of that; a hundred take more than twice as long.
const QUARTER: Duration = Duration::from_millis(250);

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
}

fn decide(fields: &str, length: usize) -> String {
    format!(
        "POST /-/decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{fields}content-length: {length}\r\n\r\n"
    )
}

fn peek(admin: SocketAddr, fields: &str) -> Message {
    let body = r#"{"operation":"peek","decisions":[{"limits":["all"]}]}"#;
    Client::connect(admin).fetch(&decide(fields, body.len()), body)
}

/// Returns the median and the maximum of many response times, without the time in which other processes had the CPU.
fn waits(gateway: &Gateway, mut fetch: impl FnMut() -> u16) -> [Duration; 2] {
    let others = || scheduling_delay(Some(gateway.pid())) + scheduling_delay(None);
    let mut waits: Vec<Duration> = (0..30)
        .map(|_| {
            let (since, before) = (Instant::now(), others());
            assert_eq!(fetch(), 200);
            since.elapsed().saturating_sub(others() - before)
        })
        .collect();
    waits.sort_unstable();
    [waits[waits.len() / 2], waits[waits.len() - 1]]
}

/// Probes, metrics and decisions are served in time.
#[track_caller]
fn assert_reachable(gateway: &Gateway, fields: &str, during: &str) {
    for path in ["/livez", "/readyz", "/metrics"] {
        let [median, worst] = waits(gateway, || crate::support::client::fetch(gateway.admin, &get(path)).status());
        assert!(
            median < Duration::from_millis(100) && worst < SLOW,
            "{during}: {path} took {median:?}, at worst {worst:?}"
        );
    }
    let [median, worst] = waits(gateway, || peek(gateway.admin, fields).status());
    assert!(
        median < Duration::from_millis(100) && worst < SLOW,
        "{during}: deciding took {median:?}, at worst {worst:?}"
    );
}

/// Many connections that have sent `bytes`.
fn flood(admin: SocketAddr, bytes: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(admin).unwrap();
        // A connection that the gateway closes at once may not accept all bytes.
        let _ = stream.write_all(bytes.as_bytes());
        stream
    };
    (0..HOGS).map(connect).collect()
}

#[test]
fn silent_clients_keep_nobody_out() {
    let gateway = Gateway::start(CONFIG);
    for (kind, bytes) in [
        ("nothing sent", String::new()),
        ("half a head", "GET /livez HTTP/1.1\r\nhost: 127".to_owned()),
        ("a body that does not come", decide("", 100)),
        ("a body waited for", decide("expect: 100-continue\r\n", 100)),
        ("half a body", decide("", 100) + "{"),
        (
            "an endless body",
            "POST /-/decide HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n".to_owned(),
        ),
        ("responses kept open", get("/livez")),
        ("pipelined requests", get("/livez").repeat(100)),
        ("an upgrade", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
    ] {
        let hogs = flood(gateway.admin, &bytes);
        assert_reachable(&gateway, "", kind);
        drop(hogs);
    }
}

#[test]
fn a_token_is_checked_before_a_body_is_waited_for() {
    let gateway = Gateway::start(&format!("token = \"secret-secret-secret\"\n{CONFIG}"));
    for fields in ["", "authorization: Bearer wrong\r\n", "expect: 100-continue\r\n", TOKEN] {
        let hogs = flood(gateway.admin, &decide(fields, 100));
        assert_reachable(&gateway, TOKEN, fields);
        drop(hogs);
    }
    for fields in ["", "authorization: Bearer wrong\r\n", "expect: 100-continue\r\n"] {
        let since = Instant::now();
        let mut client = Client::connect(gateway.admin);
        client.send(decide(fields, 100));
        // No interim response either.
        let refused = client.read_response("POST");
        // The flood has sent more wrong tokens than one peer may send.
        let status = if fields.contains("wrong") { 429 } else { 401 };
        assert_eq!(refused.status(), status, "{fields}");
        assert_eq!(refused.get("www-authenticate"), (status == 401).then_some("Bearer"), "{fields}");
        assert!(since.elapsed() < Duration::from_secs(1));
        let mut client = Client::connect(gateway.admin);
        client.send(decide(fields, 1 << 20));
        for _ in 0..16 {
            std::thread::sleep(Duration::from_millis(5));
            client.send("x".repeat(1 << 16));
        }
        assert_eq!(
            client.read_response("POST").status(),
            status,
            "the response arrives although the body is not needed"
        );
    }
    let mut client = Client::connect(gateway.admin);
    client.send(decide(&format!("{TOKEN}expect: 100-continue\r\n"), 100));
    assert_eq!(client.try_read_head().unwrap().status(), 100);
    let mut client = Client::connect(gateway.admin);
    client.send(decide(&format!("{TOKEN}expect: 100-continue\r\n"), 2 << 20));
    assert_eq!(client.read_response("POST").status(), 413, "before it is sent");
}

/// Clients that send a byte at a time, so that no pause is long.
#[test]
fn dripping_clients_are_cut() {
    let gateway = Gateway::start(CONFIG);
    let (head, body) = ("GET /livez HTTP/1.1\r\nx: ", decide("", 1000));
    std::thread::scope(|scope| {
        for start in [head, &body] {
            let mut hogs = flood(gateway.admin, start);
            scope.spawn(move || {
                wait_until(&format!("all who drip into {start:?} are cut"), || {
                    std::thread::sleep(Duration::from_millis(50));
                    hogs.retain_mut(|hog| hog.write_all(b"y").is_ok());
                    hogs.is_empty()
                });
            });
        }
        assert_reachable(&gateway, "", "drips");
        // The slots of these clients are not needed; they are closed because they are slow.
        scope.spawn(|| {
            let mut late = Client::connect(gateway.admin);
            late.send(head);
            let watch = Stopwatch::start();
            wait_until("a head that drips is cut", || {
                std::thread::sleep(Duration::from_millis(50));
                late.try_send("y").is_err()
            });
            watch.assert_ms(4500..9000);
        });
        let mut late = Client::connect(gateway.admin);
        late.send(decide("", 10));
        let (watch, response) = (Stopwatch::start(), late.read_response("POST"));
        assert_eq!(response.status(), 408);
        watch.assert_ms(2000..5000);
    });
}

/// Building the text takes long if there are many routes.
#[test]
fn metrics_that_nobody_reads_cost_little() {
    let mut config = CONFIG.to_owned();
    for i in 0..1000 {
        let _ = write!(config, "[[route]]\npath = \"/{i}/\"\nupstream = \"echo:\"\nlimits = [\"all\"]\n");
    }
    let gateway = Gateway::start(&config);
    let size = gateway.metrics().len();
    assert!(size > 1 << 20, "{size}");
    let memory = gateway.watch_memory();
    let hogs = flood(gateway.admin, &get("/metrics"));
    let delays = |path| waits(&gateway, || crate::support::client::fetch(gateway.admin, &get(path)).status());
    let [median, worst] = delays("/livez");
    assert!(median < Duration::from_millis(100) && worst < SLOW, "{median:?}, at worst {worst:?}");
    assert_eq!(gateway.metrics().len() >> 16, size >> 16, "whole");
    let grown = memory.grown();
    assert!(grown < 150 << 20, "{} MiB for {HOGS} responses of {size} bytes", grown >> 20);
    drop(hogs);
}

/// With many limits on many routes, listing them takes long, and so does searching for a limit with a name similar to
/// an unknown one.
#[test]
fn a_list_of_limits_costs_little() {
    let name = |i: usize| format!("{:-<40}-{}", "limit", i % 1000);
    let mut config = String::new();
    for i in 0..1000 {
        let limits: Vec<String> = (i..i + 16).map(|of| format!("\"{}\"", name(of))).collect();
        let _ = write!(
            config,
            "[limit.{}]\nrate = \"1000/s\"\nkey = \"all\"\n[[route]]\npath = \"/{i}/\"\nupstream = \"echo:\"\nlimits = [{}]\n",
            name(i),
            limits.join(", ")
        );
    }
    let gateway = Gateway::start(&config);
    let all = gateway.admin("/-/limits").json();
    assert_eq!(all["limits"].as_array().unwrap().len(), 1000);
    assert_eq!(all["limits"][20]["routes"].as_array().unwrap().len(), 16);
    assert_eq!(gateway.admin(&format!("/-/limits/{}", name(20))).json(), all["limits"][20]);
    for path in ["/-/limits".to_owned(), format!("/-/limits/{}", name(20)), format!("/-/limits/{}x", name(20))] {
        let hogs = flood(gateway.admin, &get(&path));
        let [median, worst] = waits(&gateway, || crate::support::client::fetch(gateway.admin, &get("/livez")).status());
        assert!(median < Duration::from_millis(100) && worst < SLOW, "{path}: {median:?}, at worst {worst:?}");
        drop(hogs);
    }
}

/// Each asks several hundred times for as many limits as a decision may.
#[test]
fn many_large_decisions_keep_nobody_waiting() {
    let names: Vec<String> = (0..15).map(|i| format!("l{i}")).collect();
    let mut config = CONFIG.to_owned();
    for name in &names {
        let _ = write!(config, "[limit.{name}]\nrate = \"1000000/s\"\nkey = [\"header:x-user\"]\n");
    }
    let gateway = Gateway::start(&config);
    let decision =
        |i: u32| format!(r#"{{"limits":["all","{}"],"key":{{"header:x-user":"{i}"}}}}"#, names.join("\",\""));
    let decisions: Vec<String> = (0..300).map(decision).collect();
    let body = format!(r#"{{"operation":"take","decisions":[{}]}}"#, decisions.join(","));
    let request = decide("", body.len()) + &body;
    let whole = Client::connect(gateway.admin).fetch(&decide("", body.len()), &body);
    assert_eq!(whole.json()["decisions"].as_array().unwrap().len(), 300);

    std::thread::scope(|scope| {
        let hogs: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(gateway.admin).unwrap()).collect();
        for mut hog in hogs.iter().map(|hog| hog.try_clone().unwrap()) {
            let request = &request;
            scope.spawn(move || hog.write_all(request.as_bytes()));
        }
        let livez = waits(&gateway, || crate::support::client::fetch(gateway.admin, &get("/livez")).status());
        let small = waits(&gateway, || peek(gateway.admin, "").status());
        for (what, [median, worst]) in [("/livez", livez), ("a small decision", small)] {
            assert!(median < QUARTER && worst < SLOW, "{what} took {median:?}, at worst {worst:?}");
        }
        hogs.iter().for_each(|hog| drop(hog.shutdown(Shutdown::Both)));
    });
}

#[test]
fn a_list_of_limits_is_that_of_the_config_in_force() {
    let gateway = Gateway::start(CONFIG);
    let quota = || {
        let [all, one] = ["/-/limits", "/-/limits/all"].map(|path| gateway.admin(path).json());
        assert_eq!(all["limits"][0], one);
        one["policy"]["quota"].clone()
    };
    assert_eq!([quota(), quota()], [1_000_000, 1_000_000]);
    gateway.reload_with("1000000/s", "7/s");
    assert_eq!([quota(), quota()], [7, 7]);
}

/// A connection that is cut off after its response was sent loses nothing of it.
#[test]
fn a_response_outlives_what_was_not_read() {
    let gateway = Gateway::start(CONFIG);
    for _ in 0..20 {
        let mut client = Client::connect(gateway.admin);
        client.send(get("/livez") + &"x".repeat(100_000));
        assert_eq!(client.read_response("GET").status(), 200);
        client.assert_closed();
    }
    let mut client = Client::connect(gateway.admin);
    client.send(get("/livez"));
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read_response("GET").status(), 200);
}
