//! `/metrics` in the OpenMetrics format, with exemplars, and compressed: as Prometheus and its own parser read it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::support::app::venv;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::ports::ReservedPort;
use crate::support::upstream::{Upstream, ok};
use crate::support::{wait_until, write_atomically};

const ROUTES: &str = "[[route]]\nname = \"api\"\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"hard\"]\n\n\
                      [[route]]\nname = \"plain\"\npath = \"/plain\"\nrespond = { body = \"ok\" }\n\n\
                      [limit.hard]\nrate = \"1/h\"\nkey = \"path\"\n";
const OPENMETRICS: &str = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
/// Trace ID of a sampled request, as an exemplar shows it.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A gateway that exports a span of every request whose trace is sampled, and its collector.
fn traced() -> (Gateway, Upstream) {
    let collector = Upstream::fixed(ok(""));
    let spans = format!("spans = {{ to = \"{}\", sample = 0 }}\n", collector.url());
    (Gateway::with(&spans, ROUTES), collector)
}

fn sampled(target: &str, flags: &str) -> String {
    get(target, &format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-{flags}\r\n"))
}

fn page(gateway: &Gateway, fields: &str) -> Message {
    let page = gateway.admin_request("GET", "/metrics", fields, "");
    assert_eq!(page.status(), 200);
    page
}

#[test]
fn the_parser_of_prometheus_accepts_every_line() {
    let (gateway, _collector) = traced();
    for target in ["/api", "/api", "/plain", "/%2f"] {
        gateway.fetch(&sampled(target, "01"));
    }
    let page = page(&gateway, OPENMETRICS);
    assert_eq!(page.get("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let program = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                   for family in parse(sys.stdin.read()):\n for sample in family.samples: print(family.type, sample.name)";
    let mut python = Command::new(venv().join("bin/python"))
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(&page.body).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), page.text());
    let samples = String::from_utf8(output.stdout).unwrap();
    for sample in ["counter sluicegate_requests_total", "histogram sluicegate_request_duration_seconds_bucket"] {
        assert!(samples.contains(sample), "{sample}");
    }
    // Both formats have the same series.
    let names = |text: &str| -> Vec<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<String> = samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    assert_eq!(names(&page.text()), names(&gateway.metrics()));
    assert!(page.text().ends_with("\n# EOF\n") && !page.text().contains(" unknown\n"));
}

#[test]
fn exemplars_are_traces_that_are_exported() {
    let (gateway, _collector) = traced();
    let with_exemplar = || {
        let text = page(&gateway, OPENMETRICS).text();
        text.lines().filter(|line| line.contains(" # {")).map(str::to_owned).collect::<Vec<_>>()
    };
    gateway.fetch(&sampled("/plain", "00"));
    gateway.get("/plain");
    gateway.assert_metric("request_duration_seconds_count", &[("route", "plain")], 2.0);
    assert_eq!(with_exemplar(), Vec::<String>::new());
    (0..5).for_each(|_| drop(gateway.fetch(&sampled("/plain", "01"))));
    wait_until("a bucket has an exemplar", || !with_exemplar().is_empty());
    for line in with_exemplar() {
        assert!(line.starts_with("sluicegate_request_duration_seconds_bucket{route=\"plain\",le=\""), "{line}");
        assert!(line.contains(&format!(" # {{trace_id=\"{TRACE}\"}} 0.")), "{line}");
    }
    assert!(!gateway.metrics().contains(TRACE), "the older format has none");
}

#[test]
fn the_text_is_compressed_for_those_who_accept_it() {
    let gateway = Gateway::start(ROUTES);
    for (fields, coding) in [
        ("accept-encoding: gzip\r\n", Some("gzip")),
        ("accept-encoding: br;q=1.0, gzip;q=0.5\r\n", Some("gzip")),
        ("accept-encoding: gzip;q=0\r\n", None),
        ("accept-encoding: identity\r\n", None),
        ("", None),
    ] {
        for accept in ["", OPENMETRICS] {
            let page = page(&gateway, &format!("{fields}{accept}"));
            assert_eq!(page.get("content-encoding"), coding, "{fields}");
            assert_eq!(page.get("vary"), Some("accept, accept-encoding"));
            let mut text = page.text();
            if coding.is_some() {
                text.clear();
                GzDecoder::new(page.body.as_slice()).read_to_string(&mut text).unwrap();
                assert!(page.body.len() * 4 < text.len(), "{} of {}", page.body.len(), text.len());
            }
            assert!(text.contains("\nsluicegate_requests_total{"), "{text}");
            assert_eq!(text.ends_with("# EOF\n"), !accept.is_empty());
        }
    }
}

/// Prometheus, which ends with this value.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_it_and_returns_the_exemplars() {
    let (gateway, _collector) = traced();
    gateway.fetch(&sampled("/plain", "01"));
    gateway.assert_metric("request_duration_seconds_count", &[("route", "plain")], 1.0);
    let (dir, port) = (tempfile::tempdir().unwrap(), ReservedPort::new());
    let file = dir.path().join("prometheus.yml");
    let target = format!("[{{ targets: [\"{}\"] }}]", gateway.admin);
    write_atomically(
        &file,
        &format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - {{ job_name: gateway, static_configs: {target} }}\n"
        ),
    );
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address={}", port.addr()))
        .args(["--enable-feature=exemplar-storage", "--log.level=warn"])
        .stderr(log)
        .spawn();
    let child =
        child.unwrap_or_else(|error| panic!("prometheus: {error}; install it with: apt-get install prometheus"));
    let _prometheus = Prometheus(child);
    wait_until("it listens", || std::net::TcpStream::connect(port.addr()).is_ok());
    let request = |path: &str| Client::connect(port.addr()).fetch(&get(path, ""), "");
    wait_until("it is ready", || request("/-/ready").status() == 200);
    let fetch = |path: &str| -> Value { request(path).json() };
    let query = "/api/v1/query_exemplars?query=sluicegate_request_duration_seconds_bucket&start=0&end=9999999999";
    wait_until("it has the exemplar", || fetch(query).to_string().contains(TRACE));
    let targets = fetch("/api/v1/targets");
    let scraped = &targets["data"]["activeTargets"][0];
    assert_eq!((&scraped["health"], &scraped["lastError"]), (&"up".into(), &"".into()), "{scraped}");
    let metadata = fetch("/api/v1/metadata?metric=sluicegate_requests");
    assert_eq!(metadata["data"]["sluicegate_requests"][0]["type"], "counter", "OpenMetrics was used: {metadata}");
}
