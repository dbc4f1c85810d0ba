//! Serves HTTP/1.1 connections: requests one after another, rest in between, the end when the worker drains, and the
//! upgrade to a tunnel.
//!
//! Input: the client's stream, with the bytes that were read to detect the protocol. Requests go to
//! `proxy::doors::request`. hyper parses them; this module decides how long a connection lives.
//!
//! - `mod.rs`: the loop of a connection, with its parser and without.
//! - `io.rs`: the filter between the stream and the parser.

pub(crate) mod io;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::task::yield_now;

use crate::ends::End;
use crate::proxy::connection::body::incoming::wrap_body;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::doors::request;
use crate::proxy::server::http1::io::Http1Io;
use crate::proxy::server::parse_failure::{self, find_parse_end};

/// Serves the requests of a client until its connection ends.
pub async fn serve_connection(mut io: Box<Http1Io>, worker: &WorkerContext) {
    while wait_for_bytes(&io, worker).await || has_late_bytes(&io, worker).await {
        // Boxed: a parser with its buffers takes about 20 kB, and a resting connection has none.
        match Box::pin(serve_until_rest(io, worker)).await {
            Some(rested) => io = rested,
            None => return,
        }
    }
    io.close().await;
}

/// Serves the client until its connection rests. Returns `None` when the connection has ended.
async fn serve_until_rest(io: Box<Http1Io>, worker: &WorkerContext) -> Option<Box<Http1Io>> {
    match serve_requests(io, worker).await {
        AfterParser::Rest(rested) => return Some(rested),
        AfterParser::Unread(io, response) => Box::pin(io.refuse_and_close(&response)).await,
        AfterParser::Linger(io) => Box::pin(io.discard_rest()).await,
        AfterParser::Tunnel(stream, early, client) => run_tunnel(stream, early, client, worker).await,
        AfterParser::End => {}
    }
    None
}

/// Runs the tunnel that the connection has become. The client has sent `early` already.
async fn run_tunnel(stream: Stream, early: Vec<u8>, client: Rc<ClientConnection>, worker: &WorkerContext) {
    let Some(tunnel) = client.tunnel.take() else { return };
    let is_over = |cx: &mut Context<'_>| {
        client.connection().register_task(cx.waker());
        worker.has_ended(client.connection())
    };
    tunnel.run(Box::new(stream), early, Box::new(is_over)).await;
}

/// Why the parser has ended.
enum RequestsEnd {
    /// The connection has been idle for a while and rests.
    Rests,
    /// The last response, which is a 101, has been written.
    Switched,
    /// The last response has been written, and the sending side is shut down.
    Served,
    Closed,
    Failed(hyper::Error),
}

