//! Opens connections to upstream servers: TCP, TLS and Unix sockets. `pool` keeps the connections, `exchange` uses
//! them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::descriptors;
use crate::descriptors::DescriptorPermit;
use crate::ends::End;
use crate::net::enable_keepalive;
use crate::proxy::outbound::bulk::{BulkBudget, BulkMeter, set_receive_buffer};
use crate::upstream::caps::ConnectionPermit;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{Scheme, WireProtocol};

/// Size of the read buffer at first, in bytes.
const READ_MIN: usize = 8 * 1024;
/// Size up to which the read buffer grows while the server sends faster than it is read. Bulk transfers have larger
/// ones.
const READ_MAX: usize = 64 * 1024;

/// A connection to one server.
pub struct UpstreamConnection {
    stream: UpstreamStream,
    _descriptor: DescriptorPermit,
    /// True if the connection speaks HTTP/2.
    pub http2: bool,
    /// Bytes that were received and not used yet.
    pub received: BytesMut,
    /// The slot that the connection occupies, where connections are limited.
    pub slot: Option<ConnectionPermit>,
    /// Size of the buffer for the next read.
    read_size: usize,
    /// Decides about larger reads. `None` over HTTP/2.
    bulk: Option<BulkMeter>,
    /// `received` is a part of a buffer that other connections use as well.
    is_shared: bool,
}

enum UpstreamStream {
    Tcp(TcpStream),
    /// Boxed because it is large and most streams are of another kind.
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// A stream of bytes in both directions.
trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ByteStream for S {}

impl UpstreamStream {
    fn as_byte_stream(&mut self) -> &mut dyn ByteStream {
        match self {
            UpstreamStream::Tcp(stream) => stream,
            UpstreamStream::Tls(stream) => stream,
            UpstreamStream::Unix(stream) => stream,
        }
    }

    fn as_pin(&mut self) -> Pin<&mut dyn ByteStream> {
        Pin::new(self.as_byte_stream())
    }
}

/// Why a connection could not be opened.
#[derive(Debug)]
pub struct ConnectError {
    pub end: End,
    /// The error of the operating system, or what else went wrong.
    pub reason: io::Error,
}

/// First pause between two attempts to connect to a Unix socket whose queue is full. It doubles up to
/// `DIAL_PAUSE_MAX`.
const DIAL_PAUSE: Duration = Duration::from_millis(1);
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(8);

/// The queue of connection attempts to one Unix socket. TCP retries by itself if a server's queue is full, but
/// connecting to a Unix socket fails at once. So the first in this queue tries every few milliseconds, and the others
/// wait behind it in order, which costs the same however many wait.
pub struct DialQueue(Semaphore);

impl Default for DialQueue {
    fn default() -> DialQueue {
        DialQueue(Semaphore::new(1))
    }
}

impl DialQueue {
    /// Connects. Waits while the socket's queue is full; the caller bounds the time.
    async fn connect_unix(&self, path: &str) -> io::Result<UnixStream> {
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

/// Returns the end of a request whose connection failed with `error`.
fn classify_error(error: &io::Error) -> End {
    match error.kind() {
        io::ErrorKind::TimedOut => End::ConnectTimedOut,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            End::ConnectUnreachable
        }
        io::ErrorKind::NotFound => End::ConnectNoSocket,
        io::ErrorKind::PermissionDenied => End::ConnectPermission,
        _ if descriptors::is_shortage(error) => End::FileDescriptors,
        _ if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => End::Resources,
        io::ErrorKind::OutOfMemory => End::Resources,
        // No address of this machine reaches the server: `dial_error` has ruled out that local ports ran out.
        io::ErrorKind::AddrNotAvailable => End::ConnectUnreachable,
        _ => End::ConnectRefused,
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.end.row().log_text(), self.reason)
    }
}

impl From<io::Error> for ConnectError {
    fn from(reason: io::Error) -> ConnectError {
        ConnectError { end: classify_error(&reason), reason }
    }
}

impl UpstreamConnection {
    /// Connects to a server and sends `proxy_header`, a PROXY header or nothing, before the TLS handshake. `queue` is
    /// that of the server.
    pub async fn open(
        endpoint: &Endpoint,
        proxy_header: &[u8],
        queue: &DialQueue,
    ) -> Result<UpstreamConnection, ConnectError> {
        let origin = &endpoint.origin;
        let none_left = || ConnectError {
            end: End::FileDescriptors,
            reason: io::Error::other("all descriptors reserved for connections to upstream servers are in use"),
        };
        let descriptor = descriptors::acquire_server_descriptor().ok_or_else(none_left)?;
        let stream = match &origin.scheme {
            Scheme::Https(tls) => {
                let tcp = connect(endpoint.address, proxy_header).await?;
                UpstreamStream::Tls(Box::new(handshake_tls(tls, origin.bare_host(), tcp).await?))
            }
            Scheme::Http | Scheme::H2c => UpstreamStream::Tcp(connect(endpoint.address, proxy_header).await?),
            Scheme::Unix(_) => {
                let mut stream = queue.connect_unix(&origin.authority).await?;
                stream.write_all(proxy_header).await?;
                UpstreamStream::Unix(stream)
            }
        };
        let alpn = match &stream {
            UpstreamStream::Tls(stream) => Some(stream.get_ref().1.alpn_protocol() == Some(b"h2")),
            _ => None,
        };
        let http2 = match (origin.protocol(), alpn) {
            (WireProtocol::Http2, Some(false)) => {
                let reason = io::Error::other("the server did not choose HTTP/2 (ALPN)");
                return Err(ConnectError { end: End::ConnectProtocol, reason });
            }
            (protocol, alpn) => alpn.unwrap_or(protocol == WireProtocol::Http2),
        };
        Ok(UpstreamConnection {
            stream,
            _descriptor: descriptor,
            http2,
            received: BytesMut::new(),
            slot: None,
            read_size: READ_MIN,
            bulk: None,
            is_shared: false,
        })
    }

