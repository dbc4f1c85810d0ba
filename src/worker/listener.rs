//! Listening sockets. The control thread binds them; workers and the admin server accept connections from them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::{fmt, io};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::net::{ListenAddr, SocketAccess, enable_keepalive};
use crate::proxy::connection::stream::Stream;
use crate::worker::socket_file::{BACKLOG, FileAccess, SocketFile};

/// A socket that is bound and listens.
#[derive(Debug)]
pub struct Listener {
    addr: ListenAddr,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    /// A Unix socket, with the identity of its file unless the path held no socket when it was looked up.
    Unix(std::os::unix::net::UnixListener, Option<SocketFile>),
}

/// A socket from which connections are accepted, in the runtime where it was made.
pub struct Acceptor(AcceptingSocket);

enum AcceptingSocket {
    Tcp { socket: TcpListener, addr: SocketAddr },
    Unix(UnixListener),
}

/// An accepted connection with its addresses.
pub struct Accepted {
    pub stream: Stream,
    /// `127.0.0.1:0` on a Unix socket.
    pub peer: SocketAddr,
    /// The address that the client has connected to; `None` on a Unix socket.
    pub local_addr: Option<SocketAddr>,
}

/// The peer address of a Unix socket.
const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Listener {
    /// Binds `addr`; `access` says who may connect to a Unix socket. A Unix socket left behind by a dead process is
    /// replaced; any other file stays. Never waits for another process.
    ///
    /// # Errors
    /// The error of the system, with the address and a remedy.
    pub fn bind(addr: &ListenAddr, access: &SocketAccess) -> Result<Listener, BindError> {
        match BoundSocket::open(addr, access) {
            Ok(socket) => Ok(Listener { addr: addr.clone(), socket }),
            Err(error) => Err(BindError { addr: addr.clone(), error }),
        }
    }

    /// Wraps a TCP socket that is open already.
    ///
    /// # Errors
    /// The system does not report its address, or cannot make it non-blocking.
    pub fn from_tcp(socket: std::net::TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        Ok(Listener { addr: ListenAddr::Tcp(socket.local_addr()?), socket: BoundSocket::Tcp(socket) })
    }

    /// Wraps a Unix socket that is open already.
    ///
    /// # Errors
    /// The socket has no file, the system does not report its address, or cannot make it non-blocking.
    pub fn from_unix(socket: std::os::unix::net::UnixListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        let addr = socket.local_addr()?;
        let path = addr.as_pathname().ok_or_else(|| io::Error::other("the socket has no file"))?.to_owned();
        let file = SocketFile::from_path(&path).ok().flatten();
        Ok(Listener { addr: ListenAddr::Unix(path), socket: BoundSocket::Unix(socket, file) })
    }

    /// Wraps a socket that another process has passed under `name`, its address.
    ///
    /// # Errors
    /// If the socket does not listen, is not a stream socket, or is not bound to the address `name`.
    pub fn from_fd(fd: OwnedFd, name: &str) -> io::Result<Listener> {
        let address = match name.strip_prefix("unix:") {
            Some(path) => ListenAddr::Unix(path.into()),
            None => ListenAddr::Tcp(name.parse().map_err(|_| io::Error::other(format!("{name:?} is not an address")))?),
        };
        let socket = SockRef::from(&fd);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::other(format!("the socket passed for {address} is not a listening socket")));
        }
        let listener = match socket.domain()? {
            Domain::UNIX => Listener::from_unix(fd.into())?,
            _ => Listener::from_tcp(fd.into())?,
        };
        if !is_bound_as(listener.addr(), &address) {
            return Err(io::Error::other(format!("the socket passed for {address} is bound to {}", listener.addr())));
        }
        Ok(listener.with_addr(&address))
    }

    /// Renames the socket to `addr`: the address as the config writes it.
    pub fn with_addr(self, addr: &ListenAddr) -> Listener {
        Listener { addr: addr.clone(), ..self }
    }

    /// Returns the address as the config writes it.
    pub fn addr(&self) -> &ListenAddr {
        &self.addr
    }

    /// Returns the address that is bound. If the config has port 0, this is the port that the system has chosen.
    pub fn bound_addr(&self) -> ListenAddr {
        match &self.socket {
            BoundSocket::Tcp(socket) => socket.local_addr().map_or_else(|_| self.addr.clone(), ListenAddr::Tcp),
            BoundSocket::Unix(..) => self.addr.clone(),
        }
    }

    /// Removes the file of a Unix socket, which outlives the socket. A file that another process has put in its place
    /// stays.
    pub fn remove_file(&self) {
        if let Some((path, file)) = self.file()
            && let Err(error) = file.remove(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the socket file");
        }
    }

    /// Changes who may connect to a Unix socket.
    ///
    /// # Errors
    /// The error of the system, with the address.
    pub fn set_access(&self, access: &SocketAccess) -> Result<(), BindError> {
        let Some((path, file)) = self.file() else { return Ok(()) };
        file.set_access(path, access).map_err(|error| BindError { addr: self.addr.clone(), error })
    }

    /// Takes the right to connect to a Unix socket from those who do not have it by `access`, see
    /// [`SocketFile::narrow_access`]. Returns who had it; `None` if the listener has no file.
    ///
    /// # Errors
    /// The error of the system, with the address; nothing has changed.
    pub fn narrow_access(&self, access: &SocketAccess) -> Result<Option<FileAccess>, BindError> {
        let Some((path, file)) = self.file() else { return Ok(None) };
        let narrowed = file.narrow_access(path, access);
        narrowed.map(Some).map_err(|error| BindError { addr: self.addr.clone(), error })
    }

    /// Undoes [`Listener::narrow_access`].
    pub fn restore_access(&self, before: FileAccess) {
        if let Some((path, file)) = self.file()
            && let Err(error) = file.restore_access(path, before)
        {
            tracing::error!(path = %path.display(), %error, "the socket does not get back its owner, group and mode");
        }
    }

    /// Returns the file of a Unix socket.
    fn file(&self) -> Option<(&Path, SocketFile)> {
        match (&self.addr, &self.socket) {
            (ListenAddr::Unix(path), BoundSocket::Unix(_, Some(file))) => Some((path, *file)),
            _ => None,
        }
    }

    pub fn try_clone(&self) -> io::Result<Listener> {
        let socket = match &self.socket {
            BoundSocket::Tcp(socket) => BoundSocket::Tcp(socket.try_clone()?),
            BoundSocket::Unix(socket, file) => BoundSocket::Unix(socket.try_clone()?, *file),
        };
        Ok(Listener { addr: self.addr.clone(), socket })
    }

    /// Bounds the bytes of a response that the kernel accepts at once. Does nothing on a Unix socket, for which the
    /// system has a bound.
    pub fn set_send_buffer(&self, size: usize) -> io::Result<()> {
        match &self.socket {
            // Accepted connections inherit it.
            BoundSocket::Tcp(socket) => SockRef::from(socket).set_send_buffer_size(size),
            BoundSocket::Unix(..) => Ok(()),
        }
    }

    /// Bounds the bytes of a response that the kernel keeps until it can send them (`max_unsent`), for future
    /// connections; 0 leaves that to the kernel. Bytes that are sent and not acknowledged do not count, so this does
    /// not slow down transfers. Does nothing on a Unix socket.
    pub fn with_max_unsent(self, max: u32) -> Listener {
        if let BoundSocket::Tcp(socket) = &self.socket {
            bound_unsent(&SockRef::from(socket), max);
        }
        self
    }

    /// Makes an acceptor in this runtime.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub fn into_acceptor(self) -> io::Result<Acceptor> {
        Ok(Acceptor(match self.socket {
            BoundSocket::Tcp(socket) => {
                // Accepted connections inherit it.
                enable_keepalive(&SockRef::from(&socket));
                let socket = TcpListener::from_std(socket)?;
                AcceptingSocket::Tcp { addr: socket.local_addr()?, socket }
            }
            BoundSocket::Unix(socket, _) => AcceptingSocket::Unix(UnixListener::from_std(socket)?),
        }))
    }
}

