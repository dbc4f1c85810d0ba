//! The request body on its way from the client, with its size limit and its deadlines. The exchange with the upstream
//! forwards it, or the echo server sends it back.

use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Body as _, Frame, SizeHint};

use crate::ends::End;
use crate::proxy::connection::body::discard::{data_length, discard_within};
use crate::proxy::connection::body_copy::BodyCopy;
use crate::proxy::connection::body_memory::{BodyPermit, GatheredBody};
use crate::proxy::connection::min_rate::MinRate;
use crate::proxy::connection::request_deadline::RequestDeadline;
use crate::proxy::connection::request_state::RequestWait;
use crate::proxy::head::body::{BodyFault, RequestBody};
use crate::proxy::head::http2_head;
use crate::route::Timeouts;

/// A request body with its size limit and its deadlines.
pub struct Upload {
    body: RequestBody,
    /// Set over HTTP/2, where the body can end early without ending the connection.
    on_stream: Option<UnreadGuard>,
    /// Frames that were read in advance or put back, in order.
    ahead: VecDeque<Frame<Bytes>>,
    progress: Rc<UploadProgress>,
    max_bytes: u64,
    /// Names of the trailers that are forwarded: those that the forwarded head announces. All others are dropped.
    allowed_trailers: Vec<HeaderName>,
    /// The permit for the memory of a large body that was read in advance. The last of its frames releases it.
    permit: Option<Arc<BodyPermit>>,
    /// Gets everything that is read of the body.
    copy: Option<Box<BodyCopy>>,
}

/// Marks the upload as unread if it is dropped before its end.
struct UnreadGuard(Rc<UploadProgress>);

/// Progress of an upload, and which side it waits for. This determines the deadline of the request.
pub struct UploadProgress {
    deadline: RequestDeadline,
    timeouts: Timeouts,
    state: Cell<UploadState>,
    /// The framing of the body was invalid. Over HTTP/2, the library has reset the stream.
    malformed: Cell<bool>,
    stage: Cell<ResponseStage>,
    /// Bytes received from the client.
    received: Cell<u64>,
    /// Bytes sent to the upstream server, framing included.
    sent_bytes: Cell<u64>,
    /// The side that was last waited for.
    wait: Cell<Option<WaitingSide>>,
    /// The body is the message stream of a gRPC call over HTTP/2.
    is_grpc: bool,
    /// An HTTP/2 server gets that call.
    is_call: Cell<bool>,
    /// Rate at which the client sends, measured while the gateway waits for it.
    pace: MinRate,
}

/// State of a request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UploadState {
    #[default]
    Running,
    Done,
    /// The body is larger than the route allows.
    TooLarge,
    /// The framing of the body is invalid.
    Broken,
    /// The client disconnected.
    Left,
    /// The reader dropped the body before its end.
    Unread,
}

impl UploadState {
    /// Returns true if the client is the reason that the body is incomplete.
    pub fn is_client_fault(self) -> bool {
        matches!(self, UploadState::TooLarge | UploadState::Broken | UploadState::Left)
    }

    /// Returns the end of a request whose body ended in this state before it was complete.
    pub fn end(self) -> End {
        match self {
            UploadState::TooLarge => End::BodyTooLarge,
            UploadState::Left => End::ClientLeft,
            UploadState::Broken | UploadState::Running | UploadState::Done | UploadState::Unread => End::BodyMalformed,
        }
    }
}

/// Progress of the response in the meantime.
#[derive(Clone, Copy)]
enum ResponseStage {
    /// There is no response yet.
    Asking,
    /// The response streams. As long as data moves in one direction, the other is not late.
    Answering,
    /// The response has been sent. After the upload, the connection may be idle for `keepalive`.
    Answered { keepalive: Duration },
}

/// The side that is waited for, with the number of bytes that it had moved when the wait began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitingSide {
    Client(u64),
    Upstream(u64),
}

