//! `compress` of the server and of routes, and what metrics and log say about compressed responses.

use super::{accepting, decode, gateway, page, response, route, text};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// The codings that each target of the gateway uses for a client that accepts all.
fn codings(gateway: &Gateway, targets: &[&str]) -> Vec<Option<String>> {
    let fetch = |target: &&str| gateway.fetch(&get(target, &accepting("gzip, br, zstd")));
    targets.iter().map(|target| fetch(target).get("content-encoding").map(str::to_owned)).collect()
}

#[test]
fn a_route_overrides_the_server() {
    let upstream = Upstream::fixed(response("", &page(3000)));
    let routes = |lines: &[&str]| -> String {
        let with_path = lines
            .iter()
            .enumerate()
            .map(|(at, line)| format!("[[route]]\npath = \"/{at}\"\nupstream = \"{}\"\n{line}\n", upstream.url()));
        with_path.collect()
    };
    let lines = [
        "",
        "compress = true",
        "compress = false",
        "compress = { algorithms = \"br\" }",
        "compress = { min_size = \"4KiB\" }",
        "compress = { types = [\"text/css\"] }",
    ];
    let targets = ["/0", "/1", "/2", "/3", "/4", "/5"];
    let gateway = Gateway::start(&routes(&lines));
    assert_eq!(codings(&gateway, &targets), [None, Some("zstd"), None, Some("br"), None, None].map(owned));
    gateway.reload(&config("compress = true", &routes(&lines)));
    assert_eq!(codings(&gateway, &targets), [Some("zstd"), Some("zstd"), None, Some("br"), None, None].map(owned));
    // A route inherits the keys that it does not have.
    let server = "compress = { algorithms = [\"gzip\", \"br\"], min_size = \"1KiB\" }";
    gateway.reload(&config(server, &routes(&lines)));
    assert_eq!(codings(&gateway, &targets), [Some("gzip"), Some("gzip"), None, Some("br"), None, None].map(owned));
    gateway.reload(&config("compress = false", &routes(&lines)));
    assert_eq!(codings(&gateway, &targets), [None, Some("zstd"), None, Some("br"), None, None].map(owned));
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

#[test]
fn a_reload_reports_a_changed_route() {
    let upstream = Upstream::fixed(response("", &page(3000)));
    let gateway = Gateway::start(&route(&upstream, "compress = true"));
    gateway.reload(&config("", &route(&upstream, "compress = { algorithms = [\"br\"] }")));
    wait_until("the reload is logged", || gateway.log_lines(&["config reloaded: route changed: app"]) == 1);
}

#[test]
fn header_edits_of_the_route_count() {
    let upstream = Upstream::fixed(response("content-encoding: none\r\nvary: Cookie\r\n", &page(3000)));
    let edits = "compress = true\nrequest_headers = { remove = [\"accept-encoding\"] }\n\
                 response_headers = { remove = [\"content-encoding\", \"vary\"], set = { content-type = \"text/css\" } }";
    let gateway = Gateway::start(&route(&upstream, edits));
    let received = gateway.fetch(&get("/", &accepting("gzip")));
    // The server does not compress, because it does not see what the client accepts. The gateway does.
    assert_eq!(upstream.request().get("accept-encoding"), None);
    assert_eq!((received.get("content-encoding"), received.get("vary")), (Some("gzip"), Some("Accept-Encoding")));
    assert_eq!(text(&received), page(3000));
}

#[test]
fn event_streams_are_compressed_if_listed() {
    let upstream = Upstream::fixed(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n",
    );
    let types = "compress = { types = [\"text/*\", \"text/event-stream\"] }";
    let gateway = Gateway::start(&route(&upstream, types));
    let response = gateway.fetch(&get("/", &accepting("gzip")));
    assert_eq!((response.get("content-encoding"), text(&response).as_str()), (Some("gzip"), "data: x\n\n"));
}

#[test]
fn metrics_and_log_count_both_sides() {
    for length in [5000, 500_000] {
        let upstream = Upstream::fixed(response("", &page(length)));
        let gateway = gateway(&upstream);
        let count = |algorithm, side| {
            gateway.metric("compressed_bytes_total", &[("algorithm", algorithm), ("side", side)]).unwrap()
        };
        assert_eq!(count("gzip", "in") + count("br", "out") + count("zstd", "in"), 0.0);
        let received = gateway.fetch(&get("/", &accepting("br")));
        assert_eq!(decode("br", &received.body).unwrap().len(), length);
        assert_eq!((count("br", "in"), count("br", "out")), (length as f64, received.body.len() as f64));
        assert_eq!(count("gzip", "in") + count("gzip", "out") + count("zstd", "in") + count("zstd", "out"), 0.0);
        gateway.get("/");
        wait_until("two lines are logged", || gateway.stdout().lines().count() == 2);
        let lines: Vec<serde_json::Value> =
            gateway.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            (&lines[0]["bytes"], &lines[0]["bytes_uncompressed"]),
            (&received.body.len().into(), &length.into())
        );
        assert_eq!((&lines[1]["bytes"], &lines[1]["bytes_uncompressed"]), (&length.into(), &serde_json::Value::Null));
    }
}
