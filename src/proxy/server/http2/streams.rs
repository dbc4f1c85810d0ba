//! The streams of an HTTP/2 connection. Each is a task of its own, and an expired timer ends that task only.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::rt::Executor;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::task::spawn_local;

use crate::proxy::account::body::ResponseBody;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::context::ClientConnection;
use crate::proxy::head::extended_connect;
use crate::proxy::server::http2::frames::FrameMonitor;
use crate::proxy::server::http2::tunnel_stream::TunnelStream;
use crate::proxy::words::refusal::Refusal;

/// Size of the first piece of a response that the library gets: the payload of a frame.
const PIECE_MIN: usize = 16 * 1024;
/// Size up to which pieces grow for a client that keeps up, so that many frames are ready at once.
const PIECE_USUAL: usize = 32 * 1024;
/// Maximum size of a piece of a bulk transfer. Such pieces are in shared buffers, of which there are few.
const PIECE_MAX: usize = 256 * 1024;
/// More bytes than one read returns outside of bulk transfers.
const BULK_MIN: usize = 64 * 1024 + 1;
/// A piece is at most this part of the client's window. A client with a small window takes no large piece at once.
const WINDOW_PARTS: usize = 16;

/// Spawns the tasks of streams, on the worker's thread.
#[derive(Clone)]
pub struct StreamSpawner {
    client: Rc<ClientConnection>,
    /// The request that has just begun. The library spawns its stream next.
    begun: Rc<Cell<Option<RequestDeadline>>>,
}

impl StreamSpawner {
    pub fn new(client: &Rc<ClientConnection>) -> StreamSpawner {
        StreamSpawner { client: client.clone(), begun: Rc::default() }
    }

    /// Begins a request. `whole`: it has no body. The library spawns its stream next.
    pub fn begin_request(&self, whole: bool) -> RequestDeadline {
        let deadline = self.client.connection().start_request(whole);
        self.begun.set(Some(deadline.clone()));
        deadline
    }

    /// Turns the 101 response of an upstream server into the 200 response that extended CONNECT needs, and spawns the
    /// tunnel. Other responses stay as they are.
    pub fn upgrade_response(
        &self,
        mut response: Response<ResponseBody>,
        switch: OnUpgrade,
        deadline: RequestDeadline,
        frames: Rc<RefCell<FrameMonitor>>,
    ) -> Response<ResponseBody> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        // The tunnel belongs to this response: no other request has run since it was set.
        let (client, tunnel) = (self.client.clone(), self.client.tunnel.take());
        spawn_local(async move {
            let Some(tunnel) = tunnel else { return };
            let Ok(stream) = switch.await else { return tunnel.abandon() };
            let is_over = |cx: &mut Context<'_>| deadline.poll_stream_cut(cx.waker()) || client.connection().is_cut();
            let stream = TunnelStream { stream: TokioIo::new(stream), frames };
            tunnel.run(Box::new(stream), Vec::new(), Box::new(is_over)).await;
        });
        extended_connect::translate_to_success(&mut response);
        response
    }
}

impl<F: Future<Output = ()> + 'static> Executor<F> for StreamSpawner {
    fn execute(&self, stream: F) {
        // Boxed, because it takes kilobytes: the runtime moves a future several times before and after it runs.
        let stream = Box::pin(stream);
        match self.begun.take() {
            Some(deadline) => drop(spawn_local(run_stream(stream, deadline, self.client.clone()))),
            None => drop(spawn_local(stream)),
        }
    }
}

/// Runs `stream`, and waits for the rest of a request body that lasts longer than the response. A timer to which the
/// request has not reacted ends both.
async fn run_stream(stream: impl Future<Output = ()> + Unpin, deadline: RequestDeadline, client: Rc<ClientConnection>) {
    let mut late = run_response(stream, &deadline).await;
    if late.is_none() {
        late = wait_for_end(&deadline).await;
    }
    if let Some(awaited) = late {
        deadline.cut_stream();
        if let Some(end) = awaited.end() {
            client.worker.process.metrics.rejected_counter(end).inc();
        }
    }
    deadline.unregister_tasks();
}