    /// Bounds the bytes of a response that the kernel buffers until they are read. 0 leaves that to the kernel. A Unix
    /// socket has no such buffer: the bytes count as unsent by the server.
    pub fn limit_receive_buffer(&self, max: usize) {
        let socket = match &self.stream {
            UpstreamStream::Tcp(stream) => SockRef::from(stream),
            UpstreamStream::Tls(stream) => SockRef::from(stream.get_ref().0),
            UpstreamStream::Unix(_) => return,
        };
        if max > 0 {
            set_receive_buffer(&socket, max);
        }
    }

    /// Permits larger reads while responses arrive at a high rate.
    pub fn allow_bulk(&mut self, budget: Rc<BulkBudget>) {
        self.bulk = Some(BulkMeter::new(budget));
    }

    /// Makes an ordinary connection of one with larger reads, before it is read as a tunnel.
    pub fn end_bulk(&mut self) {
        if self.is_shared {
            (self.received, self.is_shared) = (BytesMut::from(&self.received[..]), false);
        }
        if let Some(max) = self.bulk.as_mut().and_then(BulkMeter::end) {
            self.limit_receive_buffer(max);
        }
    }

    /// Returns whether nothing arrived after the last response, not even the end of the connection.
    pub fn is_quiet(&mut self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.received.is_empty()
            && match &mut self.stream {
                UpstreamStream::Tcp(stream) => stream.try_read(&mut [0]).is_err_and(nothing),
                UpstreamStream::Unix(stream) => stream.try_read(&mut [0]).is_err_and(nothing),
                // This also processes messages of TLS itself, such as session tickets.
                UpstreamStream::Tls(stream) => {
                    let (mut byte, mut cx) = ([0], Context::from_waker(Waker::noop()));
                    Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
                }
            }
    }

    /// Frees the buffer that only a large response needs.
    pub fn shrink_buffer(&mut self) {
        self.leave_shared_buffer();
        if self.read_size > READ_MIN {
            (self.received, self.read_size) = (BytesMut::new(), READ_MIN);
        }
    }

