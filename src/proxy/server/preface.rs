//! Detects the protocol of a connection by its first bytes, where TLS has not negotiated one. HTTP/2 begins with a
//! preface that no HTTP/1.1 server accepts as a request (RFC 9113, section 3.4).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::yield_now;

use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::context::worker_context::WorkerContext;
use crate::telemetry::metrics::Protocol;

/// The bytes with which an HTTP/2 client begins.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of the first read. Most heads fit in.
const FIRST_READ: usize = 2048;

/// Reads until the protocol is certain, which takes one byte for most clients. Returns the protocol and the bytes that
/// were read. `None` if the connection ends before.
pub async fn detect(
    stream: &mut Stream,
    client: &ClientConnection,
    worker: &WorkerContext,
) -> Option<(Protocol, Bytes)> {
    // The beginning of what may become a preface.
    let mut start = Vec::new();
    loop {
        let detected = poll_fn(|cx| {
            client.connection().register_task(cx.waker());
            match poll_detect(stream, &mut start, cx) {
                Poll::Pending if worker.is_closing() || worker.has_ended(client.connection()) => Poll::Ready(None),
                detected => detected,
            }
        });
        match detected.await {
            // The client has sent something that the runtime does not know of yet.
            None if worker.is_closing() && !client.connection().is_over() && stream.has_unread_bytes() => {
                yield_now().await
            }
            detected => return detected,
        }
    }
}

fn poll_detect(stream: &mut Stream, start: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Option<(Protocol, Bytes)>> {
    loop {
        // On the stack, and not in the future, which the connection keeps to its end.
        let mut buffer = [0; FIRST_READ];
        buffer[..start.len()].copy_from_slice(start);
        let mut read = ReadBuf::new(&mut buffer);
        read.set_filled(start.len());
        if ready!(Pin::new(&mut *stream).poll_read(cx, &mut read)).is_err() || read.filled().len() == start.len() {
            // The HTTP/1.1 parser refuses what is there, and sees the end itself.
            let rest = (!start.is_empty()).then(|| (Protocol::Http11, Bytes::from(std::mem::take(start))));
            return Poll::Ready(rest);
        }
        let bytes = read.filled();
        let length = bytes.len().min(PREFACE.len());
        if bytes[..length] != PREFACE[..length] {
            return Poll::Ready(Some((Protocol::Http11, Bytes::copy_from_slice(bytes))));
        }
        if length == PREFACE.len() {
            return Poll::Ready(Some((Protocol::Http2, Bytes::copy_from_slice(bytes))));
        }
        *start = bytes.to_vec();
    }
}
