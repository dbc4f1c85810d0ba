//! Files pass the same steps as all responses: limits, headers, CORS, error pages, the log, explanations.

use std::fs;

use super::site_with;
use crate::support::client::get;
use crate::support::gateway::program;
use crate::support::h2::H2Client;

const ROUTE: &str = r#"
[[route]]
name = "files"
path = "/"
files = "dist"
limits = ["two"]
cors = { origins = ["https://app.example.com"] }
response_headers = { set = { x-served = "yes" } }
error_pages = { 404 = "missing.html" }

[limit.two]
rate = "3/day"
key = "header:x-key"
missing = "skip"
"#;

#[test]
fn files_pass_all_steps() {
    let gateway = crate::support::gateway::Gateway::launch(&[], |dir| {
        super::write_site(dir);
        fs::write(dir.join("missing.html"), "<p>nothing here</p>").unwrap();
        let text = crate::support::gateway::config("access_log = true\n", ROUTE);
        crate::support::gateway::config_arguments(dir, &text)
    });
    let origin = "origin: https://app.example.com\r\nx-key: a\r\naccept: text/html\r\n";
    let page = gateway.fetch(&get("/", origin));
    assert_eq!((page.status(), page.get("x-served")), (200, Some("yes")));
    assert_eq!(page.get("access-control-allow-origin"), Some("https://app.example.com"));
    assert!(page.get("ratelimit").unwrap().contains("r=2"), "{}", page.head);
    let missing = gateway.fetch(&get("/nothing", origin));
    assert_eq!(
        (missing.status(), missing.text().as_str(), missing.get("x-served")),
        (404, "<p>nothing here</p>", None)
    );
    assert!(missing.get("ratelimit").unwrap().contains("r=1"), "{}", missing.head);
    assert_eq!(gateway.fetch(&get("/LICENSE", origin)).status(), 200);
    let refused = gateway.fetch(&get("/LICENSE", origin));
    assert_eq!((refused.status(), refused.get("etag")), (429, None));

    let mut client = H2Client::connect(gateway.addr);
    let response = client.get("/docs/");
    assert_eq!(
        (response.status(), response.text().as_str(), response.field("content-length")),
        (200, "the docs", Some("8"))
    );

    crate::support::wait_until("the log lines", || gateway.stdout().lines().count() >= 5);
    let log = gateway.stdout();
    assert!(log.contains("\"reason\":\"no_file\"") || log.contains("no_file"), "{log}");
    gateway.assert_metric("requests_total", &[("route", "files"), ("method", "GET"), ("code", "404")], 1.0);
}

/// An explanation opens the file, so that it says what the request gets: by the command and by the gateway.
#[test]
fn an_explanation_says_which_file_a_request_gets() {
    let gateway = site_with("", super::ROUTES);
    let dist = gateway.dir.path().join("dist");
    fs::write(dist.join("assets/app.js.gz"), "not really compressed").unwrap();
    let admin = format!("http://{}", gateway.admin);
    let explain = |arguments: &[&str]| -> serde_json::Value {
        let mut command = program();
        command.args(["explain", "--format", "json", "-c"]).arg(gateway.config()).args(arguments);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    };
    let requests = [
        ("GET", "/raw/docs/", "", Some("docs/index.html")),
        ("GET", "/raw/docs", "", None),
        ("HEAD", "/raw/docs/index.html", "", Some("docs/index.html")),
        ("GET", "/x", "", Some("index.html")),
        ("GET", "/assets/app.js", "accept-encoding: gzip", Some("assets/app.js.gz")),
        ("GET", "/assets/app.js", "range: bytes=0-0", Some("assets/app.js")),
        ("GET", "/assets/app.js", "range: bytes=999999999-", Some("assets/app.js")),
        ("GET", "/assets/app.js", "if-none-match: *", Some("assets/app.js")),
        ("GET", "/raw/none", "", None),
        ("GET", "/raw/outside.txt", "", None),
        ("GET", "/raw/inside.js", "", Some("inside.js")),
        ("GET", "/raw/empty/", "", None),
        ("GET", "/raw/.env", "", None),
        ("POST", "/x", "", None),
    ];
    for (method, target, field, file) in requests {
        let line = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
        let head = format!("{method} {target} HTTP/1.1\r\nhost: a.test\r\n{line}content-length: 0\r\n\r\n");
        let response = gateway.client().fetch(&head, "");
        let url = format!("http://a.test{target}");
        let fields = if field.is_empty() { vec![] } else { vec!["-H", field] };
        for source in [&[][..], &["--admin", &admin]] {
            let explanation = explain(&[source, &[method, &url], &fields].concat());
            assert_eq!(explanation["verdict"]["status"], response.status(), "{method} {target} {field}: {explanation}");
            let path = file.map(|name| dist.join(name).display().to_string());
            assert_eq!(explanation["action"]["files"][0].as_str(), path.as_deref(), "{target}: {explanation}");
            assert_eq!(explanation["action"]["location"].as_str(), response.get("location"), "{target}: {explanation}");
        }
    }
    for (method, target, reason) in [("POST", "/x", "file_method"), ("GET", "/raw/none", "no_file")] {
        let explanation = explain(&[method, &format!("http://a.test{target}")]);
        assert_eq!(explanation["verdict"]["reason"], reason, "{explanation}");
    }
}
