//! A TCP relay with latency, for servers that are far away. Bytes arrive later, in order.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::http::read_some;

/// A relay to a server on this machine, for the duration of the test.
pub struct DelayLine {
    pub port: u16,
    connections: Arc<Mutex<Connections>>,
}

#[derive(Default)]
struct Connections {
    refused: bool,
    open: Vec<TcpStream>,
}

impl DelayLine {
    /// Starts a relay to `port`; `each_way` is the latency of each direction.
    pub fn to(port: u16, each_way: Duration) -> DelayLine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = DelayLine { port: listener.local_addr().unwrap().port(), connections: Arc::default() };
        let connections = line.connections.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut connections = connections.lock().unwrap();
                if connections.refused {
                    continue;
                }
                connections.open.push(near.try_clone().unwrap());
                let Ok(far) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) else { continue };
                relay(near.try_clone().unwrap(), far.try_clone().unwrap(), each_way);
                relay(far, near, each_way);
            }
        });
        line
    }

    /// Closes every connection, and every new one during this time.
    pub fn interrupt(&self, span: Duration) {
        let mut connections = self.connections.lock().unwrap();
        connections.refused = true;
        connections.open.drain(..).for_each(|open| drop(open.shutdown(Shutdown::Both)));
        drop(connections);
        thread::sleep(span);
        self.connections.lock().unwrap().refused = false;
    }

    pub fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, each_way: Duration) {
    to.set_nodelay(true).unwrap();
    let (sender, in_transit) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = read_some(&mut from, &mut bytes) {
            if sender.send((Instant::now() + each_way, bytes[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in in_transit {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
