//! Servers by hostname: the gateway uses all addresses of a name, including later ones.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use super::fleet::{app, of};
use crate::support::client::get;
use crate::support::dns::{DnsServer, Reply};
use crate::support::gateway::{Gateway, config};
use crate::support::h2_server::Http2Server;
use crate::support::ports::{ReservedPort, closed_addr};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

pub fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// A server at one of the addresses, which responds with the address.
pub fn server(ip: IpAddr, port: u16) -> Upstream {
    Upstream::on(TcpListener::bind((ip, port)).unwrap(), move |peer| {
        while peer.request()?.is_some() {
            peer.send(ok(&ip.to_string()))?;
        }
        Ok(())
    })
}

/// Starts a gateway that looks up `app.test` at `dns`.
pub fn gateway(dns: &DnsServer, port: u16, more: &str) -> Gateway {
    Gateway::with(&dns.line(), &app(&[format!("http://app.test:{port}")], more))
}

fn shown(gateway: &Gateway) -> Vec<serde_json::Value> {
    let page = gateway.admin("/-/upstreams").json();
    page["upstreams"][0]["servers"].as_array().unwrap().clone()
}

#[track_caller]
fn assert_responses(gateway: &Gateway, expected: &[IpAddr], requests: usize) {
    let mut client = gateway.client();
    let mut responses: Vec<String> = (0..requests).map(|_| client.fetch(&get("/", ""), "").text()).collect();
    responses.sort();
    responses.dedup();
    assert_eq!(responses, expected.iter().map(IpAddr::to_string).collect::<Vec<_>>());
}

#[test]
fn all_addresses_of_a_name_are_servers_each_by_itself() {
    let port = ReservedPort::new();
    let mut servers: Vec<Upstream> = (1..=3).map(|last| server(ip(last), port.port())).collect();
    let dns = DnsServer::start(Reply::Addresses(vec![ip(3), ip(1), ip(2), ip(1)], 3600));
    let health = "health = { type = \"tcp\", every = \"100ms\", unhealthy_after = 1, healthy_after = 1 }";
    let gateway = gateway(&dns, port.port(), &format!("balance = \"round_robin\"\n{health}"));
    assert_responses(&gateway, &[ip(1), ip(2), ip(3)], 6);
    let name = format!("app.test:{}", port.port());
    gateway.assert_metric("upstream_addresses", &of(&name), 3.0);
    gateway.assert_metric("dns_lookups_total", &[("name", "app.test"), ("result", "found")], 1.0);
    let address = |last: u8| format!("{}:{}", ip(last), port.port());
    for (shown, last) in shown(&gateway).iter().zip(1..) {
        assert_eq!((&shown["server"], &shown["address"]), (&name.as_str().into(), &address(last).into()));
    }
    // Only the server that ended is down.
    drop(servers.remove(1));
    wait_until("one is down", || shown(&gateway)[1]["state"] == "down");
    assert_eq!([0, 2].map(|place| shown(&gateway)[place]["state"] == "up"), [true; 2]);
    gateway.assert_metric("upstream_up", &of(&name), 1.0);
    assert_responses(&gateway, &[ip(1), ip(3)], 6);
    let line = format!("upstream app: server {name} (127.0.0.2) is down (check: no_connection)");
    wait_until("the log says so", || gateway.log().contains(&line));
}

