//! Requests that a server failed are retried on another one, where that is safe and within the budget.

use std::time::Instant;

use super::fleet::{ControlledServer, app};
use crate::support::client::{call, get};
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

fn gateway(servers: &[&ControlledServer], retry: &str) -> Gateway {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    Gateway::start(&app(&urls, &format!("balance = \"round_robin\"\n{retry}")))
}

fn retries(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("upstream_retries_total", &[("upstream", "app"), ("reason", reason)]).unwrap()
}

/// Statuses of so many requests of a client.
fn statuses(gateway: &Gateway, method: &str, body: &str, requests: usize) -> Vec<u16> {
    let mut client = gateway.client();
    let head = if body.is_empty() { get("/", "").replace("GET", method) } else { call(method, "/", "", body.len()) };
    (0..requests).map(|_| client.fetch(&head, body).status()).collect()
}

#[test]
fn only_idempotent_requests_go_to_another_server() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let gateway = gateway(&[&good, &bad], "retry = { attempts = 2 }");
    bad.set_status(0);
    for method in ["GET", "OPTIONS", "DELETE"] {
        assert_eq!(statuses(&gateway, method, "", 4), [200; 4], "{method}");
    }
    let retried = bad.request_count() as f64;
    assert!(retried >= 6.0, "{retried}");
    assert_eq!(retries(&gateway, "reset"), retried);
    for (method, body) in [("POST", ""), ("POST", "x"), ("PATCH", "x"), ("PUT", "x")] {
        let (good_before, bad_before) = (good.request_count(), bad.request_count());
        let mut statuses = statuses(&gateway, method, body, 6);
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 502, 502, 502], "{method} {body}");
        assert_eq!(
            (good.request_count() - good_before, bad.request_count() - bad_before),
            (3, 3),
            "{method} {body}: once each"
        );
    }
    assert_eq!(retries(&gateway, "reset"), retried);
}

#[test]
fn statuses_and_silence_are_reasons_only_where_they_are_named() {
    for (retry, fixed) in [("", false), ("retry = {}", false), ("retry = { on = [\"503\"] }", true)] {
        let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
        let gateway = gateway(&[&good, &bad], retry);
        bad.set_status(503);
        let failed = statuses(&gateway, "GET", "", 8).iter().filter(|status| **status == 503).count();
        assert_eq!(failed, if fixed { 0 } else { 4 }, "{retry}");
        assert_eq!(retries(&gateway, "503"), if fixed { bad.request_count() as f64 } else { 0.0 }, "{retry}");
        assert_eq!(statuses(&gateway, "POST", "", 2).iter().filter(|status| **status == 503).count(), 1, "{retry}");
        // The connections stay usable for further requests.
        assert_eq!(bad.upstream.connections(), 1, "{retry}");
    }
    let (good, silent) = (Upstream::text("good"), Upstream::silent());
    let upstream = app(&[good.url(), silent.url()], "balance = \"round_robin\"\nretry = { on = [\"timeout\"] }");
    let config = upstream.replace("upstream = \"app\"", "upstream = \"app\"\nresponse_timeout = \"600ms\"");
    let gateway = Gateway::start(&config);
    assert_eq!(statuses(&gateway, "GET", "", 4), [200; 4]);
    assert_eq!(retries(&gateway, "timeout"), silent.requests().len() as f64);
}

#[test]
fn a_server_of_no_weight_is_nobody_to_ask_again() {
    let (bad, spare) = (ControlledServer::start("bad"), ControlledServer::start("spare"));
    bad.set_status(503);
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"app\"\n[upstream.app]\nretry = {{ on = [\"503\"] }}\n\
         servers = [\"{}\", {{ url = \"{}\", weight = 0 }}]",
        bad.url(),
        spare.url()
    ));
    let response = gateway.get("/");
    assert_eq!((response.status(), response.text().as_str()), (503, "bad"));
    assert_eq!((bad.request_count(), spare.request_count(), retries(&gateway, "503")), (1, 0, 0.0));
}

#[test]
fn without_retry_a_request_that_left_is_not_sent_again() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let gateway = gateway(&[&good, &bad], "");
    bad.set_status(0);
    assert_eq!(statuses(&gateway, "GET", "", 8).iter().filter(|status| **status == 502).count(), 4);
    assert_eq!(good.request_count() + bad.request_count(), 8);
}

#[test]
fn a_request_is_sent_as_often_as_it_may_and_to_no_server_twice() {
    let servers = [
        ControlledServer::start("a"),
        ControlledServer::start("b"),
        ControlledServer::start("c"),
        ControlledServer::start("d"),
    ];
    servers.iter().for_each(|server| server.set_status(0));
    for (attempts, sent) in [(1, 1), (2, 2), (3, 3), (10, 4)] {
        let gateway = gateway(&servers.each_ref(), &format!("retry = {{ attempts = {attempts} }}"));
        let before: Vec<usize> = servers.iter().map(ControlledServer::request_count).collect();
        assert_eq!(statuses(&gateway, "GET", "", 1), [502]);
        let received: Vec<usize> =
            servers.iter().zip(before).map(|(server, before)| server.request_count() - before).collect();
        assert_eq!(received.iter().sum::<usize>(), sent, "{attempts}: {received:?}");
        assert!(received.iter().all(|received| *received <= 1), "{attempts}: {received:?}");
    }
}

#[test]
fn a_request_with_a_partial_response_is_not_retried() {
    let good = ControlledServer::start("good");
    let liar = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-le")
    });
    let upstream = app(&[good.url(), liar.url()], "balance = \"round_robin\"\nretry = { attempts = 3 }");
    let gateway = Gateway::start(&upstream);
    let mut statuses = statuses(&gateway, "GET", "", 4);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502, 502]);
    assert_eq!((good.request_count(), retries(&gateway, "reset")), (2, 0.0));
}

#[test]
fn the_budget_holds_a_storm() {
    let servers = [ControlledServer::start("a"), ControlledServer::start("b"), ControlledServer::start("c")];
    servers.iter().for_each(|server| server.set_status(503));
    let gateway = gateway(&servers.each_ref(), "retry = { attempts = 3, budget = 0.2, on = [\"503\"] }");
    let (requests, since) = (400, Instant::now());
    assert_eq!(statuses(&gateway, "GET", "", requests), vec![503; requests]);
    let sent: usize = servers.iter().map(ControlledServer::request_count).sum();
    // A fifth of the requests, and ten retries in any ten seconds.
    let most = requests + 80 + 30 + usize::try_from(since.elapsed().as_secs()).unwrap();
    assert!(sent >= requests + 80 && sent <= most, "{sent}, at most {most}");
    assert_eq!(retries(&gateway, "503"), (sent - requests) as f64);
    let over = gateway.metric("upstream_retries_over_budget_total", &[("upstream", "app")]).unwrap();
    // Each request would need more retries than it gets.
    assert!(over >= (2 * requests - sent) as f64, "{over}");
}
