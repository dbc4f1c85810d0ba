//! Idle client connections: they use next to no memory and lose no request.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const FIXED: &str = "[[route]]\nname = \"fixed\"\npath = \"/\"\nrespond = { body = \"fixed\" }\n";

/// Longer than a connection takes to come to rest.
fn rest() {
    std::thread::sleep(Duration::from_millis(900));
}

/// Runs `test` with a gateway of each strictness, both at once.
fn in_both(test: impl Fn(&Gateway, &str) + Sync) {
    std::thread::scope(|scope| {
        for strictness in ["strict", "defensive"] {
            let test = &test;
            scope.spawn(move || test(&Gateway::with(&format!("strictness = \"{strictness}\""), FIXED), strictness));
        }
    });
}

#[test]
fn a_rested_connection_continues_as_before() {
    in_both(|gateway, strictness| {
        let mut client = gateway.client();
        for _ in 0..2 {
            assert_eq!(client.fetch(&get("/", ""), "").text(), "fixed");
            rest();
        }
        assert_eq!(client.fetch(&post("/", 4, ""), "body").text(), "fixed");
        rest();
        // Two requests at once, and the start of a third.
        let (one, third) = (get("/", ""), get("/third", ""));
        let (start, end) = third.split_at(9);
        client.send(format!("{one}{one}{start}"));
        assert_eq!([client.read_response("GET").text(), client.read_response("GET").text()], ["fixed", "fixed"]);
        rest();
        client.send(end);
        assert_eq!(client.read_response("GET").text(), "fixed", "{strictness}");
        gateway.assert_metric("requests_total", &[("route", "fixed"), ("method", "GET"), ("code", "200")], 5.0);
        assert_eq!(gateway.metric("http_rejected_total", &[("reason", "header_timeout")]), Some(0.0));
    });
}

#[test]
fn half_a_head_behind_a_request_has_the_time_of_a_head() {
    let gateway = Gateway::with("header_timeout = \"400ms\"", FIXED);
    let mut client = gateway.client();
    client.send(get("/", "") + "GET / HT");
    assert_eq!(client.read_response("GET").text(), "fixed");
    client.assert_closed();
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 1.0);
}

#[test]
fn a_body_that_nobody_reads_is_no_request() {
    in_both(|gateway, _| {
        let body = get("/hidden", "");
        let mut client = gateway.client();
        client.send(post("/", body.len() as u64, "") + &body[..3]);
        assert_eq!(client.read_response("POST").text(), "fixed");
        // The response has arrived before the request body is complete: the connection looks idle.
        rest();
        client.send(&body[3..]);
        rest();
        assert_eq!(client.fetch(&get("/", ""), "").text(), "fixed");
        gateway.assert_metric("requests_total", &[("route", "fixed"), ("method", "GET"), ("code", "200")], 1.0);
    });
}

#[test]
fn a_response_that_the_client_has_not_read_is_not_lost() {
    let size = 8 << 20;
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\nmax_body = \"16MB\"\n");
    let mut client = gateway.client();
    let mut sender = client.stream().try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        use std::io::Write;
        sender.write_all(post("/", size, "").as_bytes()).unwrap();
        sender.write_all(&vec![b'x'; usize::try_from(size).unwrap()]).unwrap();
    });
    // Meanwhile nothing is read.
    rest();
    let answer = client.read_response("POST");
    writer.join().unwrap();
    assert_eq!(answer.text().len() as u64, size);
    rest();
    assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
}

#[test]
fn a_connection_that_has_rested_forwards_the_same_facts() {
    const FACTS: [&str; 5] =
        ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip"];
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(ok(&format!("{:?}", FACTS.map(|name| request.all(name)))))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url()));
    let mut client = gateway.client();
    let other = "GET / HTTP/1.1\r\nhost: b.test\r\n\r\n";
    let before = [client.fetch(&get("/", ""), "").text(), client.fetch(other, "").text()];
    assert!(before[0].contains("127.0.0.1") && before[0].contains("a.test") && before[1].contains("b.test"));
    rest();
    assert_eq!([client.fetch(&get("/", ""), "").text(), client.fetch(other, "").text()], before);
}

