//! Ports for programs that need a fixed one. The gateway listens on port 0 and logs the port it got.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use socket2::{Domain, Socket, Type};

/// A port that no other program gets while this value lives: the socket is bound and does not listen. A program that
/// sets SO_REUSEADDR, as servers do, can listen on it; until then connections are refused. The port is below the range
/// that the kernel gives to clients: a client with this port on another loopback address would prevent a program from
/// listening on the wildcard address.
pub struct ReservedPort {
    socket: Socket,
}

impl ReservedPort {
    pub fn new() -> ReservedPort {
        static NEXT: AtomicU16 = AtomicU16::new(16_384);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let bound = |port: &u16| socket.bind(&SocketAddr::from(([127, 0, 0, 1], *port)).into()).is_ok();
        std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed))
            .take_while(|port| *port < 32_768)
            .find(bound)
            .expect("a free port below 32768");
        // Set after `bind`, which would otherwise accept a port that another socket with this option holds.
        socket.set_reuse_address(true).unwrap();
        ReservedPort { socket }
    }

    pub fn addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap().as_socket().unwrap()
    }

    pub fn port(&self) -> u16 {
        self.addr().port()
    }
}

/// Returns an address at which nothing listens while the test process lives: connections are refused.
pub fn closed_addr() -> SocketAddr {
    let reserved = ReservedPort::new();
    let addr = reserved.addr();
    std::mem::forget(reserved);
    addr
}

/// An address where connections are neither accepted nor refused: packets are dropped.
pub struct BlackHole {
    listener: Socket,
    /// Connections that fill the backlog and are never accepted.
    _queued: Vec<Socket>,
}

impl BlackHole {
    pub fn new() -> BlackHole {
        let listener = ReservedPort::new().socket;
        listener.listen(0).unwrap();
        let queued = |_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&listener.local_addr().unwrap());
            socket
        };
        BlackHole { _queued: (0..4).map(queued).collect(), listener }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap().as_socket().unwrap())
    }
}
