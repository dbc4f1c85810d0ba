//! Listening sockets: bound by the control thread, accepted from by every worker.

use std::os::unix::net::UnixListener as StdUnixListener;
use std::{fmt, io};

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
    ///
    /// # Errors
    /// What the system says, with the address and a remedy.
    pub fn bind(addr: &ListenAddr) -> Result<Listener, BindError> {
        open(addr).map_err(|error| BindError { addr: addr.clone(), error })
    }

    pub fn try_clone(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => listener.try_clone().map(Listener::Tcp),
            Listener::Unix(listener) => listener.try_clone().map(Listener::Unix),
        }
    }
}

fn open(addr: &ListenAddr) -> io::Result<Listener> {
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

/// A Unix socket's file outlives the socket.
pub fn remove_socket_file(addr: &ListenAddr) {
    if let ListenAddr::Unix(path) = addr {
        let _ = std::fs::remove_file(path);
    }
}

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    pub addr: ListenAddr,
    pub error: io::Error,
}

impl BindError {
    pub fn in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindError { addr, error } = self;
        write!(f, "cannot listen on {addr}: {error}")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                write!(f, "; another program, or another sluicegate, has it: stop that one or choose another address")
            }
            io::ErrorKind::PermissionDenied => {
                write!(f, "; choose a port from 1024 up or grant CAP_NET_BIND_SERVICE, and check who may write there")
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "; no interface of this machine has that address"),
            io::ErrorKind::NotFound => write!(f, "; the directory does not exist"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}
