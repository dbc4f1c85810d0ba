//! The request body on its way from the client, with its deadline and its cap. Made by `gateway`, sent on
//! by the upstream exchange or echoed by `body`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::http::deadline::{Awaited, Pace, RequestDeadline};
use crate::http::downstream::h2;
use crate::route::Timeouts;

/// How long the rest of a body that nobody wants is read, so that the client gets to its answer.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// A client's body with its deadline and cap.
pub struct Upload {
    body: Incoming,
    /// Others go on beside it when it ends, so it ends alone.
    on_stream: Option<StreamUpload>,
    /// What was read before anybody took it, in order.
    ahead: VecDeque<Frame<Bytes>>,
    progress: Rc<UploadProgress>,
    max_bytes: u64,
}

/// An upload that ends with whoever reads it.
struct StreamUpload(Rc<UploadProgress>);

/// How far an upload is, and whom it waits for: that sets the deadline of its request.
pub struct UploadProgress {
    deadline: RequestDeadline,
    timeouts: Timeouts,
    state: Cell<UploadState>,
    /// What came was no body, of which the client was told by a reset of its stream where it has one.
    malformed: Cell<bool>,
    stage: Cell<Stage>,
    /// Bytes from the client.
    seen: Cell<u64>,
    /// Bytes, framing included, that the upstream has taken.
    taken: Cell<u64>,
    /// What was last waited for.
    wait: Cell<Option<Wait>>,
    /// The body is the message stream of a gRPC call over HTTP/2.
    is_grpc: bool,
    /// A server that speaks HTTP/2 has that call.
    is_call: Cell<bool>,
    /// The client's, in what is waited for of it.
    pace: Pace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadState {
    #[default]
    Running,
    Done,
    /// The body is larger than the route allows.
    TooLarge,
    /// The client broke the framing.
    Broken,
    /// The client went away.
    Left,
    /// Nobody reads it any more.
    Unread,
}

impl UploadState {
    /// The client did not complete it, by a fault of its own.
    pub fn is_client_fault(self) -> bool {
        matches!(self, UploadState::TooLarge | UploadState::Broken | UploadState::Left)
    }
}

/// How far the answer is meanwhile.
#[derive(Clone, Copy)]
enum Stage {
    /// There is none yet.
    Asking,
    /// It streams: as long as either side moves, neither is late.
    Answering,
    /// It has been sent, and after the upload the connection may be idle for so long.
    Answered { keepalive: Duration },
}

/// For bytes after so many.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Client(u64),
    Upstream(u64),
}

/// The connection goes on, and what it brings is no body. A stream is reset for that by the library.
fn is_malformed(error: &hyper::Error) -> bool {
    let Some(source) = error.source() else { return false };
    if let Some(error) = source.downcast_ref::<::h2::Error>() {
        return error.is_reset() && error.is_library();
    }
    let source = source.downcast_ref::<io::Error>();
    source.is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
}

/// Ends an exchange whose request body cannot be completed.
#[derive(Debug)]
pub struct UploadError(UploadState);

impl UploadError {
    pub fn state(&self) -> UploadState {
        self.0
    }
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            UploadState::TooLarge => f.write_str("the request body is larger than the route allows"),
            _ => f.write_str("the client did not complete the request body"),
        }
    }
}

impl Error for UploadError {}

impl UploadProgress {
    pub fn state(&self) -> UploadState {
        self.state.get()
    }

    /// Whether what came was no body.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// Bytes that have come.
    pub fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// An HTTP/2 server gets the request. The messages of a gRPC call may now pause for `stream_timeout`, as those of
    /// its response may: such a call holds a stream and no connection. Over HTTP/1.1 there are no gRPC servers, so
    /// a slow body that only claims to be gRPC keeps the deadlines of bodies there.
    pub fn begin_stream(&self) {
        if self.is_grpc && !self.is_call.replace(true) {
            self.pace.follow(self.timeouts.stream, 0);
        }
    }

