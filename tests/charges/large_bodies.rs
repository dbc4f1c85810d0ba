//! Large bodies that limits read for their cost: the memory that they take, and that they share.

use crate::support::client::{Client, post};
use crate::support::gateway::Gateway;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const JSON: &str = "content-type: application/json\r\n";
const START: &str = "{\"max_tokens\":1,\"x\":\"";

/// A request whose body is not read costs more than the limit has.
fn start(upstream: &Upstream) -> Gateway {
    let reserve = "reserve = { add = [\"json:/max_tokens\"], base = 1, bytes_per_token = 1000000, \
                   default_add = 2000000, at_most = 3000000 }";
    let lines = format!("rate = \"1000000/day\"\nkey = \"all\"\ncost = {{ {reserve} }}");
    scenario().upstream(upstream).limit_of("tokens", &lines).start()
}

/// A body that is sent byte by byte takes as much memory as any other one.
#[test]
fn a_body_in_small_chunks_takes_little_memory() {
    const CHUNKS: usize = 100_000;
    let upstream = Upstream::text("in");
    let gateway = start(&upstream);
    let memory = gateway.watch_memory();
    let mut client = gateway.client();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{JSON}transfer-encoding: chunked\r\n\r\n15\r\n{START}\r\n"));
    client.send("1\r\nx\r\n".repeat(CHUNKS) + "2\r\n\"}\r\n0\r\n\r\n");
    assert_eq!(client.read_response("POST").status(), 200);
    assert_eq!(upstream.request().body.len(), START.len() + CHUNKS + 2);
    let peak = memory.peak();
    assert!(peak < 8 << 20, "{peak} bytes more");
}

/// Bodies share the memory for large ones by what has arrived of them, not by what may still come.
#[test]
fn slow_bodies_take_no_memory_from_others() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream);
    let begin = |number: usize| {
        let mut client = gateway.client();
        match number % 2 {
            0 => client.send(post("/", 1_000_000, JSON) + "{\"a\":"),
            _ => client
                .send(format!("POST / HTTP/1.1\r\nhost: a\r\n{JSON}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n")),
        }
        client
    };
    let slow: Vec<Client> = (0..80).map(begin).collect();
    wait_until("the requests are under way", || {
        gateway.metric("requests_in_flight", &[("route", "app")]) == Some(80.0)
    });
    let large = format!("{START}{}\"}}", "x".repeat(900_000));
    assert_eq!(gateway.client().fetch(&post("/", large.len() as u64, JSON), &large).status(), 200);
    drop(slow);
}

/// One client gets half of the memory for large bodies at most, however many of them it leaves unfinished.
#[test]
fn a_client_with_unfinished_bodies_leaves_memory_to_others() {
    const SENT: usize = 900_000;
    let upstream = Upstream::text("in");
    let gateway = start(&upstream);
    let begin = |source: [u8; 4]| {
        let mut client = gateway.client_from(source);
        client.send(post("/", SENT as u64 + 9, JSON) + START + &"x".repeat(SENT - START.len()));
        client
    };
    let large = format!("{START}{}\"}}", "x".repeat(SENT));
    let fetch = |source| gateway.client_from(source).fetch(&post("/", large.len() as u64, JSON), &large).status();
    let mut unfinished: Vec<Client> = (0..60).map(|_| begin([127, 0, 0, 1])).collect();
    // The client itself is refused, because the limit treats its bodies as too long.
    while fetch([127, 0, 0, 1]) == 200 {
        unfinished.push(begin([127, 0, 0, 1]));
        assert!(unfinished.len() < 120, "one client has all of the memory");
    }
    assert_eq!(fetch([127, 0, 0, 2]), 200);
    let _others: Vec<Client> = (3..13).map(|last| begin([127, 0, 0, last])).collect();
    assert_eq!(fetch([127, 0, 0, 2]), 200);
}
