//! One connection to an upstream server: opened here, kept by `pool`, moved by `exchange`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::descriptors::{self, ServerDescriptor};
use crate::labels::labels;
use crate::upstream::caps::ConnectionSlot;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{Scheme, WireProtocol};

/// Bytes asked of the kernel at once: at first, and at most when the upstream has that many at hand.
const READ_MIN: usize = 8 * 1024;
const READ_MAX: usize = 64 * 1024;

pub struct UpstreamConnection {
    stream: UpstreamStream,
    _descriptor: ServerDescriptor,
    /// What it is to be spoken to in.
    pub http2: bool,
    /// Received and not used yet.
    pub received: BytesMut,
    /// Where the server takes only so many.
    pub slot: Option<ConnectionSlot>,
    /// For the next read.
    room: usize,
}

enum UpstreamStream {
    Tcp(TcpStream),
    /// In a box: it is large, and most streams are none.
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// What the same call does on each kind of stream.
macro_rules! on_stream {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            UpstreamStream::Tcp($inner) => $call,
            UpstreamStream::Tls($inner) => $call,
            UpstreamStream::Unix($inner) => $call,
        }
    };
}

/// There is no connection.
#[derive(Debug)]
pub struct ConnectError {
    pub fault: ConnectFault,
    /// What the system says.
    pub reason: io::Error,
}

labels! {
    /// Why there is none.
    ConnectFault:
    Refused = "refused",
    Unreachable = "unreachable",
    TimedOut = "timed_out",
    /// The name of the server has no address.
    UnknownName = "unknown_name",
    NoSocket = "no_socket",
    Permission = "permission",
    /// The handshake failed, or its certificate is not trusted.
    Tls = "tls_error",
    /// It does not speak HTTP/2, and should.
    Protocol = "protocol_error",
    /// This machine has no memory or no local port left for one.
    Resources = "resources",
    /// The server has as many as it may.
    MaxConnections = "max_connections",
    /// Nor descriptors, or none to spare: no server is to blame.
    Descriptors = "file_descriptors",
}

/// Pauses between two attempts to connect to a Unix socket whose queue is full.
const DIAL_PAUSE: Duration = Duration::from_millis(1);
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(8);

/// Those who wait to connect to one Unix socket. TCP retries by itself when a server's queue is full; connecting to a
/// Unix socket fails at once. So the first in this queue tries every few milliseconds, and the others wait
/// behind it in order, which costs the same however many wait.
pub struct DialQueue(Semaphore);

impl Default for DialQueue {
    fn default() -> DialQueue {
        DialQueue(Semaphore::new(1))
    }
}

impl DialQueue {
    /// Connects, waiting for as long as the socket's queue is full: the caller bounds the time.
    async fn connect(&self, path: &str) -> io::Result<UnixStream> {
        let _first = self.0.acquire().await;
        let mut pause = DIAL_PAUSE;
        loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                connected => return connected,
            }
            sleep(pause).await;
            pause = (pause * 2).min(DIAL_PAUSE_MAX);
        }
    }
}

/// ENOBUFS: the kernel has no memory left for sockets.
const NO_BUFFERS: i32 = 105;

impl ConnectFault {
    /// The gateway lacks something of its own: no server is to blame.
    pub fn is_of_gateway(self) -> bool {
        self.is_shortage() || self == ConnectFault::MaxConnections
    }

    /// The gateway has no descriptor, memory or local port left.
    pub fn is_shortage(self) -> bool {
        matches!(self, ConnectFault::Descriptors | ConnectFault::Resources)
    }

    fn of(error: &io::Error) -> ConnectFault {
        match error.kind() {
            io::ErrorKind::TimedOut => ConnectFault::TimedOut,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
                ConnectFault::Unreachable
            }
            io::ErrorKind::NotFound => ConnectFault::NoSocket,
            io::ErrorKind::PermissionDenied => ConnectFault::Permission,
            _ if descriptors::are_short(error) => ConnectFault::Descriptors,
            _ if error.raw_os_error() == Some(NO_BUFFERS) => ConnectFault::Resources,
            io::ErrorKind::OutOfMemory => ConnectFault::Resources,
            // No address of this machine reaches the server; `connect` has ruled out that ports have run out.
            io::ErrorKind::AddrNotAvailable => ConnectFault::Unreachable,
            _ => ConnectFault::Refused,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault.label(), self.reason)
    }
}

impl From<io::Error> for ConnectError {
    fn from(reason: io::Error) -> ConnectError {
        ConnectError { fault: ConnectFault::of(&reason), reason }
    }
}

