//! Clients that hold requests open before their limits have decided, or while a limit delays them: bodies that pause, and
//! long queues. They hold none of the places that all clients share.

use crate::support::client::{Client, get};
use crate::support::frames::*;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";

/// `/login` reads the body for a limit, and `/other` does not.
fn start(server: &str, route: &str) -> Gateway {
    let limits = r#"
        [limit.ip]
        rate = "5/min"
        key = "header:x-client"

        [limit.account]
        rate = "5/min"
        key = "form:user"
    "#;
    let config = format!(
        "[[route]]\nname = \"login\"\npath = \"/login\"\nupstream = \"echo:\"\nlimits = [\"ip\", \"account\"]\n{route}\n\
         [[route]]\nname = \"other\"\npath = \"/other\"\nrespond = {{}}\n{limits}"
    );
    Gateway::with(server, &config)
}

/// Sends `count` requests on one connection whose bodies pause.
fn pause_bodies(gateway: &Gateway, count: u32) -> Wire {
    let mut wire = Wire::connect(gateway.addr, &[]);
    for index in 0..count {
        let mut fields = request("POST", "/login");
        fields.extend([("x-client", "slow"), ("content-type", "application/x-www-form-urlencoded")]);
        wire.send(headers(1 + 2 * index, END_HEADERS, &fields));
        wire.send(frame(DATA, 0, 1 + 2 * index, b"user=a"));
    }
    gateway.assert_metric("requests_in_flight", &[("route", "login")], f64::from(count));
    wire
}

fn log_in(gateway: &Gateway, name: &str) -> u16 {
    gateway.post("/login", &format!("{FORM}x-client: {name}\r\n"), format!("user={name}")).status()
}

#[test]
fn bodies_that_pause_hold_no_place_of_the_route() {
    let gateway = start("", "max_in_flight = 3");
    let wire = pause_bodies(&gateway, 20);
    for name in ["b", "c", "d", "e"] {
        assert_eq!(log_in(&gateway, name), 200);
    }
    drop(wire);
    gateway.assert_metric("requests_in_flight", &[("route", "login")], 0.0);
}

#[test]
fn bodies_that_pause_hold_no_place_of_the_process() {
    for rule in ["in_flight = 3", "qps = 19"] {
        let gateway = start(&format!("overload = {{ {rule} }}"), "");
        let wire = pause_bodies(&gateway, 19);
        assert_eq!(log_in(&gateway, "b"), 200, "{rule}");
        assert_eq!(gateway.get("/other").status(), 200, "{rule}");
        drop(wire);
    }
}

/// A refused request leaves its places before its client has read the response.
#[test]
fn refusals_that_nobody_reads_hold_no_place() {
    let gateway = start("overload = { in_flight = 3 }", "max_in_flight = 3");
    // The client has no window for responses.
    let mut wire = Wire::connect(gateway.addr, &[(4, 0)]);
    for index in 0..20 {
        let mut fields = request("POST", "/login");
        fields.extend([("x-client", "slow"), ("content-type", "application/x-www-form-urlencoded")]);
        wire.send(headers(1 + 2 * index, END_HEADERS, &fields));
        // The account is another each time, so that only the limit of clients refuses.
        wire.send(frame(DATA, END_STREAM, 1 + 2 * index, format!("user=a{index}").as_bytes()));
        let refused = index >= 5;
        let labels = [("route", "login"), ("limit", "ip"), ("reason", "exhausted")];
        if refused {
            gateway.assert_metric("rejections_total", &labels, f64::from(index - 4));
        } else {
            // Echoes that nobody reads do hold their places.
            gateway.assert_metric("requests_in_flight", &[("route", "login")], 1.0);
            wire.send(reset(1 + 2 * index, CANCEL));
            gateway.assert_metric("requests_in_flight", &[("route", "login")], 0.0);
        }
    }
    gateway.assert_metric("requests_in_flight", &[("route", "login")], 15.0);
    assert_eq!(log_in(&gateway, "b"), 200);
    assert_eq!(gateway.get("/other").status(), 200);
}

/// `/queue` delays requests beyond the first by 10 s each.
fn with_queue(server: &str, upstream: &Upstream, every: &str) -> Gateway {
    Gateway::with(
        server,
        &format!(
            "[[route]]\nname = \"queue\"\npath = \"/queue\"\nupstream = \"{url}\"\nlimits = [\"slow\", \"day\"]\n\
             [[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{url}\"\n\
             [limit.slow]\nalgorithm = \"leaky_bucket\"\nrate = \"1/{every}\"\nqueue = \"1h\"\nkey = \"all\"\n\
             [limit.day]\nrate = \"100/day\"\nkey = \"all\"\n",
            url = upstream.url()
        ),
    )
}

fn waiting(gateway: &Gateway, count: u32) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = gateway.client();
        client.send(get("/queue", UPGRADE));
        clients.push(client);
    }
    gateway.assert_metric("requests_in_flight", &[("route", "queue")], f64::from(count));
    clients
}

#[test]
fn requests_that_wait_for_their_turn_hold_no_tunnel() {
    let upstream = Upstream::silent();
    let gateway = with_queue("max_tunnels = 3\noverload = { in_flight = 3 }", &upstream, "10s");
    let _waiting = waiting(&gateway, 12);
    // The first has its turn at once, and so has one of the three tunnels.
    let mut other = gateway.client();
    other.send(get("/", UPGRADE));
    wait_until("another client reaches the server", || upstream.connections() == 2);
}

/// The request has been charged when it begins to wait. If it then finds no place, it gets its charges back.
#[test]
fn a_request_without_a_place_after_its_turn_is_charged_nothing() {
    let upstream = Upstream::silent();
    let gateway = with_queue("max_tunnels = 1", &upstream, "5s");
    let spent = || 100 - gateway.admin("/-/limits/day/state").json()["remaining"].as_i64().unwrap();
    // The first has its turn at once, and needs no tunnel.
    let mut first = gateway.client();
    first.send(get("/queue", ""));
    wait_until("it reaches the server", || upstream.connections() == 1);
    let mut delayed = gateway.client();
    delayed.send(get("/queue", UPGRADE));
    wait_until("it is charged, and waits", || spent() == 2);
    let mut other = gateway.client();
    other.send(get("/", UPGRADE));
    wait_until("another client has the tunnel", || upstream.connections() == 2);
    assert_eq!(delayed.read_response("GET").status(), 503);
    gateway.assert_metric("http_rejected_total", &[("reason", "max_tunnels")], 1.0);
    wait_until("its charge is returned", || spent() == 1);
}
