//! httpbin under gunicorn: methods, bodies, redirects, cookies, streams, encodings, ranges.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::app::{App, venv};
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::http::Message;

/// How the bodies of two responses are compared.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    Same,
    /// JSON that shows the request's fields, so those that the gateway adds are left out.
    Shown,
}

struct Case {
    method: &'static str,
    target: &'static str,
    fields: &'static str,
    body: Vec<u8>,
    compare: Body,
    status: u16,
}

fn case(method: &'static str, target: &'static str, fields: &'static str, compare: Body, status: u16) -> Case {
    Case { method, target, fields, body: Vec::new(), compare, status }
}

fn upload(method: &'static str, target: &'static str, fields: &'static str, body: &[u8]) -> Case {
    Case { body: body.to_vec(), ..case(method, target, fields, Body::Shown, 200) }
}

fn cases() -> Vec<Case> {
    use Body::{Same, Shown};
    let multipart = "--XX\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n1\r\n--XX\r\n\
        content-disposition: form-data; name=\"f\"; filename=\"f.bin\"\r\n\
        content-type: application/octet-stream\r\n\r\n\0\x01\x02\r\n--XX--\r\n";
    let mut cases = vec![
        case("GET", "/get?x=1&y=a%20b&y=c", "accept: */*\r\nuser-agent: test\r\n", Shown, 200),
        case("GET", "/headers", "x-twice: 1\r\nx-twice: 2\r\n", Shown, 200),
        case("GET", "/anything/a/b;c=d?e=%2F", "", Shown, 200),
        case("HEAD", "/html", "", Same, 200),
        case("HEAD", "/get", "", Shown, 200),
        case("OPTIONS", "/get", "", Same, 200),
        case("GET", "/html", "", Same, 200),
        case("GET", "/json", "", Same, 200),
        case("GET", "/xml", "", Same, 200),
        case("GET", "/robots.txt", "", Same, 200),
        case("GET", "/encoding/utf8", "", Same, 200),
        case("GET", "/image/png", "", Same, 200),
        case("GET", "/redirect/3", "", Same, 302),
        case("GET", "/absolute-redirect/2", "", Same, 302),
        case("GET", "/redirect-to?url=http%3A%2F%2Fexample.com%2F&status_code=307", "", Same, 307),
        case("GET", "/cookies/set?a=1&b=2", "", Same, 302),
        case("GET", "/cookies/delete?a", "cookie: a=1\r\n", Same, 302),
        case("GET", "/cookies", "cookie: a=1; b=2\r\n", Same, 200),
        case("GET", "/stream/20", "", Shown, 200),
        case("GET", "/stream-bytes/50000?seed=1&chunk_size=777", "", Same, 200),
        case("GET", "/bytes/65537?seed=2", "", Same, 200),
        case("GET", "/drip?numbytes=10&duration=1&delay=0", "", Same, 200),
        case("GET", "/delay/1", "", Shown, 200),
        case("GET", "/gzip", "accept-encoding: gzip\r\n", Shown, 200),
        case("GET", "/deflate", "accept-encoding: deflate\r\n", Shown, 200),
        case("GET", "/brotli", "accept-encoding: br\r\n", Shown, 200),
        case("GET", "/basic-auth/user/secret", "", Same, 401),
        case("GET", "/basic-auth/user/secret", "authorization: Basic dXNlcjpzZWNyZXQ=\r\n", Same, 200),
        case("GET", "/bearer", "authorization: Bearer t0ken\r\n", Same, 200),
        case("GET", "/range/1024", "range: bytes=100-299\r\n", Same, 206),
        case("GET", "/range/1024", "range: bytes=-24\r\n", Same, 206),
        case("GET", "/range/1024", "range: bytes=2000-\r\n", Same, 416),
        case("GET", "/etag/x", "if-none-match: \"x\"\r\n", Same, 304),
        case("GET", "/cache", "if-modified-since: Mon, 01 Jan 2024 00:00:00 GMT\r\n", Same, 304),
        case("GET", "/response-headers?x-a=1&x-a=2", "", Same, 200),
        case("GET", "/nowhere", "", Same, 404),
        case("POST", "/get", "content-length: 0\r\n", Same, 405),
        upload(
            "POST",
            "/post",
            "content-type: application/x-www-form-urlencoded\r\ncontent-length: 11\r\n",
            b"a=1&b=2&b=3",
        ),
        upload(
            "POST",
            "/post?q=1",
            "content-type: application/json\r\ncontent-length: 15\r\n",
            b"{\"a\": [1, true]}".get(..15).unwrap(),
        ),
        upload("PUT", "/put", "content-type: text/plain\r\ncontent-length: 4\r\n", b"text"),
        upload("PATCH", "/patch", "content-length: 3\r\n", b"\x00\xfe\xff"),
        upload("DELETE", "/delete", "", b""),
        upload("DELETE", "/delete", "content-length: 4\r\n", b"body"),
        upload("POST", "/post", "transfer-encoding: chunked\r\n", b"5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"),
    ];
    let fields = "content-type: multipart/form-data; boundary=XX\r\ncontent-length: ";
    let fields: &'static str = Box::leak(format!("{fields}{}\r\n", multipart.len()).into_boxed_str());
    cases.push(upload("POST", "/post", fields, multipart.as_bytes()));
    for (target, status) in
        [("/status/204", 204), ("/status/400", 400), ("/status/418", 418), ("/status/429", 429), ("/status/503", 503)]
    {
        cases.push(case("GET", target, "", Same, status));
    }
    cases
}

