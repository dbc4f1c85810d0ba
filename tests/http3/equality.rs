//! The same request over HTTP/1.1, HTTP/2 and HTTP/3 has the same outcome, and the server sees the same.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::Http3Gateway;
use crate::support::frames;
use crate::support::frames::{StreamEnd, Wire};
use crate::support::h3::{DATA, H3Client, H3Response, HEADERS, frame, head, section};
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};

/// Requests on a connection of HTTP/2 or HTTP/3 before the next one: the gateway allows some that are malformed.
const REQUESTS_MAX: u32 = 20;

const MAX_HEADER_BYTES: usize = 8192;
/// The Huffman code of 431.
const TOO_LARGE: [u8; 3] = [0x69, 0x90, 0xff];

/// A request as each protocol can transmit it.
#[derive(Clone, Debug)]
struct Request {
    method: &'static str,
    path: &'static str,
    host: &'static str,
    fields: Vec<(&'static str, String)>,
    /// A body, which may have trailers. Its length is stated if there is a `content-length` in `fields`.
    body: Option<String>,
    trailers: Vec<(&'static str, &'static str)>,
    /// HTTP/1.1 allows what HTTP/2 and HTTP/3 do not, or transmits it in another way.
    differs_in_http1: bool,
}

impl Request {
    fn new(method: &'static str, path: &'static str, host: &'static str) -> Request {
        Request { method, path, host, fields: vec![], body: None, trailers: vec![], differs_in_http1: false }
    }

    fn is_large(&self) -> bool {
        self.fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > MAX_HEADER_BYTES
    }

    fn has_length(&self) -> bool {
        self.fields.iter().any(|(name, _)| *name == "content-length")
    }

    /// Pseudo-headers and headers.
    fn list(&self) -> Vec<(&str, &str)> {
        let pseudo = [(":method", self.method), (":scheme", "https"), (":authority", self.host), (":path", self.path)];
        pseudo.into_iter().chain(self.fields.iter().map(|(name, value)| (*name, value.as_str()))).collect()
    }

    fn http1(&self) -> String {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", self.method, self.path, self.host);
        self.fields.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        match &self.body {
            Some(body) if self.has_length() => text + "\r\n" + body,
            Some(body) => {
                let trailers: String =
                    self.trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                text + &format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{trailers}\r\n", body.len())
            }
            None => text + "\r\n",
        }
    }

    fn http2(&self, stream: u32) -> Vec<u8> {
        let end = |is_end: bool| if is_end { frames::END_STREAM } else { 0 };
        let mut bytes = frames::headers(stream, frames::END_HEADERS | end(self.body.is_none()), &self.list());
        if let Some(body) = &self.body {
            bytes.extend(frames::frame(frames::DATA, end(self.trailers.is_empty()), stream, body.as_bytes()));
            if !self.trailers.is_empty() {
                bytes.extend(frames::headers(stream, frames::END_HEADERS | frames::END_STREAM, &self.trailers));
            }
        }
        bytes
    }

    fn http3(&self) -> Vec<u8> {
        let mut bytes = head(&self.list());
        if let Some(body) = &self.body {
            bytes.extend(frame(DATA, body.as_bytes()));
            if !self.trailers.is_empty() {
                bytes.extend(frame(HEADERS, &section(&self.trailers)));
            }
        }
        bytes
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    /// The status, and what the server saw, or the title of the problem.
    Answered(u16, String),
    /// The message is malformed: its stream is reset.
    Malformed,
}

impl Outcome {
    fn new(status: u16, body: String) -> Outcome {
        let problem: Option<serde_json::Value> = serde_json::from_str(&body).ok();
        let title = problem.and_then(|problem| Some(problem.get("title")?.as_str()?.to_owned()));
        match status {
            // On streams, a head that is too large gets no more than its status.
            431 => Outcome::Answered(status, String::new()),
            _ => Outcome::Answered(status, title.unwrap_or(body)),
        }
    }

    /// Leaves out how an empty body is framed: over HTTP/3, the end of the stream may arrive after the head has been
    /// forwarded.
    fn without_framing(self, request: &Request) -> Outcome {
        match self {
            Outcome::Answered(status, seen) if request.body.is_none() => {
                let framings = ["transfer-encoding: chunked\n", "content-length: 0\n"];
                Outcome::Answered(status, framings.iter().fold(seen, |seen, line| seen.replace(line, "")))
            }
            outcome => outcome,
        }
    }

