//! Serves HTTP/2 connections: many requests at once, each on a stream with a timer of its own. A connection ends with
//! GOAWAY when it is idle or the worker drains, and at once when its client floods it.
//!
//! Input: the client's stream, with the bytes that were read to detect the protocol. Requests go to
//! `proxy::doors::request`. hyper and h2 parse frames; this module decides what a client may send, and how long a
//! connection lives.
//!
//! - `mod.rs`: the loop of a connection.
//! - `io.rs`: the filter between the stream and the library. It calls `frames` and `head_check`.
//! - `gathered_io.rs`: gathers the frames that the library writes in one poll.
//! - `frames.rs`: counts frames that cost work and bring nothing.
//! - `head_check/`: replaces malformed heads, for which the library would end the connection.
//! - `hpack/`, `field_kind.rs`: decode heads and judge their fields, for `head_check`.
//! - `streams.rs`: the tasks of the streams, and response bodies in pieces.
//! - `tunnel_stream.rs`: a stream that has become a tunnel.

pub(crate) mod frames;
pub(crate) mod gathered_io;
pub(crate) mod head_check;
pub(crate) mod hpack;
pub(crate) mod io;
pub(crate) mod streams;
pub(crate) mod tunnel_stream;

use std::cell::RefCell;
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use h2::Reason;
use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::ends::End;
use crate::proxy::connection::body::incoming::wrap_stream_body;
use crate::proxy::connection::phase::Phase;
use crate::proxy::connection::stream::Stream;
use crate::proxy::context::ClientConnection;
use crate::proxy::context::worker_context::WorkerContext;
use crate::proxy::doors::request;
use crate::proxy::head::extended_connect;
use crate::proxy::server::http2::frames::FrameMonitor;
use crate::proxy::server::http2::gathered_io::GatheredIo;
use crate::proxy::server::http2::io::Http2Io;
use crate::proxy::server::http2::streams::{StreamBody, StreamSpawner};

/// Bytes of one request body, and of all bodies of a connection, that a client may send before the upstream servers
/// have accepted them. This bounds the memory for request bodies.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a response that the library buffers for a stream whose client does not read, beside one piece.
const SEND_BUFFER: usize = 16 * 1024;
/// The most streams that the client may have reset before the gateway has seen them. Beyond that the connection ends.
const PENDING_RESETS: usize = 200;
/// The most streams that the gateway resets for a mistake of the client. Beyond that the connection ends.
const FAULTY_STREAMS: usize = 100;
/// Time that a client has to react to GOAWAY.
const LAST_CALL: Duration = Duration::from_secs(5);

/// Serves `stream`, of which `start` has been read.
pub async fn serve_connection(stream: Stream, start: Bytes, client: Rc<ClientConnection>, worker: &WorkerContext) {
    let _parsing = worker.heap_trimmer.count_parser();
    let (deadline, bounds) = (client.connection(), &client.settings);
    deadline.set_multiplexed(bounds.keepalive_timeout);
    deadline.set_min_rate(bounds.stream_timeout, bounds.min_response_rate);
    let frames = Rc::new(RefCell::new(FrameMonitor::new(deadline.now_ms())));
    let streams = StreamSpawner::new(&client);
    let service = service_fn(|mut request: Request<Incoming>| {
        let (method, frames, streams) = (request.method().clone(), frames.clone(), streams.clone());
        let switch = extended_connect::translate_to_upgrade(&mut request).then(|| hyper::upgrade::on(&mut request));
        let deadline = streams.begin_request(request.body().is_end_stream());
        let request = request.map(|body| wrap_stream_body(body, &deadline, &client.worker.discards, client.peer));
        request::serve(client.clone(), request, deadline.clone()).map_ok(move |response| {
            let response = match switch {
                Some(switch) => streams.upgrade_response(response, switch, deadline.clone(), frames.clone()),
                None => response,
            };
            StreamBody::wrap_response(response, &method, deadline, &frames)
        })
    });
    let io = GatheredIo::new(Http2Io::new(stream, start, client.clone(), frames.clone()));
    // The state has a timer for every phase, also for dead clients. So hyper has none, and no PING is sent.
    let connection = http2::Builder::new(streams.clone())
        .enable_connect_protocol()
        .max_concurrent_streams(bounds.max_streams)
        .max_header_list_size(u32::try_from(bounds.max_header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(FAULTY_STREAMS)
        .serve_connection(TokioIo::new(io.clone()), service);
    let mut connection = pin!(connection);
    let mut leaving = false;
    let result = poll_fn(|cx| {
        deadline.register_task(cx.waker());
        if deadline.is_cut() {
            return Poll::Ready(Ok(()));
        }
        let idle = deadline.expired_phase().is_some_and(Phase::is_idle);
        // Until its preface is complete, a client might not even speak HTTP/2.
        let drains = worker.is_draining() && (deadline.phase() != Phase::Head || worker.is_closing());
        if (idle || drains) && !leaving {
            leaving = true;
            // From now on the connection is idle no longer than a client needs to hear of it.
            deadline.begin_goaway(LAST_CALL);
            connection.as_mut().graceful_shutdown();
        }
        let poll = connection.as_mut().poll(cx);
        let finished = io.poll_finish(cx, poll.is_ready() && frames.borrow().flood().is_some());
        if poll.is_ready() {
            return poll;
        }
        if let Poll::Ready(Err(_)) = finished {
            return Poll::Ready(Ok(()));
        }
        let late = deadline.expired_phase().or(deadline.is_head_late().then_some(Phase::Head));
        if late.is_none() && !deadline.is_slow() {
            return Poll::Pending;
        }
        if late == Some(Phase::Head) {
            deadline.fail_protocol();
        }
        worker.count_end(late.map_or_else(|| deadline.slow_reader_end(), Phase::end));
        Poll::Ready(Ok(()))
    })
    .await;
    let flood = frames.borrow().flood().map(|flood| flood.reason());
    let fault = result.err().and_then(|error| find_error_end(&error));
    if let Some(reason) = flood.or(fault) {
        // The tasks of the streams run after this, and log this reason.
        deadline.fail_protocol();
        tracing::debug!(client = %client.peer, reason = reason.label(), "ended an HTTP/2 connection");
        worker.count_end(Some(reason));
    }
}

/// Returns the reason that is counted when the library ends a connection for what its client has sent.
fn find_error_end(error: &hyper::Error) -> Option<End> {
    let error = error.source()?.downcast_ref::<h2::Error>()?;
    if !(error.is_go_away() && error.is_library()) {
        return None;
    }
    match error.reason()? {
        Reason::NO_ERROR => None,
        Reason::ENHANCE_YOUR_CALM => Some(End::H2Abuse),
        _ => Some(End::H2Protocol),
    }
}
