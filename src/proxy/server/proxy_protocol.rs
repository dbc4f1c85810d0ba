//! Reads the PROXY protocol header at the beginning of a connection, before TLS. In this header, a proxy that forwards
//! bytes states which client connected to it. Version 1 is a line of text, version 2 is binary. No byte beyond the
//! header is read.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use proxy_header::{ParseConfig, Protocol, ProxiedAddress, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::state::ConnectionState;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::worker_context::WorkerContext;

/// Length of the shortest header, `PROXY UNKNOWN` and its line end.
const MIN_LENGTH: usize = 15;
/// Length of the longest header of version 1, line end included.
const LINE_MAX: usize = 107;
/// Version 2: the bytes that it begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2: length of the signature, version, address family and the length of the rest.
const PREFIX_LENGTH: usize = 16;
/// Version 2: the longest rest, with the addresses and extensions. The gateway ignores extensions.
const REST_MAX: usize = 2048;

/// Result of reading a PROXY header.
pub enum ProxyHeaderResult {
    /// The client's address and the address that it connected to.
    Client(ProxiedAddress),
    /// The proxy made the connection itself (a health check), or does not know the client.
    Itself,
    /// There is no valid header, or it did not come in time.
    Missing,
}

/// Reads the header, within `handshake_timeout`.
pub async fn read_header(stream: &mut Stream, deadline: &ConnectionState, worker: &WorkerContext) -> ProxyHeaderResult {
    deadline.enter_phase(Phase::Handshake, worker.state.view().snapshot.config.server.handshake_timeout);
    let mut header = pin!(read_bytes(stream));
    let header = poll_fn(|cx| {
        deadline.register_task(cx.waker());
        let is_over = deadline.expired_phase().is_some() || deadline.is_cut() || worker.is_closing();
        if is_over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { header.as_mut().poll(cx) }
    });
    header.await.ok().and_then(|header| parse_header(&header)).unwrap_or(ProxyHeaderResult::Missing)
}

/// Reads the bytes of a whole header.
///
/// # Errors
/// If the bytes are no PROXY header, or the stream ends before its end.
pub async fn read_bytes(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut header = vec![0; MIN_LENGTH];
    stream.read_exact(&mut header).await?;
    if header.starts_with(b"PROXY ") {
        // The length of the line is unknown, and the bytes behind it are not for this reader.
        while !header.ends_with(b"\n") {
            if header.len() == LINE_MAX {
                return Err(invalid());
            }
            header.push(stream.read_u8().await?);
        }
        return Ok(header);
    }
    if !header.starts_with(SIGNATURE) {
        return Err(invalid());
    }
    header.push(stream.read_u8().await?);
    let rest = usize::from(u16::from_be_bytes([header[PREFIX_LENGTH - 2], header[PREFIX_LENGTH - 1]]));
    if rest > REST_MAX {
        return Err(invalid());
    }
    header.resize(PREFIX_LENGTH + rest, 0);
    stream.read_exact(&mut header[PREFIX_LENGTH..]).await?;
    Ok(header)
}

/// Parses a whole header. `None` if it is malformed, or describes no stream.
pub fn parse_header(header: &[u8]) -> Option<ProxyHeaderResult> {
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    let (parsed, length) = ProxyHeader::parse(header, config).ok()?;
    if length != header.len() {
        return None;
    }
    match parsed.proxied_address() {
        None => Some(ProxyHeaderResult::Itself),
        Some(address) if address.protocol == Protocol::Stream => Some(ProxyHeaderResult::Client(address.clone())),
        Some(_) => None,
    }
}