#[test]
fn a_server_that_moved_is_found_before_its_time_to_live_ends() {
    let port = ReservedPort::new();
    let brief = |last: u8| {
        Upstream::on(TcpListener::bind((ip(last), port.port())).unwrap(), move |peer| {
            let host = peer.request()?.and_then(|request| request.get("host").map(str::to_owned));
            peer.note(&host.unwrap_or_default());
            peer.send(format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{}", ip(last)))
        })
    };
    let old = brief(1);
    let dns = DnsServer::start(Reply::Addresses(vec![ip(1)], 1_000_000));
    let route = "rewrite = { upstream_host = true }\nupstream = \"app\"";
    let upstream = app(&[format!("http://app.test:{}", port.port())], "resolve_every = \"3600s\"");
    let gateway = Gateway::with(&dns.line(), &upstream.replace("upstream = \"app\"", route));
    assert_responses(&gateway, &[ip(1)], 2);
    let hosts: Vec<String> = old.requests().into_iter().map(|request| request.head).collect();
    assert!(hosts.contains(&format!("app.test:{}", port.port())), "{hosts:?}");
    // A container that is restarted at another address.
    drop(old);
    let new = brief(2);
    dns.set_reply(Reply::Addresses(vec![ip(2)], 1_000_000));
    let moved = Instant::now();
    wait_until("the new address gets requests", || gateway.get("/").status() == 200);
    assert!(moved.elapsed() < Duration::from_secs(10), "{:?}", moved.elapsed());
    assert_responses(&gateway, &[ip(2)], 5);
    // Requests that find no server cause at most one query a second.
    let before = dns.queries().len();
    dns.set_reply(Reply::Addresses(vec![ip(9)], 0));
    drop(new);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        assert_eq!(gateway.get("/").status(), 502);
    }
    let questions = dns.queries().len() - before;
    assert!((2..=6).contains(&questions), "{questions}");
}

#[test]
fn an_address_that_went_is_drained() {
    let port = ReservedPort::new();
    // Responses begin at once and go on when they are told to.
    let old = Upstream::on(TcpListener::bind((ip(1), port.port())).unwrap(), |peer| {
        while let Some(request) = peer.request()? {
            if request.target() == "/long" {
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nfour")?;
                std::thread::sleep(Duration::from_millis(2500));
                peer.send("more")?;
            } else {
                peer.send(ok("old"))?;
            }
        }
        peer.note("closed");
        Ok(())
    });
    let _new = server(ip(2), port.port());
    let dns = DnsServer::start(Reply::Addresses(vec![ip(1)], 0));
    let gateway = gateway(&dns, port.port(), "");
    let mut long = gateway.client();
    long.send(get("/long", ""));
    assert_eq!(long.try_read_head().unwrap().status(), 200);
    assert_eq!(gateway.get("/").text(), "old");
    dns.set_reply(Reply::Addresses(vec![ip(2)], 0));
    wait_until("the new address gets requests", || gateway.get("/").text() == "127.0.0.2");
    wait_until("its idle connection is closed", || old.requests().iter().any(|request| request.head == "closed"));
    assert_eq!(long.bytes(8), b"fourmore", "responses that had begun are complete");
    assert_eq!(shown(&gateway).len(), 1);
}

/// Connections that are open at this port.
fn open_at(port: u16) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_open = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "01"
    };
    sockets.lines().skip(1).filter(is_open).count()
}

#[test]
fn an_address_that_went_is_let_go_of_without_another_request() {
    let old = Http2Server::start(|mut incoming| async move { incoming.send_response("old").await });
    let dns = DnsServer::start(Reply::Addresses(vec![ip(1)], 0));
    let upstream = app(&[format!("h2c://app.test:{}", old.addr.port())], "resolve_every = \"1s\"");
    let gateway = Gateway::with(&dns.line(), &upstream);
    assert_eq!(gateway.get("/").text(), "old");
    assert_eq!(open_at(old.addr.port()), 1);
    dns.set_reply(Reply::Addresses(vec![ip(2)], 3600));
    wait_until("its connection is closed", || open_at(old.addr.port()) == 0);
}

