//! The process rule (`[server.overload]`): each condition refuses, says so, and ends, and gRPC calls count for circuit
//! breakers.

use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response};

use super::fleet::app;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::h2_server::Http2Server;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// A server that responds to each request when the test says so.
fn held() -> (Upstream, Sender<()>) {
    let (go, releases) = channel();
    let releases = Arc::new(Mutex::new(releases));
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            releases.lock().unwrap().recv().map_err(std::io::Error::other)?;
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    (upstream, go)
}

fn refused(gateway: &Gateway, condition: &str) -> Option<f64> {
    gateway.metric("overload_refused_total", &[("condition", condition)])
}

/// Returns whether requests were refused for this reason.
fn is_rejected_for(gateway: &Gateway, reason: &str) -> bool {
    let series = |line: &&str| line.starts_with("sluicegate_rejections_total") && line.contains(reason);
    gateway.metrics().lines().filter(series).any(|line| !line.ends_with(" 0"))
}

#[test]
fn requests_in_flight_are_bounded_exactly_and_health_is_always_reported() {
    let (server, go) = held();
    let limit = "[limit.few]\nrate = \"100/day\"\nkey = \"all\"\n";
    let routes =
        format!("{}{limit}", app(&[server.url()], "").replacen("upstream =", "limits = [\"few\"]\nupstream =", 1));
    let gateway = Gateway::with("workers = 2\noverload = { in_flight = 3 }", &routes);
    let mut waiting: Vec<Client> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(get("/", ""));
        server.request();
    }
    for _ in 0..10 {
        let response = gateway.get("/");
        assert_eq!(response.status(), 503);
        let problem = response.json();
        let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        assert_eq!((&problem["type"], &problem["setting"]), (&kind.into(), &"overload".into()));
        assert!((1_600..=2_400).contains(&problem["retry-after-ms"].as_u64().unwrap()), "{problem}");
        assert!(["2", "3"].contains(&response.get("retry-after").unwrap()));
    }
    assert_eq!(gateway.admin("/livez").status(), 200);
    assert_eq!(refused(&gateway, "in_flight"), Some(10.0));
    gateway.assert_metric("overload_value", &[("condition", "in_flight")], 3.0);
    let labels = [("limit", "_none"), ("reason", "overload_in_flight"), ("route", "app")];
    gateway.assert_metric("rejections_total", &labels, 10.0);
    wait_until("it is logged", || gateway.log().contains("process overloaded: refusing requests (in_flight)"));
    // Only the admitted requests are charged.
    assert_eq!(gateway.admin("/-/limits/few/state").json()["remaining"], 97);
    (0..3).for_each(|_| go.send(()).unwrap());
    waiting.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status(), 200));
    gateway.assert_metric("overload_value", &[("condition", "in_flight")], 0.0);
    // A client that leaves returns its place, and so does a reload that removes the rule.
    let mut leaving = gateway.client();
    leaving.send(get("/", ""));
    server.request();
    drop(leaving);
    go.send(()).unwrap();
    gateway.assert_metric("overload_value", &[("condition", "in_flight")], 0.0);
    gateway.reload_with("overload = { in_flight = 3 }", "");
    assert_eq!(refused(&gateway, "in_flight"), None, "the series go with the condition");
}

#[test]
fn requests_per_second_are_bounded_over_all_workers() {
    let server = Upstream::text("ok");
    let gateway = Gateway::with("workers = 2\noverload = { qps = 20 }", &app(&[server.url()], ""));
    let admitted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let begun = std::time::Instant::now();
                    let mut client = gateway.client();
                    let mut admitted = 0;
                    while begun.elapsed() < Duration::from_millis(900) {
                        admitted += usize::from(client.fetch(&get("/", ""), "").status() == 200);
                    }
                    admitted
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    // On a busy machine the requests may take longer than a second.
    assert!((20..=40).contains(&admitted), "{admitted}");
    assert!(refused(&gateway, "qps").unwrap() > 0.0);
    assert!(is_rejected_for(&gateway, "overload_qps"));
    wait_until("a later second admits again", || gateway.get("/").status() == 200);
}

#[test]
fn a_mean_response_time_above_the_bound_sheds_and_recovers() {
    let slow = Arc::new(std::sync::atomic::AtomicU64::new(120));
    let wait = slow.clone();
    let server = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(wait.load(std::sync::atomic::Ordering::SeqCst)));
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    let gateway = Gateway::with("workers = 2\noverload = { latency = \"20ms\" }", &app(&[server.url()], ""));
    wait_until("requests are refused", || {
        gateway.get("/");
        refused(&gateway, "latency").unwrap() > 0.0
    });
    assert!(is_rejected_for(&gateway, "overload_latency"));
    let mean = gateway.metric("overload_value", &[("condition", "latency")]).unwrap();
    assert!(mean > 0.02, "{mean}");
    // Most are refused while it lasts, and none once the server is fast again.
    wait_until("most are refused", || (0..8).filter(|_| gateway.get("/").status() == 503).count() >= 6);
    slow.store(0, std::sync::atomic::Ordering::SeqCst);
    wait_until("none is refused", || (0..40).all(|_| gateway.get("/").status() == 200));
}

