//! What limits read is what the server gets. Random requests over HTTP/1.1 and HTTP/2, with everything that a gateway
//! rewrites or drops on the way: the values that limits have read, from the access log, are compared with those that a
//! server behind the gateway finds in the request that it got.

use std::collections::BTreeMap;
use std::fs;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use percent_encoding::percent_decode_str;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::http::Message;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Headers that a limit of the route reads.
const READ: [&str; 9] =
    ["x-a", "x-b", "connection", "upgrade", "trailer", "expect", "content-length", "host", "user-agent"];
const ROUTES: [&str; 4] = ["plain", "with-trailers", "websocket", "slashes"];

fn config(url: &str) -> String {
    let mut sources: Vec<String> = READ.iter().map(|name| format!("header:{name}")).collect();
    sources.extend(["cookie:c", "query:q", "path", "host", "method"].map(str::to_owned));
    let limits: Vec<String> = (0..sources.len()).map(|i| format!("\"l{i}\"")).collect();
    let mut config = "[admin]\nkeys = { header = \"plain\", cookie = \"plain\", query = \"plain\" }\n".to_owned();
    for (i, source) in sources.iter().enumerate() {
        config += &format!("[limit.l{i}]\nrate = \"1000000/s\"\nkey = \"{source}\"\nmissing = \"skip\"\n");
    }
    let options = ["", "request_trailers = true", "upgrades = [\"websocket\"]", "merge_slashes = false"];
    for (name, more) in ROUTES.iter().zip(options) {
        config += &format!(
            "[[route]]\npath = \"/{name}\"\nupstream = \"{url}\"\nlimits = [{}]\nstrictness = \"{}\"\n{more}\n",
            limits.join(", "),
            if more.is_empty() { "monitor" } else { "strict" },
        );
    }
    config
}

/// A server that reports each head, and then the bytes of its chunked body with the trailers.
fn server() -> Upstream {
    Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            if head.get("expect").is_some() {
                peer.send("HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let mut rest = String::new();
            if head.get("transfer-encoding").is_some() {
                while !(rest.ends_with("\r\n\r\n") && rest.contains("\r\n0\r\n")) {
                    rest.push(char::from(peer.exactly(1)?[0]));
                }
            } else {
                peer.body(&head)?;
            }
            peer.note(&format!("BODY\r\n{}\r\n\r\n", rest.split_once("\r\n0\r\n").unwrap_or_default().1));
            peer.send(ok("ok"))?;
        }
        Ok(())
    })
}

fn pick<'a>(rng: &mut StdRng, from: &[&'a str]) -> &'a str {
    from.choose(rng).unwrap()
}

/// The lines of a random head over HTTP/1.1. Names and values are those that a gateway treats on the way, oddly spelled.
fn random_lines(rng: &mut StdRng) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for _ in 0..rng.random_range(0..7) {
        let name = pick(
            rng,
            &[
                "x-a",
                "X-A",
                "x-b",
                "x_a",
                "x.b",
                "Connection",
                "connection",
                "Upgrade",
                "TE",
                "Trailer",
                "Cookie",
                "User-Agent",
                "Keep-Alive",
                "Proxy-Connection",
                "x-c",
            ],
        );
        let value = match name.to_ascii_lowercase().as_str() {
            "connection" => pick(
                rng,
                &[
                    "x-a",
                    "close, X-A",
                    "upgrade",
                    "Upgrade, x-b",
                    "keep-alive",
                    "te, x-c",
                    "user-agent",
                    ",x-a,,x-b",
                    "expect",
                    "cookie",
                ],
            ),
            "upgrade" => pick(
                rng,
                &[
                    "websocket",
                    "WebSocket",
                    "websocket,",
                    ", websocket",
                    "h2c, websocket",
                    "foo, websocket",
                    "h2c",
                    "foo/2",
                    "web socket",
                ],
            ),
            "te" => pick(rng, &["trailers", "gzip, Trailers", "gzip", "trailers;q=0.5"]),
            "trailer" => pick(rng, &["x-a", "x-t", "x-t, x-a, x-b", "content-length, x-t", "X-T, user-agent"]),
            "cookie" => pick(rng, &["c=1", "c=2; d=3", "d=3;c=4", "d=1", "c=1; c=2", ""]),
            _ => pick(rng, &["1", "2", "a b", "", "%41", "\"x\""]),
        };
        lines.push((name.to_owned(), value.to_owned()));
    }
    lines
}