#[test]
fn names_go_by_both_families_and_one_that_fails_for_now_keeps_its_addresses() {
    let port = ReservedPort::new();
    let six = "::1".parse::<IpAddr>().unwrap();
    let _servers = [server(ip(1), port.port()), server(six, port.port())];
    let dns = DnsServer::start(Reply::Addresses(vec![six, ip(1)], 0));
    let gateway = gateway(&dns, port.port(), "balance = \"round_robin\"");
    assert_responses(&gateway, &[ip(1), six], 4);
    dns.set_reply(Reply::HalfFailing(vec![ip(1)]));
    let found = || gateway.metric("dns_lookups_total", &[("name", "app.test"), ("result", "found")]).unwrap();
    let before = found();
    wait_until("it was looked up again", || found() >= before + 1.0);
    assert_eq!(shown(&gateway).len(), 2);
    assert_responses(&gateway, &[ip(1), six], 4);
    // The name has no address of that family any more.
    dns.set_reply(Reply::Addresses(vec![ip(1)], 0));
    wait_until("it has one address", || shown(&gateway).len() == 1);
    assert_responses(&gateway, &[ip(1)], 4);
}

#[test]
fn the_hosts_of_this_machine_come_first_and_another_resolver_applies_live() {
    let port = ReservedPort::new();
    let _servers = [server(ip(1), port.port()), server(ip(2), port.port())];
    let [one, other] = [1, 2].map(|last| DnsServer::start(Reply::Addresses(vec![ip(last)], 3600)));
    let routes = format!(
        "[[route]]\npath = \"/local\"\nupstream = \"http://LocalHost:{0}\"\n{1}",
        port.port(),
        app(&[format!("http://app.test:{}", port.port())], "")
    );
    let gateway = Gateway::with(&one.line(), &routes);
    assert_eq!(gateway.get("/local").text(), "127.0.0.1");
    assert_eq!(gateway.get("/").text(), "127.0.0.1");
    assert!(one.queries().iter().all(|query| query.starts_with("app.test. ")), "{:?}", one.queries());
    gateway.reload(&config(&other.line(), &routes));
    wait_until("the other address gets requests", || gateway.get("/").text() == "127.0.0.2");
    // The names of the new config are resolved before it is in force.
    let next = app(&[format!("http://next.test:{}", port.port())], "");
    gateway.reload(&config(&other.line(), &next));
    assert_eq!(gateway.get("/").text(), "127.0.0.2");
    assert_eq!(gateway.metric("dns_lookups_total", &[("name", "app.test"), ("result", "found")]), None);
}

#[test]
fn sockets_and_addresses_are_not_looked_up() {
    let dns = DnsServer::start(Reply::Failure);
    let upstream = Upstream::text("fine");
    let gateway = Gateway::with(&dns.line(), &app(&[upstream.url(), format!("http://{}", closed_addr())], ""));
    assert_eq!(gateway.get("/").text(), "fine");
    assert_eq!(dns.queries(), Vec::<String>::new());
    assert!(shown(&gateway).iter().all(|server| server.get("address").is_none()));
}

/// Names of containers and services have characters that registered names have not.
#[test]
fn names_are_looked_up_as_they_are_written() {
    let upstream = Upstream::text("good");
    let dns = DnsServer::start(Reply::Addresses(vec![ip(1)], 60));
    let names = ["web-1", "web_1", "a_b.test", "_a.test", "xn--bcher-kva.test", "xn--a.test", "r3---sn-x.test"];
    let sections: String = (0..)
        .zip(names)
        .map(|(number, name)| {
            let url = format!("http://{name}:{}", upstream.addr.port());
            let auth = if number % 2 == 0 { String::new() } else { format!("auth = {{ forward = \"{url}/auth\" }}\n") };
            format!("[[route]]\npath = \"/{name}\"\nupstream = \"{url}\"\n{auth}")
        })
        .collect();
    let gateway = Gateway::with(&dns.line(), &sections);
    for name in names {
        assert_eq!(gateway.get(&format!("/{name}")).status(), 200, "{name}");
        assert!(
            dns.queries().iter().any(|query| query.starts_with(&format!("{name}. "))),
            "{name}: {:?}",
            dns.queries()
        );
    }
}