    fn of_http3(result: Result<H3Response, String>) -> Outcome {
        match result {
            Ok(response) => Outcome::new(response.status(), response.text()),
            Err(error) => {
                assert!(error.contains("270"), "{error}");
                Outcome::Malformed
            }
        }
    }
}

/// A client for each protocol.
struct Clients<'a> {
    gateway: &'a Http3Gateway,
    http3: H3Client,
    sent: u32,
}

impl Clients<'_> {
    fn new(gateway: &Http3Gateway) -> Clients<'_> {
        let http3 = gateway.connect();
        // The only request that the limit of this route allows.
        assert_eq!(http3.get("/tight").status(), 200);
        Clients { gateway, http3, sent: 0 }
    }

    fn send(&mut self, request: &Request) -> [Outcome; 3] {
        self.sent += 1;
        if self.sent.is_multiple_of(REQUESTS_MAX) {
            self.http3 = self.gateway.connect();
        }
        let trust = Trust::in_ca(&self.gateway.ca);
        let mut client = trust.connect(self.gateway.addr(), "a.test");
        if request.differs_in_http1 {
            // The gateway may wait for the rest of its body.
            client.stream().sock.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        }
        let first = match client.try_fetch(&request.http1(), "") {
            Ok(response) => Outcome::new(response.status(), response.text()),
            Err(_) => Outcome::Malformed,
        };
        let mut client = trust.offering(&["h2"]).connect(self.gateway.addr(), "a.test");
        let mut wire = Wire::over(client.stream(), &[]);
        wire.send(request.http2(1));
        let response = wire.read_response(1);
        let second = match (response.ended, response.head.first()) {
            // 200, from the static table.
            (StreamEnd::Complete, Some(0x88)) => Outcome::new(200, String::from_utf8(response.body).unwrap()),
            // A head that is too large gets no more than its status.
            (StreamEnd::Complete, _) if response.body.is_empty() => {
                assert!(response.head.windows(TOO_LARGE.len()).any(|bytes| bytes == TOO_LARGE), "{request:?}");
                Outcome::new(431, String::new())
            }
            (StreamEnd::Complete, _) => {
                let status = response.problem_status().try_into().unwrap();
                Outcome::new(status, String::from_utf8(response.body).unwrap())
            }
            _ => Outcome::Malformed,
        };
        let mut exchange = self.http3.open(&request.http3());
        exchange.finish();
        [first, second, Outcome::of_http3(exchange.response())]
    }

    fn compare(&mut self, request: &Request) {
        let [first, second, third] = self.send(request).map(|outcome| outcome.without_framing(request));
        match (&second, &third) {
            // A head that is malformed as well as too large, or a request that is refused by its head: HTTP/3 reads bodies
            // and trailers only as far as they are wanted.
            (Outcome::Malformed, Outcome::Answered(431, _)) if request.is_large() => {}
            (Outcome::Malformed, Outcome::Answered(400..=499, _)) if request.body.is_some() => {}
            _ => assert_eq!(second, third, "HTTP/2 and HTTP/3: {request:?}"),
        }
        match (&first, &third) {
            _ if request.differs_in_http1 => {}
            // What resets a stream is answered over HTTP/1.1.
            (Outcome::Answered(400, _), Outcome::Malformed | Outcome::Answered(400, _)) => {}
            _ => assert_eq!(first, third, "HTTP/1.1 and HTTP/3: {request:?}"),
        }
    }
}

