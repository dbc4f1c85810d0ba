//! Every response of a route with `cors` lets a listed page read it, whoever made it, over HTTP/1.1 and HTTP/2.

use http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::{PAGE, app, start};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::upstream::Upstream;

/// Method, target, length of the body, further headers, and the status.
type Case = (&'static str, &'static str, usize, &'static [(&'static str, &'static str)], u16);

const CASES: [Case; 14] = [
    ("GET", "/app", 0, &[], 200),
    ("OPTIONS", "/app", 0, &[], 200),
    ("GET", "/limited", 0, &[], 429),
    ("POST", "/limited", 0, &[("content-type", "application/grpc")], 200),
    ("POST", "/small", 11, &[], 413),
    ("GET", "/private", 0, &[], 401),
    ("GET", "/denied", 0, &[], 403),
    ("GET", "/down", 0, &[], 502),
    ("GET", "/slow", 0, &[], 504),
    ("GET", "/fixed", 0, &[], 200),
    ("GET", "/moved", 0, &[], 308),
    ("GET", "/edited", 0, &[], 502),
    // Refused before the request enters the route, and no route at all.
    ("GET", "/app/a%2Fb", 0, &[], 400),
    ("GET", "/nowhere", 0, &[], 404),
];

struct Clients<'g> {
    gateway: &'g Gateway,
    is_http2: bool,
}

impl Clients<'_> {
    /// Sends a request of a page, and returns the status and the headers of its response.
    fn send(&self, case: Case, origin: Option<&str>) -> (u16, HeaderMap) {
        let (method, target, length, fields, _) = case;
        let fields = fields.iter().copied().chain(origin.map(|origin| ("origin", origin)));
        let body = vec![b'x'; length];
        if self.is_http2 {
            let request = Request::builder().method(method).uri(format!("http://a.test{target}"));
            let request = fields.fold(request, |request, (name, value)| request.header(name, value)).body(()).unwrap();
            let sent = Sent { body: &body, ..Sent::default() };
            let response = H2Client::connect(self.gateway.addr).fetch(request, sent);
            return (response.status(), response.head.headers().clone());
        }
        let fields: String = fields.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = if length > 0 { format!("content-length: {length}\r\n") } else { String::new() };
        let head = format!("{method} {target} HTTP/1.1\r\nhost: a.test\r\n{fields}{length}\r\n");
        let response = self.gateway.client().fetch(&head, body);
        let fields = response.fields().map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        });
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        (response.status(), headers)
    }
}

/// Returns all values of a header.
fn values<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[test]
fn every_response_is_for_listed_pages_only() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    assert_eq!(gateway.get("/limited").status(), 200);
    for is_http2 in [false, true] {
        let clients = Clients { gateway: &gateway, is_http2 };
        for case in CASES {
            for (origin, is_listed) in
                [(Some(PAGE), true), (Some("https://evil.test"), false), (Some("null"), false), (None, false)]
            {
                let (status, headers) = clients.send(case, origin);
                let about = format!("{case:?} of {origin:?} over HTTP/2 {is_http2}: {headers:?}");
                assert_eq!(status, case.4, "{about}");
                let only = |value: &'static str| if is_listed { vec![value] } else { Vec::new() };
                assert_eq!(values(&headers, "access-control-allow-origin"), only(PAGE), "{about}");
                assert_eq!(values(&headers, "access-control-allow-credentials"), only("true"), "{about}");
                let exposed = only("retry-after, ratelimit, ratelimit-policy");
                assert_eq!(values(&headers, "access-control-expose-headers"), exposed, "{about}");
                assert_eq!(values(&headers, "access-control-allow-methods"), [""; 0], "{about}");
                let varies = values(&headers, "vary").join(",");
                assert_eq!(varies.matches("origin").count(), 1, "{about}");
                assert_eq!(varies.contains("cookie"), case.1 == "/edited", "{about}");
                assert_eq!(headers.contains_key("retry-after"), case.4 == 429, "{about}");
            }
        }
        let (_, headers) = clients.send(("GET", "/edited", 0, &[], 502), None);
        assert_eq!((&headers["x-default"], &headers["x-added"]), (&"d".parse().unwrap(), &"a".parse().unwrap()));
    }
}

#[test]
fn a_switch_of_protocols_has_the_headers() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let mut client = gateway.client();
    client.send(get("/app", &format!("connection: upgrade\r\nupgrade: websocket\r\norigin: {PAGE}\r\n")));
    let head = client.try_read_head().unwrap();
    assert_eq!((head.status(), head.get("access-control-allow-origin")), (101, Some(PAGE)));
}

#[test]
fn the_rules_of_a_route_replace_those_of_the_server() {
    let (app, silent) = (app(), Upstream::silent());
    let gateway = start(&app, &silent);
    let send = |target: &str, origin: &str| gateway.fetch(&get(target, &format!("origin: {origin}\r\n")));
    for (origin, is_listed) in [
        ("https://admin.test", true),
        ("https://ADMIN.test:443", true),
        ("https://a.staff.test", true),
        ("https://a.b.staff.test", true),
        ("http://localhost:3000", true),
        ("null", true),
        (PAGE, false),
        ("https://staff.test", false),
        ("http://a.staff.test", false),
        ("https://evil.test#.staff.test", false),
        ("http://localhost:3000.evil.test", false),
        ("https://admin.test, https://evil.test", false),
    ] {
        let response = send("/admin", origin);
        assert_eq!(response.get("access-control-allow-origin"), is_listed.then_some(origin), "{origin}");
        assert_eq!(response.get("access-control-allow-credentials"), None, "{origin}");
    }
    let exposed = "retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
                   ratelimit-limit, ratelimit-remaining, ratelimit-reset, x-total";
    assert_eq!(send("/admin", "null").get("access-control-expose-headers"), Some(exposed));
    // Two lines are no origin.
    let twice = gateway.fetch(&get("/admin", "origin: null\r\norigin: null\r\n"));
    assert_eq!(twice.get("access-control-allow-origin"), None);
    // Pages of every origin: no response differs.
    for fields in ["", "origin: https://evil.test\r\n"] {
        let response = gateway.fetch(&get("/methods", fields));
        assert_eq!((response.get("access-control-allow-origin"), response.get("vary")), (Some("*"), None));
    }
    // The application alone decides.
    let own = send("/own", PAGE);
    assert_eq!(own.all("access-control-allow-origin"), ["https://app.test", "*"]);
    assert_eq!(own.get("vary"), Some("accept"));
}
