//! DNS servers that fail, lie, flood or stay silent: the gateway continues with the last addresses, and no request
//! waits for DNS.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::dns::{gateway, ip, server};
use super::fleet::{app, of};
use crate::support::dns::{DnsServer, Reply};
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

fn lookups(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("dns_lookups_total", &[("name", "app.test"), ("result", result)]).unwrap()
}

#[test]
fn invalid_responses_change_nothing() {
    let port = ReservedPort::new();
    let _server = server(ip(1), port.port());
    let dns = DnsServer::start(Reply::Addresses(vec![ip(1)], 0));
    let gateway = gateway(&dns, port.port(), "resolve_every = \"1s\"");
    for (reply, result) in [
        (Reply::NoSuchName, "no_address"),
        (Reply::Empty, "no_address"),
        (Reply::Failure, "failed"),
        // Addresses that cannot be used.
        (Reply::Addresses(vec![Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()], 0), "no_address"),
    ] {
        let before = lookups(&gateway, result);
        dns.set_reply(reply);
        wait_until(&format!("a lookup ends with {result}"), || lookups(&gateway, result) > before);
        assert_eq!(gateway.get("/").text(), "127.0.0.1");
    }
    assert!(gateway.log().contains("a name was not found: the addresses found before stay in use"));
    gateway.assert_metric("upstream_addresses", &of(&format!("app.test:{}", port.port())), 1.0);
}

#[test]
fn silence_and_garbage_hold_up_no_request_and_no_start() {
    for reply in [Reply::Silence, Reply::Garbage] {
        let port = ReservedPort::new();
        let server = server(ip(1), port.port());
        let dns = DnsServer::start(reply);
        let started = Instant::now();
        let gateway = gateway(&dns, port.port(), "");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let started = Instant::now();
        let response = gateway.get("/");
        assert_eq!(response.status(), 502);
        assert!(response.text().contains("has no address"), "{}", response.text());
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        let page = gateway.admin("/-/upstreams").json();
        assert_eq!(page["upstreams"][0]["servers"][0]["state"], "unresolved");
        gateway.assert_metric("upstream_up", &of(&format!("app.test:{}", port.port())), 0.0);
        dns.set_reply(Reply::Addresses(vec![ip(1)], 0));
        wait_until("it is found", || gateway.get("/").text() == "127.0.0.1");
        dns.set_reply(Reply::Silence);
        let silent = Instant::now();
        while silent.elapsed() < Duration::from_millis(1200) {
            assert_eq!(gateway.get("/").text(), "127.0.0.1");
        }
        drop(server);
    }
}

/// Returns other addresses of this machine for each query, and one that stays: more addresses than are kept.
fn flood(question: usize) -> Vec<IpAddr> {
    let question = question as u32;
    let of = |i: u32| IpAddr::from(Ipv4Addr::from(0x7f01_0000 + (question * 3000 + i) % 0x00ff_0000));
    (0..3000).map(of).chain([ip(1)]).collect()
}

#[test]
fn the_number_of_addresses_is_bounded_and_old_ones_are_forgotten() {
    let port = ReservedPort::new();
    let _server = server(ip(1), port.port());
    let dns = DnsServer::start(Reply::Flapping(flood));
    let gateway = Gateway::with(
        &dns.line(),
        &app(&[format!("http://app.test:{}", port.port())], "retry = { attempts = 1, on = [] }"),
    );
    let name = format!("app.test:{}", port.port());
    gateway.assert_metric("upstream_addresses", &of(&name), 256.0);
    let page = |gateway: &Gateway| gateway.admin("/-/upstreams").json()["upstreams"][0]["servers"].to_string();
    let (first, memory) = (page(&gateway), gateway.watch_memory());
    let found = lookups(&gateway, "found");
    wait_until("the addresses have changed", || {
        gateway.get("/");
        lookups(&gateway, "found") >= found + 2.0
    });
    assert_ne!(first, page(&gateway));
    gateway.assert_metric("upstream_addresses", &of(&name), 256.0);
    let more = memory.grown();
    assert!(more < 24 << 20, "{more} bytes more");
    let reports = gateway.log().matches("servers are at").count();
    assert_eq!(reports, 1, "one line in ten seconds");
    // There was one query for each family; a flood of addresses causes no more.
    assert!(dns.queries().len() < 40, "{}", dns.queries().len());
}

#[test]
fn a_family_that_is_never_answered_for_holds_up_the_other_for_a_moment_only() {
    for address in [ip(1), "::1".parse().unwrap()] {
        let port = ReservedPort::new();
        let _server = server(address, port.port());
        let dns = DnsServer::start(Reply::HalfSilent(vec![address]));
        let gateway = gateway(&dns, port.port(), "resolve_every = \"3600s\"");
        wait_until("it is found", || gateway.get("/").text() == address.to_string());
        // The query without a response was given up soon; otherwise it would be repeated ten times.
        let other = if address.is_ipv4() { "app.test. 28" } else { "app.test. 1" };
        let repeated = dns.queries().iter().filter(|query| *query == other).count();
        assert!(repeated < 6, "{:?}", dns.queries());
    }
}

#[test]
fn lies_are_not_believed_and_fill_no_log() {
    let port = ReservedPort::new();
    let _server = server(ip(1), port.port());
    let dns = DnsServer::start(Reply::OtherIds(2, vec![ip(1)]));
    let gateway = gateway(&dns, port.port(), "resolve_every = \"1s\"");
    let lines = || gateway.log().lines().filter(|line| line.contains(" WARN ")).count();
    wait_until("several lookups succeeded", || lookups(&gateway, "found") >= 8.0);
    assert_eq!(gateway.get("/").text(), "127.0.0.1");
    wait_until("what was left out is reported", || gateway.log().contains("log lines of a library were left out"));
    assert!((2..8).contains(&lines()), "{}", gateway.log());
}
