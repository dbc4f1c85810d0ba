//! A TCP relay in front of a server. A test can interrupt it while the server stays reachable for others.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use super::http::read_some;

/// Relays connections until it is interrupted. Its threads end with their connections.
pub struct Relay {
    pub addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_interrupted: bool,
    streams: Vec<TcpStream>,
}

impl Relay {
    pub fn start(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay { addr: listener.local_addr().unwrap(), state: Arc::default() };
        let state = relay.state.clone();
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut state = state.lock().unwrap();
                if state.is_interrupted {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let pair = |stream: &TcpStream| stream.try_clone().unwrap();
                state.streams.extend([pair(&client), pair(&server)]);
                let other = (pair(&server), pair(&client));
                spawn(move || copy(client, server));
                spawn(move || copy(other.0, other.1));
            }
        });
        relay
    }

    pub fn redis_url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Closes all connections, and every new one at once.
    pub fn interrupt(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_interrupted = true;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub fn restore(&self) {
        self.state.lock().unwrap().is_interrupted = false;
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) -> Option<io::Error> {
    let mut bytes = [0; 4096];
    loop {
        match read_some(&mut from, &mut bytes) {
            Ok(len @ 1..) => to.write_all(&bytes[..len]).ok()?,
            end => {
                let _ = to.shutdown(Shutdown::Both);
                return end.err();
            }
        }
    }
}
