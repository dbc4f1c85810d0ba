//! Responses at high rates, which are read in large steps, and clients that stop in the middle of one.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Peer, Upstream};
use crate::support::wait_until;

const MB: usize = 1_000_000;
const PERIOD: usize = 251 * 1021;

/// A body in which each byte depends on its place.
fn pattern() -> Vec<u8> {
    (0..PERIOD * 2).map(|at| (at % 251) as u8 ^ (at % 1021) as u8).collect()
}

/// Checks a body piece by piece.
struct Check {
    pattern: Vec<u8>,
    seen: usize,
}

impl Check {
    fn new() -> Check {
        Check { pattern: pattern(), seen: 0 }
    }

    fn take(&mut self, piece: &[u8]) {
        for part in piece.chunks(PERIOD) {
            let at = self.seen % PERIOD;
            assert!(self.pattern[at..at + part.len()] == *part, "wrong bytes after {}", self.seen);
            self.seen += part.len();
        }
    }
}

/// Sends `total` bytes of the pattern in pieces of `sizes`, each framed by `frame`.
fn send_pattern(peer: &mut Peer, total: usize, sizes: &[usize], chunked: bool) -> std::io::Result<()> {
    let pattern = pattern();
    let (mut sent, mut buffer) = (0, Vec::new());
    for size in sizes.iter().cycle() {
        let size = (*size).min(total - sent);
        if size == 0 {
            break;
        }
        let at = sent % PERIOD;
        let piece = &pattern[at..at + size];
        if chunked {
            let extension = if size > 1000 { ";x=y" } else { "" };
            buffer.extend_from_slice(format!("{size:x}{extension}\r\n").as_bytes());
        }
        buffer.extend_from_slice(piece);
        if chunked {
            buffer.extend_from_slice(b"\r\n");
        }
        sent += size;
        // A write may end in the middle of a chunk.
        if buffer.len() > 700_000 {
            let rest = buffer.split_off(buffer.len() - 3);
            peer.send(&buffer)?;
            buffer = rest;
        }
    }
    peer.send(&buffer)
}

/// Responds to `/length`, `/chunked`, `/tiny` (chunks) and `/close` with so many bytes.
fn fast_server(total: usize) -> Upstream {
    Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/length" => {
                    peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {total}\r\n\r\n"))?;
                    send_pattern(peer, total, &[200_000], false)?;
                }
                "/close" => {
                    peer.send("HTTP/1.0 200 OK\r\n\r\n")?;
                    return send_pattern(peer, total, &[99_999], false);
                }
                path => {
                    let sizes: &[usize] =
                        if path == "/tiny" { &[1, 2, 300, 17] } else { &[250_000, 1, 70_001, 16_384] };
                    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n")?;
                    send_pattern(peer, if path == "/tiny" { total / 20 } else { total }, sizes, true)?;
                    peer.send("0\r\nx-sum: 7\r\n\r\n")?;
                }
            }
        }
        Ok(())
    })
}

fn in_front_of(upstream: &Upstream) -> Gateway {
    let route = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    Gateway::with("workers = 1\nstream_timeout = \"30s\"\nmin_response_rate = 0\n", &route)
}

#[test]
fn a_fast_response_arrives_whole_in_every_framing() {
    let total = 24 * MB;
    let upstream = fast_server(total);
    let gateway = in_front_of(&upstream);
    let mut client = gateway.client();
    for target in ["/length", "/chunked", "/length", "/tiny", "/close", "/chunked", "/length"] {
        let mut check = Check::new();
        client.send(get(target, "te: trailers\r\n"));
        let message = client.stream_response("GET", |piece| check.take(piece)).unwrap();
        assert_eq!(message.status(), 200);
        assert_eq!(check.seen, if target == "/tiny" { total / 20 } else { total }, "{target}");
    }
}

/// Each of these clients leaves a large buffer partly written; the number of such buffers is bounded.
#[test]
fn clients_that_read_fast_and_then_stop_share_a_bounded_memory() {
    let upstream = fast_server(40 * MB);
    let gateway = in_front_of(&upstream);
    let before = gateway.memory("VmRSS");
    let mut check = vec![0; 65_536];
    let stopped: Vec<Client> = (0..48)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/length", ""));
            let mut left = 8 * MB;
            while left > 0 {
                left = left.saturating_sub(client.stream().read(&mut check).unwrap());
            }
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let held = gateway.memory("VmRSS").saturating_sub(before);
    // 16 buffers of 1 MiB, and as much as 48 slow readers need without them.
    assert!(held < 34 << 20, "{} MiB for 48 clients", held >> 20);
    // Later clients are served without a large buffer.
    let mut late = Check::new();
    let mut client = gateway.client();
    client.send(get("/length", ""));
    client.stream_response("GET", |piece| late.take(piece)).unwrap();
    assert_eq!(late.seen, 40 * MB);
    // Those that continue get every byte, and those that leave free everything.
    for (index, mut client) in stopped.into_iter().enumerate() {
        if index % 12 == 0 {
            let mut left = 20 * MB;
            while left > 0 {
                left = left.saturating_sub(client.stream().read(&mut check).unwrap());
            }
        }
    }
    wait_until("the buffers are freed", || gateway.memory("VmRSS").saturating_sub(before) < 12 << 20);
}

/// Returns the number of unread bytes of the connection to `server`.
fn unread_from(server: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let unread = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (_, queue) = fields[4].split_once(':').unwrap();
        fields[2].ends_with(&format!(":{:04X}", server.port())).then(|| u64::from_str_radix(queue, 16).unwrap())
    };
    table.lines().skip(1).filter_map(unread).max().unwrap_or(0)
}

/// A connection that was read in large steps becomes a tunnel, whose rate nothing measures. With the large receive buffer
/// of such a connection, a client that stops would leave more unread than `max_unread` permits.
#[test]
fn a_tunnel_does_not_keep_the_receive_buffer_of_a_fast_response() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-accept: y\r\n\r\n";
    let total = 24 * MB;
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            if request.get("upgrade").is_some() {
                peer.send(switch)?;
                let piece = vec![b'x'; 64 * 1024];
                while peer.send(&piece).is_ok() {}
                return Ok(());
            }
            peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {total}\r\n\r\n"))?;
            send_pattern(peer, total, &[200_000], false)?;
        }
        Ok(())
    });
    let route = format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Gateway::with("workers = 1\nstream_timeout = \"30s\"\nmax_unread = \"64KiB\"\n", &route);
    let mut client = gateway.client();
    client.send(get("/length", ""));
    client.stream_response("GET", |_| {}).unwrap();
    client.send(get("/chat", "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n"));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    assert_eq!(upstream.connections(), 1, "the same connection");
    let mut last = 0;
    wait_until("nothing moves any more", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = unread_from(upstream.addr);
        now > 0 && std::mem::replace(&mut last, now) == now
    });
    // The kernel doubles the size, for its own use.
    assert!(last <= 2 * 64 * 1024, "{last} bytes are unread");
}
