//! Reads a head with the parser and the inspector of client connections. They get it from memory.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;

use crate::config::Config;
use crate::ends::End;
use crate::proxy::head::inspector::Inspector;
use crate::proxy::head::raw_target;
use crate::proxy::server::http1::new_parser;
use crate::proxy::server::parse_failure::find_parse_end;
use crate::proxy::words::known_headers::HeaderSet;

/// A parsed head.
pub struct ParsedHead {
    pub parts: Parts,
    pub header_set: HeaderSet,
    /// The first violation that the parser would repair.
    pub fault: Option<End>,
    /// The announced length of the body: 0 without a body, `None` if it is chunked.
    pub body_length: Option<u64>,
}

/// Parses a complete head.
///
/// # Errors
/// The parser rejects the head.
pub fn parse_head(head: &[u8], config: &Config) -> Result<ParsedHead, End> {
    let server = &config.server;
    let mut inspector = config.is_strict_somewhere.then(|| Inspector::new(server.max_header_bytes));
    let visible = &head[..inspector.as_mut().map_or(head.len(), |inspector| inspector.feed(head))];
    let line = raw_target::encode_request_line(visible);
    let parsed_head: RefCell<Option<(Parts, Option<u64>)>> = RefCell::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        parsed_head.replace(Some((parts, body.size_hint().exact())));
        pending::<Result<Response<Empty<Bytes>>, Infallible>>()
    });
    let mut connection = new_parser(server.max_headers, server.max_header_bytes)
        .serve_connection(HeadStream { unread: line.as_deref().unwrap_or(visible) }, service);
    // The stream never waits, so one call reads the whole head.
    let poll = Pin::new(&mut connection).poll_without_shutdown(&mut Context::from_waker(Waker::noop()));
    let rest = connection.into_parts().read_buf;
    if let Poll::Ready(Err(error)) = poll {
        return Err(find_parse_end(&error, &rest, server.max_header_bytes).unwrap_or(End::MalformedHead));
    }
    let (parts, body_length) = parsed_head.into_inner().ok_or(End::MalformedHead)?;
    let fault = inspector.and_then(|mut inspector| inspector.take_fault(body_length));
    let header_set = HeaderSet::from_headers(&parts.headers);
    Ok(ParsedHead { parts, header_set, fault, body_length })
}

/// A connection on which a head has arrived. Bytes that are written to it are dropped.
struct HeadStream<'h> {
    unread: &'h [u8],
}

impl Read for HeadStream<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Poll::Pending;
        }
        let (piece, rest) = self.unread.split_at(self.unread.len().min(buf.remaining()));
        buf.put_slice(piece);
        self.unread = rest;
        Poll::Ready(Ok(()))
    }
}

impl Write for HeadStream<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
