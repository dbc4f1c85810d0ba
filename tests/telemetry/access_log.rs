//! The access log as the manual describes it: each end of a request has its reason, and a reader that stops makes the
//! gateway drop lines, not requests.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::logs::{assert_entry, entries, logged};
use crate::support::client::{Client, get};
use crate::support::frames::{CANCEL, Wire, reset};
use crate::support::gateway::Gateway;
use crate::support::machine::Stopwatch;
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn route(path: &str, lines: &str) -> String {
    format!("[[route]]\nname = \"{path}\"\npath = \"/{path}\"\n{lines}\n")
}

fn limited(name: &str, lines: &str) -> String {
    let limit = format!("[limit.{name}]\nrate = \"5/day\"\n{lines}\n");
    route(name, &format!("respond = {{ }}\nlimits = [\"{name}\"]")) + &limit
}

#[test]
fn refusals_are_logged_with_their_setting() {
    let (silent, plain) = (Upstream::silent(), Upstream::start(|peer| peer.send("no TLS")));
    let to = |url: &str, more: &str| format!("upstream = \"{url}\"\n{more}");
    let config = [
        format!("[store]\nurl = \"redis://{}/\"\n", closed_addr()),
        limited("closed", "key = \"all\"\non_error = \"closed\""),
        limited("small", "key = \"all\"\non_error = \"local\"\ncost = \"header:x-cost\""),
        limited("keyed", "key = \"header:x-key\"\non_error = \"local\"\nmissing = \"refuse\""),
        route("nobody", &to(&format!("http://{}", closed_addr()), "")),
        route("silent", &to(&format!("https://{}", silent.addr), "connect_timeout = \"200ms\"")),
        route("plain", &to(&format!("https://{}", plain.addr), "")),
    ];
    let gateway = logged("", "", &config.concat());
    for (number, (target, fields, status, reason, setting)) in [
        ("/nowhere", "", 404, "no_route", None),
        ("/closed", "", 503, "store_down", Some("on_error")),
        ("/small", "x-cost: 6\r\n", 429, "never_fits", None),
        ("/keyed", "", 403, "missing_key", Some("missing")),
        ("/keyed", "x-key: a\r\nx-key: b\r\n", 400, "repeated_key", Some("repeated")),
        ("/nobody", "", 502, "upstream_connect", None),
        ("/silent", "", 502, "upstream_connect", Some("connect_timeout")),
        ("/plain", "", 502, "upstream_tls", None),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(gateway.fetch(&get(target, fields)).status(), status, "{target}");
        let entry = entries(&gateway, number + 1).pop().unwrap();
        assert_entry(&entry, json!({ "path": target, "status": status, "reason": reason, "setting": setting }));
    }
}

#[test]
fn the_end_of_a_tunnel_and_of_the_gateway_is_a_reason() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.get("upgrade") {
                Some(_) => peer.send("HTTP/1.1 101 It\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n")?,
                None => peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")?,
            }
            peer.wait_for_end()?;
        }
        Ok(())
    });
    let to = |path: &str, more: &str| route(path, &format!("upstream = \"{}\"\n{more}", upstream.url()));
    let config = to("long", "") + &to("brief", "tunnel_timeout = \"300ms\"");
    let mut gateway = logged("max_tunnels = 1\nshutdown_timeout = \"300ms\"", "", &config);
    let asks = |target: &str| {
        let mut client = gateway.client();
        client.send(get(target, "connection: upgrade\r\nupgrade: chat\r\n"));
        let status = client.try_read_head().unwrap().status();
        (status, client)
    };
    let last = |count: usize| entries(&gateway, count).pop().unwrap();
    let (switched, open) = asks("/long");
    assert_eq!((switched, asks("/long").0), (101, 503));
    assert_entry(&last(1), json!({ "status": 503, "reason": "max_tunnels", "setting": "max_tunnels" }));
    drop(open);
    assert_entry(&last(2), json!({ "status": 101, "path": "/long" }));
    let (switched, mut brief) = asks("/brief");
    assert_eq!(switched, 101);
    brief.assert_closed();
    assert_entry(&last(3), json!({ "status": 101, "reason": "tunnel_timeout", "setting": "tunnel_timeout" }));

    let mut aborted = gateway.client();
    aborted.send(get("/long", ""));
    assert_eq!(aborted.try_read_head().unwrap().status(), 200);
    gateway.signal("TERM");
    gateway.exit();
    let entry = entries(&gateway, 4).pop().unwrap();
    assert_entry(&entry, json!({ "status": 200, "reason": "shutdown", "setting": "shutdown_timeout" }));
}

/// Opens the FIFO, and starts to read when the test requests it.
struct StoppedReader {
    go_on: Sender<()>,
    lines: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<io::Result<()>>,
}

impl StoppedReader {
    fn of(fifo: PathBuf) -> StoppedReader {
        let (go_on, told) = channel();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let read = lines.clone();
        let thread = std::thread::spawn(move || {
            let file = File::open(fifo)?;
            let _ = told.recv();
            for line in BufReader::new(file).lines() {
                read.lock().unwrap().push(line?);
            }
            Ok(())
        });
        StoppedReader { go_on, lines, thread }
    }
}

/// A gateway whose access log goes to a FIFO.
fn piped() -> (Gateway, StoppedReader) {
    let reader = Mutex::new(None);
    let config_arguments = |dir: &Path| {
        let fifo = dir.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        *reader.lock().unwrap() = Some(StoppedReader::of(fifo));
        let route = "[[route]]\nname = \"fixed\"\nrespond = { }\n";
        let config = crate::support::gateway::config("access_log = { to = \"fifo\" }", route);
        crate::support::gateway::config_arguments(dir, &config)
    };
    let gateway = Gateway::launch(&[], config_arguments);
    (gateway, reader.into_inner().unwrap().unwrap())
}

