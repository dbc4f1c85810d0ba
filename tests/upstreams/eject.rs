//! Servers that fail are ejected for a while, and only for failures of their own.

use super::fleet::{ControlledServer, app, of, shown};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::ports::closed_addr;
use crate::support::wait_until;

const EJECT: &str = "balance = \"round_robin\"\neject = { consecutive_errors = 3, for = \"1s\" }";

/// Three errors in a row eject a server, for longer than a test runs.
const LONG: &str = "balance = \"round_robin\"\neject = { consecutive_errors = 3, for = \"10m\" }";

fn gateway(servers: &[&ControlledServer], more: &str) -> Gateway {
    Gateway::start(&app(&servers.iter().map(|server| server.url()).collect::<Vec<_>>(), more))
}

/// Sends requests of one client, and returns the server of each; `None` for an error.
fn fetch(gateway: &Gateway, requests: usize) -> Vec<Option<String>> {
    let mut client = gateway.client();
    let responses = (0..requests).map(|_| client.fetch(&get("/", ""), ""));
    responses.map(|response| (response.status() == 200).then(|| response.text())).collect()
}

fn failed(responses: &[Option<String>]) -> usize {
    responses.iter().filter(|response| response.is_none()).count()
}

#[test]
fn a_server_with_errors_in_a_row_is_ejected_and_returns() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let gateway = gateway(&[&good, &bad], EJECT);
    assert_eq!(failed(&fetch(&gateway, 10)), 0);
    for (status, time) in [(503, "1s"), (0, "2s")] {
        bad.set_status(status);
        let line = format!("upstream app: server {} ejected for {time} (consecutive_errors)", bad.name());
        wait_until("the log says that the server is ejected, longer each time", || {
            fetch(&gateway, 4);
            gateway.log().contains(&line)
        });
        bad.set_status(200);
        let before = bad.request_count();
        wait_until("the server gets requests again", || {
            failed(&fetch(&gateway, 2)) == 0 && bad.request_count() > before
        });
    }
    wait_until("the log says that it is back", || {
        gateway.log().contains(&format!("upstream app: server {} is up", bad.name()))
    });
}

#[test]
fn gateway_statuses_eject_a_server() {
    for status in [502, 504] {
        let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
        let gateway = gateway(&[&good, &bad], LONG);
        bad.set_status(status);
        let responses = fetch(&gateway, 20);
        assert_eq!(failed(&responses), 3, "{status}: {responses:?}");
        gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 1.0);
        let state = shown(&gateway, &bad.name());
        assert_eq!((&state["state"], &state["reason"]), (&"ejected".into(), &"consecutive_errors".into()));
        assert!(state["returns_in_ms"].as_u64().unwrap() <= 600_000, "{state}");
    }
}

#[test]
fn statuses_of_the_application_eject_nobody() {
    let (one, other) = (ControlledServer::start("one"), ControlledServer::start("other"));
    let gateway = gateway(&[&one, &other], LONG);
    for status in [500, 501, 404, 429, 505] {
        other.set_status(status);
        assert_eq!(failed(&fetch(&gateway, 20)), 10, "{status}");
    }
    assert_eq!(shown(&gateway, &other.name())["state"], "up");
}

#[test]
fn one_client_cannot_eject_a_server_that_serves_another() {
    let (one, other) = (ControlledServer::start("one"), ControlledServer::start("other"));
    let gateway = gateway(&[&one, &other], LONG);
    let (mut victim, mut attacker) = (gateway.client_from([127, 0, 0, 2]), gateway.client_from([127, 0, 0, 3]));
    for _ in 0..4 {
        assert_eq!(victim.fetch(&get("/", ""), "").status(), 200);
    }
    for _ in 0..40 {
        assert_eq!(attacker.fetch(&get("/status/503", ""), "").status(), 503);
    }
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 0.0);
    // If a second client gets errors, the server is to blame.
    for _ in 0..2 {
        assert_eq!(victim.fetch(&get("/status/503", ""), "").status(), 503);
    }
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 1.0);
}

#[test]
fn when_all_fail_some_stay_and_none_that_refuses_is_a_reason_to_stop() {
    let servers = [
        ControlledServer::start("a"),
        ControlledServer::start("b"),
        ControlledServer::start("c"),
        ControlledServer::start("d"),
    ];
    let gateway = gateway(&servers.each_ref(), LONG);
    servers.iter().for_each(|server| server.set_status(503));
    assert_eq!(failed(&fetch(&gateway, 60)), 60);
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 2.0);
    let before: Vec<usize> = servers.iter().map(ControlledServer::request_count).collect();
    servers.iter().for_each(|server| server.set_status(200));
    assert_eq!(failed(&fetch(&gateway, 10)), 0);
    let resumed = servers.iter().zip(before).filter(|(server, before)| server.request_count() > *before).count();
    assert_eq!(resumed, 2);
    gateway.assert_metric("upstream_fail_open", &[("upstream", "app")], 0.0);
}

