//! A network that sends packets of a client from an address that is not its own.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use super::Http3Gateway;
use crate::support::h3::{H3Client, H3Options, get, head, read_response};
use crate::support::upstream::{Upstream, ok};

const SIZE: usize = 8 << 20;
/// Bytes to an address that has not answered, beyond three times those from it: a datagram that asks, and one that measures
/// the path.
const BEYOND: usize = 2 * 1472;

/// Passes packets between a client and the gateway. While it steals, one packet of the client goes out from another
/// address, and the others are lost.
struct Thief {
    front: UdpSocket,
    back: UdpSocket,
    stranger: UdpSocket,
    is_stealing: AtomicBool,
    is_over: AtomicBool,
    /// Bytes that were sent from the stranger's address, and that it has received.
    stolen: AtomicUsize,
    received: AtomicUsize,
}

/// Ends the thread of the thief, also if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Thief {
    fn new() -> Thief {
        let [front, back, stranger] = ["127.0.0.1:0", "127.0.0.1:0", "127.0.0.8:0"].map(|addr| {
            let socket = UdpSocket::bind(addr).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let (is_stealing, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (stolen, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Thief { front, back, stranger, is_stealing, is_over, stolen, received }
    }

    fn run(&self, gateway: SocketAddr) {
        let (mut client, mut buffer) = (None, [0; 65536]);
        while !self.is_over.load(Ordering::Relaxed) {
            while let Ok((length, from)) = self.front.recv_from(&mut buffer) {
                client = Some(from);
                if !self.is_stealing.load(Ordering::Relaxed) {
                    let _ = self.back.send_to(&buffer[..length], gateway);
                } else if self.stolen.load(Ordering::Relaxed) == 0 {
                    self.stolen.store(length, Ordering::Relaxed);
                    self.stranger.send_to(&buffer[..length], gateway).unwrap();
                }
            }
            while let (Ok(length), Some(client)) = (self.back.recv(&mut buffer), client) {
                let _ = self.front.send_to(&buffer[..length], client);
            }
            while let Ok(length) = self.stranger.recv(&mut buffer) {
                self.received.fetch_add(length, Ordering::Relaxed);
            }
            sleep(Duration::from_micros(100));
        }
    }
}

#[test]
fn a_stranger_gets_little_of_a_response_and_the_client_all_of_it() {
    let upstream = Upstream::fixed(ok(&"x".repeat(SIZE)));
    let rest = format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"few\"]\n[limit.few]\nrate = \"2/h\"\nkey = \"ip\"\n",
        upstream.url()
    );
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let thief = Thief::new();
    let front = thief.front.local_addr().unwrap();
    scope(|scope| {
        scope.spawn(|| thief.run(gateway.addr()));
        let _end = EndOnDrop(&thief.is_over);
        let client = H3Client::with(front, &H3Options::trusting(&gateway.ca)).unwrap();
        let mut exchange = client.open(&head(&get("/")));
        exchange.finish();
        let mut bytes = exchange.read(SIZE / 16);
        thief.is_stealing.store(true, Ordering::Relaxed);
        // What the client reads makes it send.
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let read = async { exchange.receive.read_chunk(SIZE, true).await };
            let read = client.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(50), read).await });
            if let Ok(Ok(Some(chunk))) = read {
                bytes.extend_from_slice(&chunk.bytes);
            }
        }
        let (stolen, received) = (thief.stolen.load(Ordering::Relaxed), thief.received.load(Ordering::Relaxed));
        assert!(stolen > 0 && received > 0, "the gateway asks the stranger whether it is the client");
        assert!(received <= 3 * stolen + BEYOND, "{received} bytes for {stolen}");
        thief.is_stealing.store(false, Ordering::Relaxed);
        bytes.extend(exchange.rest().unwrap());
        assert_eq!(read_response(&bytes).body.len(), SIZE);
        assert_eq!(client.get("/").status(), 200);
        assert_eq!(client.get("/").status(), 429, "all requests count for one client");
    });
    // The stranger's own budget is whole.
    let stranger = H3Options { source: "127.0.0.8:0", ..H3Options::trusting(&gateway.ca) };
    assert_eq!(H3Client::with(gateway.addr(), &stranger).unwrap().get("/").status(), 200);
}
