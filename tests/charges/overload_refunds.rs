//! Requests that an overloaded upstream refuses: the state of every limit is as if they had not been made.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const ALGORITHMS: [(&str, &str); 9] = [
    ("token_bucket", "rate = \"1/day\"\nburst = 50"),
    ("gcra", "rate = \"1/day\"\nburst = 50"),
    ("fair", "algorithm = \"gcra\"\nrate = \"1/day\"\nburst = 50\nfair = { key = \"ip\" }"),
    ("fixed_window", "rate = \"50/day\""),
    ("calendar", "rate = \"50/day\"\nzone = \"UTC\""),
    ("sliding_window", "rate = \"50/day\""),
    ("sliding_log", "rate = \"50/day\""),
    ("concurrency", "in_flight = 50"),
    ("leaky_bucket", "rate = \"5000/s\"\nqueue = \"1s\""),
];

/// Responds to each request when the test sends a signal.
fn held() -> (Upstream, Sender<()>) {
    let (go, releases) = channel();
    let releases = Mutex::new(releases);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            releases.lock().unwrap().recv().map_err(std::io::Error::other)?;
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    (upstream, go)
}

fn config(store: &str, to: &str) -> String {
    let limits: Vec<String> = ALGORITHMS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let mut text = format!(
        "[store]\nurl = \"{store}\"\ndeadline = \"5s\"\n\n[[route]]\nname = \"app\"\nupstream = \"app\"\nlimits = [{}]\n\n\
         [upstream.app]\nservers = [\"{to}\"]\nadaptive = {{ min = 1, max = 1, start = 1 }}\nmax_waiting = 1\n\
         waiting_timeout = \"300ms\"\n\n",
        limits.join(", ")
    );
    for (name, options) in ALGORITHMS {
        let algorithm =
            if options.starts_with("algorithm") { String::new() } else { format!("algorithm = \"{name}\"\n") };
        text += &format!("[limit.{name}]\nkey = \"all\"\n{algorithm}{options}\n");
    }
    text + "[limit.shadow]\nkey = \"all\"\nrate = \"9/day\"\nmode = \"shadow\"\n"
}

fn remaining(gateway: &Gateway, limit: &str) -> i64 {
    gateway.admin(&format!("/-/limits/{limit}/state?cost=0")).json()["remaining"].as_i64().unwrap_or(-1)
}

/// A limit diverts the request to an upstream without capacity: the other limits of the route are refunded.
#[test]
fn a_refusal_of_the_upstream_of_a_diversion_charges_no_limit() {
    let (server, go) = held();
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"app\"\nlimits = [\"wide\", \"narrow\"]\n\n[upstream.app]\nservers = [\"{app}\"]\n\n\
         [upstream.spare]\nservers = [\"{app}\"]\nadaptive = {{ min = 1, max = 1, start = 1 }}\nmax_waiting = 1\n\
         waiting_timeout = \"100ms\"\n\n[limit.wide]\nkey = \"all\"\nrate = \"50/day\"\n\n\
         [limit.narrow]\nkey = \"all\"\nrate = \"1/day\"\nover = \"upstream:spare\"\n",
        app = server.url()
    ));
    let mut clients: Vec<_> = (0..2).map(|_| gateway.client()).collect();
    clients[0].send(get("/within", ""));
    wait_until("one request holds the slot", || remaining(&gateway, "narrow") == 0);
    clients[1].send(get("/diverted", ""));
    wait_until("one request is diverted", || {
        gateway.metric("upstream_adaptive_in_flight", &[("upstream", "spare")]) == Some(1.0)
    });
    assert_eq!(remaining(&gateway, "wide"), 48);
    assert_eq!(gateway.get("/refused").status(), 503);
    wait_until("the refused request is refunded", || remaining(&gateway, "wide") == 48);
    // Both signals at once, because either request may have reached the server first.
    clients.iter().for_each(|_| go.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status(), 200));
    assert_eq!(remaining(&gateway, "wide"), 48);
}

/// No list names the wider tiers of a limit, nor its candidates. They are refunded with it.
#[test]
fn tiers_and_candidates_are_refunded_with_their_limit() {
    let (server, go) = held();
    let gateway = Gateway::with(
        "trusted_proxies = [\"127.0.0.0/8\"]",
        &format!(
            "[[route]]\nupstream = \"app\"\nlimits = [\"per-ip\"]\n\n[upstream.app]\nservers = [\"{}\"]\n\
             adaptive = {{ min = 1, max = 1, start = 1 }}\nmax_waiting = 1\nwaiting_timeout = \"100ms\"\n\n\
             [limit.per-ip]\nkey = \"ip6tiers/64/56x2/48x3\"\nrate = \"10/day\"\n\n\
             [limit.tried]\nkey = \"ip\"\nrate = \"40/day\"\ncandidate_of = \"per-ip\"\n",
            server.url()
        ),
    );
    let request = |target: &str| get(target, "x-forwarded-for: 2001:db8::1\r\n");
    let left = || {
        ["per-ip", "per-ip.56", "per-ip.48", "tried"].map(|limit| {
            gateway.admin(&format!("/-/limits/{limit}/state?key=2001:db8::1&cost=0")).json()["remaining"].as_i64()
        })
    };
    let mut client = gateway.client();
    client.send(request("/held"));
    wait_until("one is in flight", || {
        gateway.metric("upstream_adaptive_in_flight", &[("upstream", "app")]) == Some(1.0)
    });
    assert_eq!(gateway.fetch(&request("/refused")).status(), 503);
    wait_until("the refused request is refunded", || left() == [Some(9), Some(19), Some(29), Some(39)]);
    go.send(()).unwrap();
    assert_eq!(client.read_response("GET").status(), 200);
    assert_eq!(left(), [Some(9), Some(19), Some(29), Some(39)]);
}

#[test]
fn a_refusal_for_overload_charges_no_limit() {
    let redis = RedisServer::start(&[]);
    for store in ["memory:".to_owned(), redis.url()] {
        let (server, go) = held();
        let gateway = Gateway::start(&config(&store, &server.url()));
        let mut first = gateway.client();
        first.send(get("/first", ""));
        wait_until("the server has the first request", || {
            gateway.metric("upstream_adaptive_in_flight", &[("upstream", "app")]) == Some(1.0)
        });
        let before = ALGORITHMS.map(|(name, _)| (name, remaining(&gateway, name)));
        // One request waits in the queue until `patience` ends. Meanwhile the queue is full, and the next requests are
        // refused before any limit decides.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let response = gateway.get("/refused");
                    assert_eq!(response.status(), 503);
                    let problem = response.json();
                    assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
                    assert_eq!(problem["setting"], "adaptive");
                    let wait_s: u64 = response.get("retry-after").unwrap().parse().unwrap();
                    assert!((4..=6).contains(&wait_s), "{wait_s}");
                });
            }
        });
        for (name, remains) in before {
            if name != "leaky_bucket" {
                wait_until(name, || remaining(&gateway, name) == remains);
            }
        }
        go.send(()).unwrap();
        assert_eq!(first.read_response("GET").status(), 200);
        for name in ["token_bucket", "gcra", "fixed_window", "calendar", "sliding_window", "sliding_log"] {
            assert_eq!(remaining(&gateway, name), 49, "{store} {name}: the first request is charged");
        }
        wait_until("the slot is free", || remaining(&gateway, "concurrency") == 50);
        gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "overloaded")], 4.0);
        gateway.assert_metric("upstream_refused_total", &[("upstream", "app"), ("priority", "2")], 4.0);
    }
}