impl UpstreamConnection {
    /// Connects to a server, which reads `introduction` first, before anything of TLS. `queue` is that of the server.
    pub async fn open(
        endpoint: &Endpoint,
        introduction: &[u8],
        queue: &DialQueue,
    ) -> Result<UpstreamConnection, ConnectError> {
        let origin = &endpoint.origin;
        let none_left = || ConnectError {
            fault: ConnectFault::Descriptors,
            reason: io::Error::other("connections to upstream servers have all that are to spare"),
        };
        let descriptor = descriptors::for_server().ok_or_else(none_left)?;
        let stream = match &origin.scheme {
            Scheme::Https(tls) => {
                let tcp = connect(endpoint.address, introduction).await?;
                UpstreamStream::Tls(Box::new(handshake(tls, origin.name(), tcp).await?))
            }
            Scheme::Http | Scheme::H2c => UpstreamStream::Tcp(connect(endpoint.address, introduction).await?),
            Scheme::Unix(_) => {
                let mut stream = queue.connect(&origin.authority).await?;
                stream.write_all(introduction).await?;
                UpstreamStream::Unix(stream)
            }
        };
        let chosen = match &stream {
            UpstreamStream::Tls(stream) => Some(stream.get_ref().1.alpn_protocol() == Some(b"h2")),
            _ => None,
        };
        let http2 = match (origin.protocol(), chosen) {
            (WireProtocol::Http2, Some(false)) => {
                let reason = io::Error::other("it has not chosen HTTP/2");
                return Err(ConnectError { fault: ConnectFault::Protocol, reason });
            }
            (protocol, chosen) => chosen.unwrap_or(protocol == WireProtocol::Http2),
        };
        Ok(UpstreamConnection {
            stream,
            _descriptor: descriptor,
            http2,
            received: BytesMut::new(),
            slot: None,
            room: READ_MIN,
        })
    }

    /// Bounds what the kernel keeps of an answer until it is read; 0 leaves it to the kernel. A Unix socket keeps
    /// what its server may have unsent.
    pub fn bound_unread(&self, max: usize) {
        let socket = match &self.stream {
            UpstreamStream::Tcp(stream) => SockRef::from(stream),
            UpstreamStream::Tls(stream) => SockRef::from(stream.get_ref().0),
            UpstreamStream::Unix(_) => return,
        };
        if max > 0 {
            // It works without, too.
            let _ = socket.set_recv_buffer_size(max);
        }
    }

    /// Nothing came after the last answer, not even the end.
    pub fn is_quiet(&mut self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.received.is_empty()
            && match &mut self.stream {
                UpstreamStream::Tcp(stream) => stream.try_read(&mut [0]).is_err_and(nothing),
                UpstreamStream::Unix(stream) => stream.try_read(&mut [0]).is_err_and(nothing),
                // Its own messages, such as tickets, are taken on the way.
                UpstreamStream::Tls(stream) => {
                    let (mut byte, mut cx) = ([0], Context::from_waker(Waker::noop()));
                    Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
                }
            }
    }

    /// Lets go of what only a large answer needs.
    pub fn rest(&mut self) {
        if self.room > READ_MIN {
            (self.received, self.room) = (BytesMut::new(), READ_MIN);
        }
    }

    /// Receives more, 0 bytes at the end of the connection.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.received.capacity() - self.received.len() < self.room / 4 {
            self.received.reserve(self.room);
        }
        let space = self.received.capacity() - self.received.len();
        let polled = on_stream!(&mut self.stream, stream => pin!(stream.read_buf(&mut self.received)).poll(cx));
        if let Poll::Ready(Ok(count)) = &polled
            && *count == space
        {
            self.room = (self.room * 2).min(READ_MAX);
        }
        polled
    }

    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(&mut self.stream, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    /// Ready once the system has all that was sent. TLS keeps some of it back.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(&mut self.stream, stream => Pin::new(stream).poll_flush(cx))
    }

    /// Ends this side: the upstream learns that no more comes.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(self).poll_shutdown(cx).map(drop)
    }
}

/// What was received and not used yet comes first.
impl AsyncRead for UpstreamConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.received.is_empty() {
            return on_stream!(&mut self.stream, stream => Pin::new(stream).poll_read(cx, buf));
        }
        let count = self.received.len().min(buf.remaining());
        buf.put_slice(&self.received.split_to(count));
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        UpstreamConnection::poll_flush(&mut self, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(&mut self.stream, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

async fn connect(address: Option<SocketAddr>, introduction: &[u8]) -> Result<TcpStream, ConnectError> {
    let unknown =
        || ConnectError { fault: ConnectFault::UnknownName, reason: io::Error::other("the name has no address") };
    let address = address.ok_or_else(unknown)?;
    let mut stream = TcpStream::connect(address).await.map_err(|error| dial_error(error, address))?;
    stream.set_nodelay(true)?;
    stream.write_all(introduction).await?;
    Ok(stream)
}

/// Tells a machine without a local port left (EADDRNOTAVAIL) from one without an address that reaches `address`, for
/// which the kernel has the same error: UDP needs the address, too, and has ports of its own.
fn dial_error(error: io::Error, address: SocketAddr) -> ConnectError {
    if error.kind() != io::ErrorKind::AddrNotAvailable {
        return error.into();
    }
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    match UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address)) {
        Err(_) => error.into(),
        Ok(()) => ConnectError {
            fault: ConnectFault::Resources,
            reason: io::Error::other(
                "no local port left for connections to this server; widen net.ipv4.ip_local_port_range or add addresses \
                 of the server",
            ),
        },
    }
}

async fn handshake(tls: &UpstreamTls, host: &str, tcp: TcpStream) -> Result<TlsStream<TcpStream>, ConnectError> {
    let failed = |reason| ConnectError { fault: ConnectFault::Tls, reason };
    let name = match &tls.server_name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned()).map_err(|error| failed(io::Error::other(error)))?,
    };
    TlsConnector::from(tls.config.clone()).connect(name, tcp).await.map_err(failed)
}
