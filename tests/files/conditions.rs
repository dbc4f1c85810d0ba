//! Conditional requests and ranges, compared with nginx where it follows RFC 9110.

use std::fs;

use super::{ROUTES, site};
use crate::support::client::{fetch, get};
use crate::support::http::Message;
use crate::support::nginx::Nginx;

const BEFORE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const AFTER: &str = "Sun, 06 Nov 2101 08:49:37 GMT";

/// `{etag}` and `{date}` stand for those of the response before.
const CONDITIONS: &[&str] = &[
    "",
    "if-none-match: {etag}",
    "if-none-match: W/{etag}",
    "if-none-match: \"x\", {etag}",
    "if-none-match: *",
    "if-none-match: \"x\"",
    "if-none-match: \"x\"\r\nif-modified-since: {date}",
    "if-modified-since: {date}",
    "if-modified-since: nonsense",
    "if-match: {etag}",
    "if-match: \"x\"",
    "if-match: *",
    "if-unmodified-since: {date}",
    "range: bytes=0-4",
    "range: bytes=5-",
    "range: bytes=-3",
    "range: bytes=-99999999",
    "range: bytes=0-99999999",
    "range: bytes=99999999-",
    "range: bytes=0-0,10-11",
    "range: bytes=99999999-,0-1",
    "range: items=0-1",
    "range: bytes=0-4\r\nif-range: {etag}",
    "range: bytes=0-4\r\nif-range: \"x\"",
    "range: bytes=0-4\r\nif-range: W/{etag}",
    "range: bytes=0-4\r\nif-range: {date}",
    "range: bytes=0-4\r\nif-none-match: {etag}",
    "range: bytes=0-4\r\nif-match: \"x\"",
    "range: bytes=99999999-\r\nif-range: \"x\"",
];

fn filled(fields: &str, first: &Message) -> String {
    let fields = fields.replace("{etag}", first.get("etag").unwrap());
    let fields = fields.replace("{date}", first.get("last-modified").unwrap());
    if fields.is_empty() { fields } else { format!("{fields}\r\n") }
}

#[test]
fn conditions_and_ranges_have_the_results_of_nginx() {
    let gateway = site(ROUTES);
    let nginx = Nginx::serving(&gateway.dir.path().join("dist"));
    let [ours, theirs] = [gateway.addr, nginx.addr].map(|addr| fetch(addr, &get("/assets/app.js", "")));
    assert_eq!(ours.get("last-modified"), theirs.get("last-modified"));
    let more = [
        format!("if-modified-since: {AFTER}"),
        format!("if-unmodified-since: {BEFORE}"),
        format!("if-unmodified-since: {AFTER}"),
        format!("if-none-match: \"x\"\r\nif-modified-since: {AFTER}"),
        format!("if-match: {{etag}}\r\nif-unmodified-since: {AFTER}"),
    ];
    let rows = CONDITIONS.iter().copied().chain(more.iter().map(String::as_str));
    for fields in rows.filter(|fields| !fields.starts_with("if-modified-since: Sun, 06 Nov 2101")) {
        let result = |addr, first: &Message| {
            let response = fetch(addr, &get("/assets/app.js", &filled(fields, first)));
            let body = match response.get("content-type") {
                Some(multipart) if multipart.starts_with("multipart/") => String::new(),
                _ if response.status() >= 400 => String::new(),
                _ => format!("{} bytes: {:.8}", response.body.len(), response.text()),
            };
            (response.status(), response.get("content-range").map(str::to_owned), body)
        };
        assert_eq!(result(gateway.addr, &ours), result(nginx.addr, &theirs), "{fields}");
    }
    // Here nginx compares for equality only (`if_modified_since exact`); RFC 9110 says that a later date fits as well.
    let later = gateway.fetch(&get("/assets/app.js", &format!("if-modified-since: {AFTER}\r\n")));
    assert_eq!(later.status(), 304);
    // nginx refuses what is no date; RFC 9110 ignores it.
    let nonsense = gateway.fetch(&get("/assets/app.js", "if-unmodified-since: 06-Nov-94\r\n"));
    assert_eq!(nonsense.status(), 200);
}

#[test]
fn several_ranges_are_parts() {
    let gateway = site(ROUTES);
    let content: String = ('a'..='z').cycle().take(5000).collect();
    fs::write(gateway.dir.path().join("dist/letters.txt"), &content).unwrap();
    let response = gateway.fetch(&get("/raw/letters.txt", "range: bytes=0-2, 100-103,-2\r\n"));
    assert_eq!((response.status(), response.get("content-range")), (206, None));
    let boundary =
        response.get("content-type").unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap().to_owned();
    let mut expected = String::new();
    for (start, end) in [(0, 3), (100, 104), (4998, 5000)] {
        expected += &format!(
            "\r\n--{boundary}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-range: bytes {start}-{}/5000\r\n\r\n{}",
            end - 1,
            &content[start..end]
        );
    }
    assert_eq!(response.text(), format!("{expected}\r\n--{boundary}--\r\n"));
}

#[test]
fn an_answer_without_the_file_has_what_it_needs() {
    let gateway = site(ROUTES);
    let first = gateway.get("/assets/app.js");
    let same = gateway.fetch(&get("/assets/app.js", &filled("if-none-match: {etag}", &first)));
    assert_eq!((same.status(), same.get("etag"), same.get("content-type")), (304, first.get("etag"), None));
    assert_eq!(same.get("cache-control"), first.get("cache-control"));
    assert_eq!(same.get("vary"), Some("Accept-Encoding"));
    let none = gateway.fetch(&get("/assets/app.js", "range: bytes=9999999-\r\n"));
    let length = first.body.len();
    assert_eq!((none.status(), none.get("content-range")), (416, Some(&*format!("bytes */{length}"))));
    assert_eq!(none.get("cache-control"), None);
    let head = gateway.fetch("HEAD /assets/app.js HTTP/1.1\r\nhost: a.test\r\nrange: bytes=0-1\r\n\r\n");
    assert_eq!((head.status(), head.get("content-length")), (200, Some(&*length.to_string())), "only GET has ranges");
}