fn random_target(rng: &mut StdRng, number: usize) -> String {
    let route = pick(rng, &ROUTES);
    let plain = ["", "/", "/a/../b", "//a", "//a//..///b//", "/%61", "/a%2e", "/a<b", "/{x}", "/a`b"];
    let reserved =
        ["/%40a", "/@a", "/g%3Ax", "/g%3ax", "/g:x", "/%2Ba+", "/a%3Bb;c", "/%21%24%26%27%28%29%2A%2C%3D", "/%2540a"];
    let path = if rng.random_bool(0.5) { pick(rng, &plain) } else { pick(rng, &reserved) };
    let query = pick(rng, &["", "?", "?q=1", "?q=a%20b", "?q=\"x\"", "?r=1&q=<", "?q=1&q=2", "?Q=1", "?q", "?q=`"]);
    format!("/{route}/{number}{path}{query}")
}

const TRAILERS: [(&str, &str); 5] =
    [("x-a", "t1"), ("x-t", "t2"), ("user-agent", "t3"), ("x-b", "t4"), ("cookie", "c=t5")];

/// Sends a random request over HTTP/1.1. Returns the status of the response; 101 never occurs.
fn send_http1(gateway: &Gateway, rng: &mut StdRng, number: usize) -> u16 {
    let target = random_target(rng, number);
    let target = if rng.random_bool(0.1) { format!("http://a.test{target}") } else { target };
    let mut head = format!("{} {target} HTTP/1.1\r\n", pick(rng, &["GET", "POST", "PUT"]));
    let valid = ["Host: a.test\r\n", "Host: A.test:80\r\n", "host: a.test.\r\n"];
    head +=
        if rng.random_bool(0.9) { pick(rng, &valid) } else { pick(rng, &["Host: u@a.test\r\n", "Host: a..test\r\n"]) };
    random_lines(rng).iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let body = match rng.random_range(0..5) {
        0 => "\r\n".to_owned(),
        1 => "Content-Length: 003\r\n\r\nabc".to_owned(),
        2 => "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        3 => "Expect: 100-Continue\r\n\r\n".to_owned(),
        _ => {
            let trailers: String = TRAILERS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{trailers}\r\n")
        }
    };
    let mut client = gateway.client();
    client.send(head + &body);
    loop {
        let status = client.try_read_head().unwrap().status();
        if status != 100 {
            return status;
        }
    }
}

/// Sends a random request over HTTP/2. Returns the status of the response, or 400 if its stream was reset.
fn send_http2(client: &mut H2Client, rng: &mut StdRng, number: usize) -> u16 {
    let target = random_target(rng, number).replace(['"', '<', '`'], "x");
    let host = if rng.random_bool(0.9) { "a.test" } else { pick(rng, &["u@a.test", "a..test"]) };
    let mut request = Request::post(format!("http://{host}{target}")).body(()).unwrap();
    for (name, value) in random_lines(rng) {
        let is_hop = ["connection", "upgrade", "keep-alive", "proxy-connection"].contains(&&*name.to_ascii_lowercase());
        if !is_hop && (name != "TE" || value == "trailers") {
            request.headers_mut().append(
                HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap(),
                HeaderValue::from_str(&value).unwrap(),
            );
        }
    }
    if rng.random_bool(0.2) {
        request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
    }
    let trailers = rng.random_bool(0.7).then(|| {
        let pairs = TRAILERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        HeaderMap::from_iter(pairs)
    });
    client.try_fetch(request, Sent { body: b"abc", trailers }).map_or(400, |response| response.status())
}