/// The error of an exchange whose request body cannot be completed.
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

    /// Returns true if the framing of the body was invalid.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// Returns the number of bytes received.
    pub fn received_bytes(&self) -> u64 {
        self.received.get()
    }

    /// Records that an HTTP/2 server gets the request. The messages of a gRPC call may now pause for `stream_timeout`,
    /// like those of its response, because a call occupies a stream and not a connection. HTTP/1.1 servers do not speak
    /// gRPC, so there a slow body that only claims to be gRPC keeps the deadlines of request bodies.
    pub fn start_http2_stream(&self) {
        if self.is_grpc && !self.is_call.replace(true) {
            self.pace.set(self.timeouts.stream, 0);
        }
    }

    /// Returns true if the body has the deadlines of a gRPC call.
    pub fn is_grpc_call(&self) -> bool {
        self.is_call.get()
    }

    /// Records that the response head has arrived.
    pub fn response_started(&self) {
        self.stage.set(ResponseStage::Answering);
    }

    /// Records that the response has been sent. `keepalive`: how long the connection may be idle after the upload.
    pub fn response_sent(&self, keepalive: Duration) {
        self.stage.set(ResponseStage::Answered { keepalive });
        self.wait.set(None);
        match self.state.get() {
            UploadState::Running => self.deadline.arm(RequestWait::Upload, self.timeouts.body),
            _ => self.deadline.end(keepalive),
        }
    }

    /// Records that `bytes` were sent to the upstream server.
    pub fn bytes_sent(&self, bytes: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + bytes as u64);
        self.wait.set(None);
        if let ResponseStage::Answering = self.stage.get() {
            self.deadline.arm(RequestWait::Stream, self.timeouts.stream);
        }
    }

    /// Records that the whole body was sent to the upstream server.
    pub fn upload_sent(&self) {
        if let ResponseStage::Asking = self.stage.get() {
            self.deadline.arm(RequestWait::Response, self.timeouts.response);
        }
    }

    /// Sets the deadline for an upstream server that accepts no more data at the moment.
    pub fn wait_for_upstream(&self) {
        let sent_bytes = self.sent_bytes.get();
        let wait = Some(WaitingSide::Upstream(sent_bytes));
        if matches!(self.stage.get(), ResponseStage::Answering) || self.wait.get() == wait {
            return;
        }
        self.wait.set(wait);
        let most = if self.is_grpc_call() { Duration::MAX } else { self.timeouts.body };
        self.deadline.arm(RequestWait::Response, most.min(self.timeouts.response));
    }

    /// Sets the deadline for more data from the client.
    fn wait_for_client(&self) {
        let wait = Some(WaitingSide::Client(self.received.get()));
        if matches!(self.stage.get(), ResponseStage::Answering) || self.wait.get() == wait {
            return;
        }
        self.wait.set(wait);
        let now_ms = self.deadline.now_ms();
        self.pace.begin_wait(now_ms);
        self.deadline.arm(RequestWait::Upload, self.pace.time_left(now_ms));
    }

    /// Ends the upload and sets the next deadline of the request.
    fn finish(&self, state: UploadState) {
        self.state.set(state);
        if state != UploadState::Done {
            if let ResponseStage::Answered { .. } = self.stage.get() {
                self.deadline.end_by_client();
            }
            return;
        }
        self.deadline.mark_body_read();
        match self.stage.get() {
            ResponseStage::Asking => self.deadline.arm(RequestWait::Response, self.timeouts.response),
            ResponseStage::Answering => {}
            ResponseStage::Answered { keepalive } => self.deadline.end(keepalive),
        }
    }
}

impl Upload {
    pub fn new(
        body: RequestBody,
        on_stream: bool,
        is_grpc: bool,
        deadline: RequestDeadline,
        timeouts: Timeouts,
        max_bytes: u64,
    ) -> Upload {
        let progress = Rc::new(UploadProgress {
            pace: MinRate::new(timeouts.body, timeouts.min_body_rate),
            timeouts,
            state: Cell::default(),
            malformed: Cell::default(),
            stage: Cell::new(ResponseStage::Asking),
            received: Cell::new(0),
            sent_bytes: Cell::new(0),
            wait: Cell::new(None),
            is_grpc: is_grpc && on_stream,
            is_call: Cell::new(false),
            deadline,
        });
        let on_stream = on_stream.then(|| UnreadGuard(progress.clone()));
        Upload {
            body,
            on_stream,
            ahead: VecDeque::new(),
            progress,
            max_bytes,
            allowed_trailers: Vec::new(),
            permit: None,
            copy: None,
        }
    }

    /// Returns true if nothing has been read of the body.
    pub fn is_untouched(&self) -> bool {
        self.progress.received_bytes() == 0 && self.progress.state() == UploadState::Running
    }

    /// Gives everything that is read of the body to `copy`, also what was read in advance.
    pub fn copy_to(&mut self, mut copy: BodyCopy) {
        self.ahead.iter().filter_map(Frame::data_ref).for_each(|data| copy.push(data));
        match self.progress.state() {
            UploadState::Done => copy.finish(),
            _ => self.copy = Some(Box::new(copy)),
        }
    }

