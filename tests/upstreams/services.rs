//! Servers by SRV records: hosts, ports and weights come from DNS.

use std::net::TcpListener;

use super::dns::{ip, server};
use super::fleet::app;
use crate::support::client::get;
use crate::support::dns::{DnsServer, Reply, SrvRecord};
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const HOSTS: [(&str, u8); 3] = [("one.test", 1), ("two.test", 2), ("spare.test", 3)];

fn service(records: Vec<SrvRecord>) -> Reply {
    Reply::Service(records, HOSTS.map(|(host, last)| (host, ip(last))).into())
}

fn gateway(dns: &DnsServer, more: &str) -> Gateway {
    Gateway::with(&dns.line(), &app(&["srv:_http._tcp.app.test".to_owned()], more))
}

/// Returns how many of `requests` each address got.
fn count(gateway: &Gateway, requests: usize) -> [usize; 3] {
    let mut client = gateway.client();
    let mut counts = [0; 3];
    for _ in 0..requests {
        let text = client.fetch(&get("/", ""), "").text();
        let place = (1..=3).position(|last| ip(last).to_string() == text);
        counts[place.unwrap_or_else(|| panic!("{text}"))] += 1;
    }
    counts
}

#[test]
fn hosts_ports_and_weights_come_from_dns_and_the_best_priority_counts() {
    let ports = [ReservedPort::new(), ReservedPort::new(), ReservedPort::new()];
    let [one, two, spare] = [0, 1, 2].map(|place| ports[place].port());
    let _servers = [server(ip(1), one), server(ip(2), two), server(ip(3), spare)];
    let records = |weights: (u16, u16)| {
        vec![(10, weights.0, one, "one.test"), (10, weights.1, two, "two.test"), (20, 9, spare, "spare.test")]
    };
    let dns = DnsServer::start(service(records((3, 1))));
    let gateway = gateway(&dns, "balance = \"round_robin\"");
    assert_eq!(count(&gateway, 40), [30, 10, 0]);
    let listed = gateway.admin("/-/upstreams").json();
    let weights = [0, 1].map(|place| listed["upstreams"][0]["servers"][place]["weight"].clone());
    assert_eq!(weights, [0.75, 0.25]);
    let server = "srv:_http._tcp.app.test";
    gateway.assert_metric("upstream_addresses", &[("server", server), ("upstream", "app")], 2.0);
    gateway.assert_metric("dns_lookups_total", &[("name", server), ("result", "found")], 1.0);
    // Other weights come into force with the next lookup, and so do other hosts.
    dns.set_reply(service(records((1, 1))));
    wait_until("the weights change", || count(&gateway, 40) == [20, 20, 0]);
    dns.set_reply(service(vec![(20, 0, spare, "spare.test"), (10, 1, one, "unknown.test")]));
    wait_until("the next priority is used where the best has no address", || count(&gateway, 5) == [0, 0, 5]);
    // A failing DNS server takes nothing away.
    dns.set_reply(Reply::Failure);
    let before = dns.queries().len();
    wait_until("it was asked", || dns.queries().len() > before + 1);
    assert_eq!(count(&gateway, 5), [0, 0, 5]);
}

#[test]
fn the_name_of_a_service_may_be_an_alias() {
    let port = ReservedPort::new();
    let _server = server(ip(1), port.port());
    let dns = DnsServer::start(service(vec![(0, 80, port.port(), "one.test")]));
    let gateway = Gateway::with(&dns.line(), &app(&["srv:_http._tcp.alias.test".to_owned()], ""));
    assert_eq!(gateway.get("/").text(), "127.0.0.1");
}

#[test]
fn a_service_without_servers_is_reported_and_appears_later() {
    let port = ReservedPort::new();
    let _server = server(ip(1), port.port());
    // The root name says that there is none.
    let dns = DnsServer::start(Reply::Service(vec![(0, 0, 0, "")], Vec::new()));
    let gateway = gateway(&dns, "");
    assert_eq!(gateway.get("/").status(), 502);
    wait_until("it is logged", || gateway.log().contains("srv:_http._tcp.app.test"));
    dns.set_reply(service(vec![(0, 0, port.port(), "one.test")]));
    wait_until("its server is found", || gateway.get("/").text() == "127.0.0.1");
}

#[test]
fn the_host_of_a_service_is_its_domain() {
    let port = ReservedPort::new();
    let dns = DnsServer::start(service(vec![(0, 0, port.port(), "one.test")]));
    let _server = Upstream::on(TcpListener::bind((ip(1), port.port())).unwrap(), |peer| {
        let host = peer.request()?.and_then(|request| request.get("host").map(str::to_owned));
        peer.send(ok(&host.unwrap_or_default()))
    });
    let routes = "[[route]]\nupstream = \"app\"\nrewrite = { upstream_host = true }\n[upstream.app]\nservers = \
                  [\"srv:_http._tcp.app.test\"]\n";
    let gateway = Gateway::with(&dns.line(), routes);
    assert_eq!(gateway.get("/").text(), "app.test");
}
