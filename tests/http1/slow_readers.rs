//! Clients that read responses slowly or not at all: which ones are disconnected, and how much is buffered for them.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const KB: u64 = 1024;
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: y\r\n\r\n";

/// Responds with so many bytes.
fn large(bytes: usize) -> Upstream {
    Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n"))?;
            let piece = vec![b'x'; 64 * 1024];
            let mut left = bytes;
            while left > 0 {
                peer.send(&piece[..left.min(piece.len())])?;
                left -= left.min(piece.len());
            }
        }
        Ok(())
    })
}

fn in_front_of(upstream: &Upstream, server: &str, route: &str) -> Gateway {
    let log = "access_log = true\n".to_owned() + server;
    Gateway::with(&log, &format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{route}", upstream.url()))
}

/// A client with small receive buffers.
fn narrow(addr: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&addr.into()).unwrap();
    Client::of(TcpStream::from(socket))
}

/// Reads up to `size` bytes at a time with a pause after each, to the end; how many it got.
fn read_slowly(client: &mut Client, size: usize, pause: Duration) -> io::Result<usize> {
    let (mut total, mut buffer) = (0, vec![0; size]);
    let end = Instant::now() + Duration::from_secs(15);
    loop {
        assert!(Instant::now() < end, "the client could read for 15 s");
        match client.stream().read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count,
        }
        std::thread::sleep(pause);
    }
}

/// Once the whole response is on its way, no request is left that `half_close_timeout` could end.
#[test]
fn a_client_that_shuts_down_its_side_and_reads_late_gets_the_whole_response() {
    for (bytes, pause) in [(100_000, 1300), (100_000, 0), (300_000, 200), (300_000, 0), (2_000_000, 0)] {
        let upstream = large(bytes);
        let gateway = in_front_of(&upstream, "", "");
        for fields in ["", "connection: close\r\n"] {
            let mut client = narrow(gateway.addr);
            client.send(get("/", fields));
            client.finish();
            std::thread::sleep(Duration::from_millis(pause));
            let response =
                client.try_read_response("GET").unwrap_or_else(|error| panic!("{bytes} after {pause} ms: {error}"));
            assert_eq!(response.body.len(), bytes, "after {pause} ms, {fields:?}");
            client.assert_closed();
        }
    }
}

/// Returns the bytes in the kernel's send queue from `local` to `peer`; `None` without such a socket.
fn queued(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
    let name = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => format!("{:08X}:{:04X}", u32::from_le_bytes(addr.ip().octets()), addr.port()),
        SocketAddr::V6(_) => panic!("the tests are on IPv4"),
    };
    let (local, peer) = (name(local), name(peer));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_it = |row: &&str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        fields[1] == local && fields[2] == peer
    };
    let row = table.lines().skip(1).find(is_it)?;
    let (unsent, _) = row.split_whitespace().nth(4)?.split_once(':')?;
    u64::from_str_radix(unsent, 16).ok()
}

#[test]
fn a_reader_below_the_rate_is_cut_and_one_above_it_is_not() {
    let upstream = large(1_500_000);
    // A client that makes the gateway wait for a second in total is too slow, even without a single long pause.
    let greedy = in_front_of(&upstream, "stream_timeout = \"1s\"\nmin_response_rate = \"1GiB\"", "");
    let mut client = greedy.client();
    client.send(get("/", ""));
    assert!(read_slowly(&mut client, 8192, Duration::from_millis(10)).is_err(), "it is reset");
    greedy.assert_metric("http_rejected_total", &[("reason", "slow_reader")], 1.0);
    greedy.assert_metric("requests_in_flight", &[("route", "app")], 0.0);
    wait_until("the line of the request", || greedy.stdout().contains("\"reason\":\"slow_reader\""));
    assert!(greedy.stdout().contains("\"setting\":\"min_response_rate\""), "{}", greedy.stdout());

    // The same reader takes longer than `stream_timeout` in total, but is fast enough for a route with a lower rate.
    let patient = in_front_of(
        &upstream,
        "stream_timeout = \"1s\"\nmin_response_rate = \"1GiB\"",
        "stream_timeout = \"1500ms\"\nmin_response_rate = 1000\n",
    );
    let mut client = patient.client();
    client.send(get("/", "connection: close\r\n"));
    let started = Instant::now();
    assert!(read_slowly(&mut client, 8192, Duration::from_millis(10)).unwrap() > 1_500_000);
    assert!(started.elapsed() > Duration::from_millis(1500), "the reader was not slow: {:?}", started.elapsed());
}