    /// Ends the copy of a body that has been read to its end.
    fn finish_copy(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.finish();
        }
    }

    /// Forwards trailers with these names.
    pub fn allow_trailers(&mut self, names: Vec<HeaderName>) {
        self.allowed_trailers = names;
    }

    pub fn progress(&self) -> &UploadProgress {
        &self.progress
    }

    /// Returns a handle to the progress that outlives the upload.
    pub fn share_progress(&self) -> Rc<UploadProgress> {
        self.progress.clone()
    }

    /// Returns frames that were read, so that they are read again.
    pub fn put_back(&mut self, frames: impl DoubleEndedIterator<Item = Frame<Bytes>>) {
        frames.rev().for_each(|frame| self.ahead.push_front(frame));
    }

    /// Reads the body to its end. Returns `None` as soon as more than `max` bytes have arrived, or more than `permit`
    /// gets memory for. The next reader still gets the whole body.
    ///
    /// # Errors
    /// The body did not arrive completely.
    pub async fn read_ahead(&mut self, max: usize, permit: BodyPermit) -> Result<Option<Bytes>, UploadState> {
        let (mut body, mut trailers) = (GatheredBody::new(permit), None);
        let whole = loop {
            match poll_fn(|cx| self.poll(cx)).await {
                None => break true,
                Some(Err(UploadError(state))) => return Err(state),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => {
                        if !body.push(piece) || body.len() > max {
                            break false;
                        }
                    }
                    Err(frame) => trailers = Some(frame),
                },
            }
            if self.progress.state() == UploadState::Done {
                break true;
            }
        };
        self.progress.wait.set(None);
        let (data, permit) = body.finish();
        self.permit = permit;
        let first = Some(data.clone()).filter(|data| !data.is_empty()).map(Frame::data);
        self.put_back([first, trailers].into_iter().flatten());
        Ok(whole.then_some(data))
    }

    /// Replaces the data of a body that was read ahead completely. The trailers stay.
    pub fn replace_data(&mut self, data: Bytes) {
        self.ahead.retain(|frame| frame.is_trailers());
        let data = match &self.permit {
            Some(permit) => permit.keep_for(data),
            None => data,
        };
        self.ahead.push_front(Frame::data(data));
    }

    /// Returns the unread rest of the body, if there is one.
    pub fn into_unread(self) -> Option<RequestBody> {
        (self.progress.state() != UploadState::Done).then_some(self.body)
    }

    /// Polls for the next frame.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if self.on_stream.is_some() && self.progress.deadline.poll_stream_cut(cx.waker()) {
            return self.fail(UploadState::Broken);
        }
        if let Some(frame) = self.ahead.pop_front() {
            // From here on, the frame keeps it.
            self.permit = None;
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.progress.state() == UploadState::Done {
            return Poll::Ready(None);
        }
        let poll = Pin::new(&mut self.body).poll_frame(cx);
        self.progress.deadline.set_starved(poll.is_pending());
        match poll {
            Poll::Pending => {
                self.progress.wait_for_client();
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.progress.finish(UploadState::Done);
                self.finish_copy();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(BodyFault::Malformed))) => {
                self.progress.malformed.set(true);
                self.fail(UploadState::Broken)
            }
            Poll::Ready(Some(Err(BodyFault::CutOff))) => self.fail(UploadState::Left),
            Poll::Ready(Some(Ok(frame)))
                if self.on_stream.is_some() && frame.trailers_ref().is_some_and(http2_head::has_padded_value) =>
            {
                self.fail(UploadState::Broken)
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                self.clean_trailers(&mut frame);
                if frame.trailers_ref().is_some_and(HeaderMap::is_empty) {
                    // Only the end of the body follows.
                    return self.poll(cx);
                }
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let total = self.progress.received.get() + length;
                self.progress.received.set(total);
                self.progress.pace.credit_bytes(self.progress.deadline.now_ms(), length);
                if total > self.max_bytes {
                    return self.fail(UploadState::TooLarge);
                }
                if let (Some(copy), Some(data)) = (&mut self.copy, frame.data_ref()) {
                    copy.push(data);
                }
                if self.body.is_end_stream() {
                    self.progress.finish(UploadState::Done);
                    self.finish_copy();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn clean_trailers(&self, frame: &mut Frame<Bytes>) {
        let Some(trailers) = frame.trailers_mut() else { return };
        let received = std::mem::take(trailers);
        for name in &self.allowed_trailers {
            trailers.extend(received.get_all(name).iter().map(|value| (name.clone(), value.clone())));
        }
    }

    pub fn is_end(&self) -> bool {
        self.ahead.is_empty() && (self.body.is_end_stream() || self.progress.state() == UploadState::Done)
    }

    pub fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint();
        match rest.exact() {
            Some(length) => SizeHint::with_exact(self.ahead_bytes() + length),
            None => rest,
        }
    }

    /// Returns the length of the unread body; `None` if it is not known yet. A body of a length that was not announced
    /// has a known length once it was read ahead to its end, but it keeps its framing, which its trailers may need.
    pub fn find_length(&self) -> Option<u64> {
        match self.progress.state() {
            UploadState::Done => Some(self.ahead_bytes()),
            _ => self.size_hint().exact(),
        }
    }

    fn ahead_bytes(&self) -> u64 {
        self.ahead.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum()
    }

    /// Reads and discards the rest, within the bounds for that. Closing the connection at once would reset it, and the
    /// client could lose the response.
    pub async fn discard(mut self) {
        if self.on_stream.is_some() {
            // The connection discards the rest of a body that is dropped.
            return;
        }
        discard_within(|cx| self.poll(cx).map(|next| next?.ok().map(|frame| data_length(&frame)))).await;
    }

    fn fail(&mut self, state: UploadState) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        self.copy = None;
        self.progress.finish(state);
        Poll::Ready(Some(Err(UploadError(state))))
    }
}

impl Drop for UnreadGuard {
    fn drop(&mut self) {
        if self.0.state() == UploadState::Running {
            self.0.finish(UploadState::Unread);
        }
    }
}