fn fetch(client: &mut Client, case: &Case) -> Message {
    let Case { method, target, fields, .. } = case;
    client.fetch(&format!("{method} {target} HTTP/1.1\r\nhost: shop.test\r\n{fields}\r\n"), &case.body)
}

/// Returns the headers that must be equal, sorted.
fn fields(response: &Message, compare: Body) -> Vec<(String, String)> {
    let hop = ["connection", "keep-alive", "transfer-encoding", "date", "via", "ratelimit", "ratelimit-policy"];
    let all = response.fields().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let mut kept: Vec<(String, String)> = all
        .filter(|(name, _)| !hop.contains(&name.as_str()) && (compare == Body::Same || name != "content-length"))
        .collect();
    kept.sort();
    kept
}

/// Returns the lines of JSON, without those that the gateway's headers change.
fn shown(response: &Message) -> Vec<Value> {
    let body = match response.get("content-encoding") {
        Some(encoding) => decoded(encoding, &response.body),
        None => response.body.clone(),
    };
    let values = serde_json::Deserializer::from_slice(&body).into_iter::<Value>();
    let without = |mut value: Value| {
        if let Some(headers) = value["headers"].as_object_mut() {
            headers.retain(|name, _| {
                let name = name.to_ascii_lowercase();
                !name.starts_with("x-forwarded-")
                    && !["via", "x-real-ip", "x-request-id", "expect"].contains(&name.as_str())
            });
        }
        value
    };
    values.map(|value| without(value.unwrap_or_else(|error| panic!("{error}: {:?}", response.text())))).collect()
}