/// Runs `stream` to its end. Returns what it waited for if its timer has expired; dropping it resets the stream.
async fn run_response(mut stream: impl Future<Output = ()> + Unpin, deadline: &RequestDeadline) -> Option<RequestWait> {
    poll_fn(|cx| {
        deadline.register_task(cx.waker());
        if Pin::new(&mut stream).poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        deadline.expired_wait().map_or(Poll::Pending, |awaited| Poll::Ready(Some(awaited)))
    })
    .await
}

/// Waits for the end of the request. Returns what it waited for if its timer has expired.
async fn wait_for_end(deadline: &RequestDeadline) -> Option<RequestWait> {
    poll_fn(|cx| {
        deadline.register_task(cx.waker());
        match deadline.expired_wait() {
            None if deadline.is_over() => Poll::Ready(None),
            None => Poll::Pending,
            late => Poll::Ready(late),
        }
    })
    .await
}

/// A response body in pieces, which the library gets when the client's window has room.
pub struct StreamBody {
    body: ResponseBody,
    /// The rest of a frame that was larger than a piece.
    rest: Bytes,
    /// The response has no body, even if its headers state one.
    absent: bool,
    /// Bytes that the library has got.
    sent: u64,
    /// Size of the next piece, and the time on the coarse clock when the library got the last one.
    piece_size: usize,
    piece_ms: u64,
    deadline: RequestDeadline,
    frames: Rc<RefCell<FrameMonitor>>,
}

impl StreamBody {
    /// Wraps the body of a response to a request with `method`.
    pub fn wrap_response(
        response: Response<ResponseBody>,
        method: &Method,
        deadline: RequestDeadline,
        frames: &Rc<RefCell<FrameMonitor>>,
    ) -> Response<StreamBody> {
        frames.borrow_mut().record_response();
        let (mut parts, body) = response.into_parts();
        let is_head = *method == Method::HEAD;
        if let (true, Some(length @ 1..)) = (is_head, body.size_hint().exact()) {
            parts.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
        }
        let absent = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let body = StreamBody {
            body,
            rest: Bytes::new(),
            absent,
            sent: 0,
            piece_size: PIECE_MIN,
            piece_ms: 0,
            deadline,
            frames: frames.clone(),
        };
        Response::from_parts(parts, body)
    }

    /// Returns the size of the next piece of `data`. The library takes a piece when the client's window has room for
    /// its first byte, and the response ends here with the last piece. If the window may not have room for all of that,
    /// the last piece is one byte, so that the client must have read everything before it.
    fn next_piece_size(&self, data: &Bytes) -> usize {
        let is_last = data.len() <= self.piece_size && self.body.is_end_stream();
        match self.sent + data.len() as u64 > u64::from(self.frames.borrow().window()) {
            true if is_last => data.len().saturating_sub(1).max(1),
            _ => data.len().min(self.piece_size),
        }
    }

    /// Doubles the size of pieces while the library gets several in one tick of the coarse clock. `ready`: bytes that
    /// the server has sent.
    fn adapt_piece_size(&mut self, ready: usize) {
        let now_ms = self.deadline.now_ms();
        let is_fast = now_ms == std::mem::replace(&mut self.piece_ms, now_ms);
        let window = usize::try_from(self.frames.borrow().window()).unwrap_or(usize::MAX);
        let most = if ready >= BULK_MIN { PIECE_MAX } else { PIECE_USUAL };
        let largest = (window / WINDOW_PARTS).clamp(PIECE_MIN, most);
        self.piece_size = if is_fast { (2 * self.piece_size).min(largest) } else { PIECE_MIN };
    }
}

/// A piece of a response. Reports what the library has written of it: what the client's windows had room for.
pub struct StreamPiece {
    bytes: Bytes,
    deadline: RequestDeadline,
}

impl Buf for StreamPiece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.deadline.record_written(count);
    }
}

impl HttpBody for StreamBody {
    type Data = StreamPiece;
    type Error = Refusal;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<StreamPiece>, Refusal>>> {
        let frame = match self.rest.is_empty() {
            true => match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            },
            false => Frame::data(std::mem::take(&mut self.rest)),
        };
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        };
        self.adapt_piece_size(data.len());
        let piece = self.next_piece_size(&data);
        if data.len() > piece {
            self.rest = data.split_off(piece);
        }
        self.sent += data.len() as u64;
        self.deadline.send_piece(data.len());
        self.frames.borrow_mut().record_piece(data.len());
        let piece = StreamPiece { bytes: data, deadline: self.deadline.clone() };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.absent || (self.rest.is_empty() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