#[test]
fn cpu_and_load_are_measured_on_this_machine() {
    let server = Upstream::text("ok");
    // More CPU time than the process can use, and a load that no machine has, so nothing is refused.
    let rule = "workers = 1\noverload = { cpu = 1, load = 10000 }";
    let gateway = Gateway::with(rule, &app(&[server.url()], ""));
    wait_until("both are known", || {
        assert_eq!(gateway.get("/").status(), 200);
        let value = |condition| gateway.metric("overload_value", &[("condition", condition)]);
        value("cpu").is_some_and(|cpu| cpu > 0.0) && value("load").is_some()
    });
    // Any use of the CPU is too much: requests are refused, but never all of them.
    gateway.reload_with("cpu = 1,", "cpu = 0.001,");
    wait_until("requests are refused", || {
        (0..20).for_each(|_| drop(gateway.get("/")));
        refused(&gateway, "cpu").unwrap() > 20.0
    });
    assert!(is_rejected_for(&gateway, "overload_cpu"));
    assert!(!gateway.log().contains("is idle"), "{}", gateway.log());
}

/// A gRPC server that responds with the code at the end of the path: in trailers, or in the head (`/only/CODE`).
fn grpc_server() -> Http2Server {
    Http2Server::start(|mut incoming| async move {
        let path = incoming.request.uri().path().to_owned();
        let code = HeaderValue::from_str(path.rsplit('/').next().unwrap()).unwrap();
        let head = Response::builder().header("content-type", "application/grpc");
        if path.starts_with("/only/") {
            return incoming.head(head.header("grpc-status", code).body(()).unwrap(), true).map(drop);
        }
        let mut stream = incoming.head(head.body(()).unwrap(), false)?;
        stream.send_data("hello".into(), false)?;
        stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), code)]))
    })
}

#[test]
fn grpc_statuses_of_a_failing_server_open_a_breaker_and_calls_are_told() {
    let call = |client: &mut H2Client, path: &str| {
        let mut request = post(path);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        client.fetch(request, Sent::default())
    };
    let breaker = "breaker = { errors = 3, min_requests = 3, open_for = \"10m\" }";
    for (path, opens) in [
        ("/only/14", true),
        ("/only/13", true),
        ("/only/2", true),
        ("/trailers/14", true),
        ("/only/12", false),
        ("/only/4", false),
        ("/only/3", false),
        ("/trailers/8", false),
        ("/trailers/0", false),
    ] {
        let server = grpc_server();
        let gateway = Gateway::start(&app(&[format!("h2c://{}", server.addr)], breaker));
        let mut client = H2Client::connect(gateway.addr);
        (0..3).for_each(|_| assert_eq!(call(&mut client, path).status(), 200));
        let response = call(&mut client, path);
        let own =
            response.field("grpc-message").is_some_and(|message| message.contains("upstream servers are failing"));
        assert_eq!(own, opens, "{path}: {:?}", response.head);
        if opens {
            assert_eq!((response.status(), response.field("grpc-status")), (200, Some("14")));
            let pushback: u64 = response.field("grpc-retry-pushback-ms").unwrap().parse().unwrap();
            assert!((480_000..=720_000).contains(&pushback), "{pushback}");
        }
    }
}

#[test]
fn nothing_listens_and_a_breaker_and_the_process_rule_go_together() {
    // It listens, but accepts no connections, which wait in the queue of the system.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", deaf.local_addr().unwrap());
    let breaker = "breaker = { slow = \"100ms\", min_requests = 2, open_for = \"10m\" }";
    let gateway = Gateway::with("overload = { in_flight = 2 }", &app(&[url], breaker));
    let mut waiting: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/", "")));
    wait_until("both are in flight", || gateway.metric("overload_value", &[("condition", "in_flight")]) == Some(2.0));
    assert_eq!(gateway.get("/").json()["setting"], "overload", "the process rule comes first");
    gateway.assert_metric("breaker_state", &[("kind", "upstream"), ("name", "app")], 2.0);
    drop(waiting);
    wait_until("the breaker refuses", || gateway.get("/").json()["setting"] == "breaker");
}

/// A client that its own limit refuses does not use up the requests of others.
#[test]
fn refused_requests_do_not_count_for_the_rate_of_the_process() {
    let limits = "[limit.per-client]\nrate = \"3/h\"\nkey = \"ip\"\n";
    let routes = format!("[[route]]\nrespond = {{ body = \"good\" }}\nlimits = [\"per-client\"]\n{limits}");
    let gateway = Gateway::with("overload = { qps = 5 }", &routes);
    let fetch = |source: [u8; 4]| gateway.client_from(source).fetch(&get("/", ""), "").status();
    let greedy: Vec<u16> = (0..50).map(|_| fetch([127, 0, 0, 7])).collect();
    assert_eq!(greedy.iter().filter(|status| **status == 200).count(), 3, "{greedy:?}");
    assert!(greedy[3..].iter().all(|status| *status == 429), "{greedy:?}");
    assert_eq!([fetch([127, 0, 0, 8]), fetch([127, 0, 0, 9])], [200; 2]);
    assert_eq!(refused(&gateway, "qps"), Some(0.0));
}
