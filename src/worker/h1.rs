//! An HTTP/1.1 connection: its requests one after another, its rest in between, its graceful end when the
//! worker drains, and the tunnel that it may become. Called by `connection`.

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

use super::Worker;
use super::bounds::{Bounds, has_ended};
use super::stream::Stream;
use super::unparsed;
use super::watched::Watched;
use crate::http::context::Client;
use crate::http::deadline::Phase;
use crate::http::gateway;
use crate::metrics::Cutoff;

/// Serves `stream`, of which `start` has been read.
pub async fn serve(stream: Stream, start: Bytes, client: Rc<Client>, bounds: &Bounds, worker: &Worker) {
    let mut io = Watched::new(stream, start, client.clone(), bounds);
    // A parser with its buffers takes some 20 kB, which a connection without a request does not need.
    while readable(&io, &client, worker).await || is_late(&io, &client, worker).await {
        io = match requests(io, &client, worker, bounds).await {
            AfterParser::Rest(io) => io,
            // In boxes: every connection would keep room for what few come to.
            AfterParser::Unread(io, cutoff) => {
                return Box::pin(io.refuse(&unparsed::answer(&client, cutoff))).await;
            }
            AfterParser::Tunnel(stream, early) => {
                let Some(tunnel) = client.tunnel.take() else { return };
                let is_over = |cx: &mut Context<'_>| {
                    client.deadline().register(cx.waker());
                    has_ended(&client, worker)
                };
                return Box::pin(tunnel.run(&client, stream, early, Stream::sent, is_over)).await;
            }
            AfterParser::End => {
                // A 101 that was never written opens no tunnel.
                if let Some(tunnel) = client.tunnel.take() {
                    tunnel.leave(&client);
                }
                return;
            }
        }
    }
    io.close().await;
}

/// Why a connection serves no more requests.
enum RequestsEnd {
    /// For now: there has been none for a while.
    Rests,
    /// Its last answer has been written, and was a 101.
    Switched,
    Closed,
    Failed(hyper::Error),
}

/// Waits for bytes, or the end, of the client. False when the connection is over before.
async fn readable(io: &Watched, client: &Client, worker: &Worker) -> bool {
    poll_fn(|cx| {
        client.deadline().register(cx.waker());
        match io.poll_readable(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if worker.closing() || has_ended(client, worker) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Whether the client of a connection that is to be closed has sent something after all, of which the runtime
/// has not heard yet: while the worker closes, or in the moment in which the connection has been idle for too long, as
/// after a process was stopped for a while.
async fn is_late(io: &Watched, client: &Client, worker: &Worker) -> bool {
    let closes = if client.deadline().is_over() { client.deadline().is_idle_over() } else { worker.closing() };
    let late = closes && io.stream.has_bytes();
    if late {
        yield_now().await;
    }
    late
}

/// What becomes of a connection without its parser.
enum AfterParser {
    /// There has been no request for a while.
    Rest(Watched),
    /// It has switched protocols; its client may have sent some bytes already.
    Tunnel(Stream, Vec<u8>),
    /// What came in place of a request is still to be answered.
    Unread(Watched, Cutoff),
    End,
}

/// Serves requests as they come, for as long as they do.
async fn requests(io: Watched, client: &Rc<Client>, worker: &Worker, bounds: &Bounds) -> AfterParser {
    let _parsing = worker.tide.parse();
    let service = service_fn(|request: Request<Incoming>| {
        client.deadline().end_requests();
        let deadline = client.deadline().begin(request.body().is_end_stream());
        gateway::serve(client.clone(), request, deadline)
    });
    // No hyper timer: the deadlines bound every phase. Its own limits stay as a second wall.
    let connection = http1::Builder::new()
        .max_headers(bounds.max_headers)
        .max_buf_size(bounds.max_header_bytes.max(MIN_BUFFER))
        .max_header_size(bounds.max_header_bytes)
        .serve_connection(TokioIo::new(io), service);
    // Not in the task, which stays as large as the largest it ever held.
    let mut connection = Box::new(connection);
    let mut leaves = false;
    let end = poll_fn(|cx| {
        client.deadline().register(cx.waker());
        if client.deadline().is_cut() || client.deadline().is_gone() {
            return Poll::Ready(RequestsEnd::Closed);
        }
        loop {
            if let Poll::Ready(served) = Pin::new(&mut *connection).poll(cx) {
                return Poll::Ready(match served {
                    Ok(()) if client.deadline().has_switched() => RequestsEnd::Switched,
                    Ok(()) => RequestsEnd::Closed,
                    Err(error) => RequestsEnd::Failed(error),
                });
            }
            // The answer to a request is the last. Without one, hyper would end though one may be on its way.
            if leaves || !worker.leaving() || client.deadline().phase() != Phase::Requests {
                break;
            }
            leaves = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        // One that has been idle for too long rests for the last look at what its client has sent.
        if client.deadline().is_idle_over() && !leaves {
            return Poll::Ready(RequestsEnd::Rests);
        }
        if has_ended(client, worker) {
            return Poll::Ready(RequestsEnd::Closed);
        }
        let rests = client.deadline().may_rest() || (worker.closing() && client.deadline().is_idle());
        if rests && !leaves { Poll::Ready(RequestsEnd::Rests) } else { Poll::Pending }
    })
    .await;
    let parts = connection.into_parts();
    let io = parts.io.into_inner();
    match end {
        RequestsEnd::Rests => return AfterParser::Rest(io.after(&parts.read_buf)),
        RequestsEnd::Switched => {
            let (stream, early) = io.into_stream(&parts.read_buf);
            return AfterParser::Tunnel(stream, early);
        }
        RequestsEnd::Failed(error) => match unparsed::cutoff(&error, &parts.read_buf) {
            Some(cutoff) => {
                unparsed::refused(client, cutoff, &parts.read_buf);
                if io.has_withheld() {
                    return AfterParser::Unread(io, cutoff);
                }
            }
            None => unparsed::ended(worker, client, &parts.read_buf),
        },
        RequestsEnd::Closed => unparsed::ended(worker, client, &parts.read_buf),
    }
    AfterParser::End
}

/// The least read buffer hyper accepts.
const MIN_BUFFER: usize = 8192;
