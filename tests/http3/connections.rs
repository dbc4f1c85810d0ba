//! Which connections are accepted, floods, addresses that change, and clients that take no response.

use std::net::UdpSocket;
use std::time::Duration;

use super::{ECHO, Http3Gateway};
use crate::support::h3::{DATA, Exchange, H3Client, H3Options, SETTINGS, frame, get, head};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const EXCESSIVE_LOAD: u64 = 0x107;

#[test]
fn early_data_is_off_and_other_protocols_are_refused() {
    let gateway = Http3Gateway::echo("");
    let first = gateway.connect();
    assert_eq!(first.get("/").status(), 200);
    first.wait(Duration::from_millis(200));
    // The client has a session ticket by now, and would send early data if the ticket allowed it.
    let again = first.runtime.block_on(async {
        let connecting = first.endpoint.connect(gateway.addr(), "a.test");
        connecting.map(|connecting| connecting.into_0rtt().is_ok()).unwrap_or(false)
    });
    assert!(!again, "0-RTT");
    let other = H3Options { protocol: "h2", ..H3Options::trusting(&gateway.ca) };
    assert!(H3Client::raw(gateway.addr(), &other).is_err());
    wait_until("it is counted", || {
        gateway.gateway.metric("tls_handshakes_total", &[("listener", "127.0.0.1:0"), ("result", "incompatible")])
            == Some(1.0)
    });
}

#[test]
fn connections_are_capped_by_address() {
    let gateway = Http3Gateway::start("max_connections_per_ip = 2\n", "http3 = true", ECHO);
    let (one, two) = (gateway.connect(), gateway.connect());
    assert_eq!((one.get("/").status(), two.get("/").status()), (200, 200));
    assert!(H3Client::with(gateway.addr(), &H3Options::trusting(&gateway.ca)).is_err(), "refused before the handshake");
    let elsewhere = H3Options { source: "127.0.0.9:0", ..H3Options::trusting(&gateway.ca) };
    assert_eq!(H3Client::with(gateway.addr(), &elsewhere).unwrap().get("/").status(), 200);
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "max_connections_per_ip")], 1.0);
}

#[test]
fn first_packets_of_unproven_addresses_take_little_and_answers_are_small() {
    let gateway = Http3Gateway::start("max_connections = 64\n", "http3 = true", ECHO);
    let client = gateway.connect();
    // Sent from many sockets that never answer.
    let mut packet = record_first_packet(&gateway);
    let before = gateway.gateway.memory("VmRSS");
    let mut received = 0;
    for round in 0..400_u32 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        // Another connection ID each time; the packet can then not be decrypted, but it takes a place.
        packet[6..10].copy_from_slice(&round.to_be_bytes());
        socket.send_to(&packet, gateway.addr()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let mut answer = [0; 65536];
        while let Ok(length) = socket.recv(&mut answer) {
            received += length;
        }
    }
    let sent = 400 * packet.len();
    assert!(received <= 3 * sent, "{received} bytes for {sent}");
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 8 << 20, "{grown}");
    assert_eq!(client.get("/").status(), 200);
    assert_eq!(gateway.connect().get("/").status(), 200);
}

/// While more than an eighth of `max_connections` is in the handshake, a client must return the token of a Retry packet.
#[test]
fn clients_prove_their_address_while_many_handshakes_are_under_way() {
    const TYPE: u8 = 0xf0;
    const INITIAL: u8 = 0xc0;
    const RETRY: u8 = 0xf0;
    let gateway = Http3Gateway::start("max_connections = 8\n", "http3 = true", ECHO);
    let answers: Vec<Vec<u8>> = (0..8)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.send_to(&record_first_packet(&gateway), gateway.addr()).unwrap();
            let mut answer = vec![0; 2048];
            let length = socket.recv(&mut answer).unwrap();
            answer.truncate(length);
            answer
        })
        .collect();
    let types: Vec<u8> = answers.iter().map(|answer| answer[0] & TYPE).collect();
    assert_eq!(types, [[INITIAL; 2].as_slice(), &[RETRY; 6]].concat());
    assert!(answers[2..].iter().all(|answer| answer.len() < 200), "{answers:?}");
    assert_eq!(gateway.connect().get("/").status(), 200, "a client with the token is served");
}

/// Records the first packet of a client.
pub fn record_first_packet(gateway: &Http3Gateway) -> Vec<u8> {
    let recorder = UdpSocket::bind("127.0.0.1:0").unwrap();
    recorder.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let target = recorder.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = H3Options::trusting(&gateway.ca);
    runtime.block_on(async {
        let connecting = h3_connect(target, &options);
        let _ = tokio::time::timeout(Duration::from_millis(200), connecting).await;
    });
    let mut packet = vec![0; 2048];
    let length = recorder.recv(&mut packet).unwrap();
    packet.truncate(length);
    packet
}

async fn h3_connect(addr: std::net::SocketAddr, options: &H3Options<'_>) {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = crate::support::h3::client_config(options);
    let _ = endpoint.connect_with(config, addr, "a.test").unwrap().await;
}

