//! nghttp2's programs: nghttp, which shows frames, and h2load, which counts responses.

use super::site::Site;
use crate::support::app::run;

const PACKAGE: &str = "nghttp2-client";

/// The numbers of a line of h2load's report: `requests: 500 total, 500 started, ...`.
fn numbers(report: &str, head: &str) -> Vec<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix(head)).unwrap_or_else(|| panic!("no {head}\n{report}"));
    line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn many_streams_at_once_are_all_answered() {
    let site = Site::start("");
    let (secure, plain) = (site.url("/bytes/5000"), format!("http://{}/bytes/5000", site.plain()));
    for url in [&secure, &plain] {
        let report = run("h2load", PACKAGE, &["-n", "1000", "-c", "4", "-m", "50", url]);
        assert_eq!(numbers(&report, "requests:"), [1000, 1000, 1000, 1000, 0, 0, 0], "{report}");
        assert_eq!(numbers(&report, "status codes:"), [1000, 0, 0, 0], "{report}");
        assert_eq!(report.contains("Application protocol: h2\n"), url == &secure, "{report}");
    }
}

#[test]
fn a_limit_counts_streams_not_connections() {
    let site = Site::start("limits = [\"day\"]\n[limit.day]\nrate = \"100/day\"\nkey = \"ip\"\n");
    let report = run("h2load", PACKAGE, &["-n", "400", "-c", "4", "-m", "100", &site.url("/bytes/10")]);
    assert_eq!(numbers(&report, "status codes:"), [100, 0, 300, 0], "{report}");
    let labels = [("route", "app"), ("limit", "day"), ("reason", "exhausted")];
    site.gateway.assert_metric("rejections_total", &labels, 300.0);
}

#[test]
fn trailers_of_requests_arrive_and_streams_end_as_they_should() {
    let site = Site::start("request_trailers = true\n");
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body");
    std::fs::write(&body, vec![b'x'; 100_000]).unwrap();
    let arguments = [
        "--verbose",
        "--no-verify-peer",
        "--data",
        body.to_str().unwrap(),
        "--trailer",
        "x-sum: 42",
        "--no-content-length",
    ];
    let url = site.url("/seen");
    let output = run(
        "nghttp",
        PACKAGE,
        &[&arguments[..], &["--header", "te: trailers", "--header", "trailer: x-sum", &url]].concat(),
    );
    for part in ["The negotiated protocol: h2", "\"length\":100000", "\"trailers\":{\"x-sum\":\"42\"}"] {
        assert!(output.contains(part), "no {part}\n{output}");
    }
    assert!(!output.contains("RST_STREAM") && output.contains("GOAWAY"), "{output}");
}
