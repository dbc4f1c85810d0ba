//! Files of `error_pages`: which one a response has, their placeholders, and changes of files.

use std::fs;

use super::formats::BROWSER;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config, config_arguments};
use crate::support::{wait_until, write_atomically};

const TRUSTED: &str = "access_log = true\ntrusted_proxies = [\"127.0.0.1\"]";

/// Starts a gateway with files in the directory of its config.
pub fn start(server: &str, routes: &str, files: &[(&str, &str)]) -> Gateway {
    Gateway::launch(&[], |dir| {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        config_arguments(dir, &config(server, routes))
    })
}

#[test]
fn the_nearest_and_most_specific_page_is_sent() {
    let names = ["s502.html", "s5xx.html", "s4xx.html", "r5xx.html", "r503.json", "r503.txt"];
    let files: Vec<(String, String)> = names.iter().map(|name| ((*name).to_owned(), format!("\"{name}\""))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let gateway = start(
        "error_pages = { 502 = \"s502.html\", \"5xx\" = \"s5xx.html\", \"4xx\" = \"s4xx.html\" }",
        "[[route]]\npath = \"/plain\"\nupstream = \"http://127.0.0.1:1\"\n\n[[route]]\npath = \"/own\"\nupstream = \
         \"http://127.0.0.1:1\"\nerror_pages = { \"5xx\" = \"r5xx.html\", 503 = [\"r503.json\", \"r503.txt\"] }\n\n\
         [[route]]\npath = \"/full\"\nupstream = \"echo:\"\nlimits = [\"none\"]\nerror_pages = { \"5xx\" = \
         \"r5xx.html\", 503 = [\"r503.json\", \"r503.txt\"] }\nrefuse = { status = 503 }\n\n[limit.none]\nrate = \
         \"1/day\"\nstart = \"empty\"\n",
        &files,
    );
    for (target, accept, expected) in [
        ("/plain", BROWSER, "\"s502.html\""),
        ("/nowhere", BROWSER, "\"s4xx.html\""),
        ("/own", BROWSER, "\"r5xx.html\""),
        ("/full", BROWSER, "\"r5xx.html\""),
        ("/full", "accept: application/json\r\n", "\"r503.json\""),
        ("/full", "", "\"r503.json\""),
        ("/full", "accept: text/plain\r\n", "\"r503.txt\""),
    ] {
        assert_eq!(gateway.fetch(&get(target, accept)).text(), expected, "{target} {accept}");
    }
    let json = gateway.get("/full");
    assert_eq!((json.status(), json.get("content-type")), (503, Some("application/json")));
    assert!(json.get("retry-after").is_some());
    let page = gateway.fetch(&get("/own", BROWSER));
    assert_eq!(page.get("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!((page.get("content-security-policy"), page.get("x-content-type-options")), (None, Some("nosniff")));
    let problem = gateway.get("/own");
    assert_eq!(problem.get("content-type"), Some("application/problem+json"), "there is no JSON file for 502");
    // Heads that do not parse have no route.
    assert_eq!(gateway.fetch(&format!("GET / HTTP/1.1\r\n{BROWSER}bad\r\n\r\n")).text(), "\"s4xx.html\"");
}

#[test]
fn placeholders_are_escaped_for_their_format() {
    let text = "<style>p{color:red}</style>{status}|{reason}|{detail}|{request_id}|{retry_after}|{ status }|{}";
    let json = "{\"status\": {status}, \"reason\": \"{reason}\", \"id\": \"{request_id}\", \"wait\": \"{retry_after}\", \"a\": {}}";
    let gateway = start(
        &format!("{TRUSTED}\nerror_pages = {{ 502 = [\"a.html\", \"a.json\", \"a.txt\"] }}"),
        "[[route]]\nupstream = \"http://127.0.0.1:1\"\n",
        &[("a.html", text), ("a.json", json), ("a.txt", "{status} {request_id}")],
    );
    let fetch =
        |accept: &str| gateway.fetch(&get("/", &format!("x-request-id: <b>\"'\\&`{{status}}\r\n{accept}"))).text();
    assert_eq!(
        fetch(BROWSER),
        "<style>p{color:red}</style>502|Bad Gateway|the upstream server could not be reached|\
         &#60;b&#62;&#34;&#39;&#92;&#38;&#96;&#123;status&#125;|-|{ status }|{}"
            .replace("the upstream server could not be reached", &detail(&gateway))
    );
    let json: serde_json::Value = serde_json::from_str(&fetch("")).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"status": 502, "reason": "Bad Gateway", "id": "<b>\"'\\&`{status}", "wait": "-", "a": {}})
    );
    assert_eq!(fetch("accept: text/plain\r\n"), "502 <b>\"'\\&`{status}");
    let long = gateway.fetch(&get("/", &format!("x-request-id: {}\r\n{BROWSER}", "a".repeat(300)))).text();
    assert!(long.contains("|-|-|"), "an id that is too long is not shown: {long}");
}

/// The detail of the error, from the problem document of another route.
fn detail(gateway: &Gateway) -> String {
    let page = gateway.fetch(&get("/", BROWSER)).text();
    page.split('|').nth(2).unwrap().to_owned()
}

#[test]
fn a_saved_page_is_sent_at_once_and_a_broken_one_is_not() {
    let gateway = start(
        "error_pages = { \"4xx\" = \"4xx.html\" }",
        "[[route]]\npath = \"/a\"\nupstream = \"echo:\"\n",
        &[("4xx.html", "<p>first {status}")],
    );
    assert_eq!(gateway.fetch(&get("/", BROWSER)).text(), "<p>first 404");
    let file = gateway.dir.path().join("4xx.html");
    write_atomically(&file, "<p>second {status}");
    wait_until("the page is read again", || gateway.fetch(&get("/", BROWSER)).text() == "<p>second 404");
    write_atomically(&file, "<p>third {stauts}");
    wait_until("the mistake is reported", || gateway.log().contains("did you mean `{status}`"));
    assert_eq!(gateway.fetch(&get("/", BROWSER)).text(), "<p>second 404");
    write_atomically(&file, &"x".repeat(256 * 1024 + 1));
    wait_until("the size is reported", || gateway.log().contains("larger than 256 KiB"));
    write_atomically(&file, " \n");
    wait_until("the empty page is reported", || gateway.log().contains("4xx.html` is empty"));
    assert_eq!(gateway.fetch(&get("/", BROWSER)).text(), "<p>second 404");
    write_atomically(&file, "<p>fourth");
    wait_until("the page is read again", || gateway.fetch(&get("/", BROWSER)).text() == "<p>fourth");
}