/// Sends requests with long log lines, and reads the responses.
fn asks(client: &mut Client, count: usize) {
    client.send(get("/", &format!("user-agent: {}\r\n", "x".repeat(14_000))).repeat(count));
    (0..count).for_each(|_| assert_eq!(client.read_response("GET").status(), 200));
}

#[test]
fn a_reader_that_stops_costs_lines_that_are_counted_and_holds_up_nobody() {
    let (mut gateway, reader) = piped();
    let (mut client, mut asked) = (gateway.client(), 0);
    let dropped = || gateway.metric("access_log_dropped_total", &[]).unwrap() as usize;
    while dropped() == 0 {
        asks(&mut client, 50);
        asked += 50;
        assert!(asked < 4000, "56 MB wait");
    }
    let watch = Stopwatch::start();
    (0..100).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").status(), 200));
    watch.assert_ms(0..15_000);
    asked += 100;
    assert!(gateway.memory("VmRSS") < 150 << 20, "the queue is bounded");
    reader.go_on.send(()).unwrap();
    let read = || reader.lines.lock().unwrap().len();
    wait_until("each line was written or is counted as dropped", || read() + dropped() == asked);
    assert_eq!(client.fetch(&get("/later", ""), "").status(), 200);
    wait_until("later lines are written as well", || {
        read() > 0 && reader.lines.lock().unwrap().last().unwrap().contains("/later")
    });
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
    reader.thread.join().unwrap().unwrap();
    for line in reader.lines.lock().unwrap().iter() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["status"], 200);
    }
}

#[test]
fn a_reader_that_stops_does_not_keep_the_gateway_from_its_end() {
    let (mut gateway, reader) = piped();
    // More than fits into a pipe.
    asks(&mut gateway.client(), 50);
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
    assert_eq!(gateway.log_lines(&["WARN", "the access log", "lines are lost"]), 1, "{}", gateway.log());
    drop(reader.go_on);
    reader.thread.join().unwrap().unwrap();
}

/// Over HTTP/1.1 and HTTP/2, while a server works and in the queue of a limit.
#[test]
fn a_request_whose_client_leaves_names_its_route_and_has_one_outcome() {
    let (silent, collector) = (Upstream::silent(), Upstream::fixed(ok("")));
    let server = format!("half_close_timeout = \"0s\"\nspans = {{ to = \"{}\" }}\n", collector.url());
    let config = [
        route("slow", "upstream = \"app\""),
        route("queue", "respond = { }\nlimits = [\"turns\"]"),
        format!("[upstream.app]\nservers = [\"{}\"]\n", silent.url()),
        "[limit.turns]\nalgorithm = \"leaky_bucket\"\nrate = \"1/h\"\nqueue = \"9h\"\nkey = \"all\"\n".to_owned(),
    ];
    let gateway = logged(&server, "", &config.concat());
    assert_eq!(gateway.get("/queue").status(), 200);
    let mut ended = 1;
    let mut left = |target: &str, arrived: &dyn Fn()| {
        let mut http1 = gateway.client();
        http1.send(get(target, ""));
        arrived();
        drop(http1);
        let mut http2 = Wire::connect(gateway.addr, &[]);
        http2.get(1, target);
        arrived();
        http2.send(reset(1, CANCEL));
        ended += 2;
        for entry in entries(&gateway, ended).split_off(ended - 2) {
            let route = target.trim_start_matches('/');
            assert_entry(&entry, json!({ "route": route, "status": 499, "reason": "client_left" }));
        }
    };
    left("/slow", &|| drop(silent.request()));
    let delayed = [("route", "queue"), ("limit", "turns"), ("decision", "delayed")];
    let waiting = std::cell::Cell::new(0.0);
    left("/queue", &|| {
        waiting.set(waiting.get() + 1.0);
        gateway.assert_metric("limit_decisions_total", &delayed, waiting.get());
    });
    // The name of a span has the path of its route.
    let spans = std::cell::RefCell::new(Vec::new());
    let named = |name: &str| spans.borrow().windows(name.len()).any(|part| part == name.as_bytes());
    wait_until("the collector has all spans", || {
        collector.requests().into_iter().for_each(|told| spans.borrow_mut().extend(told.body));
        named("GET /slow") && named("GET /queue")
    });

    let chunked = "POST /slow HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
    let mut client = gateway.client();
    client.send(chunked);
    client.send("zz\r\n");
    assert_eq!(client.read_response("POST").status(), 400);
    let outcome = |outcome| [("upstream", "app"), ("outcome", outcome)];
    gateway.assert_metric("upstream_requests_total", &outcome("client_left"), 2.0);
    gateway.assert_metric("upstream_requests_total", &outcome("upload_failed"), 1.0);
    for other in ["ok", "timeout", "broken", "connect_error"] {
        gateway.assert_metric("upstream_requests_total", &outcome(other), 0.0);
    }
}

#[test]
fn a_client_that_leaves_within_its_head_is_counted() {
    let gateway = logged("", "", &route("all", "respond = { }"));
    for number in 1..=3 {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nhost: a");
        client.finish();
        client.assert_closed();
        let entry = entries(&gateway, number).pop().unwrap();
        assert_entry(&entry, json!({ "route": "_none", "status": 499, "reason": "client_left" }));
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "client_left")], 3.0);
}