/// The gateway has passed the last part of a response to the kernel while it still waits in the buffers.
#[test]
fn the_end_of_a_response_waits_no_longer_than_the_rest() {
    let body = "x".repeat(1_000_000);
    let gateway = Gateway::with(
        "keepalive_timeout = \"60s\"\nstream_timeout = \"600ms\"",
        &format!("[[route]]\nname = \"fixed\"\npath = \"/\"\nrespond = {{ body = \"{body}\" }}\n"),
    );
    let mut client = narrow(gateway.addr);
    client.send(get("/", ""));
    client.stream().read_exact(&mut [0; 100]).unwrap();
    let local = client.stream().local_addr().unwrap();
    assert!(queued(gateway.addr, local).is_some());
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 1.0);
    // The kernel does not keep the rest for a client that may never read it either.
    wait_until("nothing is left of the connection", || queued(gateway.addr, local).is_none());
}

#[test]
fn unsent_bytes_in_the_kernel_are_bounded() {
    let upstream = large(30_000_000);
    let held = |server: &str| {
        let gateway = in_front_of(&upstream, server, "");
        let mut client = narrow(gateway.addr);
        client.send(get("/", ""));
        client.stream().read_exact(&mut [0; 100]).unwrap();
        let local = client.stream().local_addr().unwrap();
        let sizes = || (queued(gateway.addr, local).unwrap(), largest_unread(upstream.addr));
        let mut last = sizes();
        wait_until("no bytes are sent any more", || {
            std::thread::sleep(Duration::from_millis(300));
            let now = sizes();
            std::mem::replace(&mut last, now) == now
        });
        last
    };
    let (unsent, unread) = held("");
    assert!(unsent < 192 * KB && unread <= 512 * KB, "{unsent} unsent, {unread} unread");
    let (less, _) = held("max_unsent = \"8KiB\"");
    assert!(less < 128 * KB, "{less} unsent");
    let (more, _) = held("max_unsent = 0\nmax_unread = 0");
    assert!(more > 512 * KB, "{more} unsent: the system bounds the buffer itself, so this test proves nothing");
}

/// A connection gets a larger receive buffer while its client reads fast.
#[test]
fn unread_bytes_are_bounded_for_clients_that_read_fast_and_then_stop() {
    let upstream = large(100_000_000);
    let gateway = in_front_of(&upstream, "workers = 1\nmax_unread = \"64KiB\"", "");
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(get("/", ""));
        io::copy(&mut client.stream().take(40_000_000), &mut io::sink()).unwrap();
    }
    let mut last = 0;
    wait_until("nothing moves any more", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = largest_unread(upstream.addr);
        std::mem::replace(&mut last, now) == now
    });
    // 13 times as much for the first of the fast connections, and as much again that the kernel counts as its overhead.
    assert!(last <= 2 * 13 * 64 * KB, "{last} unread");
    for client in &mut clients {
        assert_eq!(io::copy(&mut client.stream().take(60_000_000), &mut io::sink()).unwrap(), 60_000_000);
    }
}

/// Returns the largest number of unread bytes among the connections to `server`.
fn largest_unread(server: SocketAddr) -> u64 {
    let port = format!(":{:04X} ", server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let unread = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let to_server = format!("{} ", fields[2]).ends_with(&port);
        to_server.then(|| u64::from_str_radix(fields[4].split_once(':').unwrap().1, 16).unwrap())
    };
    table.lines().skip(1).filter_map(unread).max().unwrap_or(0)
}

