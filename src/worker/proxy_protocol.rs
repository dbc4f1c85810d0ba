//! The PROXY header in front of a connection's first byte, before TLS: a proxy that passes on bytes tells
//! who connected to it. Version 1 is a line of text, version 2 binary. Read by `accept`, no byte further.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use proxy_header::{ParseConfig, Protocol, ProxiedAddress, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Worker;
use super::stream::Stream;
use crate::http::deadline::{ConnectionDeadline, Phase};

/// No header is shorter: `PROXY UNKNOWN` and its line end.
const LEAST: usize = 15;
/// Of version 1, line end included.
const LINE_MAX: usize = 107;
/// Of version 2: what it begins with, the version, the address family and the length of the rest.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const START: usize = 16;
/// Of version 2: the addresses, and extensions, which nobody reads.
const REST_MAX: usize = 2048;

/// What a connection begins with where a header is due.
pub enum Introduction {
    /// Whom the proxy speaks for.
    Client(ProxiedAddress),
    /// The proxy speaks for itself, or does not know.
    Itself,
    /// No header, or none in time.
    Missing,
}

/// Reads the header within the time of a handshake.
pub async fn read(stream: &mut Stream, deadline: &ConnectionDeadline, worker: &Worker) -> Introduction {
    deadline.arm(Phase::Handshake, worker.local.view().snapshot.config.server.handshake_timeout);
    let mut header = pin!(header(stream));
    let header = poll_fn(|cx| {
        deadline.register(cx.waker());
        let is_over = deadline.expired().is_some() || deadline.is_cut() || worker.closing();
        if is_over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { header.as_mut().poll(cx) }
    });
    header.await.ok().and_then(|header| introduction(&header)).unwrap_or(Introduction::Missing)
}

/// The bytes of a whole header.
pub async fn header(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut header = vec![0; LEAST];
    stream.read_exact(&mut header).await?;
    if header.starts_with(b"PROXY ") {
        // Nothing tells where the line ends, and what follows is not for this reader.
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
    let rest = usize::from(u16::from_be_bytes([header[START - 2], header[START - 1]]));
    if rest > REST_MAX {
        return Err(invalid());
    }
    header.resize(START + rest, 0);
    stream.read_exact(&mut header[START..]).await?;
    Ok(header)
}

/// `None` where it is no header by the letter, or speaks of no stream.
pub fn introduction(header: &[u8]) -> Option<Introduction> {
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    let (parsed, length) = ProxyHeader::parse(header, config).ok()?;
    if length != header.len() {
        return None;
    }
    match parsed.proxied_address() {
        None => Some(Introduction::Itself),
        Some(address) if address.protocol == Protocol::Stream => Some(Introduction::Client(address.clone())),
        Some(_) => None,
    }
}