#[test]
fn connections_wake_in_every_way_and_lose_no_request() {
    const COUNT: usize = 120;
    in_both(|gateway, _| {
        let one = get("/", "");
        let mut clients: Vec<Client> = (0..COUNT).map(|_| gateway.client()).collect();
        for client in &mut clients {
            assert_eq!(client.fetch(&one, "").text(), "fixed");
        }
        rest();
        for (number, client) in clients.iter_mut().enumerate() {
            match number % 6 {
                0 => client.send(&one),
                1 => client.send(one.repeat(3)),
                2 => {
                    client.send(&one);
                    client.stream().shutdown(Shutdown::Write).unwrap();
                }
                3 => client.send(&one[..1]),
                4 => client.send(post("/", 4, "") + "bo"),
                _ => client.stream().shutdown(Shutdown::Write).unwrap(),
            }
        }
        rest();
        for (number, client) in clients.iter_mut().enumerate() {
            match number % 6 {
                3 => client.send(&one[1..]),
                4 => client.send("dy"),
                _ => {}
            }
            let answers = [1, 3, 1, 1, 1, 0][number % 6];
            (0..answers).for_each(|_| assert_eq!(client.read_response("GET").text(), "fixed", "{number}"));
            if [2, 5].contains(&(number % 6)) {
                client.assert_closed();
            }
        }
        // Of six clients one sends a POST, and the others six requests together, after the first one of each.
        let [gets, posts] = [COUNT + COUNT, COUNT / 6];
        let count =
            |method| gateway.metric("requests_total", &[("route", "fixed"), ("method", method), ("code", "200")]);
        wait_until("all are counted", || [count("GET"), count("POST")] == [Some(gets as f64), Some(posts as f64)]);
    });
}

#[test]
fn a_connection_at_rest_holds_at_most_3_kb_and_leaves_nothing_behind() {
    const COUNT: u64 = 1200;
    let patient = "max_connections_per_ip = 1300\nheader_timeout = \"10m\"\nkeepalive_timeout = \"10m\"";
    let gateway = Gateway::with(patient, FIXED);
    // Memory that the start and the first request allocate stays allocated.
    assert_eq!(gateway.get("/").status(), 200);
    rest();
    let memory = gateway.watch_memory();
    let mut clients: Vec<Client> = (0..COUNT).map(|_| gateway.client()).collect();
    for client in &mut clients {
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    }
    let each = || memory.grown() / COUNT;
    wait_until("the connections are idle", || each() < 3072);
    drop(clients);
    wait_until("their memory is released", || each() < 1024);
}

/// The client that holds the most connections loses its idle ones, and nobody is shut out.
#[test]
fn idle_connections_close_for_new_ones_at_the_cap() {
    const MOST: usize = 64;
    // A worker closes only connections of its own.
    let gateway = Gateway::with(&format!("workers = 1\nmax_connections = {MOST}"), FIXED);
    let mut idle: Vec<Client> = (0..MOST - 1).map(|_| gateway.client_from([127, 0, 0, 66])).collect();
    for client in &mut idle {
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    }
    let mut own = gateway.client_from([127, 0, 0, 5]);
    assert_eq!(own.fetch(&get("/", ""), "").status(), 200);
    rest();
    let mut others: Vec<Client> = (0..MOST / 2).map(|_| gateway.client_from([127, 0, 0, 6])).collect();
    for client in &mut others {
        assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
    }
    // The connection of a client with few is still there.
    assert_eq!(own.fetch(&get("/", ""), "").status(), 200);
    assert_eq!(gateway.metric("http_rejected_total", &[("reason", "max_connections")]).unwrap_or(0.0), 0.0);
    assert_eq!(gateway.log_lines(&["closing idle connections for new ones"]), 1);
}
