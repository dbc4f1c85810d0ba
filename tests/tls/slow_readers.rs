//! Clients that read slowly, over TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::listeners::gateway;
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::tls::Trust;
use crate::support::upstream::{Upstream, ok};

fn through_small_window(addr: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&addr.into()).unwrap();
    TcpStream::from(socket)
}

/// Passes on to `gateway` what comes, and back some 30 kB a second, through a small window.
fn slow_way(gateway: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut server = through_small_window(gateway);
            let (mut back, mut up) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut client, &mut up));
            std::thread::spawn(move || {
                let mut some = [0; 3072];
                while let Ok(read @ 1..) = server.read(&mut some) {
                    back.write_all(&some[..read])?;
                    std::thread::sleep(Duration::from_millis(100));
                }
                back.shutdown(Shutdown::Both)
            });
        }
    });
    addr
}

/// TLS has the last 64 kB long before they have left, for longer than a connection waits before it rests.
#[test]
fn a_client_that_reads_the_rest_steadily_is_not_cut() {
    const SIZE: usize = 130_000;
    let ca = Ca::new("test");
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let text = "x".repeat(SIZE);
            if request.target() == "/tunnel" {
                let switches = "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
                peer.send(format!("{switches}{text}"))?;
                return peer.wait_for_end();
            }
            peer.send(ok(&text))?;
        }
        Ok(())
    });
    let route = format!("[[route]]\nupgrades = [\"echo\"]\nupstream = \"{}\"\n", upstream.url());
    let server = "stream_timeout = \"1200ms\"\nmin_response_rate = 8192\nmax_unsent = \"16KiB\"";
    let gateway = gateway(&ca, &["a.test"], "", server, &route);
    let (addr, trust) = (slow_way(gateway.addr), Trust::in_ca(&ca));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let response = trust.connect(addr, "a.test").try_fetch(&get("/", ""), "").unwrap();
            assert_eq!(response.body.len(), SIZE);
        });
        scope.spawn(|| {
            let mut client = trust.connect(addr, "a.test");
            client.send(get("/tunnel", "connection: upgrade\r\nupgrade: echo\r\n"));
            let mut all = Vec::new();
            let is_text = |byte: &&u8| **byte == b'x';
            while all.iter().filter(is_text).count() < SIZE {
                let mut some = [0; 16384];
                let read = client.stream().read(&mut some).unwrap();
                assert!(read > 0, "cut after {} bytes", all.len());
                all.extend_from_slice(&some[..read]);
            }
        });
    });
}

/// A response that the gateway encrypts in large steps, to a client that pauses.
#[test]
fn a_fast_response_is_complete_after_pauses_of_the_client() {
    const SIZE: usize = 30_000_000;
    let ca = Ca::new("test");
    let body: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8 ^ (at % 1021) as u8).collect();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
    let upstream = Upstream::fixed([head.as_bytes(), &body].concat());
    let gateway = gateway(&ca, &["a.test"], "", "", &format!("[[route]]\nupstream = \"{}\"\n", upstream.url()));
    let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    client.send(get("/", ""));
    let (mut received, mut pause_at, mut some) = (Vec::with_capacity(SIZE + 1000), 10_000_000, vec![0; 65_536]);
    while !received.ends_with(&body[SIZE - 1000..]) {
        let read = client.stream().read(&mut some).unwrap();
        assert!(read > 0, "closed after {} bytes", received.len());
        received.extend_from_slice(&some[..read]);
        if received.len() > pause_at {
            std::thread::sleep(Duration::from_millis(50));
            pause_at += 4_000_000;
        }
    }
    assert!(received.ends_with(&body), "other bytes");
}