#[test]
fn unreachable_servers_are_logged_and_used_only_as_a_last_resort() {
    let (one, other) = (closed_addr(), closed_addr());
    let gateway = Gateway::start(&app(&[format!("http://{one}"), format!("http://{other}")], ""));
    gateway.assert_metric("upstream_up", &of(&one.to_string()), 1.0);
    assert_eq!(gateway.get("/").status(), 502);
    for server in [one, other] {
        gateway.assert_metric("upstream_up", &of(&server.to_string()), 0.0);
        assert_eq!(shown(&gateway, &server.to_string())["reason"], "refused");
    }
    gateway.assert_metric("upstream_fail_open", &[("upstream", "app")], 1.0);
    let all_down = "ERROR upstream app: all servers are down; sending requests anyway (fail open)";
    wait_until("the log says so", || gateway.log().contains(all_down));
    // The server listens now, and gets requests without waiting for a timeout.
    let listener = std::net::TcpListener::bind(one).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
    });
    wait_until("one of them responds", || gateway.get("/").status() == 200);
    gateway.assert_metric("upstream_up", &of(&one.to_string()), 1.0);
    gateway.assert_metric("upstream_fail_open", &[("upstream", "app")], 0.0);
    wait_until("the log says that one is up again", || gateway.log().contains("upstream app: 1 of 2 servers up"));
}

#[test]
fn the_only_server_of_an_upstream_has_lines_of_its_own() {
    let server = closed_addr();
    let gateway = Gateway::start(&app(&[format!("http://{server}")], "health = { type = \"tcp\", every = \"100ms\" }"));
    assert_eq!(gateway.get("/").status(), 502);
    // A request or a check notices it first.
    let line = ["ERROR upstream app: its only server", &format!("{server} is down ("), "); sending requests anyway"];
    wait_until("the log says that it is down", || gateway.log_lines(&line) == 1);
    assert!(!gateway.log().contains("all servers are down"), "{}", gateway.log());
    let _listener = std::net::TcpListener::bind(server).unwrap();
    let line = format!("INFO upstream app: its only server {server} is up");
    wait_until("the log says that it is up", || gateway.log().contains(&line));
}

#[test]
fn an_error_rate_ejects_a_server_whose_errors_never_come_in_a_row() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let rule = "balance = \"round_robin\"\neject = { error_rate = 0.4, every = \"1m\", for = \"10m\" }";
    let gateway = gateway(&[&good, &bad], rule);
    let mut client = gateway.client();
    for round in 0..60 {
        bad.set_status(if round % 4 == 0 { 503 } else { 200 });
        client.fetch(&get("/", ""), "");
        client.fetch(&get("/", ""), "");
    }
    assert_eq!(shown(&gateway, &bad.name())["state"], "up", "every second response is a success");
    wait_until("every second response is one too many", || {
        for round in 0..4 {
            bad.set_status(if round % 2 == 0 { 503 } else { 200 });
            client.fetch(&get("/", ""), "");
            client.fetch(&get("/", ""), "");
        }
        shown(&gateway, &bad.name())["state"] == "ejected"
    });
    assert_eq!(shown(&gateway, &bad.name())["reason"], "error_rate");
}

#[test]
fn responses_that_break_off_within_their_body_are_errors() {
    let good = ControlledServer::start("good");
    let aborting = crate::support::upstream::Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning")
    });
    let rule = "balance = \"round_robin\"\neject = { error_rate = 0.9, every = \"1m\", for = \"10m\" }";
    let gateway = Gateway::start(&app(&[aborting.url(), good.url()], rule));
    wait_until("it is ejected", || {
        for _ in 0..10 {
            let mut client = gateway.client();
            client.send(get("/", ""));
            let _ = client.try_read_response("GET");
        }
        shown(&gateway, &aborting.addr.to_string())["state"] == "ejected"
    });
    assert!((20..30).contains(&aborting.connections()), "{}", aborting.connections());
}

#[test]
fn a_reload_keeps_ejections_unless_the_rule_or_the_server_is_removed() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let urls = [good.url(), bad.url()];
    let gateway = gateway(&[&good, &bad], LONG);
    bad.set_status(503);
    fetch(&gateway, 10);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 0.0);
    bad.set_status(200);
    let before = bad.request_count();
    let text = |more: &str| config("", &app(&urls, more));
    gateway.reload(&text(&format!("{LONG}\nmax_idle = 3")));
    assert_eq!(failed(&fetch(&gateway, 10)), 0);
    assert_eq!(bad.request_count(), before);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 0.0);

    gateway.reload(&config("", &app(&urls[..1], LONG)));
    assert_eq!(gateway.metric("upstream_up", &of(&bad.name())), None, "a removed server has no series");
    gateway.reload(&text(LONG));
    gateway.assert_metric("upstream_up", &of(&bad.name()), 1.0);

    bad.set_status(503);
    fetch(&gateway, 10);
    gateway.assert_metric("upstream_up", &of(&bad.name()), 0.0);
    gateway.reload(&text("balance = \"round_robin\""));
    gateway.assert_metric("upstream_up", &of(&bad.name()), 1.0);
}

#[test]
fn workers_share_what_they_know() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let gateway = Gateway::with("workers = 4", &app(&[good.url(), bad.url()], LONG));
    bad.set_status(503);
    // Connections are spread over the workers; without sharing each would meet 3 errors.
    let errors = (0..100).filter(|_| gateway.get("/").status() == 503).count();
    assert!((3..=5).contains(&errors), "{errors}");
}

#[test]
fn a_server_of_weight_0_gets_no_requests() {
    let (one, other) = (ControlledServer::start("one"), ControlledServer::start("other"));
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\nupstream = \"app\"\n[upstream.app]\nservers = [\"{}\", {{ url = \"{}\", weight = 0 }}]\n",
        one.url(),
        other.url()
    ));
    assert_eq!(failed(&fetch(&gateway, 10)), 0);
    one.set_status(0);
    assert_eq!(failed(&fetch(&gateway, 3)), 3);
    assert_eq!(other.request_count(), 0);
}