/// Waits for bytes of the client, or the end of its stream. Returns false if the connection ends before.
async fn wait_for_bytes(io: &Http1Io, worker: &WorkerContext) -> bool {
    poll_fn(|cx| {
        let connection = io.client.connection();
        connection.register_task(cx.waker());
        match io.poll_readable(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if worker.is_closing() || worker.has_ended(connection) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Returns whether the client of a connection that closes has sent something that the runtime does not know of yet. The
/// connection closes because the worker does, or because it has been idle for too long. The latter happens to many
/// connections at once when the process was stopped for a while.
async fn has_late_bytes(io: &Http1Io, worker: &WorkerContext) -> bool {
    let connection = io.client.connection();
    let closes = if connection.is_over() { connection.is_idle_over() } else { worker.is_closing() };
    let late = closes && io.stream.has_unread_bytes();
    if late {
        yield_now().await;
    }
    late
}

/// How a connection continues without its parser.
enum AfterParser {
    /// The connection rests until the next request.
    Rest(Box<Http1Io>),
    /// The connection is upgraded. The client may have sent some bytes already.
    Tunnel(Stream, Vec<u8>, Rc<ClientConnection>),
    /// The gateway writes this error response to bytes that are not a request, and closes.
    Unread(Box<Http1Io>, Vec<u8>),
    /// The client may still send something that nobody reads.
    Linger(Box<Http1Io>),
    End,
}

/// Serves requests until the connection rests, is upgraded or ends.
async fn serve_requests(io: Box<Http1Io>, worker: &WorkerContext) -> AfterParser {
    let _parsing = worker.heap_trimmer.count_parser();
    let client = io.client.clone();
    let service = service_fn(|request: Request<Incoming>| {
        client.connection().end_requests();
        let deadline = client.connection().start_request(request.body().is_end_stream());
        request::serve(client.clone(), request.map(wrap_body), deadline)
    });
    // The connection's state has a timer for every phase, so hyper has none. Its
    // limits on heads are a second line of defence.
    let settings = &client.settings;
    let mut connection =
        new_parser(settings.max_headers, settings.max_header_bytes).serve_connection(TokioIo::new(io), service);
    let mut leaves = false;
    let end = poll_fn(|cx| {
        client.connection().register_task(cx.waker());
        if client.connection().is_cut() || client.connection().is_half_close_over() {
            return Poll::Ready(RequestsEnd::Closed);
        }
        loop {
            if let Poll::Ready(served) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(match served {
                    Ok(()) if client.connection().is_upgraded() => RequestsEnd::Switched,
                    Ok(()) => RequestsEnd::Served,
                    Err(error) => RequestsEnd::Failed(error),
                });
            }
            // When the worker leaves, the response to a request under way is the last one. Without a request hyper
            // would close at once, although one may be on its way.
            if leaves || !worker.is_leaving() || !client.connection().phase().has_requests() {
                break;
            }
            leaves = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        // A connection that has been idle for too long rests first, to check for bytes that have just come.
        if client.connection().is_idle_over() && !leaves {
            return Poll::Ready(RequestsEnd::Rests);
        }
        if worker.has_ended(client.connection()) {
            return Poll::Ready(RequestsEnd::Closed);
        }
        let rests = client.connection().is_resting() || (worker.is_closing() && client.connection().is_idle());
        if rests && !leaves { Poll::Ready(RequestsEnd::Rests) } else { Poll::Pending }
    })
    .await;
    let Parts { io, read_buf, .. } = connection.into_parts();
    let mut io = io.into_inner();
    let read_buf = io.add_held_line(read_buf);
    match &end {
        RequestsEnd::Rests => {
            drop(client);
            io.prepare_rest(&read_buf);
            return AfterParser::Rest(io);
        }
        RequestsEnd::Switched => {
            let (stream, early) = io.into_stream(&read_buf);
            return AfterParser::Tunnel(stream, early, client);
        }
        RequestsEnd::Failed(error) => match find_parse_end(error, &read_buf, settings.max_header_bytes) {
            Some(end) => {
                parse_failure::report_rejected(&client, end, &read_buf);
                // The parser writes no response to HTTP/2.
                if io.has_withheld() || end == End::Http2Preface {
                    return AfterParser::Unread(io, parse_failure::error_response(&client, end, &read_buf));
                }
            }
            None => parse_failure::report_incomplete(worker, &client, &read_buf),
        },
        RequestsEnd::Served | RequestsEnd::Closed => parse_failure::report_incomplete(worker, &client, &read_buf),
    }
    // The client may have left before its 101 response was written.
    if let Some(tunnel) = client.tunnel.take() {
        tunnel.abandon();
    }
    match end {
        RequestsEnd::Served if !read_buf.is_empty() || io.has_unread_rest() => AfterParser::Linger(io),
        _ => AfterParser::End,
    }
}

/// Makes the parser of HTTP/1.1 requests with these bounds.
pub fn new_parser(max_headers: usize, max_header_bytes: usize) -> http1::Builder {
    let mut parser = http1::Builder::new();
    parser.max_buf_size(max_header_bytes.max(MIN_BUFFER)).max_header_size(max_header_bytes);
    // Told a number, hyper fills two lists of that length for each head. Its own number costs nothing.
    if max_headers != HYPER_MAX_HEADERS {
        parser.max_headers(max_headers);
    }
    parser
}

/// The number of headers that hyper parses by default.
const HYPER_MAX_HEADERS: usize = 100;

/// The smallest read buffer that hyper accepts.
const MIN_BUFFER: usize = 8192;
