//! Serves HTTP/1.1 connections: requests one after another, rest in between, the end when the worker drains, and the
//! upgrade to a tunnel.
//!
//! Input: the client's stream, with the bytes that were read to detect the protocol. Requests go to
//! `proxy::request`. hyper parses them; this module decides how long a connection lives.
//!
//! - `mod.rs`: the loop of a connection, with its parser and without.
//! - `io.rs`: the filter between the stream and the parser.

pub(crate) mod io;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::task::yield_now;

use crate::proxy::connection::http1::io::Http1Io;
use crate::proxy::connection::incoming::wrap_body;
use crate::proxy::connection::parse_failure;
use crate::proxy::connection::settings::{ConnectionSettings, has_ended};
use crate::proxy::connection::stream::Stream;
use crate::proxy::connection::worker_context::WorkerContext;
use crate::proxy::context::ClientConnection;
use crate::proxy::request;

/// Serves `stream`, of which `start` has been read.
pub async fn serve_connection(
    stream: Stream,
    start: Bytes,
    client: Rc<ClientConnection>,
    bounds: &ConnectionSettings,
    worker: &WorkerContext,
) {
    let mut io = Http1Io::new(stream, start, client.clone(), bounds);
    // A parser with its buffers takes about 20 kB. A resting connection has none.
    while wait_for_bytes(&io, &client, worker).await || has_late_bytes(&io, &client, worker).await {
        io = match serve_requests(io, &client, worker, bounds).await {
            AfterParser::Rest(io) => io,
            // Boxed, because otherwise the task of every connection would be as large as this rare case needs.
            AfterParser::Unread(io, response) => {
                return Box::pin(io.refuse_and_close(&response)).await;
            }
            AfterParser::Tunnel(stream, early) => {
                let Some(tunnel) = client.tunnel.take() else { return };
                let is_over = |cx: &mut Context<'_>| {
                    client.connection().register_task(cx.waker());
                    has_ended(&client, worker)
                };
                return tunnel.run(Box::new(stream), early, Box::new(is_over)).await;
            }
            AfterParser::End => {
                // The client has left before its 101 response was written.
                if let Some(tunnel) = client.tunnel.take() {
                    tunnel.abandon();
                }
                return;
            }
        }
    }
    io.close().await;
}

/// Why the parser has ended.
enum RequestsEnd {
    /// The connection has been idle for a while and rests.
    Rests,
    /// The last response, which is a 101, has been written.
    Switched,
    Closed,
    Failed(hyper::Error),
}

/// Waits for bytes of the client, or the end of its stream. Returns false if the connection ends before.
async fn wait_for_bytes(io: &Http1Io, client: &ClientConnection, worker: &WorkerContext) -> bool {
    poll_fn(|cx| {
        client.connection().register_task(cx.waker());
        match io.poll_readable(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if worker.is_closing() || has_ended(client, worker) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns whether the client of a connection that closes has sent something that the runtime does not know of yet. The
/// connection closes because the worker does, or because it has been idle for too long. The latter happens to many
/// connections at once when the process was stopped for a while.
async fn has_late_bytes(io: &Http1Io, client: &ClientConnection, worker: &WorkerContext) -> bool {
    let closes = if client.connection().is_over() { client.connection().is_idle_over() } else { worker.is_closing() };
    let late = closes && io.stream.has_unread_bytes();
    if late {
        yield_now().await;
    }
    late
}

/// How a connection continues without its parser.
enum AfterParser {
    /// The connection rests until the next request.
    Rest(Http1Io),
    /// The connection is upgraded. The client may have sent some bytes already.
    Tunnel(Stream, Vec<u8>),
    /// The gateway writes this error response to bytes that are no request, and closes.
    Unread(Http1Io, Vec<u8>),
    End,
}

/// Serves requests until the connection rests, is upgraded or ends.
async fn serve_requests(
    io: Http1Io,
    client: &Rc<ClientConnection>,
    worker: &WorkerContext,
    bounds: &ConnectionSettings,
) -> AfterParser {
    let _parsing = worker.heap_trimmer.count_parser();
    let service = service_fn(|request: Request<Incoming>| {
        client.connection().end_requests();
        let deadline = client.connection().start_request(request.body().is_end_stream());
        request::serve(client.clone(), request.map(wrap_body), deadline)
    });
    // The connection's state has a timer for every phase, so hyper has none. Its
    // limits on heads are a second line of defence.
    let connection =
        new_parser(bounds.max_headers, bounds.max_header_bytes).serve_connection(TokioIo::new(io), service);
    // Boxed, so that the task of a resting connection does not keep the parser's memory.
    let mut connection = Box::new(connection);
    let mut leaves = false;
    let end = poll_fn(|cx| {
        client.connection().register_task(cx.waker());
        if client.connection().is_cut() || client.connection().is_half_close_over() {
            return Poll::Ready(RequestsEnd::Closed);
        }
        loop {
            if let Poll::Ready(served) = Pin::new(&mut *connection).poll(cx) {
                return Poll::Ready(match served {
                    Ok(()) if client.connection().is_upgraded() => RequestsEnd::Switched,
                    Ok(()) => RequestsEnd::Closed,
                    Err(error) => RequestsEnd::Failed(error),
                });
            }
            // When the worker leaves, the response to a request under way is the last one. Without a request hyper
            // would close at once, although one may be on its way.
            if leaves || !worker.is_leaving() || !client.connection().phase().has_requests() {
                break;
            }
            leaves = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        // A connection that has been idle for too long rests first, to check for bytes that have just come.
        if client.connection().is_idle_over() && !leaves {
            return Poll::Ready(RequestsEnd::Rests);
        }
        if has_ended(client, worker) {
            return Poll::Ready(RequestsEnd::Closed);
        }
        let rests = client.connection().is_resting() || (worker.is_closing() && client.connection().is_idle());
        if rests && !leaves { Poll::Ready(RequestsEnd::Rests) } else { Poll::Pending }
    })
    .await;
    let parts = connection.into_parts();
    let io = parts.io.into_inner();
    match end {
        RequestsEnd::Rests => return AfterParser::Rest(io.with_unread(&parts.read_buf)),
        RequestsEnd::Switched => {
            let (stream, early) = io.into_stream(&parts.read_buf);
            return AfterParser::Tunnel(stream, early);
        }
        RequestsEnd::Failed(error) => match parse_failure::parse_cutoff(&error, &parts.read_buf) {
            Some(cutoff) => {
                parse_failure::report_rejected(client, cutoff, &parts.read_buf);
                if io.has_withheld() {
                    return AfterParser::Unread(io, parse_failure::error_response(client, cutoff, &parts.read_buf));
                }
            }
            None => parse_failure::report_incomplete(worker, client, &parts.read_buf),
        },
        RequestsEnd::Closed => parse_failure::report_incomplete(worker, client, &parts.read_buf),
    }
    AfterParser::End
}

/// Makes the parser of HTTP/1.1 requests with these bounds.
pub fn new_parser(max_headers: usize, max_header_bytes: usize) -> http1::Builder {
    let mut parser = http1::Builder::new();
    parser.max_headers(max_headers).max_buf_size(max_header_bytes.max(MIN_BUFFER)).max_header_size(max_header_bytes);
    parser
}

/// The smallest read buffer that hyper accepts.
const MIN_BUFFER: usize = 8192;
