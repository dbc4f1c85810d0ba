//! curl: both protocols, with and without TLS, and what scripts use it for.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::site::{Site, pattern, route, sha256};
use crate::support::app::run;
use crate::support::gateway::Gateway;

#[track_caller]
pub fn curl(arguments: &[&str]) -> String {
    let own = ["--silent", "--show-error", "--noproxy", "*", "--max-time", "40"];
    run("curl", "curl", &[&own, arguments].concat())
}

/// Returns the request that curl sends with these arguments, as `/seen` reports it.
#[track_caller]
fn seen(arguments: &[&str]) -> Value {
    let text = curl(arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn bytes_are_the_same_in_both_protocols_with_and_without_tls() {
    let site = Site::start("");
    let dir = tempfile::tempdir().unwrap();
    let [sent, saved] = ["sent", "kept"].map(|name| dir.path().join(name).display().to_string());
    fs::write(&sent, pattern(3_000_000)).unwrap();
    let (ca, upload) = (site.ca_file(), format!("@{sent}"));
    let (secure, plain) = (site.url(""), format!("http://{}", site.plain()));
    for (way, url, version) in [
        (&["--http2", "--cacert", &ca][..], &secure, "2"),
        (&["--http1.1", "--cacert", &ca], &secure, "1.1"),
        (&["--http2", "--tls-max", "1.2", "--cacert", &ca], &secure, "2"),
        (&["--http2-prior-knowledge"], &plain, "2"),
        (&["--http1.1"], &plain, "1.1"),
        // curl offers an upgrade to h2c, which must be ignored.
        (&["--http2"], &plain, "1.1"),
    ] {
        let fetch = |arguments: &[&str], path: &str| curl(&[way, arguments, &[&format!("{url}{path}")]].concat());
        let report = fetch(&["--output", &saved, "--write-out", "%{http_code} %{http_version}"], "/bytes/1000000");
        assert_eq!(report, format!("200 {version}"), "{way:?}");
        assert!(fs::read(&saved).unwrap() == pattern(1_000_000), "{way:?}: the bytes differ");
        let chunked = ["--upload-file", &sent, "--header", "transfer-encoding: chunked"];
        for arguments in [&["--data-binary", upload.as_str()][..], &chunked] {
            let text = fetch(arguments, "/seen?a=b%20c");
            let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{way:?} {error}: {text}"));
            assert_eq!((&found["length"], &found["url"]), (&3_000_000.into(), &"/seen?a=b%20c".into()), "{way:?}");
            assert_eq!(found["sha256"], sha256(Path::new(&sent)), "{way:?}");
        }
        let head = fetch(&["--head"], "/bytes/1000").to_ascii_lowercase();
        assert!(head.contains("content-length: 1000\r\n"), "{way:?}: {head}");
        let ended =
            fetch(&["--header", "te: trailers", "--header", "connection: te", "--dump-header", "-"], "/trailers");
        assert!(ended.to_ascii_lowercase().contains("x-sum: 4\r\n"), "{way:?}: {ended}");
    }
}

#[test]
fn transfers_at_once_share_a_connection_and_redirects_keep_cookies() {
    let site = Site::start("");
    let urls: Vec<String> = (1..40).map(|count| site.url(&format!("/bytes/{}", count * 1000))).collect();
    let ca = site.ca_file();
    let mut arguments =
        vec!["--cacert", ca.as_str(), "--http2", "--parallel", "--write-out", "%{size_download} ", "--fail"];
    for url in &urls {
        arguments.extend([url.as_str(), "--output", "/dev/null"]);
    }
    let mut sizes: Vec<u64> = curl(&arguments).split_whitespace().map(|size| size.parse().unwrap()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, (1..40).map(|count| count * 1000).collect::<Vec<u64>>());
    let [listener, full] = [("listener", "127.0.0.1:0"), ("result", "full")];
    site.gateway.assert_metric("tls_handshakes_total", &[listener, full], 1.0);

    let found = seen(&["--cacert", &ca, "--location", "--cookie", "", &site.url("/cookies")]);
    assert_eq!(found["url"], "/seen");
    // Cookies of one path and age are in no order.
    let mut cookies: Vec<&str> = found["headers"]["cookie"].as_str().unwrap().split("; ").collect();
    cookies.sort_unstable();
    assert_eq!(cookies, ["a=1", "b=x%20y"]);
    assert_eq!(found["headers"]["x-forwarded-proto"], "https");
}

#[test]
fn a_client_waits_as_the_refusal_says_and_uploads_nothing() {
    let limits = "limits = [\"slow\"]\n[limit.slow]\nrate = \"30/m\"\nburst = 1\nkey = \"ip\"\n";
    let site = Site::start(limits);
    let ca = site.ca_file();
    let url = site.url("/bytes/1");
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("kept").display().to_string();
    let report = ["--retry", "5", "--write-out", "%{http_code} "];
    let report = curl(&[&report[..], &["--cacert", &ca, "--output", &saved, &url, "--output", &saved, &url]].concat());
    // curl waits for as long as Retry-After says, and its next attempt is admitted.
    assert_eq!(report, "200 200 ");
    let labels = [("route", "app"), ("limit", "slow"), ("reason", "exhausted")];
    site.gateway.assert_metric("rejections_total", &labels, 1.0);

    let day = Gateway::start(&route(
        "http://127.0.0.1:9",
        "limits = [\"day\"]\n[limit.day]\nrate = \"1/day\"\nkey = \"all\"\n",
    ));
    let url = format!("http://{}/seen", day.addr);
    let body = "x".repeat(100_000);
    let report = "%{http_code} %{size_upload}";
    let upload = [
        "--header",
        "expect: 100-continue",
        "--data-binary",
        &body,
        "--write-out",
        report,
        "--output",
        "/dev/null",
        &url,
    ];
    assert_eq!(curl(&upload), "502 0");
    assert_eq!(curl(&upload), "429 0");
}

/// Returns how many of `tries` uploads of `file` show the refusal to curl.
fn count_refusals(tries: usize, way: &[&str], file: &str, url: &str) -> usize {
    let upload = ["--data-binary", file, "--output", "/dev/null", "--write-out", "%{http_code} %header{retry-after}"];
    (0..tries).filter(|_| curl(&[way, &upload, &[url]].concat()).starts_with("429 8")).count()
}

/// A client that does not see the refusal tries again at once. curl loses it if its stream or its connection is reset
/// while it still sends.
#[test]
fn a_refusal_is_seen_whatever_is_still_being_sent() {
    let site = Site::start("limits = [\"day\"]\nmax_body = \"1GiB\"\n[limit.day]\nrate = \"1/day\"\nkey = \"all\"\n");
    let (ca, secure, plain) = (site.ca_file(), site.url("/seen"), format!("http://{}/seen", site.plain()));
    curl(&["--cacert", &ca, "--output", "/dev/null", &secure]);
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body").display().to_string();
    for (size, tries) in [(0, 10), (100, 20), (10_000, 20), (1_000_000, 40), (20_000_000, 3)] {
        fs::write(&body, vec![b'x'; size]).unwrap();
        for (way, url) in [
            (&["--http2", "--cacert", &ca][..], &secure),
            (&["--http2", "--cacert", &ca, "--header", "expect:"], &secure),
            (&["--http2-prior-knowledge"], &plain),
            (&["--http1.1", "--cacert", &ca], &secure),
            (&["--http1.1", "--cacert", &ca, "--header", "expect:"], &secure),
            (&["--http1.1", "--header", "expect:"], &plain),
        ] {
            let seen = count_refusals(tries, way, &format!("@{body}"), url);
            assert_eq!(seen, tries, "{way:?}: {size} bytes");
        }
    }
}