    /// The body has the deadlines of a gRPC call.
    pub fn is_call(&self) -> bool {
        self.is_call.get()
    }

    /// The head of the answer has arrived.
    pub fn answering(&self) {
        self.stage.set(Stage::Answering);
    }

    /// The answer has been sent, and a connection without a request may be idle for `keepalive`.
    pub fn answered(&self, keepalive: Duration) {
        self.stage.set(Stage::Answered { keepalive });
        self.wait.set(None);
        match self.state.get() {
            UploadState::Running => self.deadline.arm(Awaited::Upload, self.timeouts.body),
            _ => self.deadline.end(keepalive),
        }
    }

    /// The upstream has taken so many bytes more.
    pub fn moved(&self, bytes: usize) {
        self.taken.set(self.taken.get() + bytes as u64);
        self.wait.set(None);
        if let Stage::Answering = self.stage.get() {
            self.deadline.arm(Awaited::Stream, self.timeouts.stream);
        }
    }

    /// Everything has been sent.
    pub fn sent(&self) {
        if let Stage::Asking = self.stage.get() {
            self.deadline.arm(Awaited::Response, self.timeouts.response);
        }
    }

    /// The upstream takes no more at the moment.
    pub fn wait_for_upstream(&self) {
        let taken = self.taken.get();
        let wait = Some(Wait::Upstream(taken));
        if matches!(self.stage.get(), Stage::Answering) || self.wait.get() == wait {
            return;
        }
        self.wait.set(wait);
        let most = if self.is_call() { Duration::MAX } else { self.timeouts.body };
        self.deadline.arm(Awaited::Response, most.min(self.timeouts.response));
    }

    /// Sets the deadline for more bytes.
    fn wait_for_client(&self) {
        let wait = Some(Wait::Client(self.seen.get()));
        if matches!(self.stage.get(), Stage::Answering) || self.wait.get() == wait {
            return;
        }
        self.wait.set(wait);
        let now_ms = self.deadline.now_ms();
        self.pace.wait(now_ms);
        self.deadline.arm(Awaited::Upload, self.pace.left(now_ms));
    }

    fn end(&self, state: UploadState) {
        self.state.set(state);
        if state != UploadState::Done {
            if let Stage::Answered { .. } = self.stage.get() {
                self.deadline.leave();
            }
            return;
        }
        self.deadline.read_whole();
        match self.stage.get() {
            Stage::Asking => self.deadline.arm(Awaited::Response, self.timeouts.response),
            Stage::Answering => {}
            Stage::Answered { keepalive } => self.deadline.end(keepalive),
        }
    }
}

impl Upload {
    pub fn new(
        body: Incoming,
        on_stream: bool,
        is_grpc: bool,
        deadline: RequestDeadline,
        timeouts: Timeouts,
        max_bytes: u64,
    ) -> Upload {
        let progress = Rc::new(UploadProgress {
            pace: Pace::new(timeouts.body, timeouts.min_body_rate),
            timeouts,
            state: Cell::default(),
            malformed: Cell::default(),
            stage: Cell::new(Stage::Asking),
            seen: Cell::new(0),
            taken: Cell::new(0),
            wait: Cell::new(None),
            is_grpc: is_grpc && on_stream,
            is_call: Cell::new(false),
            deadline,
        });
        let on_stream = on_stream.then(|| StreamUpload(progress.clone()));
        Upload { body, on_stream, ahead: VecDeque::new(), progress, max_bytes }
    }

    /// Nobody has asked for anything of it.
    pub fn is_untouched(&self) -> bool {
        self.progress.seen() == 0 && self.progress.state() == UploadState::Running
    }

    pub fn progress(&self) -> &UploadProgress {
        &self.progress
    }

    pub fn share_progress(&self) -> Rc<UploadProgress> {
        self.progress.clone()
    }

