//! Listening sockets: bound by the control thread, accepted from by every worker and by the admin
//! server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, io};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::socket_file::SocketFile;
use super::stream::Stream;
use crate::net::ListenAddr;

/// A bound socket, not yet accepted from.
#[derive(Debug)]
pub struct Listener {
    addr: ListenAddr,
    socket: Bound,
}

#[derive(Debug)]
enum Bound {
    Tcp(std::net::TcpListener),
    /// With its file, unless the path held no socket when it was looked up.
    Unix(std::os::unix::net::UnixListener, Option<SocketFile>),
}

/// A socket that is accepted from, in the runtime where it was made.
pub struct Acceptor(Accepting);

enum Accepting {
    Tcp { socket: TcpListener, addr: SocketAddr },
    Unix(UnixListener),
}

/// A connection with where it comes from.
pub struct Accepted {
    pub stream: Stream,
    /// `127.0.0.1:0` on a Unix socket.
    pub peer: SocketAddr,
    /// The address that the client has asked; `None` on a Unix socket.
    pub asked: Option<SocketAddr>,
}

/// Connections that may wait in the kernel until a worker is free.
const BACKLOG: u16 = 4096;
/// The peer address of a Unix socket.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Listener {
    /// Binds `addr`. A Unix socket left behind by a dead process is replaced; any other file stays. Never waits for
    /// another process.
    ///
    /// # Errors
    /// What the system says, with the address and a remedy.
    pub fn bind(addr: &ListenAddr) -> Result<Listener, BindError> {
        match Bound::open(addr) {
            Ok(socket) => Ok(Listener { addr: addr.clone(), socket }),
            Err(error) => Err(BindError { addr: addr.clone(), error }),
        }
    }

    /// One that is open already.
    ///
    /// # Errors
    /// When the system does not say where it listens, or cannot make it one that does not block.
    pub fn of_tcp(socket: std::net::TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        Ok(Listener { addr: ListenAddr::Tcp(socket.local_addr()?), socket: Bound::Tcp(socket) })
    }

    /// Likewise.
    ///
    /// # Errors
    /// Likewise, and when it has no file.
    pub fn of_unix(socket: std::os::unix::net::UnixListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        let addr = socket.local_addr()?;
        let path = addr.as_pathname().ok_or_else(|| io::Error::other("the socket has no file"))?.to_owned();
        let file = SocketFile::at(&path).ok().flatten();
        Ok(Listener { addr: ListenAddr::Unix(path), socket: Bound::Unix(socket, file) })
    }

    /// One that was open in another process, under the name that it had there.
    ///
    /// # Errors
    /// It is no listening stream socket, or not bound to the address that `name` claims.
    pub fn of_fd(fd: OwnedFd, name: &str) -> io::Result<Listener> {
        let claimed = match name.strip_prefix("unix:") {
            Some(path) => ListenAddr::Unix(path.into()),
            None => ListenAddr::Tcp(name.parse().map_err(|_| io::Error::other(format!("{name:?} is no address")))?),
        };
        let socket = SockRef::from(&fd);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::other(format!("the socket passed for {claimed} is not a listening socket")));
        }
        let listener = match socket.domain()? {
            Domain::UNIX => Listener::of_unix(fd.into())?,
            _ => Listener::of_tcp(fd.into())?,
        };
        if !is_bound_as(listener.addr(), &claimed) {
            return Err(io::Error::other(format!("the socket passed for {claimed} is bound to {}", listener.addr())));
        }
        Ok(listener.called(&claimed))
    }

    /// The same socket under the name by which the config asks for it.
    pub fn called(self, addr: &ListenAddr) -> Listener {
        Listener { addr: addr.clone(), ..self }
    }

    /// As it was asked for.
    pub fn addr(&self) -> &ListenAddr {
        &self.addr
    }

    /// As it was bound: a port written as 0 is known.
    pub fn bound_addr(&self) -> ListenAddr {
        match &self.socket {
            Bound::Tcp(socket) => socket.local_addr().map_or_else(|_| self.addr.clone(), ListenAddr::Tcp),
            Bound::Unix(..) => self.addr.clone(),
        }
    }

    /// Removes the file of a Unix socket, which outlives the socket. A file that another process has put in its place
    /// stays.
    pub fn remove_file(&self) {
        if let (ListenAddr::Unix(path), Bound::Unix(_, Some(file))) = (&self.addr, &self.socket)
            && let Err(error) = file.remove(path)
        {
            tracing::warn!(path = %path.display(), %error, "the socket file is not removed");
        }
    }

    pub fn try_clone(&self) -> io::Result<Listener> {
        let socket = match &self.socket {
            Bound::Tcp(socket) => Bound::Tcp(socket.try_clone()?),
            Bound::Unix(socket, file) => Bound::Unix(socket.try_clone()?, *file),
        };
        Ok(Listener { addr: self.addr.clone(), socket })
    }

    /// Bounds what the kernel takes of an answer at once, in bytes. A Unix socket has bounds of its own.
    pub fn set_send_buffer(&self, size: usize) -> io::Result<()> {
        match &self.socket {
            // Those accepted inherit it.
            Bound::Tcp(socket) => SockRef::from(socket).set_send_buffer_size(size),
            Bound::Unix(..) => Ok(()),
        }
    }

    /// Bounds what the kernel keeps of an answer that it cannot send yet, in bytes, for connections to come; 0
    /// leaves it to the kernel. What is on its way does not count, so that nothing goes slower for it. A Unix
    /// socket has bounds of its own.
    pub fn bounded(self, max: u32) -> Listener {
        if let Bound::Tcp(socket) = &self.socket {
            bound_unsent(&SockRef::from(socket), max);
        }
        self
    }

    /// Accepts from it in this runtime.
    pub fn accept(self) -> io::Result<Acceptor> {
        Ok(Acceptor(match self.socket {
            Bound::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                Accepting::Tcp { addr: socket.local_addr()?, socket }
            }
            Bound::Unix(socket, _) => Accepting::Unix(UnixListener::from_std(socket)?),
        }))
    }
}

