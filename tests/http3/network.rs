//! A network that loses and reorders packets, and a NAT that changes the ports of clients: every request is answered, and
//! every byte is right.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::UdpSocket;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::Http3Gateway;
use crate::support::h3::{DATA, H3Options, client_config, frame, head};

/// Of a hundred packets, so many are lost in each direction.
const LOST: u32 = 2;
/// The longest delay of a packet. Each has another one, so that they overtake each other.
const DELAY_MAX: Duration = Duration::from_millis(3);
/// Packets of a client after which the NAT forgets it, so that the next one comes from another port.
const REBIND_AFTER: usize = 60;

#[derive(Clone)]
struct Weather(Arc<Mutex<StdRng>>);

impl Weather {
    /// Sends a packet later, or loses it.
    async fn send(&self, socket: Arc<UdpSocket>, to: SocketAddr, packet: Vec<u8>) {
        let (is_lost, delay) = {
            let mut random = self.0.lock().await;
            (random.random_ratio(LOST, 100), DELAY_MAX.mul_f64(random.random()))
        };
        if !is_lost {
            tokio::spawn(async move {
                sleep(delay).await;
                let _ = socket.send_to(&packet, to).await;
            });
        }
    }
}

/// Passes packets between clients and `target`. Counts in `rebindings` how often a client gets another port.
async fn relay(front: Arc<UdpSocket>, target: SocketAddr, rebindings: Arc<AtomicUsize>) {
    let weather = Weather(Arc::new(Mutex::new(StdRng::seed_from_u64(7))));
    let mut backs: HashMap<SocketAddr, (Arc<UdpSocket>, usize)> = HashMap::new();
    let mut packet = [0; 65536];
    loop {
        let Ok((length, client)) = front.recv_from(&mut packet).await else { continue };
        let known = backs.get_mut(&client).filter(|(_, packets)| *packets < REBIND_AFTER);
        let back = match known {
            Some((back, packets)) => {
                *packets += 1;
                back.clone()
            }
            None => {
                let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                tokio::spawn(pass_back(back.clone(), front.clone(), client, weather.clone()));
                let before = backs.insert(client, (back.clone(), 0));
                rebindings.fetch_add(usize::from(before.is_some()), Ordering::Relaxed);
                back
            }
        };
        weather.send(back, target, packet[..length].to_vec()).await;
    }
}

/// Passes what comes for one client at one port.
async fn pass_back(back: Arc<UdpSocket>, front: Arc<UdpSocket>, client: SocketAddr, weather: Weather) {
    let mut packet = [0; 65536];
    while let Ok((length, _)) = back.recv_from(&mut packet).await {
        weather.send(front.clone(), client, packet[..length].to_vec()).await;
    }
}

#[test]
fn requests_survive_loss_reordering_and_other_ports() {
    send_through_weather(50, 20, Duration::from_secs(100));
}

#[test]
#[ignore = "takes minutes: make http3-loss"]
fn ten_thousand_requests_survive_loss_reordering_and_other_ports() {
    send_through_weather(100, 100, Duration::from_secs(1000));
}

/// Sends `requests` on each of so many connections, within `time`.
fn send_through_weather(connections: u64, requests: usize, time: Duration) {
    // All clients connect at once, and a debug build on a busy machine needs seconds for their handshakes.
    let gateway = Http3Gateway::echo("workers = 2\nhandshake_timeout = \"1m\"\n");
    let target = gateway.addr();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let addr = front.local_addr().unwrap();
        let rebindings = Arc::<AtomicUsize>::default();
        tokio::spawn(relay(front, target, rebindings.clone()));
        let config = client_config(&H3Options::trusting(&gateway.ca));
        let clients: Vec<_> =
            (0..connections).map(|seed| tokio::spawn(run_client(seed, requests, addr, config.clone()))).collect();
        let all = async {
            for client in clients {
                client.await.unwrap();
            }
        };
        tokio::time::timeout(time, all).await.expect("no request hangs");
        let rebindings = rebindings.load(Ordering::Relaxed) as u64;
        assert!(rebindings > connections, "{rebindings}");
    });
}

async fn run_client(seed: u64, requests: usize, addr: SocketAddr, config: quinn::ClientConfig) {
    let mut random = StdRng::seed_from_u64(seed);
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connection = endpoint.connect_with(config, addr, "a.test").unwrap().await.unwrap();
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/echo")];
    for _ in 0..requests {
        let length = random.random_range(1..20_000);
        let body: Vec<u8> = (0..length).map(|_| random.random()).collect();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&[head(&post), frame(DATA, &body)].concat()).await.unwrap();
        send.finish().unwrap();
        let bytes = receive.read_to_end(usize::MAX).await.unwrap();
        assert!(crate::support::h3::read_response(&bytes).body == body, "{length}");
    }
}
