//! Live overrides of limits, through the running program and in every form of Redis: read from the
//! server that has them, over its TLS, and followed when another server takes over.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use redis::Connection;
use sluicegate::limiting::store::redis::slot::key_slot;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::tls::{Ca, TlsServer};
use crate::support::limiting::topology::{RedisCluster, SentinelSetup, cluster_node, is_up, run_command};
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

/// Overrides are read every two seconds; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(4);

/// Limits with 2 units a day for each tenant, all on one route.
fn gateway(store: &str, limits: &[&str]) -> Gateway {
    let names: Vec<String> = limits.iter().map(|name| format!("\"{name}\"")).collect();
    let limits: Vec<String> = limits
        .iter()
        .map(|name| {
            format!(
                "[limit.{name}]\nalgorithm = \"fixed_window\"\nrate = \"2/day\"\nkey = \"header:tenant\"\ncost = 0\n"
            )
        })
        .collect();
    Gateway::start(&format!(
        "[store]\n{store}\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\nlimits = [{}]\n{}",
        names.join(", "),
        limits.concat()
    ))
}

fn at(url: &str) -> String {
    format!("url = \"{url}\"\n")
}

/// Returns the tenant's daily quota of `limit`.
fn quota(gateway: &Gateway, limit: &str) -> i64 {
    let response = gateway.fetch(&get("/", "tenant: acme\r\n"));
    let policy = response.get("ratelimit-policy").unwrap_or_else(|| panic!("no policy:\n{}", response.head)).to_owned();
    let rest = policy.split(&format!("\"{limit}\";q=")).nth(1).unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

fn set(client: &mut Connection, limit: &str, count: i64) {
    let () = run_command(client, &["HSET", &format!("sg:overrides:{limit}"), "acme", &format!("rate={count}/day")]);
}

#[track_caller]
fn assert_soon(gateway: &Gateway, limit: &str, count: i64) {
    let since = Instant::now();
    while quota(gateway, limit) != count {
        assert!(since.elapsed() < SOON, "{limit}: still {}; log:\n{}", quota(gateway, limit), gateway.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn on_a_cluster_each_hash_is_read_at_its_node_and_a_failover_is_followed() {
    let mut cluster = RedisCluster::start(1);
    let limits = ["a", "b", "c", "d"];
    let place = |limit: &str| key_slot(&format!("sg:overrides:{limit}"));
    let owners: HashSet<usize> = limits.iter().map(|limit| cluster.owner_index(place(limit))).collect();
    assert_eq!(owners.len(), 3, "the hashes are on all masters");
    set(&mut cluster.owner(place("a")).client(), "a", 4);
    let gateway = gateway(&at(&cluster.url()), &limits);
    assert_eq!(quota(&gateway, "a"), 4, "known before the first request");
    limits.iter().zip(5..).for_each(|(limit, count)| set(&mut cluster.owner(place(limit)).client(), limit, count));
    limits.iter().zip(5..).for_each(|(limit, count)| assert_soon(&gateway, limit, count));

    let lost = cluster.owner_index(place("a"));
    cluster.nodes[lost].kill();
    wait_until("a replica is promoted", || cluster.owner_index(place("a")) != lost);
    wait_until("all masters know the new one", || cluster.masters().into_iter().all(|node| is_up(node)));
    assert_eq!(quota(&gateway, "a"), 5, "known overrides stay");
    limits.iter().zip(15..).for_each(|(limit, count)| set(&mut cluster.owner(place(limit)).client(), limit, count));
    limits.iter().zip(15..).for_each(|(limit, count)| assert_soon(&gateway, limit, count));
}

#[test]
fn the_master_that_the_sentinels_name_is_read() {
    let mut watched = SentinelSetup::start();
    let gateway = gateway(&at(&watched.url()), &["a"]);
    set(&mut watched.client(0), "a", 5);
    assert_soon(&gateway, "a", 5);
    watched.servers[0].kill();
    wait_until("the replica is promoted", || watched.info(1).contains("role:master"));
    assert_eq!(quota(&gateway, "a"), 5, "known overrides stay");
    set(&mut watched.client(1), "a", 6);
    assert_soon(&gateway, "a", 6);
}

#[test]
fn a_socket_file_and_another_database_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock").display().to_string();
    let server = RedisServer::start(&["--unixsocket", &path]);
    let gateway = gateway(&at(&format!("redis+unix://{path}?db=5")), &["a"]);
    let mut client = server.client();
    set(&mut client, "a", 5);
    let () = run_command(&mut client, &["SELECT", "5"]);
    set(&mut client, "a", 6);
    assert_soon(&gateway, "a", 6);
}

#[test]
fn servers_clusters_and_sentinels_are_read_over_tls() {
    let ca = Ca::new("ours");
    let pair = ca.issue(&["localhost", "127.0.0.1"], "both");
    let bus = ReservedPort::new();
    let bus = bus.port().to_string();
    let server = TlsServer::start(&pair, &ca, &[]);
    let sentinel = server.sentinel();
    let node =
        TlsServer::start(&pair, &ca, &["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"]);
    let () = run_command(&mut node.server.client(), &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || is_up(&node.server));
    for (url, server) in [
        (server.url("localhost"), &server),
        (format!("rediss+sentinel://localhost:{}/mine", sentinel.port), &server),
        (node.url("localhost").replace("rediss:", "rediss+cluster:"), &node),
    ] {
        let path = |name: &str| server.dir.path().join(name).display().to_string();
        let files = ["ca", "client_cert", "client_key"].iter().zip(["ca", "cert", "key"]);
        let files: String = files.map(|(option, name)| format!("{option} = \"{}\"\n", path(name))).collect();
        let () = run_command(&mut server.server.client(), &["DEL", "sg:overrides:a"]);
        let gateway = gateway(&format!("{}{files}", at(&url)), &["a"]);
        set(&mut server.server.client(), "a", 5);
        assert_soon(&gateway, "a", 5);
    }
}

#[test]
fn an_unavailable_store_and_a_replaced_store() {
    let (mut first, second) = (RedisServer::start(&[]), cluster_node(&[]));
    let mut client = second.client();
    let () = run_command(&mut client, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || is_up(&second));
    set(&mut first.client(), "a", 5);
    set(&mut client, "a", 7);
    let gateway = gateway(&at(&first.url()), &["a"]);
    assert_eq!(quota(&gateway, "a"), 5);

    first.kill();
    wait_until("the loss is logged", || gateway.log().contains("keeping the last known ones"));
    assert_eq!(quota(&gateway, "a"), 5);
    first.restart();
    wait_until("the store is back", || std::net::TcpStream::connect(("127.0.0.1", first.port)).is_ok());
    assert_soon(&gateway, "a", 2);
    set(&mut first.client(), "a", 6);
    assert_soon(&gateway, "a", 6);
    assert_eq!(gateway.log().matches("keeping the last known ones").count(), 1, "{}", gateway.log());

    gateway.reload_with(&first.url(), &second.url().replace("redis:", "redis+cluster:"));
    assert_eq!(quota(&gateway, "a"), 7, "the overrides of the new store apply from its first request on");
    set(&mut client, "a", 8);
    assert_soon(&gateway, "a", 8);
}

/// Each change of a set with 10,000 mistakes would be a line of a megabyte.
#[test]
fn many_mistakes_are_one_short_line_of_the_log_however_often_they_change() {
    let server = RedisServer::start(&[]);
    let gateway = gateway(&at(&server.url()), &["a"]);
    set(&mut server.client(), "a", 5);
    assert_soon(&gateway, "a", 5);
    let spoil = |first: usize| {
        let mut fill = redis::cmd("HSET");
        fill.arg("sg:overrides:a");
        for i in first..first + 4000 {
            fill.arg(format!("key-{i}-{}", "x".repeat(1000))).arg("rate=0/h");
        }
        let () = fill.query(&mut server.client()).unwrap();
    };
    spoil(0);
    let lines = || {
        gateway
            .log()
            .lines()
            .filter(|line| line.contains("live overrides skipped"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    wait_until("the mistakes are logged", || !lines().is_empty());
    assert!(lines()[0].contains("4000 errors, the first 10: key-0-xxx"), "{}", lines()[0]);
    assert!(lines()[0].len() < 4000, "{} bytes", lines()[0].len());
    spoil(4000);
    std::thread::sleep(2 * SOON);
    assert_eq!(lines().len(), 1, "another set of mistakes waits for ten seconds");
    assert_eq!(quota(&gateway, "a"), 5, "the entry without a mistake is active");
    wait_until("the new set of mistakes is logged", || lines().len() == 2);
    assert!(lines()[1].contains("8000 errors"), "{}", lines()[1]);
}

#[test]
fn a_bad_entry_is_skipped_and_counted_and_the_others_apply() {
    let server = RedisServer::start(&[]);
    let gateway = gateway(&at(&server.url()), &["a"]);
    let mut client = server.client();
    let mut write = |field: &str, value: &str| {
        let () = run_command(&mut client, &["HSET", "sg:overrides:a", field, value]);
    };
    let status = |tenant: &str| gateway.fetch(&get("/", &format!("tenant: {tenant}\r\n"))).status();
    write("acme", "rate=7/day;note=launch");
    write("evil", "rate=0");
    assert_soon(&gateway, "a", 7);
    wait_until("both are active", || gateway.metric("live_overrides", &[("limit", "a")]) == Some(2.0));
    assert_eq!(status("evil"), 429);
    // A typing error lifts no block, and the others change nevertheless.
    write("evil", "rate=O");
    write("new", "rate=many");
    write("acme", "rate=8/day");
    assert_soon(&gateway, "a", 8);
    wait_until("the mistakes are counted", || {
        gateway.metric("live_overrides_rejected", &[("limit", "a")]) == Some(2.0)
    });
    assert_eq!((status("evil"), status("new")), (429, 200));
    assert_eq!(gateway.admin("/-/status").json()["rejected_overrides"], serde_json::json!({ "a": 2 }));
    assert!(gateway.log().contains("live overrides skipped, the others are active: evil: "), "{}", gateway.log());
    // An entry that has ended leaves the key to the numbers of the limit.
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(8);
    write("acme", &format!("rate=9/day; until={soon}; note=trial"));
    write("evil", "rate=0");
    write("new", "rate=5/day");
    assert_soon(&gateway, "a", 9);
    wait_until("the entry has ended", || quota(&gateway, "a") == 2);
    wait_until("no mistakes are left", || gateway.metric("live_overrides_rejected", &[("limit", "a")]) == Some(0.0));
    let () = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
    wait_until("the loss is logged", || gateway.log().contains("the overrides in Redis are gone"));
    assert_eq!(status("evil"), 200);
}

#[test]
fn thirty_thousand_entries_are_in_force() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for first in (0..30_000).step_by(10_000) {
        let mut fill = redis::cmd("HSET");
        fill.arg("sg:overrides:a");
        for i in first..first + 10_000 {
            fill.arg(format!("c{i}")).arg(format!("rate={}/day", 3 + i % 5));
        }
        let () = fill.query(&mut client).unwrap();
    }
    set(&mut client, "a", 6);
    let gateway = gateway(&at(&server.url()), &["a"]);
    wait_until("all are active", || gateway.metric("live_overrides", &[("limit", "a")]) == Some(30_001.0));
    assert_eq!(quota(&gateway, "a"), 6);
    set(&mut client, "a", 7);
    wait_until("a change applies", || quota(&gateway, "a") == 7);
}