impl Acceptor {
    /// [`Listener::bounded`], from now on.
    pub fn bound_unsent(&self, max: u32) {
        if let Accepting::Tcp { socket, .. } = &self.0 {
            bound_unsent(&SockRef::from(socket), max);
        }
    }

    pub async fn next(&self) -> io::Result<Accepted> {
        match &self.0 {
            Accepting::Tcp { socket, addr } => {
                let (stream, peer) = socket.accept().await?;
                Ok(Accepted::tcp(stream, peer, *addr))
            }
            Accepting::Unix(socket) => Ok(Accepted::unix(socket.accept().await?.0)),
        }
    }

    /// Closes the socket, once all that waits in it has been `taken` as long as there `is_room`: the kernel would
    /// reset it.
    pub fn rest(self, is_room: impl Fn() -> bool, mut taken: impl FnMut(Accepted)) {
        // The runtime may not know yet what waits, so the system itself is asked.
        let _ = match self.0 {
            Accepting::Tcp { socket, addr } => socket.into_std().map(|socket| {
                for (stream, peer) in
                    std::iter::from_fn(|| is_room().then(|| socket.accept().ok())?).take(BACKLOG.into())
                {
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    stream.into_iter().for_each(|stream| taken(Accepted::tcp(stream, peer, addr)));
                }
            }),
            Accepting::Unix(socket) => socket.into_std().map(|socket| {
                for (stream, _) in std::iter::from_fn(|| is_room().then(|| socket.accept().ok())?).take(BACKLOG.into())
                {
                    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
                    stream.into_iter().for_each(|stream| taken(Accepted::unix(stream)));
                }
            }),
        };
    }
}

impl Accepted {
    /// By a socket that is bound to `addr`.
    fn tcp(stream: TcpStream, peer: SocketAddr, addr: SocketAddr) -> Accepted {
        // Answers leave at once; a socket that cannot do so still works.
        let _ = stream.set_nodelay(true);
        let asked = if addr.ip().is_unspecified() { stream.local_addr().unwrap_or(addr) } else { addr };
        Accepted { stream: Stream::Tcp(stream), peer: canonical(peer), asked: Some(canonical(asked)) }
    }

    fn unix(stream: UnixStream) -> Accepted {
        Accepted { stream: Stream::Unix(stream), peer: LOCAL, asked: None }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Bound::Tcp(socket) => socket.as_fd(),
            Bound::Unix(socket, _) => socket.as_fd(),
        }
    }
}

/// IPv4 as such, whatever the socket takes.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Connections inherit it.
fn bound_unsent(listener: &SockRef<'_>, max: u32) {
    if let Err(error) = listener.set_tcp_notsent_lowat(max) {
        tracing::warn!(%error, "the system does not bound what it keeps for clients (max_unsent)");
    }
}

impl Bound {
    fn open(addr: &ListenAddr) -> io::Result<Bound> {
        match addr {
            ListenAddr::Tcp(addr) => {
                let domain = if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&(*addr).into())?;
                socket.listen(BACKLOG.into())?;
                Ok(Bound::Tcp(socket.into()))
            }
            ListenAddr::Unix(path) => {
                let (socket, file) = SocketFile::bind(path)?;
                Ok(Bound::Unix(socket, Some(file)))
            }
        }
    }
}

/// Whether a socket bound to `bound` is one that was asked for as `claimed`. Port 0 asks for any port. A socket of
/// `[::]` serves `0.0.0.0` as well.
fn is_bound_as(bound: &ListenAddr, claimed: &ListenAddr) -> bool {
    match (bound, claimed) {
        (ListenAddr::Tcp(bound), ListenAddr::Tcp(claimed)) => {
            let any = bound.is_ipv6() && bound.ip().is_unspecified() && claimed.ip().is_unspecified();
            (any || bound.ip() == claimed.ip()) && (claimed.port() == 0 || bound.port() == claimed.port())
        }
        (bound, claimed) => bound == claimed,
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
            io::ErrorKind::AlreadyExists => write!(f, "; it was left alone: remove it or choose another path"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BindError {}
