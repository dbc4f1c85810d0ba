//! HTTP/2 towards an upstream server: `streams` are the connections of one server, `request` turns the head
//! of a request into its form; here is one connection, which many requests share. Kept by `pool`, used by
//! `exchange`. What the library reads passes `frame_guard`.

pub mod exchange;
pub mod frame_guard;
mod request;
pub mod streams;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use http::Request;
use tokio::task::{AbortHandle, spawn_local};

use self::frame_guard::{FrameBudget, GuardedConnection};
use super::connect::{ConnectError, ConnectFault, UpstreamConnection};
use super::h1::HEAD_MAX;
use crate::sampled::Sampled;

/// Requests on one connection at once, at most; the server may allow fewer.
pub const STREAMS_MAX: usize = 100;
/// Bytes of an answer that wait for a slow client. All streams of a connection may have as many: one that is
/// read slowly holds up no other.
const WINDOW: u32 = 128 * 1024;
/// Bytes of a request body that wait for the server.
const SEND_BUFFER: usize = 64 * 1024;
/// How long a server that may be gone is given to answer a ping.
const PONG_MS: u64 = 5_000;

pub struct Http2Connection {
    sender: RefCell<SendRequest<Bytes>>,
    in_use: Cell<usize>,
    /// It has served a request.
    pub served: Cell<bool>,
    /// It takes no further request.
    retired: Cell<bool>,
    ping: RefCell<PingPong>,
    /// When the server was asked whether it is there.
    asked_ms: Cell<Option<u64>>,
    /// Those that the server may send.
    pub frames: Rc<FrameBudget>,
    pub born_ms: u64,
    /// Since the last request on it ended.
    pub idle_ms: Cell<u64>,
    driver: AbortHandle,
}

impl Http2Connection {
    /// Begins HTTP/2 on a new connection, and waits until the server has said how much it takes. A line of
    /// the log, sampled by `floods`, tells when the connection ends because the server sent too many frames.
    pub async fn start(
        connection: UpstreamConnection,
        now_ms: u64,
        server: &str,
        floods: &Rc<Sampled>,
    ) -> Result<Rc<Http2Connection>, ConnectError> {
        let frames = FrameBudget::new();
        let connection = GuardedConnection::new(connection, frames.clone());
        let opened = Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * u32::try_from(STREAMS_MAX).unwrap_or(1))
            .initial_max_send_streams(0)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(HEAD_MAX).unwrap_or(u32::MAX))
            .handshake(connection)
            .await;
        let (sender, mut connection) = opened.map_err(fault)?;
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(fault(error))),
            Poll::Ready(Ok(())) => Poll::Ready(Err(fault(io::Error::from(io::ErrorKind::UnexpectedEof)))),
            Poll::Pending if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let ping = connection.ping_pong().ok_or_else(|| fault("no ping"))?;
        let (counted, floods, server) = (frames.clone(), floods.clone(), server.to_owned());
        let driver = spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection to an upstream ended");
            }
            if let (true, Some(left_out)) = (counted.is_exceeded(), floods.due()) {
                tracing::warn!(server, left_out, "closed an HTTP/2 connection: the server floods it with frames");
            }
        });
        Ok(Rc::new(Http2Connection {
            sender: RefCell::new(sender),
            in_use: Cell::new(0),
            served: Cell::new(false),
            retired: Cell::new(false),
            ping: RefCell::new(ping),
            asked_ms: Cell::new(None),
            frames,
            born_ms: now_ms,
            idle_ms: Cell::new(now_ms),
            driver: driver.abort_handle(),
        }))
    }

    /// How many requests it takes at once.
    pub fn room(&self) -> usize {
        self.sender.borrow().current_max_send_streams().min(STREAMS_MAX)
    }

    /// Whether it takes another request now.
    pub fn has_room(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !self.is_retired()
            && self.asked_ms.get().is_none()
            && self.in_use.get() < self.room()
            && matches!(self.sender.borrow_mut().poll_ready(&mut cx), Poll::Ready(Ok(())))
    }

    pub fn enter(&self) {
        self.in_use.set(self.in_use.get() + 1);
    }

    pub fn leave(&self, now_ms: u64) {
        self.in_use.set(self.in_use.get() - 1);
        self.idle_ms.set(now_ms);
    }

    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Sends a head; `whole`: no body follows.
    pub fn poll_open(
        &self,
        cx: &mut Context<'_>,
        request: &mut Option<Request<()>>,
        whole: bool,
    ) -> Poll<Result<(ResponseFuture, SendStream<Bytes>), h2::Error>> {
        let mut sender = self.sender.borrow_mut();
        ready!(sender.poll_ready(cx))?;
        self.frames.sent_request();
        Poll::Ready(sender.send_request(request.take().unwrap_or_default(), whole))
    }

    /// What runs on it goes on, nothing more begins.
    pub fn retire(&self) {
        self.retired.set(true);
    }

    pub fn is_retired(&self) -> bool {
        self.retired.get() || self.driver.is_finished()
    }

    /// A request waited in vain: the server may be gone, and is asked. Nothing more begins meanwhile.
    pub fn doubt(&self, now_ms: u64) {
        if self.asked_ms.get().is_none() && self.ping.borrow_mut().send_ping(Ping::opaque()).is_ok() {
            self.asked_ms.set(Some(now_ms));
        }
    }

    /// Looks for the answer to that, and ends a connection on which there is none.
    pub fn look(&self, now_ms: u64) {
        let Some(asked_ms) = self.asked_ms.get() else { return };
        match self.ping.borrow_mut().poll_pong(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => self.asked_ms.set(None),
            Poll::Ready(Err(_)) => self.retire(),
            Poll::Pending if now_ms >= asked_ms + PONG_MS => {
                self.retire();
                self.driver.abort();
            }
            Poll::Pending => {}
        }
    }
}

fn fault(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectError {
    ConnectError { fault: ConnectFault::Protocol, reason: io::Error::other(reason) }
}
