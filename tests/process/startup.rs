//! The start of the program, and a change of its store: the store decides from the first request on, and an unavailable
//! store delays nothing.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::topology::{cluster_node, is_up, run_command};
use crate::support::machine::retry_within;
use crate::support::wait_until;

/// Time until a connection through a [`Slow`] is established.
const SLOW: Duration = Duration::from_millis(250);
/// Longest wait for the store at a start, and the time for the rest.
const START: Duration = Duration::from_millis(1000 + 1000);

/// A relay to a server that establishes all connections but the first slowly.
struct Slow(SocketAddr);

impl Slow {
    fn to(port: u16) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Lives as long as the test's process; its connections end with either side.
        std::thread::spawn(move || {
            for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
                std::thread::spawn(move || {
                    std::thread::sleep(if number == 0 { Duration::ZERO } else { SLOW });
                    let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { return };
                    let ends = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                    for (from, to) in ends {
                        let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
                        std::thread::spawn(move || {
                            let _ = io::copy(&mut from, &mut to);
                            let _ = to.shutdown(Shutdown::Both);
                        });
                    }
                });
            }
        });
        Slow(addr)
    }
}

/// Four workers; ten units a day for all clients together.
fn gateway(url: &str) -> Gateway {
    Gateway::with(
        "workers = 4",
        &format!(
            "[store]\nurl = \"{url}\"\ndeadline = \"1s\"\n\n[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\n\
             limits = [\"ten\"]\n\n[limit.ten]\nalgorithm = \"fixed_window\"\nrate = \"10/day\"\nkey = \"all\"\n"
        ),
    )
}

fn decisions(gateway: &Gateway, decision: &str) -> f64 {
    let labels = [("route", "app"), ("limit", "ten"), ("decision", decision)];
    gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0)
}

/// Sends `count` requests on as many connections at once, so that every worker gets some. Returns how many were
/// admitted.
fn admitted(gateway: &Gateway, count: usize) -> usize {
    let mut clients: Vec<_> = (0..count).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/", "")));
    clients.iter_mut().filter_map(|client| (client.read_response("GET").status() == 200).then_some(())).count()
}

/// Asserts that the store has decided and counted the first requests.
#[track_caller]
fn assert_exact(gateway: &Gateway, server: &RedisServer) {
    assert_eq!(admitted(gateway, 16), 10);
    assert_eq!([decisions(gateway, "allow"), decisions(gateway, "local_allow")], [10.0, 0.0]);
    let keys: Vec<String> = run_command(&mut server.client(), &["KEYS", "sg:*:ten:*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    let state: String = run_command(&mut server.client(), &["GET", &keys[0]]);
    assert!(state.starts_with("10 "), "{state}");
}

#[test]
fn the_first_request_after_a_start_is_decided_by_the_store() {
    let server = RedisServer::start(&[]);
    for start in 0..10 {
        let gateway = match start % 2 {
            0 => gateway(&server.url()),
            _ => gateway(&format!("redis://{}", Slow::to(server.port).0)),
        };
        assert_exact(&gateway, &server);
        let () = run_command(&mut server.client(), &["FLUSHALL"]);
    }
}

#[test]
fn a_cluster_decides_from_the_first_request_on() {
    let node = cluster_node(&[]);
    let slow = Slow::to(node.port);
    let mut client = node.client();
    let () = run_command(&mut client, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    // The slot map arrives at once, and the connection to its node is slow.
    let () = run_command(&mut client, &["CONFIG", "SET", "cluster-announce-port", &slow.0.port().to_string()]);
    let () = run_command(&mut client, &["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    wait_until("the cluster is up", || is_up(&node));
    let gateway = gateway(&format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", node.port));
    assert_exact(&gateway, &node);
}

#[test]
fn another_store_decides_from_the_first_request_on() {
    let (first, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let gateway = gateway(&first.url());
    assert_eq!(admitted(&gateway, 16), 10);
    gateway.reload_with(&first.url(), &format!("redis://{}", Slow::to(second.port).0));
    assert_eq!(admitted(&gateway, 16), 10);
    assert_eq!([decisions(&gateway, "allow"), decisions(&gateway, "local_allow")], [20.0, 0.0]);
}

#[test]
fn an_unavailable_store_does_not_delay_the_start() {
    // Nothing listens at the first addresses; the others accept connections and never respond.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let four = [0; 4].map(|_| silent.to_string()).join(",");
    for url in [
        "redis://127.0.0.1:1".to_owned(),
        "redis+cluster://127.0.0.1:1,127.0.0.1:2".to_owned(),
        format!("redis://{silent}"),
        // Trying these one after another takes longer than a start may wait.
        format!("redis+cluster://{four}"),
    ] {
        let gateway = retry_within(START, &url, || gateway(&url));
        assert_eq!(admitted(&gateway, 16), 10);
        assert_eq!([decisions(&gateway, "allow"), decisions(&gateway, "local_allow")], [0.0, 10.0]);
    }
}
