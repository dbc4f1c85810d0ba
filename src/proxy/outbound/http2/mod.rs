//! HTTP/2 towards servers. This file has one connection, which many requests share. `streams` are the connections of
//! one server, `request` converts the head of a request, `exchange` is one request and its response with `body_sender`,
//! `response_data` and `stream_end`, and `frame_guard` bounds the frames that a server may send.
//!
//! Input: a request and a connection. Output: the response, or an `Refusal`.

pub(crate) mod body_sender;
pub mod frame_guard;
pub(crate) mod request;
pub(crate) mod response_data;
pub(crate) mod stream_end;
pub mod streams;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::Request;
use tokio::task::{AbortHandle, spawn_local};

use crate::ends::End;
use crate::proxy::outbound::dial::{ConnectError, UpstreamConnection};
use crate::proxy::outbound::http2::frame_guard::{FrameBudget, GuardedConnection};
use crate::proxy::outbound::http2::response_data::{OpenResponses, ResponseData};
use crate::telemetry::sampled::LogSampler;
use crate::upstream::HeadBounds;

/// Most concurrent requests on one connection. The server may allow fewer.
pub const STREAMS_MAX: usize = 100;
/// Flow-control window of a stream: the bytes of a response that may wait for a slow client. The window of the
/// connection is large enough for all streams, so a slow one does not hold up the others.
pub const WINDOW: u32 = 128 * 1024;
/// Streams that were reset and that the library remembers, so that it ignores late frames of them.
const RESETS_MAX: usize = 1000;
/// How long it remembers them: longer than a round trip.
const RESET_MEMORY: Duration = Duration::from_secs(5);
/// Bytes of a request body that may wait for the server.
const SEND_BUFFER: usize = 64 * 1024;
/// Small DATA frames that may wait for all clients of a connection, before those of each response are joined.
const UNREAD_FRAMES_MAX: usize = 1000;
/// How long a server that may be gone has to respond to a ping.
const PONG_MS: u64 = 5_000;

/// A shared connection to one server.
pub struct Http2Connection {
    sender: SendRequest<Bytes>,
    /// Requests on the connection.
    in_use: Cell<usize>,
    /// Streams whose response is complete, and that the server has not ended yet.
    awaited_ends: Cell<usize>,
    /// The connection has served a request.
    pub served: Cell<bool>,
    /// The connection accepts no further request.
    retired: Cell<bool>,
    ping: RefCell<PingPong>,
    /// When a ping was sent that the server has not responded to.
    pinged_ms: Cell<Option<u64>>,
    /// The frames that the server may still send.
    pub frames: Rc<FrameBudget>,
    responses: Rc<OpenResponses>,
    pub opened_ms: u64,
    /// When the last request on it ended.
    pub idle_ms: Cell<u64>,
    driver: AbortHandle,
}