/// A server that responds with what it has received, but for what names the protocol of the client or the request.
fn mirror() -> Upstream {
    Upstream::start(|peer| {
        while let Some(head) = peer.head()? {
            let body = peer.body(&head)?;
            let cookies = head.all("cookie").join("; ");
            let mut fields: Vec<String> = head
                .fields()
                .filter(|(name, _)| {
                    !["via", "x-request-id", "traceparent", "cookie"].iter().any(|own| name.eq_ignore_ascii_case(own))
                })
                .map(|(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
                .collect();
            fields.sort();
            peer.send(ok(&format!(
                "{}\n{}\ncookies: {cookies}\n{} {:?}",
                head.start_line(),
                fields.join("\n"),
                String::from_utf8_lossy(&body),
                peer.trailers()
            )))?;
        }
        Ok(())
    })
}

fn start(upstream: &Upstream) -> Http3Gateway {
    let rest = format!(
        "[[route]]\nname = \"tight\"\npath = \"/tight\"\nrespond = {{ status = 200 }}\nlimits = [\"none\"]\n\
         [[route]]\nname = \"denied\"\npath = \"/denied\"\nupstream = \"app\"\ndeny = [\"127.0.0.0/8\"]\n\
         [[route]]\nname = \"app\"\npath = \"/a\"\nupstream = \"app\"\nrequest_trailers = true\nmax_body = \"1KiB\"\n\
         [[route]]\nname = \"root\"\npath = \"= /\"\nupstream = \"app\"\n\
         [upstream.app]\nservers = [\"{}\"]\n[limit.none]\nrate = \"1/day\"\nkey = \"all\"\n",
        upstream.url()
    );
    Http3Gateway::start(&format!("max_header_bytes = {MAX_HEADER_BYTES}\n"), "http3 = true", &rest)
}

#[test]
fn targets_and_hosts_have_the_same_outcome() {
    let upstream = mirror();
    let gateway = start(&upstream);
    let mut clients = Clients::new(&gateway);
    for path in [
        "/",
        "/a//b",
        "/a/./b/../c",
        "/%2e%2e/x",
        "/a%2Fb",
        "/a%00",
        "/a\\b",
        "/?q=\"x\"",
        "/a%zz",
        "/a?b#c",
        "/%61;x=1",
        "/a%5Cb",
        "//x",
        "/a%0d%0ab",
        "/a/\u{e9}",
        "/..",
        "/a b",
        "/tight",
        "/denied",
        "/nowhere",
        // No path begins like these. HTTP/1.1 has other forms of targets, which only proxies and `CONNECT` get.
        "",
        "x",
        "x?/",
        "*",
        "*?x",
        "%2fx",
        "a.test:443",
        "//",
        "//?x",
    ] {
        clients.compare(&Request::new("GET", path, "a.test"));
    }
    // A client of HTTP/1.1 writes `http://a.test?x` instead.
    clients.compare(&Request { differs_in_http1: true, ..Request::new("GET", "?x", "a.test") });
    for (method, host) in [
        ("get", "a.test"),
        ("DELETE", "A.TEST:443"),
        ("GET", "a.test."),
        ("GET", "a..b"),
        ("GET", "a.test:x"),
        ("GET", "u@a.test"),
        ("OPTIONS", "[::1]:443"),
        ("TRACE", "a.test"),
        ("POST", "a.test"),
        ("PUT", "a.test"),
        ("F O", "a.test"),
    ] {
        clients.compare(&Request::new(method, "/a", host));
    }
}

/// Headers that a request may have. The last says whether HTTP/1.1 allows it or transmits it in another way.
const FIELDS: [(&str, &str, bool); 24] = [
    ("x-a", "1", false),
    ("x-a", "2", false),
    ("x-empty", "", false),
    ("accept", "*/*;q=0.1", false),
    ("cookie", "a=1", false),
    ("cookie", "b=2; c=3", false),
    ("user-agent", "x", false),
    ("x-forwarded-for", "203.0.113.9", false),
    ("forwarded", "for=203.0.113.9", false),
    ("range", "bytes=0-1", false),
    ("x-high", "caf\u{e9}", false),
    ("te", "trailers", true),
    ("te", "gzip", true),
    ("connection", "close", true),
    ("connection", "x-a", true),
    ("keep-alive", "timeout=5", true),
    ("transfer-encoding", "chunked", true),
    ("upgrade", "websocket", true),
    ("X-Upper", "1", true),
    ("x-padded", " v ", true),
    ("x-control", "a\u{1}b", false),
    ("x-delete", "a\u{7f}b", false),
    ("x name", "1", false),
    ("host", "b.test", false),
];

fn random_request(random: &mut StdRng) -> Request {
    let method = *["GET", "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO"].choose(random).unwrap();
    let path = *["/a", "/a/b?c=d", "/a/%7e", "/a", "/tight", "/denied", "/nowhere"].choose(random).unwrap();
    let mut request = Request::new(method, path, "a.test");
    for _ in 0..random.random_range(0..5) {
        let (name, value, _) = *FIELDS.choose(random).unwrap();
        request.fields.push((name, value.to_owned()));
    }
    match random.random_range(0..12) {
        0 => request.fields = (0..150).map(|number| ("x-many", number.to_string())).collect(),
        1 => request.fields = vec![("x-long", "l".repeat(9000))],
        _ => {}
    }
    request.differs_in_http1 = request.fields.iter().any(|(name, value)| {
        FIELDS.iter().any(|(listed, of_it, differs)| *differs && listed == name && of_it == value)
    });
    if random.random_ratio(1, 2) {
        let length = *[1, 10, 1024, 1025, 3000].choose(random).unwrap();
        request.body = Some("b".repeat(length));
        match random.random_range(0..4) {
            0 => request.fields.push(("content-length", length.to_string())),
            1 => {
                // HTTP/1.1 has the next request there, or waits for the rest.
                let wrong = *["7", "07", "x", "", "1, 1", "18446744073709551616"].choose(random).unwrap();
                request.fields.push(("content-length", wrong.to_owned()));
                request.differs_in_http1 = true;
            }
            _ => {}
        }
        for _ in 0..random.random_range(0..3) {
            let (name, value, differs) = *[
                ("x-sum", "1", false),
                ("x-sum", "2", false),
                ("content-type", "a/b", false),
                (":path", "/", true),
                ("X-Upper", "1", true),
                ("connection", "x", true),
                ("x-control", "a\u{1}b", false),
            ]
            .choose(random)
            .unwrap();
            request.trailers.push((name, value));
            request.differs_in_http1 |= differs || request.has_length();
        }
        if random.random_ratio(1, 2) {
            request.fields.push(("trailer", "x-sum".to_owned()));
        }
    }
    request
}

#[test]
fn random_requests_have_the_same_outcome() {
    let upstream = mirror();
    let gateway = start(&upstream);
    let mut clients = Clients::new(&gateway);
    let seed = std::env::var("SEED").ok().map_or(1, |seed| seed.parse().expect("SEED is a number"));
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..150 {
        clients.compare(&random_request(&mut random));
    }
}
