//! The streams of an HTTP/2 connection: each a task that its own deadline ends, and nobody else's. Spawned
//! for the connection in `h2`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::rt::Executor;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::task::spawn_local;

use super::frames::Frames;
use super::tunnel_stream::TunnelStream;
use crate::http::answer::body::{Body, BodyError};
use crate::http::context::Client;
use crate::http::deadline::{Awaited, RequestDeadline};

/// Bytes of an answer that leave as one piece: as many as a frame holds.
const PIECE_MAX: usize = 16 * 1024;

/// Starts streams, on this thread.
#[derive(Clone)]
pub struct Streams {
    client: Rc<Client>,
    /// Of the request that has just begun and whose stream comes next.
    begun: Rc<Cell<Option<RequestDeadline>>>,
}

impl Streams {
    pub fn new(client: &Rc<Client>) -> Streams {
        Streams { client: client.clone(), begun: Rc::default() }
    }

    /// A request begins, without a body if it is `whole`; its stream is executed next.
    pub fn begin(&self, whole: bool) -> RequestDeadline {
        let deadline = self.client.deadline().begin(whole);
        self.begun.set(Some(deadline.clone()));
        deadline
    }

    /// The answer to an extended CONNECT, and the tunnel that it opens if a server has switched.
    pub fn switch(
        &self,
        mut response: Response<Body>,
        switch: OnUpgrade,
        deadline: RequestDeadline,
        frames: Rc<RefCell<Frames>>,
    ) -> Response<Body> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        // Made with this answer, and of no other stream: nothing has run in between.
        let (client, tunnel) = (self.client.clone(), self.client.tunnel.take());
        spawn_local(async move {
            let Some(tunnel) = tunnel else { return };
            let Ok(stream) = switch.await else { return tunnel.leave(&client) };
            let is_over = |cx: &mut Context<'_>| deadline.poll_cut(cx.waker()) || client.deadline().is_cut();
            let stream = TunnelStream { stream: TokioIo::new(stream), frames };
            tunnel.run(&client, stream, Vec::new(), |_| None, is_over).await;
        });
        *response.status_mut() = StatusCode::OK;
        for of_handshake in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
            response.headers_mut().remove(of_handshake);
        }
        response
    }
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        match self.begun.take() {
            Some(deadline) => drop(spawn_local(keep(stream, deadline, self.client.clone()))),
            None => drop(spawn_local(stream)),
        }
    }
}

/// Runs `stream`, and waits for the rest of a request body that outlasts its answer. A deadline that the
/// request did not answer for ends both.
async fn keep(stream: impl Future<Output = ()>, deadline: RequestDeadline, client: Rc<Client>) {
    let mut late = ended(stream, &deadline).await;
    if late.is_none() {
        late = over(&deadline).await;
    }
    if let Some(awaited) = late {
        deadline.cut();
        if let Some(reason) = awaited.timeout() {
            client.local.common.metrics.http_rejected(reason).inc();
        }
    }
    deadline.forget();
}

/// Waits for the end of `stream`. What does not come in time ends it: being dropped, it resets itself.
async fn ended(stream: impl Future<Output = ()>, deadline: &RequestDeadline) -> Option<Awaited> {
    let mut stream = pin!(stream);
    poll_fn(|cx| {
        deadline.keep(cx.waker());
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        deadline.expired().map_or(Poll::Pending, |awaited| Poll::Ready(Some(awaited)))
    })
    .await
}

async fn over(deadline: &RequestDeadline) -> Option<Awaited> {
    poll_fn(|cx| {
        deadline.keep(cx.waker());
        match deadline.expired() {
            None if deadline.is_over() => Poll::Ready(None),
            None => Poll::Pending,
            late => Poll::Ready(late),
        }
    })
    .await
}

/// An answer on its stream.
pub struct StreamBody {
    body: Body,
    /// Of a piece that was larger than a frame.
    rest: Bytes,
    /// The answer has none, whatever it says of it.
    absent: bool,
    /// Bytes that have left.
    sent: u64,
    deadline: RequestDeadline,
    frames: Rc<RefCell<Frames>>,
}

impl StreamBody {
    /// The answer to a request with this method.
    pub fn answer(
        response: Response<Body>,
        method: &Method,
        deadline: RequestDeadline,
        frames: &Rc<RefCell<Frames>>,
    ) -> Response<StreamBody> {
        frames.borrow_mut().answered();
        let (mut parts, body) = response.into_parts();
        let is_head = *method == Method::HEAD;
        if let (true, Some(length @ 1..)) = (is_head, body.size_hint().exact()) {
            parts.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
        }
        let absent = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = StreamBody { body, rest: Bytes::new(), absent, sent: 0, deadline, frames: frames.clone() };
        Response::from_parts(parts, body)
    }

    /// How much of `data` leaves as one piece. It is taken from here once the client has room for its first byte,
    /// and the stream is over here with the last piece: so where the client need not have room for all of that,
    /// the last piece is one byte.
    fn piece(&self, data: &Bytes) -> usize {
        let is_last = data.len() <= PIECE_MAX && self.body.is_end_stream();
        match self.sent + data.len() as u64 > u64::from(self.frames.borrow().window()) {
            true if is_last => data.len().saturating_sub(1).max(1),
            _ => data.len().min(PIECE_MAX),
        }
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.deadline.asks();
        let frame = match self.rest.is_empty() {
            true => match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => return other,
            },
            false => Frame::data(std::mem::take(&mut self.rest)),
        };
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        let piece = self.piece(&data);
        if data.len() > piece {
            self.rest = data.split_off(piece);
        }
        self.sent += data.len() as u64;
        self.deadline.gave(data.len());
        self.frames.borrow_mut().sent(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.absent || (self.rest.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
