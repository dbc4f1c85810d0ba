//! Redis returns: few refunds are left from the outage, and they do not flood it.

use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::machine::Stopwatch;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// Starts a gateway with two limits: `slots`, three per hour unless they are released, and `login`, which counts
/// exactly.
fn gateway(server: &RedisServer) -> Gateway {
    scenario()
        .redis_within(&server.url(), "300ms")
        .store_line("on_error = \"closed\"")
        .route("slots", "/slots")
        .limit_of("slots", "algorithm = \"concurrency\"\nin_flight = 3\nlease = \"1h\"\nkey = \"all\"")
        .route("login", "/login")
        .limit_of("login", "algorithm = \"fixed_window\"\nrate = \"5/h\"\nkey = \"all\"")
        .start()
}

fn statuses(gateway: &Gateway, target: &str, count: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..count).map(|_| client.fetch(&get(target, ""), "").status()).collect()
}

fn errors(gateway: &Gateway) -> f64 {
    let metrics = gateway.metrics();
    let errors = metrics.lines().filter(|line| line.starts_with("sluicegate_store_errors_total"));
    errors.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn waiting(gateway: &Gateway) -> f64 {
    gateway.metric("store_corrections_waiting", &[]).unwrap()
}

/// Asserts that all slots are free, the other limit is exact, and the store has no errors.
fn is_well(gateway: &Gateway) {
    gateway.wait_for_store();
    // After an outage, few requests wait for the first response of the store.
    wait_until("the breaker is closed", || gateway.metric("store_breaker_state", &[]) == Some(0.0));
    wait_until("nothing waits", || waiting(gateway) == 0.0);
    let before = errors(gateway);
    assert_eq!(statuses(gateway, "/slots", 10), [200; 10]);
    let login = statuses(gateway, "/login", 10);
    assert_eq!(login, [[200; 5], [429; 5]].concat());
    assert_eq!(errors(gateway), before, "errors after the store is back");
    assert_eq!(gateway.metric("store_corrections_dropped_total", &[]), Some(0.0));
}

#[test]
fn unsent_charges_are_not_refunded() {
    let mut server = RedisServer::start(&[]);
    let gateway = gateway(&server);
    server.kill();
    wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    assert!(statuses(&gateway, "/slots", 2000).iter().all(|status| *status == 503));
    // The first correction may have been in progress when the connection broke.
    assert!(waiting(&gateway) <= 1.0, "{} corrections are waiting", waiting(&gateway));
    let before = errors(&gateway);
    assert!(before >= 2000.0, "{before}");
    std::thread::sleep(Duration::from_millis(700));
    let attempts = errors(&gateway) - before;
    assert!(attempts < 10.0, "{attempts} attempts without a request");
    server.restart();
    is_well(&gateway);
}

#[test]
fn uncertain_charges_are_refunded_once_the_store_responds() {
    const CLIENTS: usize = 40;
    let server = RedisServer::start(&[]);
    let gateway = gateway(&server);
    server.signal("STOP");
    // All are sent in one call, whose result is unknown.
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/slots", "")));
    assert!(clients.iter_mut().all(|client| client.read_response("GET").status() == 503));
    let owed = waiting(&gateway);
    assert!((3.0..=CLIENTS as f64).contains(&owed), "{owed} corrections are waiting");
    // A single decision tests now and then whether the store has recovered.
    let before = errors(&gateway);
    std::thread::sleep(Duration::from_millis(1500));
    let attempts = errors(&gateway) - before;
    assert!((1.0..15.0).contains(&attempts), "{attempts} attempts while the store is unavailable");
    assert_eq!(waiting(&gateway), owed);
    server.signal("CONT");
    is_well(&gateway);
}

/// Both workers notice within a second that Redis accepts writes again, although no request arrives.
#[test]
fn a_store_that_takes_writes_again_is_up_without_requests() {
    let server = RedisServer::start(&[]);
    let gateway = Gateway::with(
        "workers = 2",
        &format!(
            "[store]\nurl = \"{}\"\ndeadline = \"300ms\"\non_error = \"closed\"\n\n[[route]]\nname = \"app\"\n\
             respond = {{ body = \"in\" }}\nlimits = [\"all\"]\n\n[limit.all]\nrate = \"100000/s\"\nkey = \"all\"\n",
            server.url()
        ),
    );
    gateway.wait_for_store();
    let mut client = server.client();
    let mut set = |name: &str, value: &str| {
        let () = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut client).unwrap();
    };
    let health = || ["store_up", "store_breaker_state"].map(|name| gateway.metric(name, &[]));
    // Redis refuses writes, and continues to execute other commands.
    set("min-replicas-to-write", "3");
    // Each worker has some of the connections.
    for _ in 0..40 {
        assert_eq!(gateway.get("/").status(), 503);
    }
    let refusing = Instant::now();
    while refusing.elapsed() < Duration::from_millis(1500) {
        assert_eq!(gateway.metric("store_up", &[]), Some(0.0), "up after {:?}", refusing.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    let down = gateway.log_lines(&["limits follow their on_error"]);
    assert_eq!(down, 1, "{}", gateway.log());

    set("min-replicas-to-write", "0");
    let repaired = Stopwatch::start();
    wait_until("the store is up", || health() == [Some(1.0), Some(0.0)]);
    assert!(
        repaired.elapsed_without_delay() < Duration::from_millis(1200),
        "up after {:?}",
        repaired.elapsed_without_delay()
    );
    for _ in 0..40 {
        assert_eq!(gateway.get("/").status(), 200);
    }
}

/// A response that settles several charges while Redis accepts no changes: each is corrected once it does.
#[test]
fn settlements_of_several_limits_are_retried() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(&request.body)?;
        }
        Ok(())
    });
    let server = RedisServer::start(&[]);
    let limit =
        "algorithm = \"fixed_window\"\nrate = \"1000/h\"\nkey = \"all\"\ncost = 100\nsettle = \"header:x-cost\"\n";
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"300ms\"\non_error = \"open\"\n\n[[route]]\nupstream = \"{}\"\n\
         limits = [\"one\", \"two\"]\n\n[limit.one]\n{limit}\n[limit.two]\n{limit}",
        server.url(),
        upstream.url()
    ));
    gateway.wait_for_store();
    let used = |limit: &str| {
        let state = gateway.admin(&format!("/-/limits/{limit}/state")).json();
        1000 - state["remaining"].as_i64().unwrap_or(0)
    };
    let response = "HTTP/1.1 200 OK\r\nx-cost: 7\r\ncontent-length: 0\r\n\r\n";
    let ask_while = |change: &dyn Fn()| {
        let mut client = gateway.client();
        let before = used("one");
        client.send(post("/", response.len() as u64, ""));
        wait_until("the estimate is charged", || used("one") == before + 100);
        change();
        client.send(response);
        assert_eq!(client.read_response("POST").status(), 200);
    };
    let replicate = |host: &str, port: &str| {
        let () = redis::cmd("REPLICAOF").arg(host).arg(port).query(&mut server.client()).unwrap();
    };
    ask_while(&|| replicate("127.0.0.1", "1"));
    wait_until("both wait", || waiting(&gateway) == 2.0);
    replicate("NO", "ONE");
    wait_until("both are corrected", || (used("one"), used("two")) == (7, 7));
    assert_eq!(gateway.metric("store_corrections_dropped_total", &[]), Some(0.0));
    // A correction without a reply may have been executed, so it is not repeated.
    gateway.wait_for_store();
    ask_while(&|| server.signal("STOP"));
    wait_until("both are lost", || gateway.metric("store_corrections_dropped_total", &[]) == Some(2.0));
    server.signal("CONT");
}
