//! Methods in lower case, which many servers accept, do not bypass the methods of a route or a limit.

use http::{Method, Request};

use crate::support::client::{Client, post};
use crate::support::gateway::Gateway;
use crate::support::h2::{self, H2Client, Sent};
use crate::support::upstream::Upstream;

/// Spellings of `POST`, of methods that hyper does not know, and of an unregistered method.
const SPELLINGS: [&str; 8] = ["post", "Post", "pOST", "propfind", "PropFind", "unlock", "version-control", "Purge"];

/// `/login` limits POST and PROPFIND by `when`; POST to `/votes` has a route with a limit; `/by-method` has a budget
/// for each method.
fn start(upstream: &Upstream, server: &str) -> Gateway {
    let url = upstream.url();
    Gateway::with(
        server,
        &format!(
            "[[route]]\nupstream = \"{url}\"\n\
             [[route]]\nname = \"login\"\npath = \"/login\"\nupstream = \"{url}\"\nlimits = [\"login\"]\n\
             [[route]]\nname = \"votes\"\npath = \"/votes\"\nmethods = [\"POST\", \"PURGE\"]\nupstream = \"{url}\"\n\
             limits = [\"vote\"]\n\
             [[route]]\nname = \"by-method\"\npath = \"/by-method\"\nupstream = \"{url}\"\nlimits = [\"by-method\"]\n\
             [limit.login]\nrate = \"2/day\"\nwhen = {{ method = [\"POST\", \"PROPFIND\"] }}\n\
             [limit.vote]\nrate = \"2/day\"\n\
             [limit.by-method]\nrate = \"2/day\"\nkey = \"method\"\n"
        ),
    )
}

fn statuses(gateway: &Gateway, methods: &[&str], target: &str) -> Vec<u16> {
    let one = |method: &&str| {
        let head = post(target, 0, "").replacen("POST", method, 1);
        gateway.client().fetch(&head, "").status()
    };
    methods.iter().map(one).collect()
}

#[test]
fn strict_refuses_methods_in_another_case_over_http1_and_http2() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "");
    assert_eq!(statuses(&gateway, &SPELLINGS, "/login"), [400; SPELLINGS.len()]);
    let mut client = H2Client::connect(gateway.addr);
    for method in SPELLINGS {
        let mut request: Request<()> = h2::post("/login");
        *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
        assert_eq!(client.fetch(request, Sent::default()).status(), 400, "{method}");
    }
    assert_eq!(upstream.requests().len(), 0);
    gateway.assert_metric("http_rejected_total", &[("reason", "method_case")], 2.0 * SPELLINGS.len() as f64);
    assert_eq!(statuses(&gateway, &["M1", "G.T"], "/login"), [400; 2]);
    gateway.assert_metric("http_rejected_total", &[("reason", "method_character")], 2.0);
    assert_eq!(statuses(&gateway, &["PURGE", "M-SEARCH", "X_Y"], "/login"), [200; 3]);
}

#[test]
fn other_modes_count_every_spelling_and_forward_it_as_it_was_sent() {
    for strictness in ["defensive", "monitor"] {
        let upstream = Upstream::text("in");
        let gateway = start(&upstream, &format!("strictness = \"{strictness}\""));
        assert_eq!(statuses(&gateway, &["post", "Propfind", "POST", "pOST"], "/login"), [200, 200, 429, 429]);
        assert_eq!(statuses(&gateway, &["post", "Post", "POST", "purge"], "/votes"), [200, 200, 429, 429]);
        assert_eq!(statuses(&gateway, &["post", "Post", "POST", "poST"], "/by-method"), [200, 200, 429, 429]);
        assert_eq!(statuses(&gateway, &["GET", "get", "Get"], "/login"), [200; 3], "{strictness}");
        let sent: Vec<String> = upstream.requests().iter().map(|request| first_word(request.start_line())).collect();
        assert_eq!(sent, ["post", "Propfind", "post", "Post", "post", "Post", "GET", "get", "Get"], "{strictness}");
        // Registered methods are repaired, so `defensive` would not refuse them.
        let repaired = gateway.metric("http_would_reject_total", &[("reason", "method_case")]);
        assert!(repaired.unwrap_or_default() == 0.0, "{strictness}: {repaired:?}");
    }
}

/// A server returns what it received of a TRACE, such as headers that the gateway added.
#[test]
fn trace_passes_only_where_a_route_lists_it_or_with_monitor() {
    for (strictness, expected) in [("strict", [405, 400, 405]), ("defensive", [405, 200, 405]), ("monitor", [200; 3])] {
        let upstream = Upstream::text("in");
        let url = upstream.url();
        let routes = format!(
            "[[route]]\nupstream = \"{url}\"\n[[route]]\npath = \"/fixed\"\nrespond = {{ status = 200 }}\n\
             [[route]]\npath = \"/trace\"\nmethods = [\"GET\", \"TRACE\"]\nupstream = \"{url}\"\n"
        );
        let gateway = Gateway::with(&format!("strictness = \"{strictness}\""), &routes);
        let found = [("TRACE", "/"), ("trace", "/trace"), ("TRACE", "/fixed")]
            .map(|(method, target)| statuses(&gateway, &[method], target)[0]);
        assert_eq!(found, expected, "{strictness}");
        assert_eq!(statuses(&gateway, &["TRACE"], "/trace"), [200], "{strictness}");
        assert_eq!(statuses(&gateway, &["TRACE"], "/nowhere"), [expected[0]], "{strictness}");
        let mut request: Request<()> = h2::get("/");
        *request.method_mut() = Method::TRACE;
        assert_eq!(H2Client::connect(gateway.addr).fetch(request, Sent::default()).status(), expected[0]);
        let refused = gateway.metric("http_would_reject_total", &[("reason", "trace")]).unwrap_or_default();
        assert_eq!(refused > 0.0, strictness == "monitor");
    }
}

#[test]
fn connect_opens_no_tunnel_in_any_case() {
    for strictness in ["strict", "defensive", "monitor"] {
        let upstream = Upstream::text("in");
        let gateway = start(&upstream, &format!("strictness = \"{strictness}\""));
        for method in ["connect", "Connect"] {
            for target in ["/", "/login"] {
                let mut client = Client::connect(gateway.addr);
                client.send(format!("{method} {target} HTTP/1.1\r\nhost: a.test\r\n\r\nGET /smuggled HTTP/1.1\r\n"));
                let response = client.read_response("GET");
                assert_eq!((response.status(), response.get("connection")), (501, Some("close")), "{method} {target}");
                client.assert_closed();
            }
            let mut request: Request<()> = h2::get("/");
            *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(H2Client::connect(gateway.addr).fetch(request, Sent::default()).status(), 501, "{method}");
        }
        assert_eq!(upstream.requests().len(), 0, "{strictness}");
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}