impl Acceptor {
    /// Changes the bound of [`Listener::with_max_unsent`], for future connections.
    pub fn set_max_unsent(&self, max: u32) {
        if let AcceptingSocket::Tcp { socket, .. } = &self.0 {
            bound_unsent(&SockRef::from(socket), max);
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn accept_next(&self) -> io::Result<Accepted> {
        match &self.0 {
            AcceptingSocket::Tcp { socket, addr } => {
                let (stream, peer) = socket.accept().await?;
                Ok(Accepted::from_tcp(stream, peer, *addr))
            }
            AcceptingSocket::Unix(socket) => Ok(Accepted::from_unix(socket.accept().await?.0)),
        }
    }

    /// Accepts all connections that wait in the kernel, as long as there `is_room`, and closes the socket. The kernel
    /// resets connections that still wait then.
    pub fn accept_rest(self, is_room: impl Fn() -> bool, mut taken: impl FnMut(Accepted)) {
        // Accepts without the runtime, which may not know yet what waits.
        let _ = match self.0 {
            AcceptingSocket::Tcp { socket, addr } => socket.into_std().map(|socket| {
                for (stream, peer) in
                    std::iter::from_fn(|| is_room().then(|| socket.accept().ok())?).take(BACKLOG.into())
                {
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    stream.into_iter().for_each(|stream| taken(Accepted::from_tcp(stream, peer, addr)));
                }
            }),
            AcceptingSocket::Unix(socket) => socket.into_std().map(|socket| {
                for (stream, _) in std::iter::from_fn(|| is_room().then(|| socket.accept().ok())?).take(BACKLOG.into())
                {
                    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
                    stream.into_iter().for_each(|stream| taken(Accepted::from_unix(stream)));
                }
            }),
        };
    }
}

impl Accepted {
    /// Wraps a connection accepted by a socket that is bound to `addr`.
    fn from_tcp(stream: TcpStream, peer: SocketAddr, addr: SocketAddr) -> Accepted {
        // Responses leave at once. If that fails, the connection still works.
        let _ = stream.set_nodelay(true);
        let local_addr = if addr.ip().is_unspecified() { stream.local_addr().unwrap_or(addr) } else { addr };
        Accepted { stream: Stream::Tcp(stream), peer: to_canonical(peer), local_addr: Some(to_canonical(local_addr)) }
    }

    fn from_unix(stream: UnixStream) -> Accepted {
        Accepted { stream: Stream::Unix(stream), peer: UNIX_PEER, local_addr: None }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            BoundSocket::Tcp(socket) => socket.as_fd(),
            BoundSocket::Unix(socket, _) => socket.as_fd(),
        }
    }
}

/// Turns an IPv4-mapped IPv6 address into the IPv4 address.
pub fn to_canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Sets TCP_NOTSENT_LOWAT on a listener. Connections inherit it.
fn bound_unsent(listener: &SockRef<'_>, max: u32) {
    if let Err(error) = listener.set_tcp_notsent_lowat(max) {
        tracing::warn!(%error, "the system does not support TCP_NOTSENT_LOWAT: max_unsent has no effect");
    }
}

impl BoundSocket {
    fn open(addr: &ListenAddr, access: &SocketAccess) -> io::Result<BoundSocket> {
        match addr {
            ListenAddr::Tcp(addr) => {
                let domain = if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&(*addr).into())?;
                socket.listen(BACKLOG.into())?;
                Ok(BoundSocket::Tcp(socket.into()))
            }
            ListenAddr::Unix(path) => {
                let (socket, file) = SocketFile::bind(path, access)?;
                Ok(BoundSocket::Unix(socket, Some(file)))
            }
        }
    }
}

/// Returns whether a socket bound to `bound` has the address `claimed`. Port 0 stands for any port. A socket at `[::]`
/// serves `0.0.0.0` as well.
fn is_bound_as(bound: &ListenAddr, claimed: &ListenAddr) -> bool {
    match (bound, claimed) {
        (ListenAddr::Tcp(bound), ListenAddr::Tcp(claimed)) => {
            let any = bound.is_ipv6() && bound.ip().is_unspecified() && claimed.ip().is_unspecified();
            (any || bound.ip() == claimed.ip()) && (claimed.port() == 0 || bound.port() == claimed.port())
        }
        (bound, claimed) => bound == claimed,
    }
}

/// An address on which the gateway cannot listen.
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
                write!(f, "; another process listens there: stop it or choose another address")
            }
            io::ErrorKind::PermissionDenied => {
                write!(f, "; use a port from 1024 up, grant CAP_NET_BIND_SERVICE or check the file permissions")
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "; no network interface has this address"),
            io::ErrorKind::NotFound => write!(f, "; the directory does not exist"),
            io::ErrorKind::AlreadyExists => write!(f, "; remove it or choose another path"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}