    /// What was taken of it comes once more.
    pub fn put_back(&mut self, frames: impl DoubleEndedIterator<Item = Frame<Bytes>>) {
        frames.rev().for_each(|frame| self.ahead.push_front(frame));
    }

    /// Reads the body to its end, or some more than `max` bytes of it; `None` when there is more. Whoever polls
    /// it afterwards gets all of it.
    ///
    /// # Errors
    /// It did not come to its end.
    pub async fn read_ahead(&mut self, max: usize) -> Result<Option<Bytes>, UploadState> {
        let (mut ahead, mut read) = (VecDeque::new(), 0);
        let whole = loop {
            match poll_fn(|cx| self.poll(cx)).await {
                None => break true,
                Some(Err(UploadError(state))) => return Err(state),
                Some(Ok(frame)) => {
                    read += frame.data_ref().map_or(0, Bytes::len);
                    ahead.push_back(frame);
                }
            }
            if read > max {
                break false;
            }
            if self.progress.state() == UploadState::Done {
                break true;
            }
        };
        self.progress.wait.set(None);
        self.ahead = ahead;
        let mut pieces = self.ahead.iter().filter_map(Frame::data_ref);
        Ok(whole.then(|| match (pieces.next(), pieces.next()) {
            (first, None) => first.cloned().unwrap_or_default(),
            _ => self.ahead.iter().filter_map(Frame::data_ref).flatten().copied().collect(),
        }))
    }

    /// What nobody has read and nobody will.
    pub fn into_unread(self) -> Option<Incoming> {
        (self.progress.state() != UploadState::Done).then_some(self.body)
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if self.on_stream.is_some() && self.progress.deadline.poll_cut(cx.waker()) {
            return self.fail(UploadState::Broken);
        }
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.progress.state() == UploadState::Done {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.progress.deadline.starve(polled.is_pending());
        match polled {
            Poll::Pending => {
                self.progress.wait_for_client();
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.progress.end(UploadState::Done);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                let is_malformed = is_malformed(&error);
                self.progress.malformed.set(is_malformed);
                self.fail(if is_malformed { UploadState::Broken } else { UploadState::Left })
            }
            Poll::Ready(Some(Ok(frame)))
                if self.on_stream.is_some() && frame.trailers_ref().is_some_and(h2::has_padded) =>
            {
                self.fail(UploadState::Broken)
            }
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let seen = self.progress.seen.get() + length;
                self.progress.seen.set(seen);
                self.progress.pace.moved(self.progress.deadline.now_ms(), length);
                if seen > self.max_bytes {
                    return self.fail(UploadState::TooLarge);
                }
                if self.body.is_end_stream() {
                    self.progress.end(UploadState::Done);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    pub fn is_end(&self) -> bool {
        self.ahead.is_empty() && (self.body.is_end_stream() || self.progress.state() == UploadState::Done)
    }

    pub fn size_hint(&self) -> SizeHint {
        let ahead: usize = self.ahead.iter().filter_map(Frame::data_ref).map(Bytes::len).sum();
        let rest = self.body.size_hint();
        match rest.exact() {
            Some(length) => SizeHint::with_exact(ahead as u64 + length),
            None => rest,
        }
    }

    /// Reads the rest for nobody, within bounds: closing before would reset the connection, and the
    /// client might lose the answer that is on its way.
    pub async fn discard(mut self) {
        if self.on_stream.is_some() {
            // The client is told that nobody wants it.
            return;
        }
        let rest = async { while let Some(Ok(_)) = poll_fn(|cx| self.poll(cx)).await {} };
        let _ = timeout(DISCARD_TIME, rest).await;
    }

    fn fail(&mut self, state: UploadState) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        self.progress.end(state);
        Poll::Ready(Some(Err(UploadError(state))))
    }
}

impl Drop for StreamUpload {
    fn drop(&mut self) {
        if self.0.state() == UploadState::Running {
            self.0.end(UploadState::Unread);
        }
    }
}
