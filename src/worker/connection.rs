//! One client connection from accept to close: its deadlines, its requests one after another, and
//! its graceful end when the worker drains. Spawned by `accept`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Worker;
use crate::http::context::Client;
use crate::http::deadline::{Awaited, Phase};
use crate::http::gateway;

/// Serves `stream` until it ends, its deadline passes or the worker has drained it.
pub async fn serve<S>(stream: S, client: Rc<Client>, worker: &Worker)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (header_timeout, half_close_timeout, max_headers, max_header_bytes) = {
        // Let go of at once: a connection may outlive many configs.
        let view = client.local.view();
        let server = &view.snapshot.config.server;
        (server.header_timeout, server.half_close_timeout, server.max_headers, server.max_header_bytes)
    };
    client.deadline().arm(Phase::Head, header_timeout);
    let io = TokioIo::new(Watched { stream, client: client.clone(), header_timeout, half_close_timeout });
    let service = service_fn(|request| {
        client.deadline().end_requests();
        gateway::serve(client.clone(), request)
    });
    // No hyper timer: the deadlines bound every phase. Its own limits stay as a second wall.
    let connection = http1::Builder::new()
        .max_headers(max_headers)
        .max_buf_size(max_header_bytes.max(MIN_BUFFER))
        .max_header_size(max_header_bytes)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let mut draining = false;
    poll_fn(|cx| {
        let deadline = client.deadline();
        deadline.register(cx.waker());
        if deadline.is_cut() || deadline.is_gone() {
            return Poll::Ready(());
        }
        if worker.draining() && !draining {
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // A deadline the request itself did not answer for ends the connection.
        let expired = deadline.expired().map(Phase::timeout);
        match expired.or_else(|| deadline.expired_request().map(Awaited::timeout)) {
            Some(reason) => {
                worker.count_timeout(reason);
                Poll::Ready(())
            }
            None => Poll::Pending,
        }
    })
    .await;
}

/// A head and a body of up to this size leave in one plain write: the kernel takes longer to look at a
/// list of buffers than it takes to copy them.
const GATHER_MAX: usize = 16 * 1024;

/// The least read buffer hyper accepts.
const MIN_BUFFER: usize = 8192;

/// Notes the first byte of a request, which starts the deadline of its head, shows all bytes to the
/// inspector, and keeps the end of the stream back while a request is under way.
struct Watched<S> {
    stream: S,
    client: Rc<Client>,
    header_timeout: Duration,
    half_close_timeout: Duration,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let fresh = &buf.filled()[before..];
        let ended = fresh.is_empty() && buf.remaining() > 0 && matches!(result, Poll::Ready(Ok(())));
        if ended && self.client.deadline().half_closed(self.half_close_timeout) {
            // The server would drop the request. It asks again after the answer.
            return Poll::Pending;
        }
        if self.client.deadline().phase() == Phase::Idle && !fresh.is_empty() {
            self.client.deadline().arm(Phase::Head, self.header_timeout);
        }
        if let Some(inspector) = &self.client.inspector {
            inspector.borrow_mut().feed(fresh);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let mut filled = bufs.iter().filter(|buf| !buf.is_empty());
        let (first, second) = (filled.next(), filled.next());
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        match (first, second) {
            (Some(only), None) => Pin::new(&mut self.stream).poll_write(cx, only),
            (Some(_), Some(_)) if length <= GATHER_MAX => {
                let Watched { stream, client, .. } = &mut *self;
                let mut gathered = client.local.gathered.borrow_mut();
                gathered.clear();
                bufs.iter().for_each(|buf| gathered.extend_from_slice(buf));
                Pin::new(stream).poll_write(cx, &gathered)
            }
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