    /// Lets other connections use a shared buffer, once everything in it is used. Called after each piece of a body.
    pub fn leave_shared_buffer(&mut self) {
        if self.is_shared && self.received.is_empty() {
            (self.received, self.is_shared) = (BytesMut::new(), false);
        }
    }

    /// Receives more bytes. Returns 0 at the end of the connection.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(max) = self.bulk.as_mut().and_then(BulkMeter::check_rate) {
            self.limit_receive_buffer(max);
        }
        let received = ready!(self.poll_receive_shared(cx).unwrap_or_else(|| self.poll_receive_own(cx)));
        if let (Ok(count), Some(bulk)) = (&received, &mut self.bulk)
            && let Some(max) = bulk.record(*count)
        {
            self.limit_receive_buffer(max);
        }
        Poll::Ready(received)
    }

    /// Receives into the connection's own buffer.
    fn poll_receive_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.received.capacity() - self.received.len() < self.read_size / 4 {
            self.received.reserve(self.read_size);
            self.is_shared = false;
        }
        let space = self.received.capacity() - self.received.len();
        let poll = pin!(self.stream.as_byte_stream().read_buf(&mut self.received)).poll(cx);
        if let Poll::Ready(Ok(count)) = &poll
            && *count == space
        {
            self.read_size = (self.read_size * 2).min(READ_MAX);
        }
        poll
    }

    /// Receives into a shared buffer. Returns `None` if the connection may not use one, or none is free.
    fn poll_receive_shared(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        let buffers = self.bulk.as_ref()?.buffers().filter(|_| self.received.is_empty())?;
        // A part of a shared buffer, even an empty one, keeps the buffer in use.
        self.received = BytesMut::new();
        let stream = self.stream.as_byte_stream();
        let (poll, received) = buffers.with_buffer(|buffer| {
            let poll = pin!(stream.read_buf(buffer)).poll(cx);
            (poll, buffer.split())
        })?;
        if let Poll::Ready(Ok(count)) = &poll {
            (self.received, self.is_shared) = (received, true);
            // The worker's other tasks get their turn after as many bytes as if the reads were small.
            for _ in 0..count / READ_MAX {
                let _ = pin!(consume_budget()).poll(cx);
            }
        }
        Some(poll)
    }

    /// Sends a part of `bytes` and returns its length.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_pin().poll_write(cx, bytes)
    }

    /// Ready once the operating system has everything that was sent. TLS may buffer some of it.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_pin().poll_flush(cx)
    }

    /// Ends the gateway's side, so that the server knows that nothing more comes.
    pub fn poll_close_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(self).poll_shutdown(cx).map(drop)
    }
}

/// Reads what was received and not used yet, and then from the stream.
impl AsyncRead for UpstreamConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.received.is_empty() {
            return self.stream.as_pin().poll_read(cx, buf);
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
        self.stream.as_pin().poll_shutdown(cx)
    }
}

/// Opens a TCP connection and sends `proxy_header`.
async fn connect(address: Option<SocketAddr>, proxy_header: &[u8]) -> Result<TcpStream, ConnectError> {
    let unknown =
        || ConnectError { end: End::ConnectUnknownName, reason: io::Error::other("the hostname has no address") };
    let address = address.ok_or_else(unknown)?;
    let mut stream = TcpStream::connect(address).await.map_err(|error| classify_dial_error(error, address))?;
    stream.set_nodelay(true)?;
    enable_keepalive(&SockRef::from(&stream));
    stream.write_all(proxy_header).await?;
    Ok(stream)
}

/// Distinguishes two meanings of EADDRNOTAVAIL: no local port is left, or no local address reaches `address`.
/// Connecting a UDP socket needs the local address as well, but no TCP port.
fn classify_dial_error(error: io::Error, address: SocketAddr) -> ConnectError {
    if error.kind() != io::ErrorKind::AddrNotAvailable {
        return error.into();
    }
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    match UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address)) {
        Err(_) => error.into(),
        Ok(()) => ConnectError {
            end: End::Resources,
            reason: io::Error::other(
                "no local port left for connections to this server; widen net.ipv4.ip_local_port_range or add server \
                 addresses",
            ),
        },
    }
}

