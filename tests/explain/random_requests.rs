//! The verdict on random requests is that of the running gateway: `sluicegate test` gets the same requests in the same
//! order, in virtual time, and its limits are exhausted in the same way.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;

use serde_json::Value;

use super::run;
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

const REQUESTS: usize = 10_000;
const SERVER: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\naccess_log = { format = \"json\" }\n\
    cors = { origins = [\"https://page.test\"] }\n";

/// Routes of all strictnesses and actions. No limit refills noticeably while the test runs.
const CONFIG: &str = r#"
[[route]]
name = "strict"
host = ["a.test", "*.a.test"]
path = "/a"
upstream = "echo:"
rewrite = { strip_prefix = "/a" }
limits = ["per-ip", "per-key", "overflow"]
deny = ["192.0.2.66"]
allow = ["192.0.2.77"]
max_body = 20
[[route]]
name = "strict-post"
host = "a.test"
path = "/a/b"
methods = ["POST", "PUT"]
upstream = "echo:"
cors = { origins = ["~ https://.*[.]test"], methods = "*" }
limits = ["costly", "by-body"]
[[route]]
name = "versioned"
path = "/a"
header = { x-version = "2" }
respond = { status = 204 }
limits = ["shadow", "repeated"]
[[route]]
name = "lenient"
path = "/b/{id}"
upstream = "echo:"
strictness = "defensive"
limits = ["per-param"]
[[route]]
name = "monitored"
path = "/c"
respond = { status = 200, body = "c" }
cors = false
strictness = "monitor"
limits = ["by-query", "required"]
[[route]]
name = "regex"
path = "~ ^/r/[0-9]+$"
redirect = { to = "https://new.test{path}", status = 308 }
[[route]]
name = "login"
path = "/login"
upstream = "echo:"
auth = { jwt = "main" }
limits = ["per-ip"]
[jwt.main]
key = "a-secret-of-at-least-thirty-two-bytes"
algorithms = ["HS256"]
[limit.per-ip]
algorithm = "fixed_window"
rate = "60/day"
key = "ip"
[limit.overflow]
algorithm = "fixed_window"
rate = "30/day"
key = "ip"
after = "per-ip"
[limit.per-key]
rate = "40/day"
key = "header:x-api-key"
missing = "skip"
when = { method = ["GET", "HEAD"], header = { x-plan = ["free", "trial-*"] } }
overrides = [{ key = ["vip"], rate = "unlimited" }, { key = ["blocked"], rate = 0 }, { key = ["more"], rate = "400/day" }]
[limit.costly]
algorithm = "fixed_window"
rate = "5/day"
key = "all"
cost = "header:x-cost"
[limit.by-body]
algorithm = "sliding_log"
rate = "60/day"
key = "json:/user"
missing = "refuse"
[limit.shadow]
rate = "1/day"
key = "all"
mode = "shadow"
[limit.repeated]
algorithm = "fixed_window"
rate = "50/day"
key = "header:x-api-key"
missing = "shared"
[limit.per-param]
algorithm = "gcra"
rate = "30/day"
burst = 30
key = ["param:id", "method"]
[limit.by-query]
algorithm = "fixed_window"
rate = "100/day"
key = "query:k"
missing = "skip"
repeated = "last"
when = { query = { act = "1-9" } }
not_integer = "ignore"
[limit.required]
algorithm = "calendar"
rate = "300/month"
zone = "UTC"
key = "cookie:session"
missing = "refuse"
"#;

/// A small generator with a fixed seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn pick<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

struct RandomRequest {
    method: String,
    host: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

fn random_target(random: &mut Random) -> String {
    let starts = ["/a", "/a", "/a/b", "/b/7", "/b/x%20y", "/c", "/c", "/r/12", "/login", "/", "/A"];
    let pieces = [
        "", "", "", "/", "/b", "/x", "//", "/./", "/../a", "/%2e%2e/", "/%2f", "%2Fb", "/%zz", "/\\x", "/é", "/%C3%A9",
        ";p=1", "/..;/", "/%61", "%00", "/*", "/~", "/%7e", "#f",
    ];
    let mut target = random.pick(&starts).to_owned();
    for _ in 0..random.below(3) {
        target += random.pick(&pieces);
    }
    let queries = ["", "", "?k=1", "?k=1&k=2", "?act=5&k=3", "?act=x&k=4", "?act=12", "?é", "?a=%zz", "?k=%31&act=1"];
    target + random.pick(&queries)
}

fn random_request(random: &mut Random, index: usize) -> RandomRequest {
    let methods =
        ["GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "DELETE", "get", "OPTIONS", "OPTIONS", "BREW", "options"];
    let hosts = [
        "a.test",
        "a.test",
        "a.test",
        "A.Test",
        "x.a.test",
        "a.test:80",
        "a.test.",
        "b.test",
        "u@a.test",
        "a_b",
        "[::1]",
        "a..test",
    ];
    let mut request = RandomRequest {
        method: random.pick(&methods).to_owned(),
        host: random.pick(&hosts).to_owned(),
        target: random_target(random),
        headers: vec![("x-request-id".to_owned(), format!("request-{index:05}"))],
        body: None,
    };
    let forwarded = [
        "192.0.2.1",
        "192.0.2.2, 10.0.0.1",
        "192.0.2.66",
        "192.0.2.77",
        "unknown",
        "1.1.1.1, x, 10.0.0.1",
        "::ffff:192.0.2.1",
        "10.0.0.9",
        ",,192.0.2.3:80",
    ];
    let choices: [(&str, &[&str], usize); 15] = [
        ("origin", &["https://page.test", "https://evil.example", "null", "x"], 3),
        ("access-control-request-method", &["GET", "PUT", "put", "BREW", "a b"], 3),
        ("access-control-request-method", &["GET"], 30),
        ("x-forwarded-for", &forwarded, 2),
        ("forwarded", &["for=192.0.2.4", "for=\"[2001:db8::1]:80\";proto=http", "for=_x"], 6),
        ("x-api-key", &["a", "b", "vip", "blocked", "more", ""], 2),
        ("x-api-key", &["a", "b"], 12),
        ("x-plan", &["free", "trial-1", "paid"], 2),
        ("x-cost", &["1", "3", "x", "-1", "99999", "1 "], 3),
        ("x-version", &["2", "3"], 4),
        ("cookie", &["session=1", "session=2; a=b", "session=1; session=2", "a=b"], 2),
        ("connection", &["keep-alive", "x-api-key", "host", "upgrade"], 15),
        ("expect", &["200-ok"], 40),
        ("transfer-encoding", &["gzip", "identity"], 80),
        ("authorization", &["Bearer x.y.z", "Basic YTpi"], 5),
    ];
    for (name, values, one_in) in choices {
        if random.is_one_in(one_in) {
            request.headers.push((name.to_owned(), random.pick(values).to_owned()));
        }
    }
    if matches!(request.method.as_str(), "POST" | "PUT") && random.is_one_in(2) {
        let bodies =
            ["{\"user\": \"u\"}", "{\"user\": 5}", "{\"user\"", "{}", "{\"user\": \"a long one, for max_body\"}"];
        request.body = Some(random.pick(&bodies).to_owned());
        let types = ["application/json", "application/json", "text/plain"];
        request.headers.push(("content-type".to_owned(), random.pick(&types).to_owned()));
    }
    request
}

impl RandomRequest {
    /// The value of `x-request-id`.
    fn id(&self) -> &str {
        &self.headers[0].1
    }

    fn head(&self) -> String {
        let RandomRequest { method, host, target, headers, body } = self;
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n");
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let is_framed = headers.iter().any(|(name, _)| name == "transfer-encoding");
        if let Some(body) = body.as_ref().filter(|_| !is_framed) {
            let _ = write!(head, "content-length: {}\r\n", body.len());
        }
        head + "\r\n"
    }

    fn write_case(&self, cases: &mut String) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let mut values: Vec<(&str, Vec<String>)> = Vec::new();
        for (name, value) in &self.headers {
            match values.iter_mut().find(|(known, _)| known == name) {
                Some((_, values)) => values.push(quoted(value)),
                None => values.push((name, vec![quoted(value)])),
            }
        }
        let headers: Vec<String> =
            values.iter().map(|(name, values)| format!("{name} = [{}]", values.join(", "))).collect();
        let request = quoted(&format!("{} http://{}{}", self.method, self.host, self.target));
        let _ = write!(cases, "[[case]]\nrequest = {request}\nheaders = {{ {} }}\nexpect = {{}}\n", headers.join(", "));
        if let Some(body) = &self.body {
            let _ = writeln!(cases, "body = {}", quoted(body));
        }
    }
}

/// Sends all requests, on one connection as long as it stays open. Returns the statuses.
fn send_all(addr: SocketAddr, requests: &[RandomRequest]) -> Vec<u16> {
    let mut client = None::<Client>;
    let mut statuses = Vec::with_capacity(requests.len());
    for request in requests {
        let mut connected = client.take().unwrap_or_else(|| Client::connect(addr));
        let response = connected.fetch(&request.head(), request.body.as_deref().unwrap_or_default());
        statuses.push(response.status());
        if response.get("connection").is_none_or(|value| value != "close") {
            client = Some(connected);
        }
    }
    statuses
}

/// Sends the requests to the gateway at `addr` and has `sluicegate test` explain the same. Compares both, and returns how
/// often each outcome was seen.
fn compare_all(gateway: &Gateway, addr: SocketAddr, requests: &[RandomRequest]) -> HashMap<String, usize> {
    let mut cases = String::new();
    requests.iter().for_each(|request| request.write_case(&mut cases));
    fs::write(gateway.dir.path().join("cases.toml"), cases).unwrap();
    let (explained, statuses) = std::thread::scope(|scope| {
        let explained = scope.spawn(|| run(gateway.dir.path(), &["test", "--format", "json", "cases.toml"]));
        let statuses = send_all(addr, requests);
        (explained.join().unwrap(), statuses)
    });
    assert_eq!(explained.0, 0, "{}", explained.2);
    let explained: Value = serde_json::from_str(&explained.1).unwrap();
    let explained = explained["cases"].as_array().unwrap();

    let last = requests.last().unwrap().id();
    wait_until("the last request is logged", || gateway.stdout().contains(last));
    let log = gateway.stdout();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let by_id: HashMap<&str, &Value> =
        lines.iter().filter_map(|line| Some((line["request_id"].as_str()?, line))).collect();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        let found = &explained[index]["found"];
        let line = by_id.get(request.id());
        let about = || format!("{}{}\n{found}\n{line:?}", request.head(), request.body.as_deref().unwrap_or(""));
        assert_eq!(found["status"], statuses[index], "{}", about());
        let decision = found["decision"].as_str().unwrap();
        let is_preflight = request.headers.iter().any(|(name, _)| name == "access-control-request-method");
        if is_preflight && found["status"] == 204 {
            *seen.entry("preflight".to_owned()).or_default() += 1;
        }
        let name = found["limit"].as_str().or(found["reason"].as_str()).unwrap_or_default();
        *seen.entry(format!("{decision} {name}")).or_default() += 1;
        let Some(line) = line else {
            assert_eq!(decision, "reject", "only the parser leaves no id: {}", about());
            continue;
        };
        assert_eq!(line["client"], found["client"], "{}", about());
        assert_eq!(line["reason"], found["reason"], "{}", about());
        assert_eq!(line["refused_by"], found["limit"], "{}", about());
        match decision {
            "reject" => {}
            "no_route" => assert_eq!(line["route"], "_none", "{}", about()),
            _ => assert_eq!(line["route"], found["route"].as_str().unwrap_or("_none"), "{}", about()),
        }
    }
    seen
}

#[test]
fn ten_thousand_random_requests_get_the_verdict_of_the_gateway() {
    let mut random = Random(7);
    let requests: Vec<RandomRequest> = (0..REQUESTS).map(|index| random_request(&mut random, index)).collect();
    let gateway = Gateway::with(SERVER, CONFIG);
    let seen = compare_all(&gateway, gateway.addr, &requests);
    // The requests have all these outcomes.
    for outcome in [
        "admit ",
        "preflight",
        "bypass ",
        "deny denied",
        "no_route no_route",
        "refuse per-key",
        "refuse overflow",
        "refuse costly",
        "refuse by-body",
        "refuse required",
        "refuse per-param",
        "reject path_slash",
        "reject host_invalid",
        "reject body_too_large",
        "unauthorized unauthorized",
    ] {
        assert!(seen.contains_key(outcome), "no request gets {outcome:?}: {seen:#?}");
    }
}

/// Questions of other proxies about random requests. They name the route whose limits decide.
#[test]
fn random_questions_get_the_verdict_of_the_gateway() {
    let mut random = Random(11);
    let port = ReservedPort::new();
    let routes = ["strict", "strict", "versioned", "lenient", "monitored", "strict-post", "none"];
    let question = |random: &mut Random, index: usize| {
        let RandomRequest { method, host, target, mut headers, .. } = random_request(random, index);
        for (name, value) in [("x-forwarded-method", method), ("x-forwarded-host", host), ("x-forwarded-uri", target)] {
            if !random.is_one_in(100) {
                headers.push((name.to_owned(), value));
            }
        }
        let target = format!("/decide/{}", random.pick(&routes));
        RandomRequest { method: "GET".to_owned(), host: port.addr().to_string(), target, headers, body: None }
    };
    let requests: Vec<RandomRequest> = (0..REQUESTS / 4).map(|index| question(&mut random, index)).collect();
    let listener = format!("[[listener]]\naddress = \"{}\"\nserve = \"decide\"\n", port.addr());
    let gateway = Gateway::with(SERVER, &format!("{listener}{CONFIG}"));
    let seen = compare_all(&gateway, port.addr(), &requests);
    for outcome in [
        "admit ",
        "bypass ",
        "deny denied",
        "refuse per-key",
        "refuse overflow",
        "refuse required",
        "refuse per-param",
        "reject path_slash",
        "reject host_invalid",
        "reject decide_name",
        "reject decide_facts",
    ] {
        assert!(seen.contains_key(outcome), "no question gets {outcome:?}: {seen:#?}");
    }
}
