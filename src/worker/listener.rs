//! Listening sockets: bound by the control thread, accepted from by every worker.

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;

use socket2::{Domain, Protocol, Socket, Type};

use crate::net::ListenAddr;

/// A bound socket, not yet accepted from.
#[derive(Debug)]
pub enum Listener {
    Tcp(std::net::TcpListener),
    Unix(StdUnixListener),
}

/// Connections that may wait in the kernel until a worker is free.
const BACKLOG: i32 = 4096;
impl Listener {
    /// Binds `addr`. A Unix socket left behind by a dead process is replaced.
    pub fn bind(addr: &ListenAddr) -> io::Result<Listener> {
        match addr {
            ListenAddr::Tcp(addr) => {
                let domain = if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&(*addr).into())?;
                socket.listen(BACKLOG)?;
                Ok(Listener::Tcp(socket.into()))
            }
            ListenAddr::Unix(path) => {
                if std::os::unix::net::UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                {
                    std::fs::remove_file(path)?;
                }
                let listener = StdUnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }
        }
    }

    pub fn try_clone(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => listener.try_clone().map(Listener::Tcp),
            Listener::Unix(listener) => listener.try_clone().map(Listener::Unix),
        }
    }
}
