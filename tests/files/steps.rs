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

#[test]
fn an_explanation_names_the_files() {
    let gateway = site_with("", super::ROUTES);
    let explain = |arguments: &[&str]| {
        let output = program().arg("explain").arg("-c").arg(gateway.config()).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let dist = gateway.dir.path().join("dist");
    let text = explain(&["GET", "http://a.test/raw/docs/"]);
    assert!(text.contains(&format!("send the file {}/docs/", dist.display())), "{text}");
    let text = explain(&["GET", "http://a.test/x"]);
    assert!(text.contains(&format!("{0}/x, or else {0}/index.html", dist.display())), "{text}");
    for (arguments, reason) in
        [(["POST", "http://a.test/x"], "file_method"), (["GET", "http://a.test/raw/.env"], "no_file")]
    {
        let output = explain(&arguments);
        assert!(output.contains(reason), "{output}");
    }
}
