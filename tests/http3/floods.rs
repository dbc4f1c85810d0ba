//! Clients that send what costs work and brings nothing, each in its own way: their connections end, or what they cost is
//! bounded, and others are served.

use std::net::UdpSocket;
use std::time::Duration;

use super::Http3Gateway;
use super::connections::record_first_packet;
use crate::support::h3::{H3Client, H3Options, SETTINGS, frame, get, head};
use crate::support::wait_until;

const EXCESSIVE_LOAD: u64 = 0x107;
const VERSION: std::ops::Range<usize> = 1..5;

fn raw(gateway: &Http3Gateway) -> H3Client {
    H3Client::raw(gateway.addr(), &H3Options::trusting(&gateway.ca)).unwrap()
}

#[test]
fn floods_on_unidirectional_streams_end_the_connection() {
    let gateway = Http3Gateway::echo("");
    let control = [&[0][..], &frame(SETTINGS, b"")].concat();
    let floods = [
        ("priorities", [&control[..], &frame(0xf0700, b"\0u=1").repeat(5000)].concat()),
        ("goaway", [&control[..], &frame(0x7, b"\0").repeat(5000)].concat()),
        ("max push id", [&control[..], &frame(0xd, b"\x08").repeat(5000)].concat()),
        ("capacities of the encoder", [&[2][..], &[0x20; 20_000]].concat()),
        ("cancelled streams of the decoder", [&[3][..], &[0x40; 20_000]].concat()),
    ];
    for (name, bytes) in &floods {
        let client = raw(&gateway);
        let _stream = client.open_uni(bytes);
        assert_eq!(client.close_code(), EXCESSIVE_LOAD, "{name}");
    }
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "h2_frames")], floods.len() as f64);
    // Streams of unknown types, one after the other.
    let client = gateway.connect();
    for _ in 0..20_000 {
        if client.connection.close_reason().is_some() {
            break;
        }
        let opened = client.runtime.block_on(async {
            let mut stream = client.connection.open_uni().await.ok()?;
            stream.write_all(&[0x21]).await.ok()?;
            stream.finish().ok()
        });
        if opened.is_none() {
            break;
        }
    }
    assert_eq!(client.close_code(), EXCESSIVE_LOAD, "unknown streams");
    assert_eq!(gateway.connect().get("/").status(), 200);
}

#[test]
fn a_client_has_some_streams_and_no_more() {
    let gateway = Http3Gateway::echo("max_streams = 10\n");
    let client = raw(&gateway);
    let count = client.runtime.block_on(async {
        let mut open = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), client.connection.open_bi()).await {
            open.push(stream.unwrap());
        }
        open.len()
    });
    assert_eq!(count, 10);
    let client = raw(&gateway);
    let count = client.runtime.block_on(async {
        let mut open = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), client.connection.open_uni()).await {
            let mut stream = stream.unwrap();
            // The type of the stream does not arrive.
            stream.write_all(&[0x40]).await.unwrap();
            open.push(stream);
        }
        open.len()
    });
    assert_eq!(count, 8);
}

#[test]
fn a_head_that_trickles_has_the_deadline_of_others() {
    let gateway = Http3Gateway::echo("header_timeout = \"1s\"\n");
    let client = gateway.connect();
    let (head, mut exchange) = (head(&get("/")), client.open(b""));
    for byte in &head[..head.len() - 1] {
        exchange.write(&[*byte]);
        client.wait(Duration::from_millis(50));
    }
    assert!(client.connection.close_reason().is_some(), "bytes do not extend the deadline");
    assert_eq!(client.close_code(), EXCESSIVE_LOAD);
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "header_timeout")], 1.0);
}

#[test]
fn a_client_may_not_ping_all_the_time() {
    let gateway = Http3Gateway::echo("");
    let options = H3Options { pings: Some(Duration::from_millis(1)), ..H3Options::trusting(&gateway.ca) };
    let client = H3Client::with(gateway.addr(), &options).unwrap();
    assert_eq!(client.get("/").status(), 200);
    assert_eq!(client.close_code(), EXCESSIVE_LOAD);
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "h2_frames")], 1.0);
}

#[test]
fn addresses_that_change_all_the_time_keep_nothing() {
    let gateway = Http3Gateway::echo("workers = 2\n");
    let client = gateway.connect();
    assert_eq!(client.get("/").status(), 200);
    let before = gateway.gateway.memory("VmRSS");
    for number in 0..300_u16 {
        client.rebind([127, 0, 1, number.to_be_bytes()[1]]);
        client.wait(Duration::from_millis(1));
        let _ = client.runtime.block_on(async { client.connection.open_uni().await.map(|_| ()) });
    }
    let grown = gateway.gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 4 << 20, "{grown}");
    gateway.gateway.assert_metric("http_rejected_total", &[("reason", "h2_frames")], 1.0);
    assert_eq!(gateway.connect().get("/").status(), 200);
}

/// Answers to packets that begin no connection are not larger than they are, and small packets get none.
#[test]
fn packets_that_begin_nothing_are_answered_with_little() {
    let gateway = Http3Gateway::echo("");
    let client = gateway.connect();
    let first = record_first_packet(&gateway);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let answered = |packet: &[u8]| -> usize {
        for number in 0..200_u32 {
            let mut packet = packet.to_vec();
            // Another connection ID each time.
            packet[6..10].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&packet, gateway.addr()).unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
        let mut answer = [0; 65536];
        let mut received = 0;
        while let Ok(length) = socket.recv(&mut answer) {
            received += length;
        }
        received
    };
    let mut unknown = first.clone();
    unknown[VERSION].copy_from_slice(&0x1a2a_3a4a_u32.to_be_bytes());
    let received = answered(&unknown);
    assert!(received > 0 && received < 200 * 100, "version negotiation: {received}");
    assert_eq!(answered(&unknown[..1100]), 0, "of a packet that is too small");
    assert_eq!(answered(&first[..1100]), 0, "an Initial that is too small");
    // Types of packets that follow an Initial, for connections that do not exist: 0-RTT, Handshake, Retry.
    for kind in [0xd0, 0xe0, 0xf0] {
        let mut packet = first.clone();
        packet[0] = kind;
        assert_eq!(answered(&packet), 0, "{kind:#x}");
    }
    // A token that the gateway has not made: its length follows the two connection IDs.
    let at = 6 + usize::from(first[5]);
    let at = at + 1 + usize::from(first[at]);
    assert_eq!(first[at], 0, "the first packet has no token");
    let token = [&[0x40, 0x40][..], &[0xab; 64]].concat();
    let forged = [&first[..at], &token, &first[at + 1..first.len() - token.len() + 1]].concat();
    assert!(answered(&forged) <= 200 * forged.len());
    assert_eq!(client.get("/").status(), 200);
    assert_eq!(gateway.connect().get("/").status(), 200);
    wait_until("nothing is left", || {
        gateway.open_connections() == Some(1.0) || gateway.open_connections() == Some(2.0)
    });
}