#[test]
fn a_client_keeps_its_key_when_its_address_changes() {
    let upstream = Upstream::fixed(ok("x"));
    let rest = format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"few\"]\n[limit.few]\nrate = \"3/h\"\nkey = \"ip\"\n",
        upstream.url()
    );
    let gateway = Http3Gateway::start("workers = 4\n", "http3 = true", &rest);
    let client = gateway.connect();
    for round in 0..6 {
        // Another port is another worker's, for most clients.
        client.rebind([127, 0, 0, 1]);
        let status = client.get("/").status();
        assert_eq!(status, if round < 3 { 200 } else { 429 }, "{round}");
    }
    let runtime = client.runtime.enter();
    client.endpoint.rebind(UdpSocket::bind("127.0.0.7:0").unwrap()).unwrap();
    drop(runtime);
    assert_eq!(client.get("/").status(), 429, "another address on the way does not change who the client is");
}

#[test]
fn packets_for_connections_of_others_are_not_answered() {
    let gateway = Http3Gateway::start("workers = 3\n", "http3 = true", ECHO);
    let client = gateway.connect();
    assert_eq!(client.get("/").status(), 200);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    for worker in 0..6_u8 {
        let mut packet = [0x55; 1200];
        packet[0] = 0x40;
        packet[1] = worker;
        socket.send_to(&packet, gateway.addr()).unwrap();
    }
    let mut answer = [0; 2048];
    assert!(socket.recv(&mut answer).is_err(), "no stateless reset for an ID that no worker has made");
    assert_eq!(client.get("/").status(), 200);
}

#[test]
fn floods_end_the_connection() {
    let gateway = Http3Gateway::echo("");
    let reason = |name| gateway.gateway.metric("http_rejected_total", &[("reason", name)]);
    // Frames of HTTP/3 that bring nothing.
    let client = H3Client::raw(gateway.addr(), &H3Options::trusting(&gateway.ca)).unwrap();
    let flood = [&[0][..], &frame(SETTINGS, b""), &frame(0x21, b"").repeat(20_000)].concat();
    let _stream = client.open_uni(&flood);
    assert_eq!(client.close_code(), EXCESSIVE_LOAD);
    assert_eq!(reason("h2_frames"), Some(1.0));
    // Empty DATA.
    let client = gateway.connect();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    let _exchange = client.open(&[head(&post), frame(DATA, b"").repeat(20_000)].concat());
    assert_eq!(client.close_code(), EXCESSIVE_LOAD);
    assert_eq!(reason("h2_frames"), Some(2.0));
    // Requests that are reset at once.
    let upstream = Upstream::silent();
    let slow = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &slow);
    let client = gateway.connect();
    for _ in 0..2000 {
        if client.connection.close_reason().is_some() {
            break;
        }
        let mut exchange = match client.runtime.block_on(client.connection.open_bi()) {
            Ok((send, receive)) => Exchange { client: &client, send, receive },
            Err(_) => break,
        };
        exchange.write(&head(&get("/")));
        let _ = exchange.send.reset(quinn::VarInt::from_u32(0x10c));
        let _ = exchange.receive.stop(quinn::VarInt::from_u32(0x10c));
    }
    assert_eq!(client.close_code(), EXCESSIVE_LOAD);
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "h2_resets")], 1.0);
}

#[test]
fn a_client_that_takes_no_response_is_cut_and_others_are_served() {
    let upstream = Upstream::fixed(ok(&"x".repeat(8 << 20)));
    let rest =
        format!("[[route]]\npath = \"/big\"\nupstream = \"{}\"\nstream_timeout = \"1s\"\n{ECHO}", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let options = H3Options { stream_window: 20_000, ..H3Options::trusting(&gateway.ca) };
    let client = H3Client::with(gateway.addr(), &options).unwrap();
    let before = gateway.gateway.memory("VmRSS");
    let mut stalled: Vec<_> = (0..10).map(|_| client.open(&head(&get("/big")))).collect();
    stalled.iter_mut().for_each(Exchange::finish);
    assert_eq!(client.get("/").status(), 200, "other requests of the connection go on");
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 24 << 20, "{grown}");
    client.wait(Duration::from_secs(3));
    for exchange in &mut stalled {
        assert_eq!(exchange.reset_code(), 0x10c);
    }
    assert_eq!(client.get("/").status(), 200);
    let all: f64 = ["stream_timeout", "slow_reader"]
        .iter()
        .filter_map(|reason| gateway.gateway.metric("http_rejected_total", &[("reason", reason)]))
        .sum();
    assert!(all >= 10.0, "{all}");
}

#[test]
fn a_body_that_nobody_takes_is_not_kept() {
    let upstream = Upstream::silent();
    let rest = format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\nmax_body = \"1GiB\"\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let client = gateway.connect();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];
    let before = gateway.gateway.memory("VmRSS");
    let body = frame(DATA, &vec![1; 4 << 20]);
    client.runtime.block_on(async {
        for _ in 0..10 {
            let (mut send, _receive) = client.connection.open_bi().await.unwrap();
            let _ = send.write_all(&head(&post)).await;
            let _ = tokio::time::timeout(Duration::from_millis(200), send.write_all(&body)).await;
            std::mem::forget(send);
        }
    });
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 20 << 20, "{grown}");
}

#[test]
fn incomplete_heads_have_a_deadline() {
    let gateway = Http3Gateway::echo("header_timeout = \"1s\"\n");
    let client = gateway.connect();
    let head = head(&get("/"));
    let _stuck = client.open(&head[..head.len() - 1]);
    for _ in 0..5 {
        if client.connection.close_reason().is_some() {
            break;
        }
        let _ = client.try_fetch(&get("/"), b"");
        client.wait(Duration::from_millis(300));
    }
    assert_eq!(client.close_code(), EXCESSIVE_LOAD, "other requests do not extend it");
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 1.0);
}
