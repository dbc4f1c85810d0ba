//! An HTTP/2 connection: many requests at once, each on a stream with a deadline of its own. It ends with
//! GOAWAY when it is idle or the worker drains, and at once when its client floods it. Called by
//! `connection`.

use std::cell::RefCell;
use std::error::Error;
use std::future::poll_fn;
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

use super::Worker;
use super::bounds::Bounds;
use super::followed::Followed;
use super::frames::Frames;
use super::stream::Stream;
use super::streams::{StreamBody, Streams};
use crate::http::context::Client;
use crate::http::deadline::Phase;
use crate::http::downstream::connect;
use crate::http::gateway;
use crate::metrics::Cutoff;

/// What a client may send of one request body, and of all on its connection, before the upstreams have
/// taken it: what is held of them at most.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What a stream holds of an answer for a client that does not read it, beside one piece.
const SEND_BUFFER: usize = 16 * 1024;
/// Streams that the client has reset before this side has seen them: beyond that it is told to go away.
const PENDING_RESETS: usize = 200;
/// Streams that this side has reset for a mistake of the client's, likewise.
const FAULTY_STREAMS: usize = 100;
/// How long a client that is told to go away may take to say that it has heard it.
const LAST_CALL: Duration = Duration::from_secs(5);

/// Serves `stream`, of which `start` has been read.
pub async fn serve(stream: Stream, start: Bytes, client: Rc<Client>, bounds: &Bounds, worker: &Worker) {
    let _parsing = worker.tide.parse();
    let deadline = client.deadline();
    deadline.multiplex(bounds.keepalive_timeout);
    deadline.follow_pace(bounds.stream_timeout, bounds.min_response_rate);
    let frames = Rc::new(RefCell::new(Frames::new(deadline.now_ms())));
    let streams = Streams::new(&client);
    let service = service_fn(|mut request: Request<Incoming>| {
        let (method, frames, streams) = (request.method().clone(), frames.clone(), streams.clone());
        let switch = connect::translate(&mut request).then(|| hyper::upgrade::on(&mut request));
        let deadline = streams.begin(request.body().is_end_stream());
        gateway::serve(client.clone(), request, deadline.clone()).map_ok(move |response| {
            let response = match switch {
                Some(switch) => streams.switch(response, switch, deadline.clone(), frames.clone()),
                None => response,
            };
            StreamBody::answer(response, &method, deadline, &frames)
        })
    });
    let io = Followed::new(stream, start, client.clone(), frames.clone(), bounds);
    // No hyper timer: the deadlines bound every phase, a dead client's too, so nobody is sent a PING.
    let connection = http2::Builder::new(streams.clone())
        .enable_connect_protocol()
        .max_concurrent_streams(bounds.max_streams)
        .max_header_list_size(u32::try_from(bounds.max_header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(FAULTY_STREAMS)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = Box::pin(connection);
    let mut leaving = false;
    let ended = poll_fn(|cx| {
        deadline.register(cx.waker());
        if deadline.is_cut() {
            return Poll::Ready(Ok(()));
        }
        let idle = deadline.expired() == Some(Phase::Idle);
        // Before its first request the client may not even have said that it speaks HTTP/2.
        let drains = worker.draining() && (deadline.phase() != Phase::Head || worker.closing());
        if (idle || drains) && !leaving {
            leaving = true;
            last_call(&client);
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(ended);
        }
        let late = deadline.expired().or(deadline.is_head_late().then_some(Phase::Head));
        if late.is_none() && !deadline.is_slow() {
            return Poll::Pending;
        }
        if late == Some(Phase::Head) {
            deadline.fail();
        }
        worker.count_timeout(late.map_or_else(|| deadline.ends_slow(), Phase::timeout));
        Poll::Ready(Ok(()))
    })
    .await;
    let flood = frames.borrow().flood().map(|flood| flood.reason());
    let fault = ended.err().and_then(|error| reason(&error));
    if let Some(reason) = flood.or(fault) {
        // Its streams are woken after this.
        deadline.fail();
        tracing::debug!(client = %client.peer, reason = reason.label(), "ended an HTTP/2 connection");
        worker.count_timeout(Some(reason));
    }
}

/// From now on the connection is idle no longer than a client needs to hear of it.
fn last_call(client: &Client) {
    client.deadline().goes_away();
    client.deadline().multiplex(LAST_CALL);
    if client.deadline().phase() == Phase::Idle {
        client.deadline().arm(Phase::Idle, LAST_CALL);
    }
}

/// Under which reason a connection is counted that this side ended for what its client sent.
fn reason(error: &hyper::Error) -> Option<Cutoff> {
    let error = error.source()?.downcast_ref::<h2::Error>()?;
    if !(error.is_go_away() && error.is_library()) {
        return None;
    }
    match error.reason()? {
        Reason::NO_ERROR => None,
        Reason::ENHANCE_YOUR_CALM => Some(Cutoff::H2Abuse),
        _ => Some(Cutoff::H2Protocol),
    }
}