impl Http2Connection {
    /// Starts HTTP/2 on a new connection, and waits until the server has stated how many streams it allows. If the
    /// connection ends later because the server sent too many frames, that is logged, sampled by `floods`.
    pub async fn start(
        connection: UpstreamConnection,
        now_ms: u64,
        server: &str,
        bounds: HeadBounds,
        floods: &Rc<LogSampler>,
    ) -> Result<Rc<Http2Connection>, ConnectError> {
        let (frames, responses) = (FrameBudget::new(UNREAD_FRAMES_MAX), Rc::<OpenResponses>::default());
        let connection = GuardedConnection::new(connection, frames.clone());
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * u32::try_from(STREAMS_MAX).unwrap_or(1))
            .initial_max_send_streams(0)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(bounds.bytes).unwrap_or(u32::MAX))
            // `frames` bounds small frames. The library would end all requests for what one of them does not read.
            .data_frame_budget(usize::MAX)
            // When a client disconnects, its stream is reset, and more frames of it may be on their way. `frames`
            // bounds them; the library would end the connection after a number of them in its whole life.
            .max_concurrent_reset_streams(RESETS_MAX)
            .reset_stream_duration(RESET_MEMORY)
            .max_local_error_reset_streams(None)
            .handshake(connection)
            .await;
        let (sender, mut connection) = handshake.map_err(protocol_error)?;
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(protocol_error(error))),
            Poll::Ready(Ok(())) => Poll::Ready(Err(protocol_error(io::Error::from(io::ErrorKind::UnexpectedEof)))),
            Poll::Pending if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let ping = connection.ping_pong().ok_or_else(|| protocol_error("no ping"))?;
        let (counted, floods, server) = (frames.clone(), floods.clone(), server.to_owned());
        let open = responses.clone();
        let driver = spawn_local(async move {
            let result = poll_fn(|cx| {
                let poll = Pin::new(&mut connection).poll(cx);
                if counted.is_paused() {
                    open.join_frames();
                    counted.record_joined();
                }
                poll
            });
            if let Err(error) = result.await {
                tracing::debug!(%error, "an HTTP/2 connection to an upstream ended");
            }
            if let (true, Some(left_out)) = (counted.is_exceeded(), floods.take_turn()) {
                tracing::warn!(server, left_out, "closed an HTTP/2 connection: the server floods it with frames");
            }
        });
        Ok(Rc::new(Http2Connection {
            sender,
            in_use: Cell::new(0),
            awaited_ends: Cell::new(0),
            served: Cell::new(false),
            retired: Cell::new(false),
            ping: RefCell::new(ping),
            pinged_ms: Cell::new(None),
            frames,
            responses,
            opened_ms: now_ms,
            idle_ms: Cell::new(now_ms),
            driver: driver.abort_handle(),
        }))
    }

    /// Returns how many concurrent requests the connection allows.
    pub fn max_streams(&self) -> usize {
        self.sender.current_max_send_streams().min(STREAMS_MAX)
    }

    /// Returns whether the connection accepts another request now.
    pub fn has_capacity(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !self.is_retired()
            && self.pinged_ms.get().is_none()
            && self.in_use.get() < self.max_streams()
            && matches!(self.clone_sender().poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    /// Returns a sender for one request. A shared sender keeps a single waker: the task of a second request would
    /// replace that of the first one, which waits until the server allows its stream.
    fn clone_sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    /// Counts a request that begins.
    pub fn begin_request(&self) {
        self.in_use.set(self.in_use.get() + 1);
    }

    /// Counts a request that has ended.
    pub fn end_request(&self, now_ms: u64) {
        self.in_use.set(self.in_use.get() - 1);
        self.idle_ms.set(now_ms);
    }

    /// Returns the number of requests on the connection.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Sends the head of a request. `whole`: no body follows.
    pub fn poll_send_head(
        &self,
        cx: &mut Context<'_>,
        request: &mut Option<Request<()>>,
        whole: bool,
    ) -> Poll<Result<(ResponseFuture, SendStream<Bytes>), h2::Error>> {
        let mut sender = self.clone_sender();
        ready!(sender.poll_ready(cx))?;
        self.frames.record_request();
        Poll::Ready(sender.send_request(request.take().unwrap_or_default(), whole))
    }

    /// Returns whether the server opens tunnels: it has announced extended CONNECT (RFC 8441).
    pub fn allows_tunnels(&self) -> bool {
        self.sender.is_extended_connect_protocol_enabled()
    }

    /// Returns the data of a response on `stream`.
    pub fn open_response(&self, stream: RecvStream) -> Rc<RefCell<ResponseData>> {
        self.responses.open(stream, &self.frames)
    }

    /// Accepts no further requests. Running ones continue.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    /// Returns whether the connection accepts no further requests, or has ended.
    pub fn is_retired(&self) -> bool {
        self.retired.get() || self.driver.is_finished()
    }

    /// Sends a ping after a request has timed out, because the server may be gone. No request begins until it responds.
    pub fn send_ping(&self, now_ms: u64) {
        if self.pinged_ms.get().is_none() && self.ping.borrow_mut().send_ping(Ping::opaque()).is_ok() {
            self.pinged_ms.set(Some(now_ms));
        }
    }

    /// Checks for the response to the ping, and closes the connection if there is none in time.
    pub fn check_ping(&self, now_ms: u64) {
        let Some(asked_ms) = self.pinged_ms.get() else { return };
        match self.ping.borrow_mut().poll_pong(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => self.pinged_ms.set(None),
            Poll::Ready(Err(_)) => self.retire(),
            Poll::Pending if now_ms >= asked_ms + PONG_MS => {
                self.retire();
                self.driver.abort();
            }
            Poll::Pending => {}
        }
    }
}

fn protocol_error(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectError {
    ConnectError { end: End::ConnectProtocol, reason: io::Error::other(reason) }
}