/// Decodes a body with the libraries that httpbin encodes with.
fn decoded(encoding: &str, body: &[u8]) -> Vec<u8> {
    let decode = match encoding {
        "gzip" => "import gzip; d = gzip.decompress",
        "deflate" => "import zlib; d = zlib.decompress",
        "br" => "import brotlicffi; d = brotlicffi.decompress",
        other => panic!("unknown content-encoding {other}"),
    };
    let program = format!("import sys; {decode}; sys.stdout.buffer.write(d(sys.stdin.buffer.read()))");
    let mut python = Command::new(venv().join("bin/python"))
        .args(["-c", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(body).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "not {encoding}");
    output.stdout
}

/// Sends all requests directly and through the gateway, on one connection each, and compares the responses.
fn compare(direct: SocketAddr, gateway: SocketAddr) {
    let cases = cases();
    let responses = |addr: SocketAddr, keep: bool| -> Vec<Message> {
        let mut client = Client::connect(addr);
        let response = |case: &Case| {
            // The application may close after a response; the gateway must not.
            if !keep {
                client = Client::connect(addr);
            }
            fetch(&mut client, case)
        };
        cases.iter().map(response).collect()
    };
    // One after the other: httpbin's seeded bytes come from a generator that all its threads share.
    let (expected, found) = (responses(direct, false), responses(gateway, true));
    for ((case, expected), found) in cases.iter().zip(&expected).zip(&found) {
        let what = format!("{} {} {:?}", case.method, case.target, case.fields);
        assert_eq!((expected.status(), found.status()), (case.status, case.status), "{what}");
        assert_eq!(fields(found, case.compare), fields(expected, case.compare), "{what}");
        match case.compare {
            Body::Same => assert!(found.body == expected.body, "{what}: the bodies differ"),
            Body::Shown => assert_eq!(shown(found), shown(expected), "{what}"),
        }
        assert!(found.get("via").is_some(), "{what}");
    }
}

#[test]
fn every_response_is_the_applications_own() {
    let app = App::httpbin();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nrate = \"1000/s\"\nburst = 2000\nkey = \"ip\"\n",
        app.url()
    ));
    compare(app.addr, gateway.addr);
}

#[test]
fn proxy_does_the_same_without_a_file_and_limits() {
    let app = App::httpbin();
    let gateway = Gateway::proxy(&["--to", &app.url(), "--limit", "1000/s burst 2000 by ip"]);
    compare(app.addr, gateway.addr);

    let gateway = Gateway::proxy(&["--to", &app.url(), "--limit", "10/s burst 20 by ip"]);
    let mut client = gateway.client();
    let start = Instant::now();
    let mut admitted = 0;
    let refused = loop {
        let response = client.fetch(&get("/robots.txt", ""), "");
        if response.status() == 429 {
            break response;
        }
        assert_eq!(response.status(), 200);
        assert!(response.get("ratelimit-policy").unwrap().ends_with(";q=20;w=2"), "{}", response.head);
        admitted += 1;
        assert!(start.elapsed() < Duration::from_secs(8), "{admitted} requests were admitted without a refusal");
    };
    let refilled = start.elapsed().as_millis() / 100;
    assert!(admitted >= 20 && admitted <= 20 + refilled, "{admitted} admitted, {refilled} refilled in this time");
    assert_eq!((refused.get("retry-after"), refused.get("via")), (Some("1"), None));
    assert_eq!(Client::from([127, 0, 0, 2].into(), gateway.addr).fetch(&get("/robots.txt", ""), "").status(), 200);
}

#[test]
fn an_echo_of_100_mb_uses_constant_memory() {
    const BLOCK: usize = 64 * 1024;
    const BLOCKS: usize = 1600;
    let block = |number: usize| format!("{number:016}").repeat(BLOCK / 16).into_bytes();
    let app = App::httpbin();
    let gateway =
        Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\nmax_body = \"200MiB\"\n", app.url()));
    let small = "POST /post HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\ncontent-length: 65536\r\n\r\n";
    let mut client = gateway.client();
    assert_eq!(client.fetch(small, block(1)).status(), 200);
    let memory = gateway.watch_memory();

    client.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.stream().set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    client.send(format!(
        "POST /post HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        BLOCK * BLOCKS
    ));
    for number in 0..BLOCKS {
        client.send(block(number));
    }
    // httpbin responds with JSON that shows the text it got, digits and nothing to escape.
    let mut response = Vec::with_capacity(BLOCK * (BLOCKS + 1));
    let head = client.stream_response("POST", |piece| response.extend_from_slice(piece)).unwrap();
    assert_eq!(head.status(), 200);
    let start = response.windows(9).position(|window| window == b"\"data\": \"").expect("httpbin shows the data") + 9;
    for number in 0..BLOCKS {
        let at = start + number * BLOCK;
        assert!(response[at..at + BLOCK] == block(number), "block {number} differs");
    }
    assert_eq!(response[start + BLOCKS * BLOCK], b'"');
    let grown = memory.peak();
    assert!(grown < 20 << 20, "the gateway grew by {grown} bytes");
}
