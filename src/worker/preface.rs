//! Which protocol the first bytes of a connection speak: HTTP/2 begins with a request that no HTTP/1.1
//! server can take for one (RFC 9113, 3.4). Called by `connection` where nothing has told before.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::yield_now;

use super::Worker;
use super::bounds::has_ended;
use super::stream::Stream;
use crate::http::context::Client;
use crate::metrics::Protocol;

pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most first heads fit in, which are thus read at once.
const FIRST_READ: usize = 2048;

/// Waits for enough to tell, which is the first byte for most. Returns the protocol and what has been
/// read; `None` when the connection is over before.
pub async fn tell(stream: &mut Stream, client: &Client, worker: &Worker) -> Option<(Protocol, Bytes)> {
    // The start of a preface, no longer than one.
    let mut start = Vec::new();
    loop {
        let told = poll_fn(|cx| {
            client.deadline().register(cx.waker());
            match poll_told(stream, &mut start, cx) {
                Poll::Pending if worker.closing() || has_ended(client, worker) => Poll::Ready(None),
                told => told,
            }
        });
        match told.await {
            // The runtime is to hear of them.
            None if worker.closing() && !client.deadline().is_over() && stream.has_bytes() => yield_now().await,
            told => return told,
        }
    }
}

fn poll_told(stream: &mut Stream, start: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Option<(Protocol, Bytes)>> {
    loop {
        // Not in the future, which every connection holds to its end.
        let mut room = [0; FIRST_READ];
        room[..start.len()].copy_from_slice(start);
        let mut read = ReadBuf::new(&mut room);
        read.set_filled(start.len());
        if ready!(Pin::new(&mut *stream).poll_read(cx, &mut read)).is_err() || read.filled().len() == start.len() {
            // What is there is for the parser to refuse, the end included.
            let told = (!start.is_empty()).then(|| (Protocol::Http11, Bytes::from(std::mem::take(start))));
            return Poll::Ready(told);
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
