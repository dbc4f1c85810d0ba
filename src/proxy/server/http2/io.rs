//! The filter between an HTTP/2 client's stream and the library. All bytes pass `frames`, which may end the connection,
//! and `head_check`, which replaces malformed heads.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Version;
use tokio::io::{AsyncRead, ReadBuf};

use crate::ends::End;
use crate::proxy::account::log_entry;
use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::server::http2::frames::{Flood, FrameMonitor};
use crate::proxy::server::http2::head_check::{CheckedBytes, HeadCheck, MalformedHead};
use crate::proxy::steps::client_io::{ClientIo, ReadFilter};

/// The filter of HTTP/2.
pub struct Http2Filter {
    frames: Rc<RefCell<FrameMonitor>>,
    heads: HeadCheck,
    /// Bytes that the check has replaced or held back, and that the library reads next.
    checked: Bytes,
}

/// The stream of an HTTP/2 client, as the library reads and writes it.
pub type Http2Io = ClientIo<Http2Filter>;

impl Http2Io {
    /// Wraps `stream`, from which `start` was read while the protocol was detected.
    pub fn new(
        stream: Stream,
        start: Bytes,
        client: Rc<ClientConnection>,
        frames: Rc<RefCell<FrameMonitor>>,
    ) -> Http2Io {
        let heads = HeadCheck::new(client.settings.max_header_bytes);
        let filter = Http2Filter { frames, heads, checked: Bytes::new() };
        ClientIo { stream, unread: start, client, filter }
    }

    /// Shows `bytes` to `frames` and updates the timers of heads. Returns false if the client floods the connection.
    fn count_frames(&self, bytes: &[u8]) -> bool {
        let connection = self.client.connection();
        let mut frames = self.filter.frames.borrow_mut();
        let calm = frames.feed(bytes, connection.now_ms());
        if frames.has_begun() && connection.phase() == Phase::Head {
            connection.enter_phase(Phase::Idle, self.client.settings.keepalive_timeout);
        }
        if frames.has_moved_on() {
            connection.end_head();
        }
        calm
    }

    /// Starts the timer of an incomplete head, when all bytes that have come are read.
    fn update_head_timer(&self) {
        match self.filter.frames.borrow().is_inside_head() {
            true => self.client.connection().begin_head(self.client.settings.header_timeout),
            false => self.client.connection().end_head(),
        }
    }
}

/// Ends the connection. Its loop sends GOAWAY.
fn flood_error() -> io::Error {
    io::Error::other("the client floods the connection with frames")
}

impl ReadFilter for Http2Filter {
    fn poll_read(io: &mut Http2Io, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let checked = &mut io.filter.checked;
            if !checked.is_empty() {
                buf.put_slice(&checked.split_to(checked.len().min(buf.remaining())));
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            if !io.read_unread(buf) {
                match Pin::new(&mut io.stream).poll_read(cx, buf) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending => {
                        io.update_head_timer();
                        return Poll::Pending;
                    }
                    failed => return failed,
                }
            }
            let fresh = &buf.filled()[before..];
            if fresh.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !io.count_frames(fresh) {
                return Poll::Ready(Err(flood_error()));
            }
            let Http2Filter { heads, frames, .. } = &mut io.filter;
            let report = |rule: End, head: Option<&MalformedHead>| match head {
                Some(head) => report_malformed(&io.client, rule, head),
                None => io.client.worker.process.metrics.rejected_counter(rule).inc(),
            };
            let Ok(passed) = heads.check(fresh, report) else {
                frames.borrow_mut().set_flood(Flood::Head);
                return Poll::Ready(Err(flood_error()));
            };
            let passed = match passed {
                CheckedBytes::First(passed) => passed,
                CheckedBytes::Replaced => 0,
            };
            if io.filter.heads.ends_connection() {
                io.client.connection().fail_protocol();
            }
            io.filter.checked = io.filter.heads.take_passing().map(Bytes::from).unwrap_or_default();
            buf.set_filled(before + passed);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Counts and logs a malformed HTTP/2 head, whose stream is reset. The log shows the status that an HTTP/1.1 client
/// would have got.
fn report_malformed(client: &ClientConnection, rule: End, head: &MalformedHead) {
    client.worker.process.metrics.rejected_counter(rule).inc();
    let MalformedHead { method, authority, path, .. } = head;
    log_entry::log_malformed_stream_head(client, Version::HTTP_2, (method, authority, path), rule.status(), rule);
}
