//! The series on `/metrics`, and that no client can make them grow.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const CONFIG: &str = r#"
[[route]]
name = "api"
path = "/api"
upstream = "echo:"
limits = ["soft", "hard", "costly"]
allow = ["127.0.7.0/24"]
deny = ["127.0.8.0/24"]
max_in_flight = 100

[[route]]
name = "other"
path = "/other/{id}"
respond = { body = "other" }
limits = ["costly"]

[limit.soft]
rate = "1/h"
key = "path"
mode = "shadow"

[limit.hard]
rate = "1000000/s"
key = ["ip", "host", "header:x-key"]
missing = "refuse"

[limit.costly]
rate = "1000000/s"
key = "host"
cost = "header:x-cost"
overrides = [{ key = ["other.test"], rate = "1/s" }]
"#;

#[test]
fn series_of_the_config_exist_before_any_traffic() {
    let gateway = Gateway::start(CONFIG);
    for (name, labels, value) in [
        ("requests_total", &[("route", "api"), ("method", "GET"), ("code", "200")][..], 0.0),
        ("requests_total", &[("route", "api"), ("method", "GET"), ("code", "429")], 0.0),
        ("requests_total", &[("route", "other"), ("method", "GET"), ("code", "200")], 0.0),
        ("request_duration_seconds_count", &[("route", "api")], 0.0),
        ("requests_in_flight", &[("route", "api")], 0.0),
        ("limit_decisions_total", &[("route", "api"), ("limit", "hard"), ("decision", "allow")], 0.0),
        ("limit_decisions_total", &[("route", "api"), ("limit", "hard"), ("decision", "deny")], 0.0),
        ("limit_decisions_total", &[("route", "api"), ("limit", "hard"), ("decision", "bypass")], 0.0),
        ("limit_decisions_total", &[("route", "api"), ("limit", "soft"), ("decision", "shadow_deny")], 0.0),
        ("rejections_total", &[("route", "api"), ("limit", "hard"), ("reason", "exhausted")], 0.0),
        ("rejections_total", &[("route", "api"), ("limit", "_none"), ("reason", "denied")], 0.0),
        ("rejections_total", &[("route", "api"), ("limit", "_none"), ("reason", "max_in_flight")], 0.0),
        ("rejections_total", &[("route", "api"), ("limit", "hard"), ("reason", "missing_key")], 0.0),
        ("rejections_total", &[("route", "api"), ("limit", "costly"), ("reason", "never_fits")], 0.0),
        ("limit_decisions_total", &[("route", "other"), ("limit", "costly"), ("decision", "bypass")], 0.0),
        ("http_rejected_total", &[("reason", "client_left")], 0.0),
        ("http_rejected_total", &[("reason", "body_too_large")], 0.0),
        ("http_rejected_total", &[("reason", "path_slash")], 0.0),
        ("http_would_reject_total", &[("reason", "path_slash")], 0.0),
        ("connections", &[("listener", "127.0.0.1:0"), ("protocol", "http/1.1")], 0.0),
        ("connections", &[("listener", "127.0.0.1:0"), ("protocol", "h2")], 0.0),
        ("config_last_reload_successful", &[], 1.0),
        ("store_up", &[], 1.0),
    ] {
        assert_eq!(gateway.metric(name, labels), Some(value), "{name} {labels:?}");
    }
    let metrics = gateway.metrics();
    for family in ["config_info", "build_info", "config_reloads_total", "config_last_reload_success_timestamp_seconds"]
    {
        assert!(metrics.contains(&format!("# TYPE sluicegate_{family} ")), "{family} is missing:\n{metrics}");
    }
}

#[test]
fn the_process_is_shown_as_other_programs_are() {
    let before_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let gateway = Gateway::start(CONFIG);
    let value = |name: &str| -> f64 {
        let (metrics, series) = (gateway.metrics(), format!("process_{name} "));
        let found = metrics.lines().find_map(|line| line.strip_prefix(&series));
        found.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
    };
    let resident = gateway.memory("VmRSS") as f64;
    assert!((resident / 2.0..resident * 2.0).contains(&value("resident_memory_bytes")));
    assert!(value("virtual_memory_bytes") > resident && value("virtual_memory_max_bytes") > resident);
    // The kernel counts hundredths since the boot, whose time it knows only to the second.
    assert!((before_s - 2.0..before_s + 60.0).contains(&value("start_time_seconds")));
    assert!(value("threads") >= 2.0 && value("max_fds") >= 256.0);
    let open = value("open_fds");
    let clients: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    wait_until("they are open", || value("open_fds") >= open + clients.len() as f64);
    let spent = value("cpu_seconds_total");
    wait_until("scrapes cost something", || value("cpu_seconds_total") > spent);
}

#[test]
fn promtool_accepts_the_page_without_a_warning() {
    let upstream = Upstream::text("ok");
    let app = format!("{CONFIG}\n[[route]]\nname = \"app\"\npath = \"/app\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::start(&app);
    for target in ["/api", "/app", "/none", "/other/1", "/%2f"] {
        gateway.get(target);
    }
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool =
        promtool.unwrap_or_else(|error| panic!("promtool: {error}; install it with: apt-get install prometheus"));
    promtool.stdin.take().unwrap().write_all(gateway.metrics().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && output_text.is_empty(), "{}", String::from_utf8_lossy(&output_text));
}

/// The series of the page, without values.
fn series(gateway: &Gateway) -> HashSet<String> {
    let metrics = gateway.metrics();
    metrics.lines().filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
}

#[test]
fn no_host_path_or_method_makes_a_new_series() {
    let gateway = Gateway::start(CONFIG);
    let fetch = |client: &mut crate::support::client::Client, method: &str, path: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {method}.test\r\nx-key: {method}\r\nuser-agent: {method}\r\n\r\n"
        );
        client.fetch(&head, "").status()
    };
    let mut client = gateway.client();
    let paths =
        |method: &str| [format!("/api/{method}"), format!("/other/{method}"), format!("/{method}"), "/x%00".to_owned()];
    for path in paths("WARM") {
        fetch(&mut client, "WARM", &path);
        client.fetch(&get(&path, ""), "");
    }
    let before = series(&gateway);
    for number in 0..250 {
        // Strict routes accept capital letters only.
        let method: String = (0..12).map(|_| char::from(rand::random_range(b'A'..=b'Z'))).collect();
        for (path, status) in paths(&method).iter().zip([200, 200, 404, 400]) {
            assert_eq!(fetch(&mut client, &method, path), status, "{number}: {method} {path}");
        }
    }
    let grown: Vec<String> = series(&gateway).difference(&before).cloned().collect();
    assert_eq!(grown, Vec::<String>::new());
    gateway.assert_metric("requests_total", &[("route", "api"), ("method", "OTHER"), ("code", "200")], 251.0);
}

#[test]
fn connections_are_counted_while_they_are_open() {
    let gateway = Gateway::start(CONFIG);
    let listener = "127.0.0.1:0";
    let labels = [("listener", listener), ("protocol", "http/1.1")];
    let mut clients = [(); 3].map(|()| gateway.client());
    for client in &mut clients {
        assert_eq!(client.fetch(&get("/other/1", ""), "").status(), 200);
    }
    gateway.assert_metric("connections", &labels, 3.0);
    drop(clients);
    gateway.assert_metric("connections", &labels, 0.0);
    gateway.assert_metric("request_duration_seconds_count", &[("route", "other")], 3.0);
}