/// Writes the decoded path of a server in its canonical form: plain where RFC 3986 allows it, encoded otherwise.
fn encode_path(decoded: Vec<u8>) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    decoded.into_iter().map(encode).collect()
}

/// Returns the values of all sources as a server finds them in its request; `None` if it may read several.
fn read_as_server(request: &Message) -> BTreeMap<String, Option<String>> {
    let mut values = BTreeMap::new();
    let mut add = |name: String, found: Vec<String>| match &found[..] {
        [] => {}
        [value] => drop(values.insert(name, Some(value.clone()))),
        _ => drop(values.insert(name, None)),
    };
    for name in READ {
        add(format!("header:{name}"), request.all(name).iter().map(|value| (*value).to_owned()).collect());
    }
    let pairs = request.all("cookie").join("; ");
    let cookies = pairs.split(';').filter_map(|pair| pair.trim().strip_prefix("c="));
    add("cookie:c".to_owned(), cookies.map(str::to_owned).collect());
    let (path, query) = request.target().split_once('?').unwrap_or((request.target(), ""));
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8().unwrap().into_owned();
    let parameters = query.split('&').filter(|pair| !pair.is_empty());
    let parameters = parameters.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    add(
        "query:q".to_owned(),
        parameters.filter(|(name, _)| decode(name) == "q").map(|(_, value)| decode(value)).collect(),
    );
    add("path".to_owned(), vec![encode_path(percent_decode_str(path).collect())]);
    let host = request.get("host").unwrap();
    // What is not a host is none to a limit, and the server gets it as it was written.
    let is_host = !host.contains('@') && !host.contains("..");
    add("host".to_owned(), vec![if is_host { host.split(':').next().unwrap().to_owned() } else { String::new() }]);
    add("method".to_owned(), vec![request.start_line().split(' ').next().unwrap().to_owned()]);
    values
}

/// Returns the values that limits have read, by the `keys` of a log line.
fn read_as_limits(entry: &Value) -> BTreeMap<String, Option<String>> {
    let keys = entry["keys"].as_str().unwrap_or_else(|| panic!("no keys in {entry}"));
    let parts = keys.split(',').filter_map(|part| part.split_once('='));
    let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    parts.map(|(name, value)| (name.to_owned(), Some(decode(value)))).collect()
}

#[test]
fn limits_read_what_the_server_gets() {
    const REQUESTS: usize = 600;
    let server = server();
    let gateway = Gateway::with("access_log = { to = \"access.log\", all_keys = true }", &config(&server.url()));
    let mut h2 = H2Client::connect(gateway.addr);
    let seed = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut forwarded = BTreeMap::new();
    for number in 0..REQUESTS {
        let status = match rng.random_bool(0.7) {
            true => send_http1(&gateway, &mut rng, number),
            false => send_http2(&mut h2, &mut rng, number),
        };
        match status {
            200 => {
                let (head, body) = (server.request(), server.request());
                for (name, value) in body.fields() {
                    let is_read = head.get(name).is_some() || name == "cookie" || READ.contains(&name);
                    assert!(
                        !is_read && head.target().starts_with("/with-trailers"),
                        "{name}: {value} of {}",
                        head.head
                    );
                }
                forwarded.insert(number, head);
            }
            status => assert!((400..500).contains(&status), "{status}, seed {seed}"),
        }
    }
    assert!(server.requests().is_empty(), "the server got more than was answered");
    let path = gateway.dir.path().join("access.log");
    let lines = || fs::read_to_string(&path).unwrap_or_default();
    wait_until("all requests are logged", || lines().lines().count() >= REQUESTS);
    let mut compared = 0;
    for line in lines().lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let number = entry["path"].as_str().and_then(|path| path.split('/').nth(2)?.parse::<usize>().ok());
        let Some(request) = number.and_then(|number| forwarded.remove(&number)) else { continue };
        assert_eq!(read_as_limits(&entry), read_as_server(&request), "seed {seed}, {}", request.head);
        compared += 1;
    }
    assert!(forwarded.is_empty() && compared > REQUESTS / 4, "{compared} compared, seed {seed}: {forwarded:?}");
}