/// Even an impossible minimum rate ends only streams that wait for their client.
#[test]
fn streams_that_have_nothing_to_say_are_left_alone() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.get("upgrade").is_some() {
                peer.send(SWITCH)?;
                std::thread::sleep(Duration::from_millis(1500));
                peer.send("late")?;
                return peer.wait_for_end();
            }
            peer.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(400));
                peer.send("9\r\ndata: x\n\n\r\n")?;
            }
            peer.send("0\r\n\r\n")?;
        }
        Ok(())
    });
    let server = "stream_timeout = \"900ms\"\nmin_response_rate = \"1GiB\"";
    let gateway = in_front_of(&upstream, server, "");
    let mut socket = gateway.client();
    socket.send(get("/chat", "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n"));
    assert_eq!(socket.try_read_head().unwrap().status(), 101);
    let mut events = gateway.client();
    assert_eq!(events.fetch(&get("/events", ""), "").text(), "data: x\n\n".repeat(5));
    assert_eq!(socket.bytes(4), b"late");
}

/// A tunnel may be silent for an hour, but not full for as long.
#[test]
fn a_tunnel_whose_client_stops_reading_is_cut() {
    let upstream = Upstream::start(|peer| {
        peer.request()?;
        peer.send(SWITCH)?;
        let piece = vec![b'x'; 64 * 1024];
        while peer.send(&piece).is_ok() {}
        Ok(())
    });
    let gateway = in_front_of(&upstream, "stream_timeout = \"700ms\"", "");
    let mut client = narrow(gateway.addr);
    client.send(get("/chat", "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n"));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    gateway.assert_metric("http_rejected_total", &[("reason", "stream_timeout")], 1.0);
    gateway.assert_metric("tunnels", &[], 0.0);
}

/// A fast start of a body does not compensate for a slow rest.
#[test]
fn a_body_that_starts_fast_and_continues_slowly_is_cut() {
    let upstream = Upstream::text("whole");
    let gateway = in_front_of(&upstream, "body_timeout = \"500ms\"\nmin_body_rate = 1000", "");
    let mut client = gateway.client();
    client.send(post("/", 2_000_000, ""));
    client.send(vec![b'x'; 1_000_000]);
    client.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut response, started) = (Vec::new(), Instant::now());
    while !response.starts_with(b"HTTP/1.1 408 ") {
        assert!(started.elapsed() < Duration::from_secs(8), "the stream continues");
        let _ = client.try_send(b"x");
        let mut piece = [0; 1000];
        if let Ok(count) = client.stream().read(&mut piece) {
            response.extend_from_slice(&piece[..count]);
        }
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "body_timeout")], 1.0);
}

/// All kinds of slow requests at once: each is ended in its time, and well-behaved clients are not affected.
#[test]
fn good_requests_go_on_among_all_kinds_of_slow_ones() {
    const OF_EACH: usize = 20;
    let (upstream, app) = (large(4_000_000), Upstream::text("good"));
    let timeouts = "header_timeout = \"1500ms\"\nbody_timeout = \"1500ms\"\nstream_timeout = \"1500ms\"\n\
                    keepalive_timeout = \"1500ms\"";
    let gateway =
        in_front_of(&upstream, timeouts, &format!("[[route]]\npath = \"/good\"\nupstream = \"{}\"\n", app.url()));
    let starts = [
        String::new(),
        "G".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
        get("/good", "")[..20].to_owned(),
        post("/good", 1000, "") + "part",
        get("/", ""),
    ];
    let mut clients = Vec::new();
    for start in starts.iter().flat_map(|start| std::iter::repeat_n(start, OF_EACH)) {
        let mut client = narrow(gateway.addr);
        client.send(start);
        clients.push(client);
    }
    let mut good = gateway.client();
    let started = Instant::now();
    let mut served = 0;
    while started.elapsed() < Duration::from_millis(1200) || served < 100 {
        assert_eq!(good.fetch(&get("/good", ""), "").text(), "good");
        served += 1;
    }
    wait_until("all are closed", || {
        served += 1;
        gateway.get("/good").text() == "good" && gateway.metric("requests_in_flight", &[("route", "app")]) == Some(0.0)
    });
    let rejected = |reason| gateway.assert_metric("http_rejected_total", &[("reason", reason)], OF_EACH as f64);
    rejected("body_timeout");
    rejected("stream_timeout");
    // No byte, one byte, half a preface, half a head. Idle connections are not counted.
    gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 4.0 * OF_EACH as f64);
    drop(good);
    wait_until("no connection is left", || {
        let metrics = gateway.metrics();
        let mut open = metrics.lines().filter(|line| line.starts_with("sluicegate_connections{"));
        open.all(|line| line.ends_with(" 0"))
    });
}