/// Performs the TLS handshake. Verifies the certificate for `server_name` of the config or, without one, for `host`.
async fn handshake_tls(tls: &UpstreamTls, host: &str, tcp: TcpStream) -> Result<TlsStream<TcpStream>, ConnectError> {
    let failed = |reason| ConnectError { end: End::ConnectTls, reason };
    let name = match &tls.server_name {
        Some(name) => name.clone(),
        None => {
            // Certificates have no dot at the end of a name.
            let host = host.strip_suffix('.').unwrap_or(host).to_owned();
            ServerName::try_from(host).map_err(|error| failed(io::Error::other(error)))?
        }
    };
    TlsConnector::from(tls.config.clone()).connect(name, tcp).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use super::*;

    /// Returns a connection to a server at the other end of the socket.
    fn connection() -> (UpstreamConnection, UnixStream) {
        let (stream, server) = UnixStream::pair().unwrap();
        let mut connection = UpstreamConnection {
            stream: UpstreamStream::Unix(stream),
            _descriptor: descriptors::acquire_server_descriptor().unwrap(),
            http2: false,
            received: BytesMut::new(),
            slot: None,
            read_size: READ_MIN,
            bulk: None,
            is_shared: false,
        };
        SockRef::from(&server).set_send_buffer_size(4 * 1024 * 1024).unwrap();
        connection.allow_bulk(Rc::new(BulkBudget::new(Rc::new(Cell::new(1)), Rc::default())));
        (connection, server)
    }

    #[tokio::test]
    async fn a_tunnel_gives_the_larger_reads_up_and_keeps_what_was_received() {
        let (mut connection, mut server) = connection();
        tokio::spawn(async move { server.write_all(&[b'x'; 10_000_000]).await });
        while !connection.is_shared {
            connection.received.clear();
            poll_fn(|cx| connection.poll_receive(cx)).await.unwrap();
        }
        let received = connection.received.to_vec();
        connection.end_bulk();
        assert_eq!((&connection.received[..], connection.is_shared), (&received[..], false));
    }

    #[tokio::test]
    async fn a_receive_buffer_of_any_size_is_set() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut connection, _server) = connection();
        connection.stream = UpstreamStream::Tcp(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        connection.limit_receive_buffer(1 << 32);
        let UpstreamStream::Tcp(stream) = &connection.stream else { unreachable!() };
        assert!(SockRef::from(stream).recv_buffer_size().unwrap() > 100_000);
    }

    #[tokio::test]
    async fn reads_grow_at_a_high_rate_and_every_byte_arrives_in_order() {
        let (mut connection, mut server) = connection();
        let pattern: Vec<u8> = (0..30_000_000_u32).map(|index| (index % 251) as u8).collect();
        let sent = pattern.clone();
        tokio::spawn(async move { server.write_all(&sent).await });
        let (mut at, mut largest, mut held) = (0, 0, Vec::new());
        while at < pattern.len() {
            let count = poll_fn(|cx| connection.poll_receive(cx)).await.unwrap();
            assert!(count > 0);
            largest = largest.max(count);
            // A part stays, as the start of a line does that is incomplete.
            let rest = if at % 3 == 0 { 5.min(connection.received.len() - 1) } else { 0 };
            let piece = connection.received.split_to(connection.received.len() - rest).freeze();
            connection.leave_shared_buffer();
            assert!(pattern[at..].starts_with(&piece), "at {at}");
            at += piece.len();
            // Slow clients hold more and more pieces.
            held.push((at - piece.len(), piece));
        }
        assert!(largest > READ_MAX, "{largest}");
        assert!(held.iter().all(|(at, piece)| pattern[*at..].starts_with(piece)), "a buffer was used again too early");
    }
}
